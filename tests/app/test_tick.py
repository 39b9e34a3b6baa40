"""A tick: upkeep, due triggers and a few jobs, then it is over."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from everwork import CircuitBreaker, Everwork, Interval, JobContext, RetryPolicy, State
from everwork.app.tick import TickResult
from everwork.core.leasing import Demand, Settlement
from everwork.exceptions import BadConfiguration, InvalidInput
from everwork.runtime.fetcher import Fetcher
from everwork.runtime.source import Report
from everwork.service.service import JobService
from tests.app.waiting import until, working
from tests.stores import VirtualClock


async def test_a_tick_runs_so_many_due_jobs_in_equal_shares_and_says_how_they_ended(
    app: Everwork, clock: VirtualClock
) -> None:
    ran: list[str] = []
    app.job("many", concurrency=10)(lambda: ran.append("many"))
    app.job("none")(lambda: None)

    @app.job("broken", retry=RetryPolicy(max_attempts=2, base=5.0, jitter=0.0), concurrency=10)
    def broken() -> None:
        ran.append("broken")
        raise KeyError("figures")

    await app.enqueue_many([app.call("many")] * 12 + [app.call("broken")] * 2 + [app.using(delay=60).call("many")])
    assert await app.run_once(max_jobs=6) == TickResult(ran=6, completed=4, retried=2)
    assert Counter(ran) == {"many": 4, "broken": 2}
    clock.advance(ms=5_000)
    assert await app.run_once() == TickResult(ran=10, completed=8, failed=2)
    assert await app.run_once() == TickResult()


async def test_a_job_that_may_be_tried_again_at_once_is_in_the_same_tick_and_each_end_is_told(app: Everwork) -> None:
    @app.job("broken", retry=RetryPolicy(max_attempts=2, base=0.0))
    def broken() -> None:
        raise KeyError("figures")

    await app.enqueue("broken")
    assert await app.run_once() == TickResult(ran=2, retried=1, failed=1)


async def test_a_tick_runs_what_a_handler_created_while_the_queues_were_being_polled(
    app: Everwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The poll that finds `second` empty is under way when `first` creates a job of it and ends."""
    began, polled, ended = threading.Event(), threading.Event(), threading.Event()
    step, take = JobService.step, Fetcher.take

    async def step_slowly(service: JobService, outcomes: Any, demands: Sequence[Demand] = ()) -> Settlement:
        settlement = await step(service, outcomes, demands)
        if began.is_set() and not polled.is_set() and "second" in {demand.type for demand in demands}:
            polled.set()
            await until(ended.is_set)
        return settlement

    def take_and_tell(fetcher: Fetcher, reports: Sequence[Report]) -> None:
        take(fetcher, reports)
        if any(attempt.handler.name == "first" for attempt, _, _ in reports):
            ended.set()

    monkeypatch.setattr(JobService, "step", step_slowly)
    monkeypatch.setattr(Fetcher, "take", take_and_tell)

    @app.job("first")
    async def first() -> None:
        began.set()
        await app.enqueue("woken")
        await until(polled.is_set)
        await app.enqueue("second")

    app.job("second")(lambda: None)
    app.job("woken")(lambda: None)
    await app.enqueue("first")
    assert await app.run_once() == TickResult(ran=3, completed=3)


async def test_a_tick_does_not_run_more_of_a_function_at_once_than_its_concurrency(app: Everwork) -> None:
    running: list[int] = []

    @app.job("work", concurrency=2)
    async def work() -> int:
        running.append(1)
        most = len(running)
        await asyncio.sleep(0)
        running.pop()
        return most

    keys = await app.enqueue_many([("work", {})] * 7)
    assert await app.run_once(max_jobs=7) == TickResult(ran=7, completed=7)
    assert max([await app.result(key) for key in keys]) <= 2


async def test_a_tick_sweeps_first_and_runs_what_a_dead_worker_held(app: Everwork, clock: VirtualClock) -> None:
    app.job("work", retry=RetryPolicy(max_attempts=3, base=0.0))(lambda: "done")
    key = await app.enqueue("work")
    await app._host.call(lambda service: service.activate(Demand("work", "dead", 1, 30_000)))
    assert await app.run_once() == TickResult()
    clock.advance(ms=30_001)
    assert await app.run_once() == TickResult(ran=1, completed=1)
    assert [entry.kind for entry in await app.history(key)] == ["lapse", "complete"]


