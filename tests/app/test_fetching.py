"""When the fetcher asks the engine, and when it waits to be woken."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import pytest

from everwork import Everwork
from tests.app.handlers import a_handler, a_ledger, handling
from tests.app.waiting import DEADLINE_S, until, working

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    from everwork.aio.wakeup import Wake, Watch

pytestmark = pytest.mark.every_engine


LONE_JOBS: Final = 20


class Watching:
    """A watch whose end is counted."""

    def __init__(self, watched: Watched, watch: Watch) -> None:
        self._watched = watched
        self._watch = watch

    def cancel(self) -> None:
        """Count it."""
        self._watched.watches_ended += 1
        self._watch.cancel()


class Watched:
    """What the fetcher asks of an engine, in order: how many jobs each step brought, and for which types it waits."""

    def __init__(self, app: Everwork, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[int | list[str]] = []
        self.settled: list[tuple[int, int, int]] = []
        """How many outcomes each step settled, how many jobs it brought, and how many it demanded."""
        self.timeouts = self.watches_ended = 0
        self.steps_before_wait = 0
        """The steps when it began to wait for the last time."""
        self.waits = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        engine = app.service._engine
        settle, watch = engine.settle, engine.watch

        async def watched_settle(outcomes: Any, demands: Any = ()) -> Any:
            answer = await settle(outcomes, demands)
            self.calls.append(len(answer.activation.jobs))
            demanded = sum(demand.limit for demand in demands)
            self.settled.append((len(outcomes), len(answer.activation.jobs), demanded))
            return answer

        def watched_watch(types: Sequence[str], timeout_ms: int, since: int, wake: Wake) -> Watch:
            self.steps_before_wait = self.steps
            self.calls.append(list(types))
            self._loop.call_soon_threadsafe(self.waits.set)
            return Watching(self, watch(types, timeout_ms, since, counting(wake)))

        def counting(wake: Wake) -> Wake:
            def wake_and_count(is_woken: bool) -> None:
                self.timeouts += not is_woken
                wake(is_woken)

            return wake_and_count

        monkeypatch.setattr(engine, "settle", watched_settle)
        monkeypatch.setattr(engine, "watch", watched_watch)

    @property
    def steps(self) -> int:
        """How many steps were taken because something had happened, not because a wait had timed out."""
        return sum(isinstance(call, int) for call in self.calls) - self.timeouts

    @property
    def after_the_jobs(self) -> int | list[str]:
        """What came next after the first step that brought jobs."""
        brought = next(at for at, call in enumerate(self.calls) if isinstance(call, int) and call)
        return self.calls[brought + 1]


async def test_a_fetcher_that_got_less_than_it_asked_for_waits_to_be_woken(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Everwork(url) as app:
        watched = Watched(app, monkeypatch)

        @app.job("work", concurrency=5)
        async def work() -> None:
            await watched.waits.wait()

        key = await app.enqueue("work")
        async with working(app):
            await asyncio.wait_for(app.result(key), DEADLINE_S)
        assert watched.after_the_jobs == ["work"]


async def test_a_fetcher_waits_only_for_types_that_it_has_room_for(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Everwork(url) as app:
        watched = Watched(app, monkeypatch)

        @app.job("full")
        async def full() -> None:
            await watched.waits.wait()

        @app.job("free")
        async def free() -> None: ...

        key = await app.enqueue("full")
        async with working(app):
            await asyncio.wait_for(app.result(key), DEADLINE_S)
        assert watched.after_the_jobs == ["free"]


async def test_in_a_backlog_of_quick_jobs_each_step_settles_most_of_those_that_the_last_one_brought(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("everwork.runtime.settler.GATHER_SECONDS", DEADLINE_S)
    async with Everwork(url) as app:
        watched = Watched(app, monkeypatch)

        @app.job("quick", concurrency=16)
        async def quick(n: int) -> None:
            for _ in range(n % 2 * 300):  # Half of them end in a later iteration of the loop.
                await asyncio.sleep(0)

        keys = await app.enqueue_many([("quick", {"n": n}) for n in range(400)])
        async with working(app):
            for key in keys:
                await asyncio.wait_for(app.result(key), DEADLINE_S)
    # The first step that brings jobs does not know yet how long they take; after one that brings fewer than demanded,
    # there is no backlog.
    steps = watched.settled[watched.settled.index((0, 16, 16)) + 1 :]
    in_backlog = [(got, settled) for (_, got, wanted), (settled, _, _) in pairwise(steps) if got == wanted > 0]
    assert len(in_backlog) >= 5
    assert all(settled >= got - got // 8 for got, settled in in_backlog), steps


async def test_a_fetcher_whose_demand_was_met_and_that_has_room_asks_again_at_once(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("everwork.runtime.capacity.ACTIVATE_MAX", 2)
    async with Everwork(url) as app:
        watched = Watched(app, monkeypatch)

        @app.job("work", concurrency=5)
        async def work() -> None:
            await watched.waits.wait()

        keys = await app.enqueue_many([("work", {})] * 3)
        async with working(app):
            for key in keys:
                await asyncio.wait_for(app.result(key), DEADLINE_S)
        assert watched.calls[:3] == [2, 1, ["work"]]


async def test_a_job_that_becomes_ready_while_others_run_begins(url: str) -> None:
    async with Everwork(url) as app:
        second = asyncio.Event()

        @app.job("work", concurrency=5)
        async def work(first: bool) -> None:
            await second.wait() if first else second.set()

        async with working(app):
            keys = [await app.enqueue("work", first=True), await app.using(delay=0.05).enqueue("work", first=False)]
            for key in keys:
                await asyncio.wait_for(app.result(key), DEADLINE_S)


async def test_a_lone_job_takes_a_bounded_number_of_steps_and_then_the_fetcher_is_idle(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Everwork(url) as app:
        watched = Watched(app, monkeypatch)

        @app.job("work", concurrency=5)
        async def work() -> None: ...

        async with working(app):
            for _ in range(LONE_JOBS):
                await asyncio.wait_for(app.result(await app.enqueue("work")), DEADLINE_S)
        # Each wait ends with a wake-up or an outcome. The start and the stop have a step each.
        assert watched.watches_ended - watched.timeouts <= 2 * LONE_JOBS + 2
        assert watched.steps <= 3 * LONE_JOBS + 2


async def no_work() -> None:
    """A handler."""


@asynccontextmanager
async def as_functions(app: Everwork) -> AsyncIterator[None]:
    """As an application runs its functions, also in the processes of `everwork worker --processes`."""
    app.job("work", concurrency=5)(no_work)
    async with working(app):
        yield


@asynccontextmanager
async def as_child(app: Everwork) -> AsyncIterator[None]:
    """As a process of a manager runs its workers."""
    handler = a_handler(no_work, "work", concurrency=5)
    async with handling(app, handler, ledger=a_ledger(20), owns_name=True):
        yield


@pytest.mark.parametrize("run", [as_functions, as_child])
async def test_after_a_lone_job_the_fetcher_takes_no_step_but_its_looks(
    run: Callable[[Everwork], AbstractAsyncContextManager[None]], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("everwork.core.leasing.WAIT_MS_MAX", 20)  # How often it looks: usually once a second.
    async with Everwork(url) as app:
        watched = Watched(app, monkeypatch)

        async def looked() -> None:
            ends = watched.timeouts + 10
            await until(lambda: watched.timeouts >= ends)

        async with run(app):
            await asyncio.wait_for(app.result(await app.enqueue("work")), DEADLINE_S)
            await looked()
            before = watched.steps_before_wait
            await asyncio.wait_for(app.result(await app.enqueue("work")), DEADLINE_S)
            await looked()
            assert watched.steps_before_wait - before <= 2
        assert watched.watches_ended == sum(isinstance(call, list) for call in watched.calls)


async def test_a_tick_with_a_lone_job_takes_two_steps(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Everwork(url) as app:
        watched = Watched(app, monkeypatch)
        app.job("work", concurrency=5)(no_work)
        await app.enqueue("work")
        assert (await app.run_once()).completed == 1
        assert watched.steps <= 3
