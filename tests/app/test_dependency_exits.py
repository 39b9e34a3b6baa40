"""How dependencies end: in reverse order, before the outcome is settled, with the handler's error, whatever ends it."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from everwork import Depends, Everwork, JobContext, RetryPolicy, State
from everwork.engines.sqlite.store_url import StoreUrl
from everwork.exceptions import Fail, Reject
from everwork.runtime.shutdown import StopSignal
from everwork.testing import Run, rehearse
from tests.app.handlers import a_handler, a_runtime
from tests.app.waiting import DEADLINE_S, finished, until, working
from tests.stores import url_of

NOW = RetryPolicy(max_attempts=2, base=0.0)


@pytest.fixture
def url(tmp_path: Path) -> str:
    """One engine will do: none knows of dependencies."""
    return url_of("sqlite", tmp_path)


class Steps(list[str]):
    """What has happened, in order; each kind of dependency notes its own steps."""

    def noting(self, name: str) -> Iterator[str]:
        """A plain generator."""
        self.append(f"{name} opened")
        try:
            yield name
        except BaseException as error:
            self.append(f"{name} got {type(error).__name__}")
            raise
        self.append(f"{name} closed")

    async def noting_async(self, name: str) -> AsyncIterator[str]:
        """An asynchronous generator."""
        with contextmanager(self.noting)(name):
            yield name

    def kind(self, kind: str) -> Callable[[], Any]:
        """A dependency that notes its steps."""
        return {
            "generator": lambda: self.noting(kind),
            "async generator": lambda: self.noting_async(kind),
            "manager": lambda: contextmanager(self.noting)(kind),
            "async manager": lambda: asynccontextmanager(self.noting_async)(kind),
        }[kind]


KINDS = ["generator", "async generator", "manager", "async manager"]
PAIRS = [*zip(KINDS, reversed(KINDS), strict=True)]


def declare(app: Everwork, is_plain: bool, act: Callable[[], Any], *needs: Callable[..., Any], **settings: Any) -> None:
    """A handler of type "a" that acts once its two dependencies are open."""
    first, second = needs

    async def handle(one: Any = Depends(first), two: Any = Depends(second)) -> Any:
        return act()

    def plain(one: Any = Depends(first), two: Any = Depends(second)) -> Any:
        return act()

    app.job("a", **settings)(plain if is_plain else handle)


async def run_on_stage(app: Everwork) -> list[Run]:
    """One job of type "a", until nothing more happens to it."""
    async with rehearse(app) as stage:
        await app.enqueue("a")
        return await stage.drain(until_empty=True)


@pytest.mark.parametrize("is_plain", [False, True], ids=["async", "plain"])
@pytest.mark.parametrize(("first", "second"), PAIRS)
async def test_dependencies_are_closed_in_reverse_order(app: Everwork, first: str, second: str, is_plain: bool) -> None:
    steps = Steps()
    declare(app, is_plain, lambda: steps.append("called"), steps.kind(first), steps.kind(second))
    await run_on_stage(app)
    assert steps == [f"{first} opened", f"{second} opened", "called", f"{second} closed", f"{first} closed"]


@pytest.mark.parametrize("is_plain", [False, True], ids=["async", "plain"])
@pytest.mark.parametrize(("first", "second"), PAIRS)
async def test_dependencies_get_the_exception_of_the_handler(
    app: Everwork, first: str, second: str, is_plain: bool
) -> None:
    steps = Steps()
    declare(app, is_plain, lambda: 1 / 0, steps.kind(first), steps.kind(second), retry=None)
    (run,) = await run_on_stage(app)
    assert run.error == "ZeroDivisionError: division by zero"
    assert steps[2:] == [f"{second} got ZeroDivisionError", f"{first} got ZeroDivisionError"]


@pytest.mark.parametrize("is_plain", [False, True], ids=["async", "plain"])
async def test_a_commit_that_fails_on_exit_fails_the_attempt_which_is_retried(app: Everwork, is_plain: bool) -> None:
    steps = Steps()

    def committing() -> Iterator[None]:
        yield
        if "refused" not in steps:
            steps.append("refused")
            raise ConnectionError("the commit was refused")

    declare(app, is_plain, lambda: "done", steps.kind("generator"), committing, retry=NOW)
    runs = await run_on_stage(app)
    assert [(run.outcome, run.error) for run in runs] == [
        ("fail", "ConnectionError: the commit was refused"),
        ("complete", None),
    ]
    assert steps[2] == "generator got ConnectionError"
    assert runs[0].exception is not None
    assert runs[0].exception.__notes__ == ["raised on exit of dependency 'committing'"]


@pytest.mark.parametrize("is_plain", [False, True], ids=["async", "plain"])
async def test_an_exit_that_fails_after_the_handler_does_not_hide_the_handlers_error(
    app: Everwork, is_plain: bool
) -> None:
    steps = Steps()

    def failing() -> Iterator[None]:
        try:
            yield
        finally:
            raise ConnectionError("no rollback either")

    declare(app, is_plain, lambda: 1 / 0, steps.kind("async generator"), failing, retry=None)
    (run,) = await run_on_stage(app)
    assert run.error == "ZeroDivisionError: division by zero"
    assert steps[-1] == "async generator got ZeroDivisionError"
    assert run.exception is not None
    assert run.exception.__notes__ == ["dependency 'failing' also failed on exit: ConnectionError: no rollback either"]


@pytest.mark.parametrize("is_plain", [False, True], ids=["async", "plain"])
async def test_an_exit_that_swallows_an_exception_makes_no_success_of_a_failure(app: Everwork, is_plain: bool) -> None:
    steps = Steps()

    async def swallowing() -> AsyncIterator[None]:
        try:
            yield
        except ZeroDivisionError:
            steps.append("swallowed")

    declare(app, is_plain, lambda: 1 / 0, steps.kind("generator"), swallowing, retry=None)
    (run,) = await run_on_stage(app)
    assert (run.outcome, run.error) == ("fail", "ZeroDivisionError: division by zero")
    assert steps[1:] == ["swallowed", "generator got ZeroDivisionError"]


async def test_an_exit_may_decide_how_the_attempt_ends_by_raising_a_signal(app: Everwork) -> None:
    def translating() -> Iterator[None]:
        try:
            yield
        except ZeroDivisionError as error:
            raise Reject("not a number") from error

    declare(app, False, lambda: 1 / 0, translating, lambda: None)
    (run,) = await run_on_stage(app)
    assert (run.outcome, run.error) == ("reject", "not a number")


@pytest.mark.parametrize("is_plain", [False, True], ids=["async", "plain"])
async def test_a_dependency_that_cannot_be_opened_fails_the_attempt_and_closes_those_that_are(
    app: Everwork, is_plain: bool
) -> None:
    steps = Steps()

    async def refusing() -> None:
        raise Fail("no such tenant")

    declare(app, is_plain, lambda: steps.append("called"), steps.kind("generator"), refusing)
    (run,) = await run_on_stage(app)
    assert (run.outcome, run.error) == ("fail", "no such tenant")
    assert steps == ["generator opened", "generator got Fail"]


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("is_plain", [False, True], ids=["async", "plain"])
@pytest.mark.parametrize(("yields", "error"), [
    (0, "BadConfiguration: dependency 'yielding': its generator did not yield"),
    (2, "RuntimeError: generator didn't stop"),
])  # fmt: skip
async def test_a_generator_must_yield_once(
    app: Everwork, yields: int, error: str, is_plain: bool, is_async: bool
) -> None:
    def yielding() -> Iterator[int]:
        yield from range(yields)

    async def yielding_async() -> AsyncIterator[int]:
        for number in range(yields):
            yield number

    yielding_async.__name__ = "yielding"
    declare(app, is_plain, lambda: None, yielding_async if is_async else yielding, lambda: None, retry=None)
    (run,) = await run_on_stage(app)
    assert run.error == error


# Before the outcome ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_plain", [False, True], ids=["async", "plain"])
async def test_a_job_is_still_processing_while_its_dependencies_are_closed(app: Everwork, is_plain: bool) -> None:
    states: list[State] = []

    async def looking(ctx: JobContext) -> AsyncIterator[None]:
        yield
        states.append((await app.get(ctx.key)).state)

    declare(app, is_plain, lambda: "done", looking, lambda: None)
    async with app, working(app):
        job = await finished(app, await app.enqueue("a"))
    assert states == [State.PROCESSING]
    assert job.state is State.COMPLETED


async def test_a_job_may_be_completed_in_the_transaction_that_its_dependency_commits(
    url: str, app: Everwork, tmp_path: Path
) -> None:
    commits = [False, True]

    def connection() -> Iterator[sqlite3.Connection]:
        own = sqlite3.connect(StoreUrl.from_url(url).path, isolation_level=None)
        own.execute("BEGIN IMMEDIATE")
        yield own
        own.execute("COMMIT" if commits.pop(0) else "ROLLBACK")
        own.close()
        if commits:
            raise ValueError("the commit was refused")

    @app.job("a", retry=NOW)
    def handle(ctx: JobContext, own: sqlite3.Connection = Depends(connection)) -> None:
        ctx.sync.complete(f"attempt {ctx.attempt}", tx=own)

    async with app, working(app):
        job = await finished(app, await app.enqueue("a"))
    assert (job.state, job.result, job.attempt) == (State.COMPLETED, "attempt 2", 2)


@pytest.mark.parametrize("is_plain", [False, True], ids=["async", "plain"])
async def test_the_child_of_a_handler_that_forks_closes_nothing(app: Everwork, tmp_path: Path, is_plain: bool) -> None:
    def noting() -> Iterator[None]:
        yield
        with (tmp_path / "closed").open("a") as closed:
            closed.write(f"{os.getpid()}\n")

    def fork() -> int | None:
        with warnings.catch_warnings(action="ignore"):
            pid = os.fork()
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) if pid else None

    declare(app, is_plain, fork, noting, lambda: None, retry=None)
    async with app, working(app):
        assert await app.result(await app.enqueue("a"), timeout=60) == 0
    assert (tmp_path / "closed").read_text() == f"{os.getpid()}\n"


# Stopped --------------------------------------------------------------------------------------------------------------


async def test_a_cancelled_attempt_closes_its_dependencies_with_a_cancellation(app: Everwork) -> None:
    steps = Steps()
    first, second = steps.kind("generator"), steps.kind("async manager")

    @app.job("a")
    async def handle(one: Any = Depends(first), two: Any = Depends(second)) -> None:
        steps.append("called")
        await asyncio.Event().wait()

    async with app, working(app):
        key = await app.enqueue("a")
        await until(lambda: "called" in steps)
        await app.cancel(key)
        await until(lambda: len(steps) == 5)
    assert steps[3:] == ["async manager got CancelledError", "generator got CancelledError"]


async def test_a_plain_handler_that_returns_after_its_timeout_commits_nothing(app: Everwork) -> None:
    steps, may_return = Steps(), threading.Event()
    needs = steps.kind("generator"), steps.kind("async generator")
    declare(app, True, lambda: may_return.wait(60), *needs, timeout=0.05, retry=None)

    async with app, working(app):
        job = await finished(app, await app.enqueue("a"))
        may_return.set()
        await until(lambda: len(steps) == 4)
    assert job.state is State.FAILED
    assert steps[2:] == ["async generator got CancelledError", "generator got CancelledError"]


@pytest.mark.parametrize("is_plain", [False, True], ids=["async", "plain"])
async def test_a_dependency_that_takes_too_long_to_open_is_cancelled_at_the_timeout(
    app: Everwork, is_plain: bool
) -> None:
    steps = Steps()

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            steps.append("endless ended")

    declare(app, is_plain, lambda: None, steps.kind("generator"), endless, timeout=0.05, retry=None)
    async with app, working(app):
        job = await finished(app, await app.enqueue("a"))
        await until(lambda: len(steps) == 3)
    assert job.last_error is not None
    assert job.last_error.startswith("timed out after 0.05 s")
    assert steps[1:] == ["endless ended", "generator got CancelledError"]


async def test_what_a_thread_opens_while_the_attempt_is_stopped_is_closed(app: Everwork) -> None:
    steps, may_open = Steps(), threading.Event()

    def slow() -> Iterator[None]:
        steps.append("opening")
        may_open.wait(60)
        yield from steps.noting("slow")  # type: ignore[misc]

    @app.job("a")
    async def handle(one: Any = Depends(slow)) -> None:
        steps.append("called")

    async with app, working(app):
        key = await app.enqueue("a")
        await until(lambda: "opening" in steps)
        await app.cancel(key)
        await until(lambda: next(iter(app._workers.runtime._executor._pools["a"].running)).stop is not None)  # type: ignore[union-attr]
        may_open.set()
        await until(lambda: len(steps) == 3)
    assert steps == ["opening", "slow opened", "slow got CancelledError"]


async def test_a_plain_handler_is_not_called_if_its_attempt_was_stopped_while_its_dependencies_were_opened(
    app: Everwork,
) -> None:
    steps, may_open = Steps(), threading.Event()

    def slow() -> Iterator[None]:
        steps.append("opening")
        may_open.wait(60)
        yield from steps.noting("slow")  # type: ignore[misc]

    @app.job("a", timeout=0.05, retry=None)
    def handle(one: Any = Depends(slow)) -> None:
        steps.append("called")

    async with app, working(app):
        await finished(app, await app.enqueue("a"))
        may_open.set()
        await until(lambda: len(steps) == 3)
    assert steps == ["opening", "slow opened", "slow got CancelledError"]


async def test_a_shutdown_closes_the_dependencies_of_what_it_cancels(app: Everwork) -> None:
    steps = Steps()
    first = steps.kind("generator")

    @app.job("a")
    async def handle(one: Any = Depends(first)) -> None:
        steps.append("called")
        await asyncio.Event().wait()

    async with app:
        async with working(app):
            key = await app.enqueue("a")
            await until(lambda: "called" in steps)
            app.stop()  # The end of the block is the second request, which cancels.
        assert (await app.get(key)).state is State.PENDING
    assert steps == ["generator opened", "called", "generator got CancelledError"]


async def test_what_an_async_handler_has_opened_in_a_thread_is_closed_even_if_it_outlives_its_workers(
    app: Everwork,
) -> None:
    steps, may_return = Steps(), asyncio.Event()
    first = steps.kind("generator")

    async def handle(one: Any = Depends(first)) -> None:
        steps.append("called")
        while not may_return.is_set():
            with suppress(asyncio.CancelledError):
                await may_return.wait()

    async with app:
        stopped = StopSignal()
        runtime = a_runtime(app, stopped, a_handler(handle, "a"))
        await app.enqueue("a")
        running = asyncio.create_task(runtime.run(0.0, cancel_seconds=0.01))
        await until(lambda: "called" in steps)
        stopped.request()
        await asyncio.wait_for(running, 2 * DEADLINE_S)
        may_return.set()
        await until(lambda: len(steps) == 3)
    assert steps == ["generator opened", "called", "generator got CancelledError"]


async def test_a_plain_handler_that_outlives_its_workers_commits_nothing_because_its_job_runs_again(
    app: Everwork,
) -> None:
    steps, may_return = Steps(), threading.Event()
    first = steps.kind("generator")

    def handle(one: Any = Depends(first)) -> None:
        steps.append("called")
        may_return.wait(60)

    async with app:
        stopped = StopSignal()
        runtime = a_runtime(app, stopped, a_handler(handle, "a"))
        key = await app.enqueue("a")
        running = asyncio.create_task(runtime.run(0.0, cancel_seconds=0.01))
        await until(lambda: "called" in steps)
        stopped.request()
        await asyncio.wait_for(running, 2 * DEADLINE_S)
        may_return.set()
        await until(lambda: len(steps) == 3)
        assert (await app.get(key)).state is State.PROCESSING, "until its lease expires"
        await until(lambda: not runtime._executor._pools["a"].runners.tasks)
    assert steps == ["generator opened", "called", "generator got CancelledError"]
