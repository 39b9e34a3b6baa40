"""What is completed inside the user's own transaction counts for limits and breakers like what workers report."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from everwork.core.breaker import BreakerState
from everwork.core.leasing import Judged, Verdict
from everwork.core.outcome import Complete
from everwork.core.states import State
from tests.conformance.failing import a_half_open_breaker, a_probe, standing
from tests.conformance.own_transactions import DRIVERS, OPENINGS
from tests.conformance.test_own_transaction import Begin
from tests.factories import a_new_job, a_policy, judged, leased_keys
from tests.stores import url_of

if TYPE_CHECKING:
    from pathlib import Path

    from everwork.engines.contract import Engine
    from tests.stores import VirtualClock

PAIRS = [("sqlite", "sqlite3"), ("sqlite-own-loop", "sqlite3"), ("postgres", "psycopg"), ("postgres", "asyncpg")]

pytestmark = pytest.mark.parametrize(("engine_name", "driver"), [pair for pair in PAIRS if pair in DRIVERS])


@pytest.fixture
def begin(engine_name: str, driver: str, tmp_path: Path) -> Begin:
    """A way to the user's own transaction, which is begun after the test has prepared its jobs."""
    return lambda: OPENINGS[driver](url_of(engine_name, tmp_path), True)


async def test_a_probe_completed_there_closes_the_breaker_when_it_is_reported(
    engine: Engine, begin: Begin, clock: VirtualClock
) -> None:
    await a_half_open_breaker(engine, clock)
    probe = await a_probe(engine)
    async with begin() as own:
        await engine.complete_in(own.tx, [Complete(probe.key, 1)])
        await own.commit()
    assert await judged(engine, Complete(probe.key, 1)) == Judged(Verdict.REPEATED, State.COMPLETED)
    assert await standing(engine) == (BreakerState.CLOSED, 0)
    assert len(await leased_keys(engine)) == 4


@pytest.mark.parametrize("limit", ["max_running", "max_running_per_key"])
async def test_a_job_completed_there_gives_its_room_back_with_the_commit(
    engine: Engine, begin: Begin, limit: str
) -> None:
    await a_policy(engine, **{limit: 2})  # type: ignore[arg-type]
    await engine.create([a_new_job(limit_key="k") for _ in range(9)])
    first, second = await leased_keys(engine)
    async with begin() as own:
        await engine.complete_in(own.tx, [Complete(first, 1)])
        await own.rollback()
    assert await leased_keys(engine) == []
    async with begin() as own:
        await engine.complete_in(own.tx, [Complete(second, 1)])
        await own.commit()
    assert len(await leased_keys(engine)) == 1
    await judged(engine, Complete(second, 1))
    assert await leased_keys(engine) == []
