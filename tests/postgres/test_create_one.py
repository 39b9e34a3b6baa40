"""A plain job that is created alone, by a function of its own, leaves exactly what the general functions leave."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from everwork.core.leasing import Demand
from everwork.core.states import State
from everwork.engines.postgres.wake import channel
from tests.conformance.test_hand_over import FIELDS, Taker, parked
from tests.factories import LEASE_MS, TYPE, WORKER, a_new_job, a_pending_job, a_policy, a_processing_job, leased_keys
from tests.postgres.conftest import opened, schema_of, without_options
from tests.stores import VirtualClock, url_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from everwork.core.job import NewJob
    from everwork.engines.postgres.engine import PostgresEngine

SUMMED = {"count_delta": "queue_id, tenant, sum(pending), sum(processing), sum(completed), sum(failed), sum(cancelled)"}
"""Each transaction appends what it adds to these."""
NOT_COMPARED = {"store", "parked"}


def dump(url: str) -> dict[str, Any]:
    """Every row of every table of a store, without its id and the demands that are parked."""
    with psycopg.connect(without_options(url)) as own:
        own.execute(f"SET search_path = {schema_of(url)}".encode())
        tables = [
            name
            for (name,) in own.execute("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()").fetchall()
            if name not in NOT_COMPARED
        ]
        found = {}
        for name in tables:
            grouped = " GROUP BY queue_id, tenant" if name in SUMMED else ""
            rows = own.execute(f"SELECT {SUMMED.get(name, '*')} FROM {name}{grouped}".encode()).fetchall()
            found[name] = sorted(rows, key=repr)
        return found


async def general(engine: PostgresEngine, jobs: Sequence[NewJob]) -> None:
    """Create jobs one by one with the function for all jobs."""
    for job in jobs:
        engine._store.general_until[job.type] = float("inf")
        await engine.create([job])


@pytest.mark.parametrize("fields", FIELDS.values(), ids=list(FIELDS))
@pytest.mark.parametrize("has_policy", [False, True])
async def test_a_plain_job_is_stored_as_by_the_general_function(
    fields: dict[str, Any], has_policy: bool, tmp_path: Path, clock: VirtualClock
) -> None:
    one_url, other_url = url_of("postgres", tmp_path / "a"), url_of("postgres", tmp_path / "b")
    lanes = [a_new_job(limit_key=key) for key in ("bob", None, "ada", "bob")]
    jobs = [a_new_job(**fields), a_new_job(tenant="other"), *lanes, a_new_job(**fields)]
    async with opened(one_url, clock) as one, opened(other_url, clock) as other:
        for engine in (one, other):
            await a_processing_job(engine, tenant="first")
            if has_policy:
                await a_policy(engine, max_attempts=2, keep_completed_hours=1)
        for job in jobs:
            await one.create([job])
        await general(other, jobs)
        assert dump(one_url) == dump(other_url)
        assert (await one._store.connections.fetch(f"SELECT 1 FROM {one._url.schema}.live WHERE state = 1")) != []


@pytest.mark.parametrize("fields", FIELDS.values(), ids=list(FIELDS))
async def test_a_job_is_handed_over_as_if_it_had_been_created_and_activated(
    fields: dict[str, Any], tmp_path: Path, clock: VirtualClock
) -> None:
    one_url, other_url = url_of("postgres", tmp_path / "a"), url_of("postgres", tmp_path / "b")
    demand, taker = Demand(TYPE, WORKER, 1, LEASE_MS), Taker()
    async with opened(one_url, clock) as one, opened(other_url, clock) as other:
        for _ in range(2):
            await one.activate([demand._replace(receiver=taker)])
            await other.activate([demand])
            await one.create([a_new_job(**fields)])
            await general(other, [a_new_job(**fields)])
            await other.activate([demand])
        assert len(await one.get([1, 2])) == 2
        assert dump(one_url) == dump(other_url)
        assert [job.key for job in await taker.came()][:1] == [1]


async def test_the_first_job_of_a_type_and_those_of_a_type_with_groups_are_created_like_several(
    engine: PostgresEngine,
) -> None:
    await a_pending_job(engine)
    assert engine._store.general_until == {}
    await engine.add_group(TYPE, "audit")
    await a_pending_job(engine)
    assert list(engine._store.general_until) == [TYPE]
    assert sum(count.jobs for count in await engine.count()) == 3


async def test_a_job_that_would_be_too_long_a_message_is_not_handed_over(engine: PostgresEngine) -> None:
    taker = await parked(engine)
    job = await a_pending_job(engine, variables='{"text":"%s"}' % (r"\"" * 2_500))
    assert job.state is State.PENDING
    assert await leased_keys(engine) == [job.key]
    assert not taker.jobs


async def test_without_notifications_a_create_hands_nothing_over_and_locks_nothing_for_it(
    engine: PostgresEngine, url: str, clock: VirtualClock
) -> None:
    await parked(engine)
    async with opened(f"{url}&notify=off", clock) as poller:
        assert (await a_pending_job(poller)).state is State.PENDING


async def test_a_worker_without_notifications_parks_nothing(
    engine: PostgresEngine, url: str, clock: VirtualClock
) -> None:
    async with opened(f"{url}&notify=off", clock) as poller:
        taker = await parked(poller)
        await poller.unpark(WORKER, [TYPE])
        assert (await a_pending_job(engine)).state is State.PENDING
        assert not taker.jobs


# Wake-ups -----------------------------------------------------------------------------------------------------


class Ear:
    """Hears what is notified, and by whom."""

    def __init__(self, url: str) -> None:
        self._own = psycopg.connect(without_options(url), autocommit=True)
        self._heard: list[str] = []
        self._own.add_notify_handler(lambda note: self._heard.append(note.payload))

    def listen(self, name: str) -> Ear:
        """Begin."""
        self._own.execute(f"LISTEN {name}".encode())
        return self

    def heard(self) -> list[str]:
        """What has been notified since the last call: it comes with the next answer."""
        self._own.execute("SELECT 1")
        heard, self._heard = self._heard, []
        return heard

    def close(self) -> None:
        """Stop."""
        self._own.close()


@pytest.mark.parametrize("after_seconds", [0.0, 600.0])
async def test_what_later_calls_need_is_prepared_unless_a_program_ends_soon(
    url: str, after_seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("everwork.engines.postgres.opened.WARM_AFTER_SECONDS", after_seconds)
    async with opened(url) as engine:
        connections, warming = engine._store.connections, engine._store.warming
        assert warming is not None
        await (engine.count() if after_seconds else warming)
        assert (len(connections._idle), connections._capacity._value) == (1, engine._url.connections)
        rows = await connections.fetch("SELECT statement FROM pg_prepared_statements")
        assert any("create_one" in text for (text,) in rows) != bool(after_seconds)
    assert warming.cancelled() == bool(after_seconds)


async def test_a_create_notifies_with_its_own_commit_while_a_worker_waits(engine: PostgresEngine, url: str) -> None:
    await a_processing_job(engine)
    ear = Ear(url).listen(channel(engine._url))
    try:
        await a_pending_job(engine)
        assert ear.heard() == []
        while await engine.wait([TYPE], 1):
            pass
        [created] = await engine.create([a_new_job()])
        assert engine._store.notifier._task is None
        assert ear.heard() == [TYPE]
        assert created.key
    finally:
        ear.close()


async def test_while_another_create_notifies_with_its_commit_one_is_announced_separately(
    engine: PostgresEngine, url: str
) -> None:
    await a_processing_job(engine)
    while await engine.wait([TYPE], 1):
        pass
    ear = Ear(url).listen(channel(engine._url))
    try:
        with psycopg.connect(without_options(url)) as own:
            own.execute(create_one(engine, url).encode())  # Its commit is still to come.
            await engine.create([a_new_job()])
            task = engine._store.notifier._task
            assert task is not None
            await task
            assert ear.heard() == [TYPE]
        assert ear.heard() == [TYPE]
    finally:
        ear.close()


def create_one(engine: PostgresEngine, url: str, type: str = TYPE) -> str:
    """A statement that creates a plain job as an engine does."""
    now_ms = engine._store.now_ms()
    values = f"{now_ms}, '{type}', '<default>', '', '{{}}', 0::smallint, NULL, NULL, NULL, NULL, NULL"
    return f"SELECT * FROM {schema_of(url)}.create_one({values}, '{channel(engine._url)}')"
