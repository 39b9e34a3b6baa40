"""Jobs that a create hands over to a worker: run once, within its capacity, and given back where it cannot run them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pytest

from everwork import Everwork, JobContext, State
from everwork.core.job import LeasedJob
from everwork.core.leasing import Created, Demand, Receiver, Settlement
from everwork.core.queries import JobFilter
from everwork.engines.open import open_engine
from everwork.exceptions import EngineUnavailable
from everwork.runtime import fetcher, hand_over
from everwork.runtime.events import Event, EventCollector
from everwork.runtime.fetcher import Fetcher
from everwork.runtime.job_log import JobLog
from everwork.runtime.ledger import Ledger
from everwork.runtime.runtime import Runtime
from everwork.runtime.shutdown import SHUTDOWN_SECONDS, StopSignal
from tests.app.handlers import a_handler, a_ledger, fetcher_of
from tests.app.waiting import DEADLINE_S, finished, until, until_sync
from tests.factories import a_new_job
from tests.stores import HOUR_MS, VirtualClock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from everwork.engines.contract import Engine
    from everwork.runtime.handler import Handler

pytestmark = pytest.mark.every_engine

WORKER: Final = "the-only-one-of-this-name"


class Store:
    """The store of a worker: what its fetcher asks, and another engine on it, which leases jobs as a create does.

    The other engine's clock is an hour ahead: it leases jobs that the worker would not find by itself.
    """

    def __init__(self, app: Everwork, ahead: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.app = app
        self.ahead = ahead
        self.receivers: dict[str, Receiver | None] = {}
        self.asked: dict[str, Demand] = {}
        self.unparked: list[list[str]] = []
        self._made: list[int] = []
        self.before_step: Callable[[], Awaitable[object]] | None = None
        """Done once, while a step that leases jobs is on its way."""
        engine = self.engine = app.service._engine
        settle, unpark = engine.settle, engine.unpark

        async def watched_settle(outcomes: Any, demands: Any = ()) -> Settlement:
            self.receivers |= {demand.type: demand.receiver for demand in demands}
            self.asked |= {demand.type: demand for demand in demands}
            if demands and self.before_step is not None:
                act, self.before_step = self.before_step, None
                await act()
            return await settle(outcomes, demands)

        async def watched_unpark(worker: str, types: Any) -> None:
            await unpark(worker, types)
            self.unparked.append(list(types))

        monkeypatch.setattr(engine, "settle", watched_settle)
        monkeypatch.setattr(engine, "unpark", watched_unpark)

    async def leased(self, type: str = "work", count: int = 1) -> list[LeasedJob]:
        """New jobs that are leased to the worker, which does not know of them yet."""
        # What the worker has given back is due here, but must not be leased again.
        given_back = [job.key for job in await self.ahead.get(self._made) if job and job.state is State.PENDING]
        await self.ahead.cancel(given_back)
        created = await self.ahead.create([a_new_job(type=type, delay_ms=1) for _ in range(count)])
        self._made += [one.key for one in created]
        assert isinstance(self.ahead._clock, VirtualClock)  # type: ignore[attr-defined]
        self.ahead._clock.advance(ms=1)  # type: ignore[attr-defined]
        return (await self.ahead.activate([Demand(type, WORKER, count, 60_000)])).jobs

    async def receiver(self, type: str = "work") -> Receiver:
        """What the worker has parked."""
        await until(lambda: type in self.receivers)
        found = self.receivers[type]
        assert found is not None
        return found

    def hand(self, receiver: Receiver, *jobs: LeasedJob) -> None:
        """Hand jobs over, in the engine's loop."""
        for job in jobs:
            self.app._host.portal.loop.call_soon_threadsafe(receiver.handed, job)

    async def handed(self, type: str = "work", count: int = 1) -> list[LeasedJob]:
        """New jobs that are handed over."""
        jobs = await self.leased(type, count)
        self.hand(await self.receiver(type), *jobs)
        return jobs

    async def events(self, job: LeasedJob) -> list[tuple[int, str]]:
        """The history of a job."""
        return await self.event_kinds(job.key)

    async def event_kinds(self, key: int) -> list[tuple[int, str]]:
        """The history of a job, by its key."""
        return [(event.attempt, event.kind) for event in await self.ahead.history(key)]

    async def has_event(self, job: LeasedJob, kind: str) -> bool:
        """Whether this has happened to a job."""
        return any(event.kind == kind for event in await self.ahead.history(job.key))


