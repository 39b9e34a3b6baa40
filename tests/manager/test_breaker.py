"""Worker classes whose world breaks: middleware stands around their calls, and their breaker stops their type."""

from __future__ import annotations

import pytest

from everwork.core.breaker import BreakerState
from tests.app.waiting import until
from tests.manager.conftest import Start
from tests.manager.running import LATE_S, Outside, Said


@pytest.mark.parametrize("engine_name", ["sqlite"])
async def test_a_worker_class_whose_calls_fail_opens_the_breaker_of_its_type(
    start: Start, outside: Outside, said: Said
) -> None:
    keys = await outside.push_many("guarded", [{}] * 20)
    await start("Guarded", fail={"guarded": 100})

    async def is_open() -> bool:
        [info] = [one for one in await outside.service._engine.types() if one.type == "guarded"]
        return info.breaker is BreakerState.OPEN

    await until(is_open, LATE_S)
    jobs = [await outside.job(key) for key in keys]
    failed = [job.last_error for job in jobs if job.last_error is not None]
    # What was leased before the second failure was told may still run.
    assert 2 <= len(failed) <= 10
    assert failed[1] == "SimulatedFailure: injected failure: call 2 of 'guarded', the first 100 fail"
    assert said.lines("guarded") == []
