"""Wake-ups by NOTIFY: few of them, none for nobody, none before a commit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from everwork.core.outcome import Complete, Failed
from everwork.engines.postgres.connections import Connections
from everwork.engines.postgres.engine import PostgresEngine
from everwork.engines.postgres.wake import channel, payload
from everwork.exceptions import EngineUnavailable
from tests.factories import TYPE, a_new_job, a_pending_job, a_processing_job, leased_keys
from tests.postgres.conftest import opened, without_options
from tests.stores import VirtualClock, url_of

DEADLINE_S = 10.0


class Counting(Connections):
    """Counts notifications that are under way, and those that were sent."""

    flying = most = sent = 0

    async def fetch(self, sql: str, *parameters: object) -> list[Any]:
        """Run a statement; a notification is held back for a few turns of the loop, so that others may meet it."""
        if "pg_notify" not in sql:
            return await super().fetch(sql, *parameters)
        self.flying += 1
        self.sent += 1
        self.most = max(self.most, self.flying)
        try:
            return await super().fetch(sql, *parameters)
        finally:
            self.flying -= 1


def count_notifications(engine: PostgresEngine) -> Counting:
    """Let an open engine notify through connections that count."""
    counting = Counting(engine._url)
    engine._store.connections = engine._store.notifier._connections = counting
    return counting


async def told(engine: PostgresEngine) -> None:
    """Every notification has gone out."""
    while engine._store.notifier._task is not None:
        await asyncio.wait([engine._store.notifier._task])


async def test_at_most_one_notification_is_under_way_however_many_create(url: str) -> None:
    async with opened(f"{url}&pool=20") as engine, opened(url) as waiter:
        await waiter.wait([TYPE], 1)
        counting = count_notifications(engine)
        await asyncio.gather(*(engine.create([a_new_job()]) for _ in range(200)))
        await told(engine)
        assert counting.most == 1
        assert 1 <= counting.sent < 200


async def test_when_nobody_waits_nobody_is_notified(engine: PostgresEngine) -> None:
    counting = count_notifications(engine)
    job = await a_processing_job(engine)
    await engine.settle([Failed(job.key, 1, "boom", backoff_ms=0)])
    [key] = await leased_keys(engine)
    await engine.settle([Complete(key, 2, None, (a_new_job(),))])
    await told(engine)
    assert counting.sent == 0


async def test_who_has_stopped_waiting_long_ago_is_not_notified(engine: PostgresEngine, clock: VirtualClock) -> None:
    await engine.wait([TYPE], 1)
    counting = count_notifications(engine)
    await a_pending_job(engine)
    await told(engine)
    assert counting.sent == 1
    clock.advance(seconds=31)
    await a_pending_job(engine)
    await told(engine)
    assert counting.sent == 1


async def test_while_workers_wait_only_work_is_told_and_while_callers_wait_only_results(
    engine: PostgresEngine,
) -> None:
    await engine.wait_finished(1)
    counting = count_notifications(engine)
    job = await a_processing_job(engine)
    await told(engine)
    assert counting.sent == 0
    await engine.settle([Complete(job.key, 1)])
    await told(engine)
    assert counting.sent == 1


async def test_a_create_in_the_users_transaction_is_heard_after_the_commit_and_only_then(
    engine: PostgresEngine, url: str
) -> None:
    heard = asyncio.Event()
    ear = await asyncpg.connect(without_options(url))
    own = await asyncpg.connect(without_options(url))
    await ear.add_listener(channel(engine._url), lambda *_: heard.set())
    transaction = own.transaction()
    await transaction.start()
    await engine.create_in(own, [a_new_job()])
    await ear.fetchval("SELECT 1")  # Whatever had been notified would have come with this answer.
    assert not heard.is_set()
    await transaction.commit()
    await asyncio.wait_for(heard.wait(), DEADLINE_S)
    await own.close()
    await ear.close()


async def test_after_a_rollback_nobody_hears_of_it(engine: PostgresEngine, url: str) -> None:
    heard: list[object] = []
    ear = await asyncpg.connect(without_options(url))
    own = await asyncpg.connect(without_options(url))
    await ear.add_listener(channel(engine._url), lambda *said: heard.append(said[-1]))
    transaction = own.transaction()
    await transaction.start()
    await engine.create_in(own, [a_new_job()])
    await transaction.rollback()
    await ear.fetchval("SELECT 1")
    assert heard == []
    await own.close()
    await ear.close()


async def test_a_notification_that_would_be_too_long_wakes_everybody(url: str) -> None:
    types = [f"{n:04}{'é' * 250}" for n in range(40)]
    assert len(payload(types).encode()) < 100
    async with opened(url) as engine, opened(url) as waiter:
        while await waiter.wait(["quite another"], 1):
            pass
        woken = asyncio.create_task(waiter.wait(["quite another"], 60_000))
        await asyncio.sleep(0)
        await engine.create([a_new_job(type=type) for type in types])
        assert await asyncio.wait_for(woken, DEADLINE_S)


async def test_two_stores_of_one_database_do_not_wake_each_other(url: str, tmp_path: Path) -> None:
    async with opened(url) as engine, opened(url_of("postgres", tmp_path / "other")) as other:
        await engine.wait([TYPE], 1)
        await other.wait([TYPE], 1)
        mark = engine.mark()
        await a_pending_job(other)
        await told(other)
        await engine._store.connections.fetch("SELECT pg_notify($1, 'last')", channel(engine._url))
        assert await asyncio.wait_for(engine.wait(["last"], 60_000, mark), DEADLINE_S)
        assert engine.mark() == mark + 1


async def interrupted(engine: PostgresEngine) -> None:
    """A wait whose caller gives up before the others know of it."""
    waiter = asyncio.create_task(engine.wait([TYPE], 60_000))
    await asyncio.sleep(0)  # Lets it begin to listen, which takes longer.
    waiter.cancel()
    await asyncio.gather(waiter, return_exceptions=True)


async def unreachable(engine: PostgresEngine) -> None:
    """A wait while the store is away."""
    connections = engine._store.connections
    engine._store.connections = Away(engine._url)
    with pytest.raises(EngineUnavailable):
        await engine.wait([TYPE], 60_000)
    engine._store.connections = connections


class Away(Connections):
    """Reaches nothing."""

    async def fetch(self, sql: str, *parameters: object) -> list[Any]:
        raise EngineUnavailable("it is away")


@pytest.mark.parametrize("trouble", [interrupted, unreachable])
async def test_a_waiter_that_others_could_not_be_told_of_tells_them_the_next_time(
    url: str, trouble: Callable[[PostgresEngine], Awaitable[None]]
) -> None:
    async with opened(url) as engine, opened(url) as other:
        await trouble(engine)
        while await engine.wait([TYPE], 1):
            pass
        counting = count_notifications(other)
        await a_pending_job(other)
        await told(other)
        assert counting.sent == 1
