"""Jobs that creates hand over to waiting workers: what happens beside creates that have not been committed yet."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import asyncpg
import psycopg
import pytest
from psycopg.types.json import Jsonb

from everwork.core.leasing import Demand
from everwork.core.outcome import Complete
from everwork.core.states import State
from everwork.engines.postgres.statements import PARKED_ENTRIES_MAX
from tests.app.waiting import until
from tests.conformance.observe import every_job
from tests.conformance.test_hand_over import Taker, parked
from tests.factories import (
    LEASE_MS,
    TYPE,
    WORKER,
    a_new_job,
    a_pending_job,
    a_policy,
    asked,
    leased_keys,
    settled,
    the_state,
)
from tests.postgres.conftest import opened, schema_of, without_options
from tests.postgres.test_create_one import create_one
from tests.postgres.test_outage import cut

if TYPE_CHECKING:
    from everwork.engines.postgres.engine import PostgresEngine
    from tests.stores import VirtualClock

DEADLINE_S = 30.0


@asynccontextmanager
async def uncommitted(engine: PostgresEngine, url: str, **values: str) -> AsyncIterator[int]:
    """A plain job that another process has created and not committed yet."""
    own = await asyncpg.connect(without_options(url))
    try:
        async with own.transaction():
            row = await own.fetchrow(create_one(engine, url, **values))
            yield row["new_key"]
    finally:
        await own.close()


async def soon(task: Any) -> Any:
    """What a call returns that must not wait for an open transaction."""
    return await asyncio.wait_for(task, DEADLINE_S)


async def is_blocked(url: str) -> bool:
    """Whether a session waits for a lock."""
    own = await asyncpg.connect(without_options(url))
    try:
        found = await own.fetchval(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
        return bool(found)
    finally:
        await own.close()


async def is_free(url: str, token: int | None) -> bool:
    """Whether no connection holds the lock on this token any longer: the server ends connections in the background."""
    own = await asyncpg.connect(without_options(url))
    try:
        return not await own.fetchval(f"SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = {token}")
    finally:
        await own.close()


async def a_lane(engine: PostgresEngine, type: str = TYPE) -> None:
    """The lane of plain jobs: who creates its first job makes it, for which others wait."""
    [created] = await engine.create([a_new_job(type=type)])
    await engine.cancel([created.key])
    await engine.delete([created.key])


# Order --------------------------------------------------------------------------------------------------------


async def test_no_job_is_handed_over_past_one_that_is_being_created(engine: PostgresEngine, url: str) -> None:
    """That one may be committed first, before this one: then it is the first."""
    await a_lane(engine)
    taker = await parked(engine)
    own = await asyncpg.connect(without_options(url))
    transaction = own.transaction()
    await transaction.start()
    [first] = await engine.create_in(own, [a_new_job()])
    second = await soon(a_pending_job(engine))
    await transaction.commit()
    await own.close()
    assert second.state is State.PENDING
    assert await leased_keys(engine) == [first.key, second.key]
    assert not taker.jobs


async def test_of_two_creates_at_once_the_one_that_hands_over_comes_first(engine: PostgresEngine, url: str) -> None:
    await a_lane(engine)
    taker = await parked(engine)
    async with uncommitted(engine, url) as first:
        [second] = await soon(engine.create([a_new_job()]))
        third, _ = await soon(engine.create([a_new_job(), a_new_job()]))
        assert first < second.key < third.key
        assert (await soon(asked(engine, 1))).jobs[0].key == second.key
        assert not taker.jobs
    assert [job.key for job in await taker.came()] == [first]


async def test_a_create_that_is_rolled_back_hands_nothing_over_and_uses_no_demand(
    engine: PostgresEngine, url: str
) -> None:
    taker = await parked(engine)
    with pytest.raises(ZeroDivisionError):
        async with uncommitted(engine, url):
            raise ZeroDivisionError
    job = await a_pending_job(engine)
    assert [one.key for one in await taker.came()] == [job.key]


async def test_creates_of_other_types_and_steps_do_not_wait_for_a_create(engine: PostgresEngine, url: str) -> None:
    await a_lane(engine)
    await a_lane(engine, "other")
    taker = await parked(engine)
    await parked(engine, type="other")
    async with uncommitted(engine, url):
        other = await soon(a_pending_job(engine, type="other"))  # Announced separately, so not handed over.
        assert other.state is State.PENDING
        again = Taker()
        assert not (await soon(asked(engine, 1, receiver=again))).jobs
    assert len(await taker.came()) == 1
    job = await a_pending_job(engine)
    assert [one.key for one in await again.came()] == [job.key]
    assert len(taker.jobs) == 1


async def test_a_withdrawal_waits_for_the_create_that_uses_the_demand(engine: PostgresEngine, url: str) -> None:
    taker = await parked(engine)
    async with uncommitted(engine, url) as key:
        withdrawal = asyncio.create_task(engine.unpark(WORKER, [TYPE]))
        await until(lambda: is_blocked(url))
        assert not withdrawal.done()
    await soon(withdrawal)
    assert await the_state(engine, key) is State.PROCESSING
    assert [job.key for job in await taker.came()] == [key]


@pytest.mark.parametrize("count", [1, 3])
async def test_however_many_create_and_settle_each_job_runs_once(url: str, count: int) -> None:
    takers = [Taker() for _ in range(3)]
    async with opened(url) as one, opened(url) as two, opened(url) as three:
        engines = (one, two, three)

        async def create(engine: PostgresEngine) -> None:
            for _ in range(120):
                await engine.create([a_new_job()])

        async def work(engine: PostgresEngine, taker: Taker) -> None:
            name = f"w{engines.index(engine)}"
            demand = Demand(TYPE, name, 2, LEASE_MS, receiver=taker)
            done = 0
            while len(ended) < count * 120:
                ready = [(job.key, job.attempt) for job in taker.jobs[done:]]
                done += len(ready)
                settlement = await engine.settle([Complete(*one) for one in ready], [demand])
                assert all(judged.ok for judged in settlement.judged)
                more = [(job.key, job.attempt) for job in settlement.activation.jobs]
                await engine.settle([Complete(*one) for one in more])
                ended.extend([*ready, *more])

        ended: list[tuple[int, int]] = []
        await asyncio.wait_for(
            asyncio.gather(*map(create, engines[:count]), *map(work, engines, takers)), timeout=2 * DEADLINE_S
        )
        assert sorted(ended) == [(key, 1) for key in sorted({key for key, _ in ended})]
        assert len(ended) == count * 120
        assert {job.state for job in await every_job(one)} == {State.COMPLETED}


# Connections --------------------------------------------------------------------------------------------------


async def test_a_worker_whose_connection_is_lost_is_told_and_parks_on_the_next_one(
    engine: PostgresEngine, url: str
) -> None:
    taker = await parked(engine)
    token = engine._store.listener._receivers._token
    assert cut(url, f"pid = (SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objid = {token})") == 1
    await until(lambda: is_free(url, token))
    assert (await a_pending_job(engine)).state is State.PENDING
    await soon(taker._came.wait())
    assert taker.losses == 1
    await engine.unpark(WORKER, [TYPE])
    assert len(await leased_keys(engine)) == 1
    await until(lambda: engine._store.listener._receivers._token not in (None, token))
    await parked(engine, taker=taker)
    job = await a_pending_job(engine)
    await until(lambda: [one.key for one in taker.jobs] == [job.key])


async def test_a_job_that_was_sent_to_a_connection_that_is_lost_can_be_found_by_its_worker(
    engine: PostgresEngine, url: str
) -> None:
    taker = await parked(engine)
    token = engine._store.listener._receivers._token
    async with uncommitted(engine, url) as key:
        cut(url, f"pid = (SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objid = {token})")
        await soon(taker._came.wait())
    await engine.unpark(WORKER, [TYPE])
    [job] = await every_job(engine)
    assert (job.key, job.state, job.worker) == (key, State.PROCESSING, WORKER)
    assert (taker.jobs, taker.losses) == ([], 1)


async def test_an_engine_that_is_closed_reports_no_loss(url: str, clock: VirtualClock) -> None:
    async with opened(url, clock) as engine:
        taker = await parked(engine)
    assert taker.losses == 0


# Other roles of the database ----------------------------------------------------------------------------------


@pytest.fixture
def other_role(url: str) -> Iterator[str]:
    """A role that may only connect."""
    role = f"other_{schema_of(url)}"
    with psycopg.connect(without_options(url), autocommit=True) as own:
        own.execute(f"CREATE ROLE {role} LOGIN".encode())
        yield role
        own.execute(f"DROP ROLE {role}".encode())


WHAT_EVERYONE_CAN_READ = """
SELECT objid::bigint FROM pg_locks WHERE locktype = 'advisory' UNION SELECT classid::bigint FROM pg_locks
UNION SELECT oid::bigint FROM pg_class WHERE relname IN ('parked', 'live')
"""


async def test_a_role_without_privileges_cannot_read_or_forge_what_is_handed_over(
    engine: PostgresEngine, url: str, other_role: str
) -> None:
    taker = await parked(engine)
    heard: list[str] = []
    other = await asyncpg.connect(without_options(url).replace("postgres@", f"{other_role}@"))
    try:
        numbers = [number for (number,) in await other.fetch(WHAT_EVERYONE_CAN_READ) if number is not None]
        token = engine._store.listener._receivers._token
        assert token in numbers
        guesses = {f"everwork_{one}" for one in numbers} | {f"everwork_{a}_{b}" for a in numbers for b in numbers}
        channels = await other.fetch("SELECT pg_listening_channels() UNION SELECT query FROM pg_stat_activity")
        guesses |= {text.removeprefix("LISTEN ").strip('"') for (text,) in channels if text and len(text) < 64}
        for guess in guesses:
            await other.add_listener(guess, lambda *event: heard.append(event[-1]))
        forged = [1, 1, 1, 1, 1, 3, TYPE, "", "<default>", 1, "{}", None, 0, 1, 1, None, None, None, None]
        for guess in guesses:
            await other.execute("SELECT pg_notify($1, $2)", guess, json.dumps(forged))
        await until(lambda: len(heard) >= len(guesses))
        heard.clear()
        job = await a_pending_job(engine)
        assert [one.key for one in await taker.came()] == [job.key]
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await other.fetch(f"SELECT * FROM {schema_of(url)}.parked")
        await other.execute("SELECT pg_notify($1, 'end')", min(guesses))
        await until(lambda: heard)  # What was sent before has arrived, too.
        assert heard == ["end"]
        assert [one.key for one in taker.jobs] == [job.key]
    finally:
        await other.close()


async def test_the_secret_of_a_channel_appears_only_among_the_parked_demands(engine: PostgresEngine, url: str) -> None:
    taker = await parked(engine)
    secret = engine._store.listener._receivers._addresses[taker].secret
    assert len(secret) == 32
    with psycopg.connect(without_options(url)) as own:
        stored = own.execute(f"SELECT secret FROM {schema_of(url)}.parked".encode()).fetchall()
        shown = own.execute("SELECT query FROM pg_stat_activity WHERE pid <> pg_backend_pid()").fetchall()
    assert stored == [(secret,)]
    assert secret not in str(shown)


# Cost ---------------------------------------------------------------------------------------------------------


async def test_a_waiting_worker_writes_only_a_table_that_is_not_synced(engine: PostgresEngine, url: str) -> None:
    taker = await parked(engine)
    token, secret, number = engine._store.listener._receivers._addresses[taker]
    claim = {"t": TYPE, "g": "", "n": 1, "w": [WORKER], "l": [LEASE_MS], "c": 0, "o": 0}
    place = [WORKER, LEASE_MS, token, secret, number, 1]
    document = {"v": 2, "now": engine._store.now_ms(), "claims": [{**claim, "p": place}]}
    with psycopg.connect(without_options(url)) as own:
        own.execute(f"SELECT * FROM {schema_of(url)}.step(%s)".encode(), [Jsonb(document)])
        written = own.execute(
            "SELECT s.relname, c.relpersistence FROM pg_stat_xact_user_tables s JOIN pg_class c ON c.oid = s.relid"
            " WHERE s.n_tup_ins + s.n_tup_upd + s.n_tup_del > 0"
        ).fetchall()
        assert written == [("parked", "u")]


async def test_nothing_is_parked_where_the_front_of_the_queue_is_slow_to_look_at(
    engine: PostgresEngine, url: str
) -> None:
    """Under a snapshot that is held open, leased jobs leave dead entries there."""
    await engine.create([a_new_job() for _ in range(PARKED_ENTRIES_MAX + 1)])
    with psycopg.connect(without_options(url)) as own:
        own.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1")
        assert len(await leased_keys(engine, PARKED_ENTRIES_MAX + 1)) == PARKED_ENTRIES_MAX + 1
        await parked(engine)
        assert (await a_pending_job(engine)).state is State.PENDING


async def test_a_batch_of_many_types_takes_few_locks(engine: PostgresEngine, url: str) -> None:
    """The lock table of the whole server has 64 entries per connection."""
    own = await asyncpg.connect(without_options(url))
    try:
        async with own.transaction():
            await engine.create_in(own, [a_new_job(type=f"t{n}") for n in range(100)])
            taken = await own.fetchval(
                "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
            )
        assert 0 < taken <= 32
    finally:
        await own.close()


async def test_demands_of_workers_that_are_gone_are_deleted(engine: PostgresEngine, clock: VirtualClock) -> None:
    await parked(engine)
    clock.advance(seconds=3_600)
    await engine.sweep("s")
    assert await engine._store.connections.fetch(f"SELECT 1 FROM {engine._url.schema}.parked") == []


async def test_a_handed_job_counts_as_running_for_a_limit_that_comes_later(engine: PostgresEngine) -> None:
    taker = await parked(engine)
    await a_pending_job(engine)
    [job] = await taker.came()
    await a_policy(engine, max_running=1)
    await a_pending_job(engine)
    assert await leased_keys(engine) == []
    await settled(engine, Complete(job.key, 1))
    assert len(await leased_keys(engine)) == 1