@pytest.fixture
async def store(url: str, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Store]:
    """The store of an application that is open."""
    async with Everwork(url, worker=WORKER, clock=clock) as app:
        ahead = open_engine(url, clock=VirtualClock(clock() + HOUR_MS))
        await ahead.open()
        try:
            yield Store(app, ahead, monkeypatch)
        finally:
            await ahead.close()


@asynccontextmanager
async def working(
    store: Store, *handlers: Handler, owns_name: bool = True, ledger: Ledger | None = None
) -> AsyncIterator[Runtime]:
    """A worker whose name is its own, until it has stopped without being forced."""
    app, stopped = store.app, StopSignal()
    make_fetcher = partial(
        Fetcher, app.service, WORKER, job_log=JobLog(WORKER), owns_name=owns_name, ledger=ledger, lease_ms=60_000
    )
    runtime = Runtime(make_fetcher, app._host.portal, stopped, app._host.transactions, handlers=handlers, ledger=ledger)
    running = asyncio.create_task(runtime.run(None))
    try:
        yield runtime
    finally:
        stopped.request()
        await asyncio.wait_for(running, DEADLINE_S)


@asynccontextmanager
async def working_in_thread(store: Store, *handlers: Handler) -> AsyncIterator[None]:
    """The same with the handlers' loop in a thread, where handlers may block it."""
    end, is_over = threading.Event(), asyncio.Event()

    async def work() -> None:
        async with working(store, *handlers):
            await until(end.is_set)

    def run() -> None:
        asyncio.run(work())
        here.call_soon_threadsafe(is_over.set)

    here = asyncio.get_running_loop()
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        await asyncio.wait_for(is_over.wait(), DEADLINE_S)


class Calls:
    """A handler that notes its calls, and waits to be let go."""

    def __init__(self, *, waits: bool = False) -> None:
        self.attempts: list[tuple[int, int]] = []
        self.go_on = asyncio.Event()
        if not waits:
            self.go_on.set()

    async def __call__(self, ctx: JobContext) -> str:
        self.attempts.append((int(ctx.key), ctx.attempt))
        await self.go_on.wait()
        return "done"

    def handler(self, *types: str, **settings: Any) -> Handler:
        """As a worker has it."""

        async def work(ctx: JobContext) -> str:
            return await self(ctx)

        return a_handler(work, *(types or ("work",)), **settings)


# Stopping -------------------------------------------------------------------------------------------


async def test_an_idle_worker_stops_without_being_forced(store: Store, url: str) -> None:
    app = Everwork(url)  # Its worker's name is unique.

    @app.job("work")
    async def work() -> None: ...

    async with app:
        task = asyncio.create_task(app.work(shutdown_timeout=100 * SHUTDOWN_SECONDS))
        await until(lambda: app._workers.runtime is not None)
        await asyncio.wait_for(app.result(await app.enqueue("work")), DEADLINE_S)
        app.stop()
        await asyncio.wait_for(task, DEADLINE_S)


async def test_a_worker_that_stops_withdraws_its_demands(store: Store) -> None:
    async with working(store, Calls().handler("a", "b", concurrency=2)):
        await store.receiver("b")
    assert store.unparked == [["a", "b"]]


