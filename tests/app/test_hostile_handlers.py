"""Handlers of ill will: whatever one does, its own job bears it, the others go on, and the workers can be stopped."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from everwork import Everwork, RetryPolicy, State
from everwork.core.leasing import Demand, Settlement
from everwork.core.outcome import Complete, Outcome
from everwork.exceptions import Fail, Reject, Retry
from everwork.runtime import fetcher
from tests.app.waiting import DEADLINE_S, finished, run_one, stop_thread, until, until_sync, working

TWICE = RetryPolicy(max_attempts=2, base=0.0)


class Catastrophe(BaseException):
    """What no `except Exception` catches."""


class Unshowable(Exception):
    """An error of a user's whose text raises."""

    def __str__(self) -> str:
        raise ValueError("no text")


def raising(error: Callable[[], BaseException], *, plain: bool) -> Callable[[], Any]:
    """A handler that raises, in a thread or in the event loop."""

    def in_thread() -> None:
        raise error()

    async def in_loop() -> None:
        raise error()

    return in_thread if plain else in_loop


@contextmanager
def workers_in_a_thread(app: Everwork) -> Iterator[None]:
    """Workers with an event loop of their own: what ends it, or blocks it, does not reach the test."""

    def run() -> None:
        with suppress(BaseException):
            app.run(shutdown_timeout=DEADLINE_S)

    workers = threading.Thread(target=run)
    workers.start()
    try:
        yield
    finally:
        stop_thread(app, workers)


def at_rest(app: Everwork, key: int) -> bool:
    """Whether nothing more will happen to the job."""
    return app.sync.get(key).state.label in ("completed", "failed", "cancelled")


@pytest.fixture
def sync_app(url: str) -> Iterator[Everwork]:
    """An application that no event loop of the test owns."""
    app = Everwork(url, worker="w1")
    yield app
    app.sync.close()


ENDS_OF_THE_WORLD: dict[str, tuple[Callable[[], BaseException], str]] = {
    "SystemExit": (lambda: SystemExit(3), "SystemExit"),
    "KeyboardInterrupt": (KeyboardInterrupt, "KeyboardInterrupt"),
    "a BaseException of the user's": (lambda: Catastrophe("all is lost"), "all is lost"),
    "a group of them": (lambda: BaseExceptionGroup("both", [SystemExit(3), KeyboardInterrupt()]), "BaseExceptionGroup"),
}


@pytest.mark.parametrize("plain", [False, True], ids=["async", "thread"])
@pytest.mark.parametrize("end", ENDS_OF_THE_WORLD)
def test_what_would_end_a_program_ends_one_attempt(sync_app: Everwork, end: str, plain: bool) -> None:
    error, text = ENDS_OF_THE_WORLD[end]
    sync_app.job("end", retry=TWICE)(raising(error, plain=plain))
    sync_app.job("good")(lambda: "done")
    with workers_in_a_thread(sync_app):
        key = sync_app.sync.enqueue("end")
        until_sync(lambda: at_rest(sync_app, key))
        assert sync_app.sync.result(sync_app.sync.enqueue("good"), timeout=DEADLINE_S) == "done"
    job = sync_app.sync.get(key)
    assert (job.state, job.attempts) == (State.FAILED, 2)
    assert text in str(job.last_error)


READABLE: dict[str, tuple[Callable[[], BaseException], str]] = {
    "a Fail with a number": (lambda: Fail(123), "123"),  # type: ignore[arg-type]
    "a Fail without reason": (Fail, "failed by the handler"),
    "a Reject with an object": (lambda: Reject(Unshowable()), "a Unshowable that cannot be shown"),  # type: ignore[arg-type]
    "a Retry after no number": (lambda: Retry(delay=float("nan")), "Retry: delay: must be a number from 0 to"),
    "a Retry after for ever": (lambda: Retry(delay=float("inf")), "Retry: delay: must be a number from 0 to"),
    "a Retry after eternity": (lambda: Retry(delay=1e300), "Retry: delay: must be a number from 0 to"),
    "a Retry after a text": (lambda: Retry(delay="5"), "Retry: delay: must be a number from 0 to"),  # type: ignore[arg-type]
    "a Retry in the past": (lambda: Retry(delay=-1), "Retry: delay: must be a number from 0 to"),
    "a lone surrogate": (lambda: ValueError("a\udcffb"), "ValueError: a?b"),
    "a NUL character": (lambda: ValueError("a\0b"), "ValueError: a\ufffdb"),
    "an error without text": (Unshowable, "Unshowable: a Unshowable that cannot be shown"),
}


