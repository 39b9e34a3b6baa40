"""The handlers' side: runs attempts in the handlers' event loop and reports how they ended.

A job costs no task of its own. Each type has up to `concurrency` runners, started when they are needed; a
runner takes the next attempt and awaits its handler directly, so handlers that never suspend are run one after
the other by one runner.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from everwork.core import checks
from everwork.core import outcome as o
from everwork.core.limits import DELAY_MS_MAX, PAYLOAD_BYTES_MAX
from everwork.core.texts import error_text
from everwork.engines.codec import decode, encode
from everwork.exceptions import Fail, InvalidInput, Reject, Retry
from everwork.logs import get_logger
from everwork.workers.attempt import Attempt, Stop
from everwork.workers.context import JobContext, OwnTransactions
from everwork.workers.function import JobFunction
from everwork.workers.threads import HandlerThreads

log = get_logger("everwork")

Report = tuple[Attempt, o.Outcome | None, bool]
"""An attempt, its outcome if it is known now and anybody would accept it, and whether its place is free again."""
SLICE_SECONDS = 0.005
WATCH_SECONDS = 0.1
GRACE_SECONDS = 1.0


class Pool:
    """The attempts of one type: waiting, running, and those who run them."""

    __slots__ = ("function", "idle", "inbox", "runners", "running")

    def __init__(self, function: JobFunction[..., Any]) -> None:
        self.function = function
        self.inbox: deque[Attempt] = deque()
        self.running: set[Attempt] = set()
        self.idle: list[asyncio.Future[None]] = []
        self.runners: set[asyncio.Task[None]] = set()


class Executor:
    """Runs what it is given. Lives in the handlers' event loop."""

    def __init__(
        self,
        functions: Mapping[str, JobFunction[..., Any]],
        send: Callable[[list[Report]], None],
        worker: str,
        own: OwnTransactions,
    ) -> None:
        self._pools = {type: Pool(function) for type, function in functions.items()}
        self._send = send
        self._worker = worker
        self._own = own
        self._loop = asyncio.get_running_loop()
        self._reports: list[Report] = []
        self._threads = HandlerThreads()
        self._watch: asyncio.TimerHandle | None = None
        self._is_stopping = False

    def accept(self, attempts: Iterable[Attempt]) -> None:
        """Take attempts; they begin as soon as a runner is free."""
        for attempt in attempts:
            if self._is_stopping:
                self._hand_back(attempt)
                continue
            pool = self._pools[attempt.job.type]
            pool.inbox.append(attempt)
            if len(pool.inbox) == 1:
                self._wake(pool)
        if self._watch is None and not self._is_stopping:
            self._watch = self._loop.call_later(WATCH_SECONDS, self._look)

    def stop(self, attempt: Attempt, why: Stop) -> None:
        """Stop one attempt. A handler in a thread is only told so, and at a shutdown not even that: it may finish."""
        if attempt.stop is not None or attempt.is_reported or (why is Stop.SHUTDOWN and attempt.is_in_thread):
            return
        attempt.stop = why
        if attempt.task is not None:
            attempt.task.cancel()

    def stop_soft(self) -> None:
        """Begin nothing more; what waits goes back."""
        self._is_stopping = True
        for pool in self._pools.values():
            while pool.inbox:
                self._hand_back(pool.inbox.popleft())

    def stop_running(self) -> None:
        """Cancel what still runs; it goes back too."""
        for pool in self._pools.values():
            for attempt in list(pool.running):
                self.stop(attempt, Stop.SHUTDOWN)

    def close(self) -> None:
        """Let runners and threads go."""
        if self._watch is not None:
            self._watch.cancel()
        for pool in self._pools.values():
            for runner in pool.runners:
                runner.cancel()
        self._threads.close()

    def is_runner(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether a task runs handlers."""
        return any(task in pool.runners for pool in self._pools.values())

    @property
    def is_handler_thread(self) -> bool:
        """Whether the caller is a handler in a thread."""
        return self._threads.is_one_of_them

    # Runners ------------------------------------------------------------------------------------

    def _wake(self, pool: Pool) -> None:
        """Let one more runner look into the inbox, if there is work and room."""
        if not pool.inbox:
            return
        while pool.idle:
            future = pool.idle.pop()
            if not future.done():
                future.set_result(None)
                return
        if len(pool.runners) < pool.function.concurrency:
            runner = self._loop.create_task(self._run_all(pool))
            pool.runners.add(runner)
            runner.add_done_callback(functools.partial(self._forget, pool))

    def _forget(self, pool: Pool, runner: asyncio.Task[None]) -> None:
        """A runner has ended. None should, as long as nobody closes the executor: say so, and let another go on."""
        pool.runners.discard(runner)
        if not runner.cancelled() and runner.exception() is not None:
            log.error("a runner broke down", type=pool.function.type, exc_info=runner.exception())
        if not self._is_stopping:
            self._wake(pool)

    async def _run_all(self, pool: Pool) -> None:
        loop, inbox, task = self._loop, pool.inbox, asyncio.current_task()
        slice_ends = time.monotonic() + SLICE_SECONDS
        while True:
            while not inbox:
                future = loop.create_future()
                pool.idle.append(future)
                await future
                slice_ends = time.monotonic() + SLICE_SECONDS
            attempt = inbox.popleft()
            if inbox:
                # If this handler suspends, somebody else goes on with the rest.
                loop.call_soon(self._wake, pool)
            await self._run(pool, attempt, task)
            if time.monotonic() > slice_ends:
                await asyncio.sleep(0)
                slice_ends = time.monotonic() + SLICE_SECONDS

    async def _run(self, pool: Pool, attempt: Attempt, task: asyncio.Task[None] | None) -> None:
        """One attempt: begin, call, report, and give the place back."""
        if attempt.stop is not None or not attempt.begin(time.monotonic()):
            self._report(attempt, None)
            return
        attempt.task = task
        pool.running.add(attempt)
        try:
            outcome = await self._outcome(pool.function, attempt)
            if attempt.thread is not None and attempt.is_in_thread:
                self._report(attempt, outcome, is_free=False)
                await asyncio.wait([attempt.thread])  # The place is taken until the thread is back.
                outcome = None
            self._report(attempt, outcome)
        except BaseException as error:
            # The runner is being stopped, and its handler with it.
            is_cancelled = isinstance(error, asyncio.CancelledError)
            self._report(attempt, o.Release(attempt.job.key, attempt.job.attempt) if is_cancelled else None)
            raise
        finally:
            attempt.task = None
            pool.running.discard(attempt)

    async def _outcome(self, function: JobFunction[..., Any], attempt: Attempt) -> o.Outcome | None:
        """How the attempt ended, whatever the handler does."""
        outcome: o.Outcome | None
        try:
            outcome = await self._call(function, attempt)
        except asyncio.CancelledError as error:
            if attempt.stop is None and attempt.task is not None and attempt.task.cancelling():
                raise  # The runner itself is being stopped.
            outcome = None if attempt.stop is not None else self._failed(function, attempt, error)
        except GeneratorExit:
            raise
        except BaseException as error:  # noqa: BLE001 - user code
            outcome = self._failed(function, attempt, error)
        if attempt.stop is None and attempt.is_overdue(time.monotonic()):
            attempt.stop = Stop.TIMED_OUT  # It has blocked the loop, so that nobody could tell it.
        if attempt.stop is not None:
            await _absorb_cancellation(attempt)
            if outcome is None or attempt.stop is not Stop.SHUTDOWN:
                outcome = self._stopped(function, attempt)
        return outcome

    async def _call(self, function: JobFunction[..., Any], attempt: Attempt) -> o.Outcome:
        """Bind the arguments, call the handler, and keep what it returns."""
        try:
            arguments = function.arguments.bind(decode(attempt.job.variables))
        except InvalidInput as error:
            return o.Fail(attempt.job.key, attempt.job.attempt, error_text(f"argument {error}"), final=True)
        if function.arguments.context_name is not None:
            arguments[function.arguments.context_name] = JobContext(attempt, self._own)
        if function.is_async:
            value = await function.function(**arguments)
        else:
            attempt.thread = self._threads.run(functools.partial(function.function, **arguments))
            value = await asyncio.shield(attempt.thread)
        return _completed(attempt, value)

    def _failed(self, function: JobFunction[..., Any], attempt: Attempt, error: BaseException) -> o.Outcome:
        """The outcome of an attempt whose handler raised."""
        key, number = attempt.job.key, attempt.job.attempt
        match error:
            case Fail():
                return o.Fail(key, number, error_text(error.detail) or "failed by the handler", final=True)
            case Reject():
                return o.Reject(key, number, error_text(error.detail))
            case Retry():
                return _retried(key, number, error)
            case _:
                log.warning(
                    "a job failed", type=attempt.job.type, key=key, attempt=number, worker=self._worker, exc_info=error
                )
                text = error_text(error)
                named = f"{type(error).__name__}: {text}" if text else type(error).__name__
                return o.Fail(key, number, error_text(named), final=function.retry is None)

    def _stopped(self, function: JobFunction[..., Any], attempt: Attempt) -> o.Outcome | None:
        """The outcome of an attempt that was told to stop; None if nobody would accept one."""
        key, number = attempt.job.key, attempt.job.attempt
        match attempt.stop:
            case Stop.TIMED_OUT:
                more = "; its thread still runs" if attempt.is_in_thread else ""
                return o.Fail(key, number, f"timed out after {attempt.timeout:g} s{more}", final=function.retry is None)
            case Stop.SHUTDOWN:
                return o.Release(key, number)
            case _:
                return None

    # Reports ------------------------------------------------------------------------------------

    def _hand_back(self, attempt: Attempt) -> None:
        """Give back an attempt that has not begun."""
        release = o.Release(attempt.job.key, attempt.job.attempt) if attempt.take() and attempt.stop is None else None
        self._report(attempt, release)

    def _report(self, attempt: Attempt, outcome: o.Outcome | None, *, is_free: bool = True) -> None:
        """Tell how an attempt ended, once, and that its place is free."""
        if attempt.is_reported:
            if not is_free:
                return
            outcome = None
        attempt.is_reported = True
        if not self._reports:
            self._loop.call_soon(self._flush)
        self._reports.append((attempt, outcome, is_free))

    def _flush(self) -> None:
        reports, self._reports = self._reports, []
        self._send(reports)

    def _look(self) -> None:
        """One timer for all time-outs of this process."""
        self._watch = None
        now = time.monotonic()
        has_any = False
        for pool in self._pools.values():
            for attempt in pool.running:
                has_any = True
                if attempt.is_overdue(now):
                    self.stop(attempt, Stop.TIMED_OUT)
                if attempt.stop is Stop.TIMED_OUT and attempt.is_overdue(now - GRACE_SECONDS):
                    # It swallows its cancellation: the job need not wait for it.
                    self._report(attempt, self._stopped(pool.function, attempt), is_free=False)
            has_any = has_any or bool(pool.inbox)
        if has_any:
            self._watch = self._loop.call_later(WATCH_SECONDS, self._look)


def _completed(attempt: Attempt, value: Any) -> o.Outcome:
    if value is None:
        # After a commit of the handler's own this is a repeat, and changes nothing.
        return attempt.completion or o.Complete(attempt.job.key, attempt.job.attempt)
    try:
        return o.Complete(attempt.job.key, attempt.job.attempt, encode("result", value, PAYLOAD_BYTES_MAX))
    except InvalidInput as error:
        return o.Fail(attempt.job.key, attempt.job.attempt, error_text(f"the handler's {error}"), final=True)


def _retried(key: int, number: int, error: Retry) -> o.Outcome:
    text = error_text(error.detail)
    if error.delay is None:
        return o.Retry(key, number, text)
    try:
        return o.Retry(key, number, text, checks.milliseconds("delay", error.delay, 0, DELAY_MS_MAX / 1000))
    except InvalidInput as problem:
        return o.Fail(key, number, error_text(f"Retry: {problem}"), final=True)


async def _absorb_cancellation(attempt: Attempt) -> None:
    """Take in a cancellation that came when the handler had ended already, so that it does not hit the next one."""
    task = attempt.task
    if task is None or not task.cancelling():
        return
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(0)
    while task.cancelling():
        task.uncancel()