async def test_what_is_handed_to_a_worker_that_stops_goes_back_uncounted(store: Store) -> None:
    calls = Calls(waits=True)
    async with working(store, calls.handler(concurrency=2)) as runtime:
        await store.handed()
        await until(lambda: calls.attempts)
        runtime.stop_soft()
        await until(lambda: store.unparked)
        [late] = await store.handed()
        await until(lambda: store.has_event(late, "release"))
        calls.go_on.set()
    assert await store.events(late) == [(1, "release")]
    [job] = await store.ahead.get([late.key])
    assert job is not None
    assert (job.state, job.attempts) == (State.PENDING, 0)


async def test_what_has_not_arrived_when_a_worker_stops_goes_back(store: Store) -> None:
    async with working(store, Calls().handler()):
        await store.receiver()
        [lost] = await store.leased()
    assert await store.events(lost) == [(1, "release")]


# Run once, with its own attempt -------------------------------------------------------------------------


@pytest.mark.parametrize("concurrency", [1, 1_000])
async def test_handed_jobs_run_once_each(store: Store, concurrency: int) -> None:
    calls = Calls()
    async with working(store, calls.handler(concurrency=concurrency)):
        jobs = []
        for _ in range(5):
            jobs += await store.handed()
            if concurrency == 1:  # Otherwise the next one may come too soon, and is released.
                await until(partial(store.has_event, jobs[-1], "complete"))
        for job in jobs:
            await until(partial(store.has_event, job, "complete"))
    assert sorted(calls.attempts) == sorted((job.key, 1) for job in jobs)
    assert [await store.events(job) for job in jobs] == [[(1, "complete")]] * 5


async def test_a_job_that_is_handed_twice_runs_once(store: Store) -> None:
    calls = Calls(waits=True)
    async with working(store, calls.handler(concurrency=2)) as runtime:
        [job] = await store.handed()
        await until(lambda: calls.attempts)
        store.hand(await store.receiver(), job)
        [other] = await store.handed()
        await until(lambda: len(calls.attempts) > 1)
        assert fetcher_of(runtime)._capacities["work"].leased == 2
        calls.go_on.set()
        await until(partial(store.has_event, other, "complete"))
    assert calls.attempts == [(job.key, 1), (other.key, 1)]


async def test_the_events_of_a_handed_job_are_created_with_its_completion(store: Store) -> None:
    async def work(events: EventCollector) -> None:
        events.emit(Event(source="out"))

    async with working(store, a_handler(work, "work")):
        [job] = await store.handed()
        await until(partial(store.has_event, job, "complete"))
    [out] = (await store.ahead.find(JobFilter(type="out"), 10)).jobs
    assert out.state is State.PENDING


async def test_a_handed_job_that_is_cancelled_is_stopped(store: Store) -> None:
    calls, was_cancelled = Calls(waits=True), asyncio.Event()

    async def work(ctx: JobContext) -> None:
        try:
            await calls(ctx)
        finally:
            was_cancelled.set()

    async with working(store, a_handler(work, "work")):
        [job] = await store.handed()
        await until(lambda: calls.attempts)
        await store.ahead.cancel([job.key])
        await asyncio.wait_for(was_cancelled.wait(), DEADLINE_S)
    assert await store.events(job) == [(1, "cancel")]


# No room --------------------------------------------------------------------------------------------


async def test_what_is_handed_to_a_full_worker_goes_back_uncounted(store: Store) -> None:
    calls = Calls(waits=True)
    async with working(store, calls.handler()):
        [job] = await store.handed()
        await until(lambda: calls.attempts)
        [more] = await store.handed()
        await until(partial(store.has_event, more, "release"))
        calls.go_on.set()
        await until(partial(store.has_event, job, "complete"))
    assert await store.events(more) == [(1, "release")]
    assert calls.attempts == [(job.key, 1)]