async def test_a_tick_takes_nothing_past_an_open_breaker_and_one_probe_past_a_half_open_one(
    app: Everwork, clock: VirtualClock
) -> None:
    @app.job("broken", retry=RetryPolicy(base=0.0), breaker=CircuitBreaker(failures=2, seconds=60))
    def broken() -> None:
        raise KeyError("figures")

    await app.enqueue_many([("broken", {})] * 20)
    assert 2 <= (await app.run_once(max_jobs=20)).retried <= 3  # One may have been fetched ahead.
    assert await app.run_once() == TickResult()
    clock.advance(ms=60_000)
    assert await app.run_once() == TickResult(ran=1, retried=1)


async def test_a_tick_fires_the_triggers_that_are_due(app: Everwork, clock: VirtualClock) -> None:
    app.job("report", cron=Interval(minutes=1))(lambda: None)
    assert await app.run_once() == TickResult()
    clock.advance(ms=60_000)
    assert await app.run_once() == TickResult(ran=1, completed=1)
    assert await app.run_once() == TickResult()


async def test_ticks_at_once_never_run_a_job_twice(app: Everwork, url: str, clock: VirtualClock) -> None:
    ran: list[int] = []
    other = Everwork(url, clock=clock)
    for one in (app, other):

        @one.job("work", concurrency=5)
        async def work(number: int) -> None:
            ran.append(number)
            await asyncio.sleep(0)

    await app.enqueue_many([("work", {"number": number}) for number in range(60)])
    ticks = await asyncio.gather(*(one.run_once(max_jobs=25) for one in (app, other, app)))
    await other.close()
    assert sum(tick.completed for tick in ticks) == 60
    assert sorted(ran) == list(range(60))


async def test_a_cancelled_tick_hands_back_what_runs_and_it_does_not_count(app: Everwork) -> None:
    begun = asyncio.Event()

    @app.job("long")
    async def long() -> None:
        begun.set()
        await asyncio.Event().wait()

    key = await app.enqueue("long")
    ticking = asyncio.create_task(app.run_once())
    await asyncio.wait_for(begun.wait(), 45)
    ticking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ticking
    job = await app.get(key)
    assert (job.state, job.attempts) == (State.PENDING, 0)


async def test_a_tick_that_is_asked_to_stop_finishes_what_runs_and_begins_nothing(app: Everwork) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    @app.job("work")
    async def work() -> None:
        begun.set()
        await go_on.wait()

    await app.enqueue_many([("work", {})] * 3)
    ticking = asyncio.create_task(app.run_once())
    await asyncio.wait_for(begun.wait(), 45)
    app.stop()
    [runtime] = app._workers.runtimes
    await until(runtime._executor._stopping.is_set)
    go_on.set()
    assert (await ticking).completed == 1


async def test_a_stop_before_the_first_step_of_a_tick_is_not_forgotten(app: Everwork) -> None:
    app.job("work")(lambda: None)
    await app.enqueue("work")
    ticking = app.run_once()
    app.stop()
    assert await ticking == TickResult()
    assert await app.run_once() == TickResult(ran=1, completed=1)


async def test_a_job_that_was_cancelled_while_it_ran_is_told_as_lost(app: Everwork) -> None:
    @app.job("work")
    async def work(ctx: JobContext) -> None:
        await app.cancel(ctx.key)

    await app.enqueue("work")
    assert await app.run_once() == TickResult(ran=1, lost=1)


def test_a_tick_without_an_event_loop_runs_in_the_calling_thread(url: str, clock: VirtualClock) -> None:
    app = Everwork(url, clock=clock)

    @app.job("where")
    async def where() -> int:
        return threading.get_ident()

    with app.sync:
        key = app.sync.enqueue("where")
        assert app.sync.run_once(max_jobs=1) == TickResult(ran=1, completed=1)
        assert app.sync.result(key) == threading.get_ident()


async def test_a_tick_refuses_what_it_cannot_do(app: Everwork, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadConfiguration, match="there is nothing to run"):
        await app.run_once()
    app.job("work")(lambda: None)
    for wrong in (0, -1, 1_000_001, True, 1.5, "10"):
        bad: Any = wrong
        with pytest.raises(InvalidInput, match="max_jobs: must be a whole number from 1 to 1000000, not"):
            await app.run_once(bad)
    monkeypatch.setenv("EVERWORK_JOBS_PER_TICK", "ten")
    with pytest.raises(InvalidInput, match="EVERWORK_JOBS_PER_TICK: must be a whole number from 1 to 1000000, not"):
        await app.run_once()
    with pytest.raises(BadConfiguration, match=r"use `await app.run_once"):
        app.sync.run_once()
    async with working(app):
        with pytest.raises(BadConfiguration, match="the workers of this application are already running"):
            await app.run_once(10)


async def test_the_environment_says_how_many_jobs_a_tick_runs(app: Everwork, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERWORK_JOBS_PER_TICK", "2")
    app.job("work")(lambda: None)
    await app.enqueue_many([("work", {})] * 3)
    assert (await app.run_once()).ran == 2
