"""The rows of a deleted type are purged once no transaction is left that may create a job with them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import asyncpg
import pytest

from everwork.core.leasing import Verdict
from everwork.core.states import State
from everwork.engines.postgres import sweep
from tests.factories import TYPE, a_completed_job, a_new_job, asked, leased_keys, the_state
from tests.postgres.conftest import opened, schema_of, without_options
from tests.stores import HOUR_MS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from everwork.engines.postgres.engine import PostgresEngine
    from tests.stores import VirtualClock

TABLES = ("type", "queue", "lane", "count_total", "count_delta", "gate", "work_hour", "work_delta")


@pytest.fixture
async def engine(own_url: str, clock: VirtualClock) -> AsyncIterator[PostgresEngine]:
    """A store on a separate server: another test's snapshot would delay the purge."""
    async with opened(own_url, clock) as one:
        yield one


@pytest.fixture
async def own(engine: PostgresEngine, own_url: str) -> AsyncIterator[asyncpg.Connection]:
    """A user's own connection to the engine's database."""
    connection = await asyncpg.connect(without_options(own_url))
    yield connection
    await connection.close()


async def hours_pass(engine: PostgresEngine, clock: VirtualClock, hours: int = 3) -> None:
    """Let hours pass; maintenance runs at the end of each."""
    for _ in range(hours):
        clock.advance(ms=HOUR_MS)
        while (await engine.sweep("s1")).more:
            pass


async def a_known_type(engine: PostgresEngine) -> None:
    """A type that has had a job: its queue and its lane exist."""
    job = await a_completed_job(engine)
    await engine.delete([job.key])


async def rows_left(own: asyncpg.Connection, own_url: str) -> dict[str, int]:
    counted = {table: await own.fetchval(f"SELECT count(*) FROM {schema_of(own_url)}.{table}") for table in TABLES}
    return {table: rows for table, rows in counted.items() if rows}


async def test_nothing_is_left_of_a_deleted_type(
    engine: PostgresEngine, own: asyncpg.Connection, own_url: str, clock: VirtualClock
) -> None:
    job = await a_completed_job(engine, limit_key="k")
    await engine.add_group(TYPE, "audit")
    await engine.delete([job.key])
    assert await engine.delete_type(TYPE) is Verdict.ACCEPTED
    await hours_pass(engine, clock)
    assert await rows_left(own, own_url) == {}


async def test_measures_that_were_folded_before_the_other_statistics_are_deleted_with_their_type(
    engine: PostgresEngine,
) -> None:
    await a_known_type(engine)
    await sweep._fold_measures(engine._store)
    assert await engine.measures(1, TYPE) != []
    await engine.delete_type(TYPE)
    await asked(engine)
    assert await engine.measures(1, TYPE) == []


async def test_a_job_of_a_transaction_that_began_before_the_delete_is_not_lost(
    engine: PostgresEngine, own: asyncpg.Connection, clock: VirtualClock
) -> None:
    await a_known_type(engine)
    async with own.transaction():
        [created] = await engine.create_in(own, [a_new_job()])
        assert await engine.delete_type(TYPE) is Verdict.ACCEPTED
        await hours_pass(engine, clock)
    assert await the_state(engine, created.key) is State.PENDING
    assert await leased_keys(engine) == [created.key]
    await hours_pass(engine, clock)
    assert [info.type for info in await engine.types()] == [TYPE]


async def test_a_job_that_no_worker_asks_for_makes_its_type_known_again(
    engine: PostgresEngine, own: asyncpg.Connection, clock: VirtualClock
) -> None:
    await a_known_type(engine)
    async with own.transaction():
        [created] = await engine.create_in(own, [a_new_job()])
        await engine.delete_type(TYPE)
    await hours_pass(engine, clock)
    assert [info.type for info in await engine.types()] == [TYPE]
    assert await the_state(engine, created.key) is State.PENDING


async def test_a_snapshot_from_before_the_delete_keeps_the_rows_that_it_sees(
    engine: PostgresEngine, own: asyncpg.Connection, clock: VirtualClock
) -> None:
    await a_known_type(engine)
    async with own.transaction(isolation="repeatable_read"):
        await own.fetchval("SELECT 1 FROM pg_class LIMIT 1")
        await engine.delete_type(TYPE)
        await hours_pass(engine, clock)
        [created] = await engine.create_in(own, [a_new_job()])
    assert await the_state(engine, created.key) is State.PENDING
    assert await leased_keys(engine) == [created.key]


async def test_the_first_job_of_a_type_in_a_transaction_that_is_not_committed_keeps_it(
    engine: PostgresEngine, own: asyncpg.Connection
) -> None:
    await asked(engine)
    async with own.transaction():
        [created] = await engine.create_in(own, [a_new_job()])
        assert await engine.delete_type(TYPE) is Verdict.WRONG_STATE
    assert await leased_keys(engine) == [created.key]


async def test_a_type_that_comes_back_before_the_purge_is_not_purged(
    engine: PostgresEngine, own: asyncpg.Connection, own_url: str, clock: VirtualClock
) -> None:
    await asked(engine)
    await engine.delete_type(TYPE)
    await asked(engine)
    await hours_pass(engine, clock)
    assert await rows_left(own, own_url) == {"type": 1, "queue": 1}
