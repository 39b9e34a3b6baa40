"""Offline mode: while the store is away, jobs and outcomes wait in a local spool; nothing is lost or doubled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest

from everwork import Everwork, Spool, State
from everwork.core.job import NewJob
from everwork.core.leasing import Demand, Settlement
from everwork.core.outcome import Complete, Outcome
from everwork.engines.open import open_engine
from everwork.exceptions import BadConfiguration, EngineUnavailable, NotDelivered, ResultTimeout, SpoolFull
from everwork.runtime.runtime import Runtime
from everwork.spool.file import SpoolFile
from everwork.spool.settings import Offline
from tests.app.handlers import fetcher_of
from tests.app.waiting import until, working
from tests.conformance.observe import every_job
from tests.outages import Store, own_server, store_on
from tests.servers import Server
from tests.stores import ENGINES

AGAIN_S = 60.0
"""Far more than a store takes to come back and be found again; reached only by a defect."""

pytestmark = pytest.mark.every_engine


@pytest.fixture(scope="module", params=ENGINES)
def server(request: pytest.FixtureRequest) -> Iterator[Server | None]:
    with own_server(request.param) as started:
        yield started


@pytest.fixture
def store(server: Server | None, tmp_path: Path) -> Store:
    return store_on(server, tmp_path)


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(str(tmp_path / "spool.db"), patience=2)


@pytest.fixture
async def app(store: Store, spool: Spool) -> AsyncIterator[Everwork]:
    made = Everwork(store.url, offline=spool)
    await made.open()
    yield made
    await made.close()


async def away(store: Store) -> None:
    await asyncio.to_thread(store.leave)


async def back(store: Store) -> None:
    await asyncio.to_thread(store.come_back)


async def numbers(store: Store) -> list[str]:
    """The variables of all jobs in the store, in the order of their keys."""
    engine = open_engine(store.url)
    await engine.open()
    try:
        return [job.variables for job in reversed(await every_job(engine))]
    finally:
        await engine.close()


def opened(spool: Spool, store: Store) -> SpoolFile:
    """The file of a spool, as another process opens it."""
    offline = Offline.of(spool, store.url)
    assert offline is not None
    return SpoolFile(*offline)


async def test_a_job_goes_straight_to_a_store_that_is_there(app: Everwork) -> None:
    key = await app.enqueue("work", number=1)
    assert not key.is_spooled
    assert (await app.get(key)).state is State.PENDING


async def test_jobs_are_kept_while_the_store_is_away_and_delivered_in_their_order(app: Everwork, store: Store) -> None:
    await app.enqueue("work", number=0)
    await away(store)
    keys = [await app.enqueue("work", number=number) for number in range(1, 30)]
    assert all(key.is_spooled and key.spool_id and key < 0 for key in keys)
    await back(store)
    async with asyncio.timeout(AGAIN_S):
        delivered = [await app.delivered(key) for key in keys]
    assert delivered == sorted(delivered)
    assert not any(key.is_spooled for key in delivered)
    assert await numbers(store) == [f'{{"number":{number}}}' for number in range(30)]
    assert (await app.get(keys[0])).key == delivered[0]


async def test_after_an_outage_jobs_go_straight_to_the_store_again(app: Everwork, store: Store) -> None:
    await away(store)
    first = await app.enqueue("work", number=1)
    await back(store)
    async with asyncio.timeout(AGAIN_S):
        await app.delivered(first)
        while (key := await app.enqueue("work", number=2)).is_spooled:
            pass
    assert (await app.get(key)).state is State.PENDING


async def test_what_waits_in_the_spool_has_no_key_yet(app: Everwork, store: Store) -> None:
    await away(store)
    key = await app.enqueue("work", number=1)
    with pytest.raises(NotDelivered, match="is waiting in the spool: it has no key until it is delivered"):
        await app.get(key)
    with pytest.raises(ResultTimeout):
        await app.delivered(key, timeout=0.01)
    await back(store)
    async with asyncio.timeout(AGAIN_S):
        await app.delivered(key)


async def test_an_application_starts_while_its_store_is_away(store: Store, spool: Spool) -> None:
    async with Everwork(store.url):
        pass  # The store exists.
    await away(store)
    async with Everwork(store.url, offline=spool) as app:
        key = await app.enqueue("work", number=1)
        assert key.is_spooled
        with pytest.raises(EngineUnavailable):
            await app.get(4711)
    await back(store)
    async with Everwork(store.url, offline=spool) as app, asyncio.timeout(AGAIN_S):
        await app.delivered(key)
    assert await numbers(store) == ['{"number":1}']


async def test_a_dedupe_key_holds_for_spooled_jobs(app: Everwork, store: Store) -> None:
    first = await app.using(dedupe_key="one").enqueue("work", number=1)
    await away(store)
    again = await app.using(dedupe_key="one").enqueue("work", number=2)
    await back(store)
    async with asyncio.timeout(AGAIN_S):
        delivered = await app.delivered(again)
    assert (delivered, delivered.deduplicated) == (first, True)


async def test_a_worker_that_finishes_while_the_store_is_away_reports_when_it_is_back(
    app: Everwork, store: Store
) -> None:
    begun, may_end, runs = asyncio.Event(), asyncio.Event(), []

    @app.job("work")
    async def work(number: int) -> int:
        runs.append(number)
        begun.set()
        await may_end.wait()
        return number + 1

    async with working(app), asyncio.timeout(AGAIN_S):
        key = await app.enqueue("work", number=1)
        await begun.wait()
        await away(store)
        may_end.set()
        await until(lambda: app.service.outbox is not None and has_outcomes(app))
        await back(store)
        assert await app.result(key) == 2
    assert runs == [1]


def has_outcomes(app: Everwork, count: int = 1) -> bool:
    outbox = app.service.outbox
    assert outbox is not None
    return asyncio.run_coroutine_threadsafe(outbox.counts(), app.loop).result().outcomes == count


async def test_an_attempt_that_ends_before_the_outage_is_noticed_is_kept_in_the_spool_too(
    app: Everwork, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end, is_asked, may_fail = [asyncio.Event(), asyncio.Event()], threading.Event(), threading.Event()
    settle = app.service._engine.settle

    async def slow_settle(outcomes: Sequence[Outcome], demands: Sequence[Demand] = ()) -> Settlement:
        if outcomes and not may_fail.is_set():
            is_asked.set()
            await asyncio.to_thread(may_fail.wait)
        return await settle(outcomes, demands)

    @app.job("work", concurrency=2)
    async def work(number: int) -> int:
        await may_end[number].wait()
        return number

    monkeypatch.setattr(app.service._engine, "settle", slow_settle)
    async with working(app), asyncio.timeout(AGAIN_S):
        keys = [await app.enqueue("work", number=number) for number in range(2)]
        await until(lambda: len(fetcher_of(runtime_of(app))._leased) == 2)
        may_end[0].set()
        await asyncio.to_thread(is_asked.wait)
        await away(store)
        may_end[1].set()
        await until(lambda: fetcher_of(runtime_of(app))._outcomes.waiting)
        may_fail.set()
        await until(lambda: has_outcomes(app, 2))
        await back(store)
        assert [await app.result(key) for key in keys] == [0, 1]


def runtime_of(app: Everwork) -> Runtime:
    assert app._workers.runtime is not None
    return app._workers.runtime


async def test_a_tick_does_not_wait_for_a_store_that_is_away(store: Store, spool: Spool) -> None:
    async with Everwork(store.url):
        pass  # The store exists.
    await away(store)
    async with Everwork(store.url, offline=spool) as app, asyncio.timeout(AGAIN_S):

        @app.job("work")
        async def work() -> None: ...

        with pytest.raises(EngineUnavailable, match="the engine is unavailable"):
            await app.run_once()
    await back(store)


async def test_a_completion_in_the_spool_of_a_dead_worker_is_reported_by_the_next_one(
    store: Store, spool: Spool
) -> None:
    """The worker dies in the outage; its lease lapses before its completion is reported."""
    engine = open_engine(store.url)
    await engine.open()
    [created] = await engine.create([NewJob("work")])
    [job] = (await engine.activate([Demand("work", "dead", 1, 50)])).jobs
    file = opened(spool, store)
    file.keep_outcomes([Complete(job.key, job.attempt, "42")])
    file.close()
    async with asyncio.timeout(AGAIN_S):
        while (await engine.sweep("sweeper")).lapsed == 0:
            pass
    async with Everwork(store.url, offline=spool) as app, asyncio.timeout(AGAIN_S):
        assert await app.result(created.key) == 42
        assert [entry.kind for entry in await app.history(created.key)] == ["complete"]
    await engine.close()


async def test_a_job_that_the_store_refuses_is_set_aside_and_the_others_go_on(
    app: Everwork, store: Store, spool: Spool
) -> None:
    await away(store)
    file = opened(spool, store)
    bad, good = NewJob("work", priority=10_000), NewJob("work", '{"number":7}')
    spooled = file.keep_jobs([good, bad, good, good, good])
    await back(store)
    async with asyncio.timeout(AGAIN_S):
        await until(lambda: not file.has_waiting())
    assert await numbers(store) == ['{"number":7}'] * 4
    assert file.counts().aside == 1
    found = file.find(spooled[1].spool_id)
    assert found is not None
    assert found.reason == "priority: must be a whole number from -512 to 511, not 10000"
    file.close()


async def test_a_full_spool_is_a_clear_error_and_nothing_is_half_kept(store: Store, tmp_path: Path) -> None:
    small = Spool(str(tmp_path / "small.db"), max_bytes=1_048_576, patience=2)
    async with Everwork(store.url, offline=small) as app:
        await away(store)
        for _ in range(15):
            await app.enqueue("work", text="x" * 50_000)
        with pytest.raises(SpoolFull, match="max_bytes of 1,048,576"):
            await app.enqueue("work", text="x" * 500_000)
        await back(store)


async def test_two_applications_share_a_spool(store: Store, spool: Spool) -> None:
    async with Everwork(store.url, offline=spool) as one, Everwork(store.url, offline=spool) as two:
        await away(store)
        keys = [await app.enqueue("work", number=number) for number in range(10) for app in (one, two)]
        await back(store)
        async with asyncio.timeout(AGAIN_S):
            assert len({await one.delivered(key) for key in keys}) == 20
    assert len(await numbers(store)) == 20


async def test_without_offline_mode_an_outage_is_an_error(store: Store) -> None:
    async with Everwork(store.url) as app:
        await app.enqueue("work", number=1)
        await away(store)
        with pytest.raises(EngineUnavailable):
            await app.enqueue("work", number=2)
        await back(store)


async def test_the_blocking_facade_spools_too(app: Everwork, store: Store) -> None:
    await away(store)
    key = await asyncio.to_thread(lambda: app.sync.enqueue("work", number=1))
    assert key.is_spooled
    await back(store)
    real = await asyncio.to_thread(lambda: app.sync.delivered(key, AGAIN_S))
    assert await numbers(store) == ['{"number":1}']
    assert real > 0


async def test_a_spool_for_another_store_is_refused_while_it_holds_entries(
    app: Everwork, store: Store, spool: Spool, tmp_path: Path
) -> None:
    await away(store)
    await app.enqueue("work", number=1)
    other = Everwork(f"sqlite:///{tmp_path}/other.db", offline=spool)
    with pytest.raises(BadConfiguration, match="holds entries for another engine"):
        await other.open()
    await back(store)