@pytest.mark.parametrize("slots", [None, 1])
async def test_a_step_that_crosses_a_handed_job_leases_no_more_than_fits(store: Store, slots: int | None) -> None:
    calls = Calls(waits=True)
    ledger = None if slots is None else a_ledger(slots)
    async with working(store, calls.handler(concurrency=(slots and 2) or 1), ledger=ledger):
        receiver, [job] = await store.receiver(), await store.leased()

        async def cross() -> None:
            receiver.handed(job)
            crossing.extend(await store.engine.create([a_new_job(type="work"), a_new_job(type="work")]))

        crossing: list[Created] = []
        store.before_step = cross
        await until(lambda: calls.attempts)
        await until(lambda: store.event_kinds(crossing[0].key) if crossing else False)
        assert calls.attempts == [(job.key, 1)]
        calls.go_on.set()
        for one in crossing:
            await finished(store.app, one.key)
    assert await store.event_kinds(crossing[0].key) == [(1, "release"), (2, "complete")]
    assert sorted(calls.attempts) == sorted([(job.key, 1), (crossing[0].key, 2), (crossing[1].key, 1)])


async def test_what_is_handed_to_a_handler_that_is_off_goes_back(store: Store) -> None:
    calls, ledger = Calls(), a_ledger()
    async with working(store, calls.handler(), ledger=ledger) as runtime:
        receiver, source = await store.receiver(), fetcher_of(runtime)
        [job] = await store.leased()
        Ledger(ledger._memory).switch(0, False)
        store.app._host.portal.loop.call_soon_threadsafe(source.check_flags)
        store.hand(receiver, job)
        await until(partial(store.has_event, job, "release"))
        store.app._host.portal.loop.call_soon_threadsafe(Ledger(ledger._memory).switch, 0, True)
        store.app._host.portal.loop.call_soon_threadsafe(source.check_flags)
    assert not calls.attempts


async def test_what_is_handed_while_the_table_is_full_goes_back(store: Store) -> None:
    calls, ledger = Calls(waits=True), a_ledger(1)
    async with working(store, calls.handler(concurrency=2), ledger=ledger):
        receiver = await store.receiver()
        first, second = await store.leased(count=2)
        store.hand(receiver, first, second)
        await until(partial(store.has_event, second, "release"))
        assert [(one.key, one.attempt) for one in Ledger(ledger._memory).entries()] == [(first.key, 1)]
        calls.go_on.set()
        await until(partial(store.has_event, first, "complete"))
    assert calls.attempts == [(first.key, 1)]
    assert not list(Ledger(ledger._memory).entries())


async def test_what_is_handed_while_a_handler_blocks_its_loop_goes_back(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetcher, "UNSTARTED_SECONDS", 0.05)
    calls: list[int] = []
    handed: list[LeasedJob] = []
    begun = threading.Event()

    async def work(ctx: JobContext) -> None:
        calls.append(int(ctx.key))
        begun.set()
        if len(calls) == 1:
            until_sync(lambda: handed)
            events = partial(store.has_event, handed[0], "release")
            assert asyncio.run_coroutine_threadsafe(until(events), elsewhere).result(DEADLINE_S) is None

    elsewhere = asyncio.get_running_loop()
    async with working_in_thread(store, a_handler(work, "work", concurrency=2)):
        receiver = await store.receiver()
        first, second = await store.leased(count=2)
        store.hand(receiver, first)
        await until(begun.is_set)
        store.hand(receiver, second)
        handed.append(second)
        await until(partial(store.has_event, first, "complete"))
    assert calls == [first.key]


# What is parked ----------------------------------------------------------------------------------------


async def test_queues_that_share_less_capacity_than_they_are_do_not_park(store: Store) -> None:
    one, two = Calls(), Calls()
    async with working(store, one.handler("a", "b"), two.handler("c", "d", name="two", concurrency=2)):
        await until(lambda: len(store.receivers) == 4)
        assert [store.receivers[type] is not None for type in "abcd"] == [False, False, True, True]


