"""A user's transaction that holds a job must not hold up the heartbeats, sweeps and claims of all the others."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import asyncpg
import orjson
import pytest

from everwork.core.breaker import BreakerState
from everwork.core.leasing import Lease, LeaseStatus, Verdict
from everwork.core.outcome import Complete, Failed
from everwork.core.states import State
from everwork.engines.postgres.engine import PostgresEngine
from everwork.engines.values import Fire
from tests.conformance.failing import RULE, a_half_open_breaker, a_probe, failures, leased, standing
from tests.factories import a_new_job, a_policy, a_processing_job, the_job, the_state
from tests.stores import url_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from everwork.core.outcome import Outcome
    from everwork.engines.contract import Engine
    from everwork.engines.postgres.connections import Rows
    from tests.stores import VirtualClock

DEADLINE_S = 10.0


@pytest.fixture
async def own(engine: Engine, tmp_path: Path) -> AsyncIterator[asyncpg.Connection]:
    """The user's own connection on the engine's database."""
    connection = await asyncpg.connect(url_of("postgres", tmp_path).partition("?")[0])
    yield connection
    await connection.close()


async def test_heartbeats_do_not_wait_for_a_job_that_is_completed_in_a_transaction_that_lasts(
    engine: Engine, own: asyncpg.Connection
) -> None:
    held, other = await a_processing_job(engine), await a_processing_job(engine)
    async with own.transaction():
        await engine.complete_in(own, [Complete(held.key, 1)])
        leases = [Lease(held.key, 1), Lease(other.key, 1)]
        extended = await asyncio.wait_for(engine.extend(leases, 60_000), DEADLINE_S)
        assert extended == [LeaseStatus.HELD, LeaseStatus.HELD]
    assert await engine.extend(leases, 60_000) == [LeaseStatus.LOST, LeaseStatus.HELD]


async def test_a_lease_whose_job_is_locked_only_while_a_longer_lock_is_waited_for_is_extended(
    engine: PostgresEngine, own: asyncpg.Connection, tmp_path: Path, clock: VirtualClock
) -> None:
    held, other = await a_processing_job(engine), await a_processing_job(engine)
    brief = await asyncpg.connect(url_of("postgres", tmp_path).partition("?")[0])
    lock = brief.transaction()
    await lock.start()
    await brief.execute(f"SELECT 1 FROM {schema_of(engine)}.live WHERE key = $1 FOR UPDATE", other.key)
    fetch = engine._store.connections.fetch

    async def unlocked_after(sql: str, *parameters: object) -> Rows:
        rows = await fetch(sql, *parameters)
        if "extend_locked" in sql:
            await lock.rollback()
        return rows

    engine._store.connections.fetch = unlocked_after  # type: ignore[method-assign]
    async with own.transaction():
        await engine.complete_in(own, [Complete(held.key, 1)])
        leases = [Lease(held.key, 1), Lease(other.key, 1)]
        assert await engine.extend(leases, 60_000) == [LeaseStatus.HELD, LeaseStatus.HELD]
    assert (await the_job(engine, other.key)).lease_until_ms == clock.now_ms + 60_000
    await brief.close()


async def test_a_lease_that_is_extended_beside_a_users_transaction_holds_after_its_rollback(
    engine: Engine, own: asyncpg.Connection, clock: VirtualClock
) -> None:
    held = await a_processing_job(engine)
    transaction = own.transaction()
    await transaction.start()
    await engine.complete_in(own, [Complete(held.key, 1)])
    clock.advance(seconds=20)
    assert await engine.extend([Lease(held.key, 1)], 60_000) == [LeaseStatus.HELD]
    clock.advance(seconds=59)
    await transaction.rollback()
    assert (await engine.sweep("s")).lapsed == 0
    clock.advance(seconds=1)
    assert (await engine.sweep("s")).lapsed == 1


async def test_a_lease_that_a_sweep_is_ending_is_not_said_to_be_held(
    engine: Engine, own: asyncpg.Connection, clock: VirtualClock
) -> None:
    lapsed = await a_processing_job(engine)
    clock.advance(seconds=600)
    ended = {"a": 1, "n": 1, "m": 5, "s": 1, "b": 0, "x": 5, "i": "lapse", "e": None, "c": None, "t": "lapsed"}
    step = {"v": 2, "now": clock.now_ms, "lapsed": True, "ended": {str(lapsed.key): ended}}
    async with own.transaction():
        await own.fetch(f"SELECT * FROM {schema_of(engine)}.step($1)", orjson.dumps(step).decode())
        extending = asyncio.ensure_future(engine.extend([Lease(lapsed.key, 1)], 60_000))
        await asyncio.wait({extending}, timeout=0.5)
    assert await asyncio.wait_for(extending, DEADLINE_S) == [LeaseStatus.LOST]
    assert await the_state(engine, lapsed.key) is State.PENDING


async def test_a_breaker_does_not_wait_for_it_and_hears_of_it_once_by_the_report_that_follows(
    engine: Engine, own: asyncpg.Connection
) -> None:
    await a_policy(engine, **RULE)
    await failures(engine, 1)
    [held] = await leased(engine)
    async with own.transaction():
        await engine.complete_in(own, [Complete(held.key, 1)])
        await asyncio.wait_for(failures(engine, 1), DEADLINE_S)
        assert await standing(engine) == (BreakerState.CLOSED, 2)
    for counted in (0, 1):
        [judged] = (await engine.settle([Complete(held.key, 1)])).judged
        assert (judged.verdict, await standing(engine)) == (Verdict.REPEATED, (BreakerState.CLOSED, counted))
        await failures(engine, 1)


async def test_a_probe_that_is_completed_so_closes_the_breaker(
    engine: Engine, own: asyncpg.Connection, clock: VirtualClock
) -> None:
    await a_half_open_breaker(engine, clock)
    probe = await a_probe(engine)
    async with own.transaction():
        await engine.complete_in(own, [Complete(probe.key, 1)])
    await engine.settle([Complete(probe.key, 1)])
    assert await standing(engine) == (BreakerState.CLOSED, 0)


async def test_a_sweep_does_not_wait_for_it_either_and_its_completion_holds(
    engine: Engine, own: asyncpg.Connection, clock: VirtualClock
) -> None:
    held, other = await a_processing_job(engine), await a_processing_job(engine)
    async with own.transaction():
        await engine.complete_in(own, [Complete(held.key, 1)])
        clock.advance(seconds=600)
        swept = await asyncio.wait_for(engine.sweep("s"), DEADLINE_S)
        assert swept.lapsed == 1
    assert await the_state(engine, held.key) is State.COMPLETED
    assert await the_state(engine, other.key) is State.PENDING


async def test_outcomes_beside_it_are_stored_and_its_own_is_refused(engine: Engine, own: asyncpg.Connection) -> None:
    held, other = await a_processing_job(engine), await a_processing_job(engine)
    await own.execute(f"ALTER FUNCTION {schema_of(engine)}.step SET lock_timeout = '50ms'")
    async with own.transaction():
        await engine.complete_in(own, [Complete(held.key, 1)])
        outcomes: list[Outcome] = [Failed(held.key, 1, "too late"), Complete(other.key, 1)]
        settlement = await asyncio.wait_for(engine.settle(outcomes), DEADLINE_S)
        assert [judged.verdict for judged in settlement.judged] == [Verdict.LEASE_LOST, Verdict.ACCEPTED]
    assert await the_state(engine, held.key) is State.COMPLETED
    assert await the_state(engine, other.key) is State.COMPLETED


async def test_to_learn_where_triggers_stand_is_no_write_once_they_have_begun(
    engine: Engine, own: asyncpg.Connection
) -> None:
    begun = await engine.trigger_marks(["nightly", "hourly"])
    async with own.transaction():
        await own.execute(f"LOCK TABLE {schema_of(engine)}.registry IN EXCLUSIVE MODE")
        assert await asyncio.wait_for(engine.trigger_marks(["nightly", "hourly"]), DEADLINE_S) == begun


async def test_a_point_that_has_passed_writes_nothing(engine: Engine, own: asyncpg.Connection) -> None:
    where = f"SELECT ctid FROM {schema_of(engine)}.registry WHERE kind = 'trigger-mark'"
    mark = (await engine.trigger_marks(["nightly"])).marks[0]
    stands = await own.fetchval(where)
    [fired] = await engine.fire([Fire("nightly", mark.last_ms, a_new_job())])
    assert (fired.created, await own.fetchval(where)) == (None, stands)


def schema_of(engine: Engine) -> str:
    assert isinstance(engine, PostgresEngine)
    return engine._url.schema