@pytest.mark.parametrize("end", READABLE)
async def test_an_odd_end_leaves_an_error_that_people_can_read(
    app: Everwork, caplog: pytest.LogCaptureFixture, end: str
) -> None:
    caplog.set_level("CRITICAL", "everwork")  # Test reports cannot carry a lone surrogate.
    error, text = READABLE[end]
    app.job("odd", retry=RetryPolicy(max_attempts=1))(raising(error, plain=False))
    job = await run_one(app, "odd")
    assert (job.state, job.attempts) == (State.FAILED, 1)
    assert str(job.last_error).startswith(text)


@pytest.mark.parametrize("how", ["await close in the loop", "sync close in the loop", "sync close in a thread"])
async def test_a_handler_that_closes_its_own_application_is_refused_and_the_worker_goes_on(
    app: Everwork, how: str
) -> None:
    async def in_loop() -> None:
        if how.startswith("await"):
            await app.close()
        app.sync.close()

    def in_thread() -> None:
        app.sync.close()

    app.job("close", retry=None)(in_thread if how.endswith("thread") else in_loop)
    app.job("good")(lambda: "done")
    async with working(app):
        job = await finished(app, await app.enqueue("close"))
        assert await app.result(await app.enqueue("good"), DEADLINE_S) == "done"
    assert (job.state, job.attempts) == (State.FAILED, 1)
    assert str(job.last_error).startswith("BadConfiguration: close: ")


async def test_the_child_of_a_handler_that_forks_ends_and_its_parent_goes_on(app: Everwork) -> None:
    @app.job("fork", retry=None)
    def fork() -> int:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(int(DEADLINE_S / 2))
            sys.exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    async with working(app):
        code = await app.result(await fork.enqueue(), DEADLINE_S)
        assert await app.result(await fork.enqueue(), DEADLINE_S) == code
    assert code >= 0, "an alarm had to end the child"


