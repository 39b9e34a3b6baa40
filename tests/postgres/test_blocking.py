"""Writers do not wait for each other: an open transaction holds up nobody but those who want the very same new name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from everwork.core.leasing import Lease, Verdict
from everwork.core.outcome import Complete, Failed, Outcome, Release
from everwork.core.states import State
from everwork.engines.postgres import sweep
from everwork.engines.postgres.engine import PostgresEngine
from tests.app.waiting import until
from tests.conformance.observe import assert_counts_add_up, count_of
from tests.factories import TYPE, a_new_job, a_pending_job, a_processing_job, asked, leased_keys
from tests.postgres.conftest import opened, without_options

DEADLINE_S = 10.0


@pytest.fixture
async def engine(url: str) -> AsyncIterator[PostgresEngine]:
    """An engine with a connection for each of eight writers, whose type and lane are known."""
    async with opened(f"{url}&pool=8") as one:
        await a_pending_job(one)
        assert len(await leased_keys(one)) == 1
        yield one


@pytest.fixture
async def held(engine: PostgresEngine, url: str) -> AsyncIterator[asyncpg.Connection]:
    """A transaction of the user's that has created and completed jobs, and stays open for the whole test."""
    mine = await a_processing_job(engine)
    own = await asyncpg.connect(without_options(url))
    transaction = own.transaction()
    await transaction.start()
    await engine.create_in(own, [a_new_job(dedupe_key="held") for _ in range(3)])
    assert (await engine.complete_in(own, [Complete(mine.key, 1)]))[0].ok
    yield own
    await transaction.commit()
    await own.close()
    await assert_counts_add_up(engine)


async def soon(*calls: Any) -> list[Any]:
    """The answers of calls that must not wait for the open transaction."""
    async with asyncio.timeout(DEADLINE_S):
        return list(await asyncio.gather(*calls))


async def test_eight_writers_create_while_another_transaction_is_open(
    engine: PostgresEngine, held: asyncpg.Connection
) -> None:
    await soon(*(engine.create([a_new_job() for _ in range(5)]) for _ in range(8)))
    assert await count_of(engine, State.PENDING) == 40


async def test_jobs_of_the_same_type_are_claimed_and_settled_while_another_transaction_is_open(
    engine: PostgresEngine, held: asyncpg.Connection
) -> None:
    await soon(engine.create([a_new_job() for _ in range(40)]))
    leased = [answer.jobs for answer in await soon(*(asked(engine, 5) for _ in range(8)))]
    outcomes: list[list[Outcome]] = [
        [Complete(a.key, 1), Failed(b.key, 1, "boom"), Release(c.key, 1), Failed(d.key, 1, "end", final=True)]
        for a, b, c, d, _ in leased
    ]
    settled = await soon(*(engine.settle(some) for some in outcomes))
    assert {judged.verdict for one in settled for judged in one.judged} == {Verdict.ACCEPTED}


async def test_everything_else_goes_on_while_another_transaction_is_open(
    engine: PostgresEngine, held: asyncpg.Connection
) -> None:
    [[first, second]] = await soon(engine.create([a_new_job(), a_new_job()]))
    await soon(engine.sweep("s"), engine.cancel([first.key]), engine.reschedule([second.key]))
    await soon(engine.pause(TYPE, True), engine.set_policy(TYPE, None), engine.add_group(TYPE, "audit"))
    await soon(engine.stats(1), engine.count(), engine.extend([Lease(second.key, 1)], 1_000))


async def test_a_new_lane_in_an_open_transaction_holds_up_no_claim(engine: PostgresEngine, url: str) -> None:
    await engine._store.connections.fetch(f"UPDATE {engine._url.schema}.queue SET asked_at_ms = NULL")
    own = await asyncpg.connect(without_options(url))
    transaction = own.transaction()
    await transaction.start()
    await engine.create_in(own, [a_new_job(tenant="never seen")])
    [[job]] = await soon(engine.create([a_new_job()]))
    assert await soon(leased_keys(engine)) == [[job.key]]
    await transaction.rollback()
    await own.close()


async def test_the_sweep_folds_counts_around_an_open_transaction(
    engine: PostgresEngine, held: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "FOLD_FROM", 1)
    await soon(engine.create([a_new_job() for _ in range(5)]))
    await soon(engine.sweep("s"))
    folded = await engine._store.connections.read(f"SELECT sum(pending)::int FROM {engine._url.schema}.count_total")
    assert folded[0][0] == 5
    assert await count_of(engine, State.PENDING) == 5


async def test_who_wants_the_same_new_name_waits_for_the_open_transaction(
    engine: PostgresEngine, held: asyncpg.Connection
) -> None:
    same = asyncio.create_task(engine.create([a_new_job(dedupe_key="held")]))
    sql = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"

    async def is_blocked() -> bool:
        return bool((await engine._store.connections.read(sql))[0][0])

    await until(is_blocked)
    await soon(engine.create([a_new_job(dedupe_key="another")]))
    assert not same.done()
    same.cancel()
    await asyncio.gather(same, return_exceptions=True)
