"""Time-outs: an attempt that takes too long fails, whether or not its handler listens."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import Any

import pytest

from everwork import ErrorRule, Everwork, JobContext, State, Strategy, TypePolicy
from tests.app.waiting import DEADLINE_S, finished, run_one, trace_of, until, working

SHORT = 0.05


async def test_an_async_handler_is_cancelled_at_its_time_out_and_fails(app: Everwork) -> None:
    was_cancelled = asyncio.Event()

    @app.job("slow", retry=None, timeout=SHORT)
    async def slow() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            was_cancelled.set()

    job = await run_one(app, "slow")
    assert was_cancelled.is_set()
    assert (job.state, job.attempts, job.last_error) == (State.FAILED, 1, "timed out after 0.05 s")
    title, place, code, *_ = await trace_of(app, job.key)
    assert title == "Stack (most recent call last):"
    assert (place.endswith(", in slow"), code) == (True, "    await asyncio.Event().wait()")


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_time_out_is_classified_as_a_timeout_error(app: Everwork, kind: str) -> None:
    release = threading.Event()
    timeouts = TypePolicy(errors=(ErrorRule(Strategy.PERMANENT, exception=TimeoutError),))

    async def in_loop() -> None:
        await asyncio.Event().wait()

    def in_thread() -> None:
        release.wait(DEADLINE_S)

    for type, policy in (("usual", None), ("ruled", timeouts)):
        app.job(type, timeout=SHORT, policy=policy)(in_loop if kind == "async" else in_thread)
    async with working(app):
        usual, ruled = [await app.enqueue(type) for type in ("usual", "ruled")]
        await until(lambda: app.history(usual))
        await until(lambda: app.history(ruled))
        release.set()
    [entry] = await app.history(usual)
    assert (entry.retry_at_ms or 0) - entry.at_ms == 2_000
    job = await app.get(ruled)
    assert (job.state, job.attempts) == (State.FAILED, 1)


async def test_the_time_out_of_a_job_beats_that_of_its_handler(app: Everwork) -> None:
    @app.job("slow", retry=None)
    async def slow() -> None:
        await asyncio.Event().wait()

    job = await run_one(app, "slow", using={"timeout": SHORT})
    assert job.last_error == "timed out after 0.05 s"


async def test_a_handler_that_swallows_its_cancellation_fails_all_the_same(app: Everwork) -> None:
    release = asyncio.Event()

    @app.job("stubborn", retry=None, timeout=SHORT)
    async def stubborn() -> str:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        return "too late"

    async with working(app):
        job = await finished(app, await stubborn.enqueue())
        release.set()
    assert job.state is State.FAILED
    assert job.last_error == "timed out after 0.05 s; it ignored cancellation"
    title, place, code, *_ = await trace_of(app, job.key)
    assert title == "Stack (most recent call last):"
    assert (place.endswith(", in stubborn"), code) == (True, "    await release.wait()")
    assert (await app.get(job.key)).result is None


async def test_a_result_given_in_answer_to_the_cancellation_comes_too_late(app: Everwork) -> None:
    @app.job("stubborn", retry=None, timeout=SHORT)
    async def stubborn() -> str:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return "too late"

    job = await run_one(app, "stubborn")
    assert (job.state, job.last_error) == (State.FAILED, "timed out after 0.05 s")


async def test_a_handler_in_a_thread_fails_at_its_time_out_and_is_told_so(app: Everwork) -> None:
    stopped, release = threading.Event(), threading.Event()

    @app.job("slow", retry=None, timeout=SHORT)
    def slow(ctx: JobContext) -> str:
        release.wait(DEADLINE_S)
        if ctx.cancelled:
            stopped.set()
        return "too late"

    async with working(app):
        job = await finished(app, await slow.enqueue())
        release.set()
        await until(stopped.is_set)
    assert job.state is State.FAILED
    assert job.last_error == "timed out after 0.05 s; its thread is still running"
    title, place, code, *_ = await trace_of(app, job.key)
    assert title == "Stack (most recent call last):"
    assert (place.endswith(", in slow"), code) == (True, "    release.wait(DEADLINE_S)")
    assert (await app.get(job.key)).result is None


async def test_a_thread_that_still_runs_keeps_its_place(app: Everwork) -> None:
    release, running, most = threading.Event(), 0, 0

    @app.job("slow", retry=None, timeout=SHORT, concurrency=1)
    def slow() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        release.wait(DEADLINE_S)
        running -= 1

    async with working(app):
        first, second = [await slow.enqueue() for _ in range(2)]
        await finished(app, first)
        release.set()
        await finished(app, second)
    assert most == 1


async def test_while_a_thread_hangs_its_worker_leaves_other_jobs_to_others(app: Everwork) -> None:
    begun, release = threading.Event(), threading.Event()

    @app.job("slow", retry=None, timeout=SHORT, concurrency=1)
    def slow() -> None:
        begun.set()
        release.wait(DEADLINE_S)

    @app.job("quick")
    async def quick() -> None: ...

    async with working(app):
        await finished(app, await slow.enqueue())
        waiting = await slow.enqueue()
        await finished(app, await quick.enqueue())  # The worker has asked for work again meanwhile.
        await finished(app, await quick.enqueue())
        held = (await app.get(waiting)).state
        release.set()
    assert held is State.PENDING


async def test_a_time_out_leaves_no_trace_in_the_next_attempt(app: Everwork) -> None:
    """A cancellation that a handler swallowed must not make the next one's task group believe in another."""

    @app.job("work", retry=None, timeout=SHORT)
    async def work(stubborn: bool) -> None:
        if stubborn:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return
        async with asyncio.TaskGroup() as group:
            group.create_task(failing())

    async def failing() -> None:
        raise ValueError("boom")

    async with working(app):
        await finished(app, await work.enqueue(stubborn=True))
        job = await finished(app, await work.using(timeout=60).enqueue(stubborn=False))
    assert str(job.last_error).startswith("ExceptionGroup: "), job.last_error


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_handler_within_its_time_is_left_alone(app: Everwork, kind: str) -> None:
    async def in_loop(ctx: JobContext) -> Any:
        return ctx.cancelled

    def in_thread(ctx: JobContext) -> Any:
        return ctx.cancelled

    app.job("calm", timeout=60)(in_loop if kind == "async" else in_thread)
    job = await run_one(app, "calm")
    assert await app.result(job.key) is False