async def test_what_is_parked_is_withdrawn_while_its_queues_share_less_capacity_than_they_are(store: Store) -> None:
    calls = Calls(waits=True)
    async with working(store, calls.handler("a", "b", concurrency=2)):
        await until(lambda: all(type in store.asked and store.asked[type].parks for type in "ab"))
        [job] = await store.handed("a")
        await until(lambda: all(store.asked[type].withdraws for type in "ab"))
        calls.go_on.set()
        await until(partial(store.has_event, job, "complete"))
        await until(lambda: all(store.asked[type].parks for type in "ab"))


async def test_a_worker_whose_name_others_may_have_parks_nothing(store: Store) -> None:
    async with working(store, Calls().handler(), owns_name=False):
        await until(lambda: store.receivers)
        [not_its_own] = await store.leased()
    assert store.receivers == {"work": None}
    assert not store.unparked
    assert await store.events(not_its_own) == []


# Lost on the way ------------------------------------------------------------------------------------------


async def test_what_was_lost_on_the_way_goes_back_and_is_not_run_if_it_arrives_later(store: Store) -> None:
    calls = Calls()
    async with working(store, calls.handler(concurrency=2)):
        receiver = await store.receiver()
        [lost] = await store.leased()
        store.app._host.portal.loop.call_soon_threadsafe(receiver.lost)
        await until(partial(store.has_event, lost, "release"))
        store.hand(receiver, lost)
        [after] = await store.handed()
        await until(partial(store.has_event, after, "complete"))
    assert calls.attempts == [(after.key, 1)]
    assert await store.events(lost) == [(1, "release"), (1, "cancel")]


async def test_what_is_lost_while_others_are_looked_for_goes_back_too(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, lost = Calls(), list[LeasedJob]()
    held = store.app.service.held

    async def another_is_lost(worker: str) -> Any:
        found = await held(worker)
        if len(lost) == 1:
            lost.extend(await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(store.leased(), here)))
            receiver.lost()
        return found

    here = asyncio.get_running_loop()
    async with working(store, calls.handler(concurrency=2)):
        receiver = await store.receiver()
        lost.extend(await store.leased())
        monkeypatch.setattr(store.app.service, "held", another_is_lost)
        store.app._host.portal.loop.call_soon_threadsafe(receiver.lost)
        await until(lambda: len(lost) == 2)
        for job in lost:
            await until(partial(store.has_event, job, "release"))
    assert not calls.attempts


async def test_what_was_lost_goes_back_although_its_worker_is_full(store: Store) -> None:
    calls = Calls(waits=True)
    async with working(store, calls.handler()):
        receiver = await store.receiver()
        [running] = await store.handed()
        await until(lambda: calls.attempts)
        for _ in range(2):  # The second time, nothing is parked any more.
            [lost] = await store.leased()
            store.app._host.portal.loop.call_soon_threadsafe(receiver.lost)
            await until(partial(store.has_event, lost, "release"))
        calls.go_on.set()
        await until(partial(store.has_event, running, "complete"))
    assert calls.attempts == [(running.key, 1)]


async def test_what_was_lost_is_looked_for_until_the_store_answers(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[str] = []
    unpark = store.engine.unpark

    async def away(worker: str, types: Any) -> None:
        if len(refused) < 2:
            refused.append(worker)
            raise EngineUnavailable("the store is away")
        await unpark(worker, types)

    async with working(store, Calls().handler()):
        receiver = await store.receiver()
        [lost] = await store.leased()
        monkeypatch.setattr(store.engine, "unpark", away)
        store.app._host.portal.loop.call_soon_threadsafe(receiver.lost)
        await until(partial(store.has_event, lost, "release"))
    assert len(refused) == 2


async def test_few_released_jobs_are_remembered(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hand_over, "RELEASED_MAX", 2)
    async with working(store, Calls().handler(concurrency=2)) as runtime:
        receiver = await store.receiver()
        for _ in range(3):
            lost = await store.leased(count=2)
            store.app._host.portal.loop.call_soon_threadsafe(receiver.lost)
            for job in lost:
                await until(partial(store.has_event, job, "release"))
        assert len(fetcher_of(runtime)._hand_over._released) <= 4