async def test_the_child_of_an_async_handler_that_forks_is_no_worker(app: Everwork) -> None:
    @app.job("fork", retry=None)
    async def fork() -> int:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(int(DEADLINE_S / 2))
            raise SystemExit(0)
        return await asyncio.to_thread(lambda: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    async with working(app):
        key = await fork.enqueue()
        assert await app.result(key, DEADLINE_S) == 1, "an alarm had to end the child"
    assert [entry.kind for entry in await app.history(key)] == ["complete"]


async def test_a_handler_that_raises_generator_exit_has_failed(app: Everwork) -> None:
    @app.job("exit", retry=None)
    async def leave() -> None:
        raise GeneratorExit

    assert str((await run_one(app, "exit")).last_error) == "GeneratorExit"


async def test_a_handler_that_cancels_its_own_task_has_failed(app: Everwork) -> None:
    @app.job("cancel", retry=None)
    async def cancel() -> None:
        current_task().cancel()
        await asyncio.sleep(0)

    job = await run_one(app, "cancel")
    assert (job.state, job.attempts, job.last_error) == (State.FAILED, 1, "CancelledError")


async def test_a_handler_that_cancels_its_own_task_and_returns_does_not_cancel_the_next_job(app: Everwork) -> None:
    began: list[int] = []

    @app.job("cancel")
    async def cancel(number: int) -> None:
        began.append(number)
        if number % 5 == 4:
            current_task().cancel()
            return
        await asyncio.sleep(0)

    keys = [await app.enqueue("cancel", number=number) for number in range(40)]
    async with working(app):
        for key in keys:
            await app.result(key, timeout=DEADLINE_S)
    assert began == [*range(40)]


def current_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


def test_a_handler_that_cancels_every_task_of_its_loop_strands_no_job(sync_app: Everwork) -> None:
    waiting = [threading.Event(), threading.Event()]

    @sync_app.job("wait", concurrency=2)
    async def wait(number: int) -> None:
        waiting[number].set()
        await asyncio.Event().wait()

    @sync_app.job("cancel")
    async def cancel() -> None:
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    with workers_in_a_thread(sync_app):
        keys = sync_app.sync.enqueue_many([("wait", {"number": 0}), ("wait", {"number": 1})])
        until_sync(lambda: all(one.is_set() for one in waiting))
        keys.append(sync_app.sync.enqueue("cancel"))
        until_sync(lambda: sync_app._workers.runtime is None)
    states = [sync_app.sync.get(key).state for key in keys]
    assert states[:2] == [State.PENDING, State.PENDING]
    assert states[2] in (State.PENDING, State.COMPLETED)


async def test_a_handler_that_has_blocked_the_loop_past_its_time_has_timed_out(app: Everwork) -> None:
    never = threading.Event()

    @app.job("block", retry=None, timeout=0.05)
    async def block() -> str:
        never.wait(0.1)
        return "too late"

    job = await run_one(app, "block")
    assert (job.state, job.last_error, job.result) == (State.FAILED, "timed out after 0.05 s", None)


def test_what_waits_behind_a_blocked_loop_is_done_by_another_worker(
    url: str, sync_app: Everwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetcher, "UNSTARTED_SECONDS", 0.05)
    begun, release = threading.Event(), threading.Event()

    @sync_app.job("work", concurrency=2)
    async def work() -> str:
        begun.set()
        release.wait(DEADLINE_S)
        return "blocked"

    other = Everwork(url, worker="w2")
    other.job("work", concurrency=2)(lambda: "elsewhere")
    blocks, waits = sync_app.sync.enqueue_many([("work", {})] * 2)
    with workers_in_a_thread(sync_app):
        assert begun.wait(DEADLINE_S)
        with workers_in_a_thread(other):
            elsewhere = other.sync.result(waits, timeout=DEADLINE_S)
        release.set()
        assert sync_app.sync.result(blocks, timeout=DEADLINE_S) == "blocked"
    assert (elsewhere, sync_app.sync.get(waits).worker) == ("elsewhere", "w2")
    assert [event.kind for event in sync_app.sync.history(waits)] == ["release", "complete"]


async def test_one_outcome_that_cannot_be_stored_fails_alone(app: Everwork, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, release = 0, asyncio.Event()

    @app.job("work", concurrency=7)
    async def work() -> str:
        nonlocal begun
        begun += 1
        await release.wait()
        return "done"

    keys = await app.enqueue_many([("work", {})] * 7)
    engine = app.service._engine
    settle = engine.settle

    async def refusing(outcomes: Sequence[Outcome], demands: Sequence[Demand] = ()) -> Settlement:
        if any(isinstance(one, Complete) and one.key == keys[3] for one in outcomes):
            raise ValueError("this one is cursed")
        return await settle(outcomes, demands)

    monkeypatch.setattr(engine, "settle", refusing)
    async with working(app):
        await until(lambda: begun == 7)
        release.set()
        jobs = [await finished(app, key) for key in keys]
        assert await app.result(await work.enqueue(), DEADLINE_S) == "done"
    cursed = jobs.pop(3)
    assert (cursed.state, cursed.attempts) == (State.FAILED, 1)
    assert str(cursed.last_error) == "its outcome cannot be stored: this one is cursed"
    assert [job.state for job in jobs] == [State.COMPLETED] * 6


async def test_an_outcome_that_cannot_be_stored_at_all_is_left_to_its_lease(
    app: Everwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.job("work", concurrency=3)
    async def work() -> str:
        return "done"

    keys = await app.enqueue_many([("work", {})] * 3)
    engine = app.service._engine
    settle = engine.settle

    async def refusing(outcomes: Sequence[Outcome], demands: Sequence[Demand] = ()) -> Settlement:
        if any(one.key == keys[1] for one in outcomes):
            raise ValueError("this one is cursed")
        return await settle(outcomes, demands)

    monkeypatch.setattr(engine, "settle", refusing)
    async with working(app):
        assert [await app.result(key, DEADLINE_S) for key in (keys[0], keys[2])] == ["done", "done"]
        assert await app.result(await work.enqueue(), DEADLINE_S) == "done"
    assert (await app.get(keys[1])).state is State.PROCESSING
