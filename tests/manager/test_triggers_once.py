"""Several managers with the same trigger on one store: each time point creates one job, whoever dies."""

from __future__ import annotations

import asyncio
import os
import signal
from itertools import pairwise

import pytest

from everwork.app.settings import id_of, source_of
from tests.app.waiting import until
from tests.manager.conftest import Start
from tests.manager.running import LATE_S, Outside, Said

INTERVAL_MS = 200
pytestmark = pytest.mark.every_engine


async def test_each_time_point_fires_once_over_three_managers_of_which_one_is_killed(
    start: Start, outside: Outside, said: Said
) -> None:
    managers = await asyncio.gather(*(start("Ticker") for _ in range(3)))
    await said.times(3, "startup", "ticker")

    async def points() -> list[int]:
        jobs = await outside.jobs(source_of(id_of("ticker")))
        return sorted(int(str(job.dedupe_key).rpartition(":")[2]) for job in jobs)

    async def fire_more(more: int) -> None:
        wanted = len(await points()) + more

        async def have_fired() -> bool:
            return len(await points()) >= wanted

        await until(have_fired, LATE_S)

    await fire_more(8)
    os.kill(managers[0].pid, signal.SIGKILL)
    await fire_more(8)
    fired = await points()
    assert {later - earlier for earlier, later in pairwise(fired)} == {INTERVAL_MS}
