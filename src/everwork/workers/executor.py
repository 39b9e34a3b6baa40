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
from typing import Any

from everwork.core import outcome as o
from everwork.core.limits import ERROR_CHARS_MAX, PAYLOAD_BYTES_MAX
from everwork.engines.codec import decode, encode
from everwork.exceptions import Fail, InvalidInput, Reject, Retry
from everwork.logs import get_logger
from everwork.workers.attempt import Attempt, Stop
from everwork.workers.context import JobContext
from everwork.workers.function import JobFunction
from everwork.workers.threads import HandlerThreads

log = get_logger("everwork")

Report = tuple[Attempt, o.Outcome | None]
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
        self, functions: Mapping[str, JobFunction[..., Any]], send: Callable[[list[Report]], None], worker: str
    ) -> None:
        self._pools = {type: Pool(function) for type, function in functions.items()}
        self._send = send
        self._worker = worker
        self._loop = asyncio.get_running_loop()
        self._reports: list[Report] = []
        self._threads = HandlerThreads()
        self._watch: asyncio.TimerHandle | None = None
        self._is_stopping = False

    def accept(self, attempts: Iterable[Attempt]) -> None:
        """Take attempts; they begin as soon as a runner is free."""
        for attempt in attempts:
            if self._is_stopping:
                self._report(attempt, o.Release(attempt.job.key, attempt.job.attempt))
                continue
            pool = self._pools[attempt.job.type]
            pool.inbox.append(attempt)
            if len(pool.inbox) == 1:
                self._wake(pool)
        if self._watch is None and not self._is_stopping:
            self._watch = self._loop.call_later(WATCH_SECONDS, self._look)

    def stop(self, attempt: Attempt, why: Stop) -> None:
        """Stop one attempt; a handler in a thread is only told so."""
        if attempt.stop is not None or attempt.is_reported:
            return
        attempt.stop = why
        if attempt.task is not None:
            attempt.task.cancel()

    def stop_soft(self) -> None:
        """Begin nothing more; what waits goes back."""
        self._is_stopping = True
        for pool in self._pools.values():
            while pool.inbox:
                attempt = pool.inbox.popleft()
                self._report(attempt, o.Release(attempt.job.key, attempt.job.attempt))

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
            runner.add_done_callback(pool.runners.discard)

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
        attempt.task = task
        attempt.begun_at = time.monotonic()
        pool.running.add(attempt)
        outcome: o.Outcome | None
        try:
            outcome = await self._call(pool.function, attempt)
        except asyncio.CancelledError:
            if attempt.stop is None or attempt.task is None:
                raise  # The runner itself is being stopped.
            attempt.task.uncancel()
            outcome = self._stopped(pool.function, attempt)
        if attempt.stop is not None:
            outcome = await _absorb_stop(attempt, outcome) or self._stopped(pool.function, attempt)
        self._report(attempt, outcome)
        if attempt.thread is not None and not attempt.thread.done():
            await asyncio.wait([attempt.thread])  # The place is taken until the thread is back.
        pool.running.discard(attempt)

    async def _call(self, function: JobFunction[..., Any], attempt: Attempt) -> o.Outcome:
        """Call the handler, and turn what it returns or raises into an outcome."""
        try:
            arguments = function.arguments.bind(decode(attempt.job.variables))
        except InvalidInput as error:
            return o.Fail(attempt.job.key, attempt.job.attempt, f"argument {error}", final=True)
        if function.arguments.context_name is not None:
            arguments[function.arguments.context_name] = JobContext(attempt)
        try:
            if function.is_async:
                value = await function.function(**arguments)
            else:
                attempt.thread = self._threads.run(functools.partial(function.function, **arguments))
                value = await asyncio.shield(attempt.thread)
        except Exception as error:  # noqa: BLE001 - user code
            return self._failed(function, attempt, error)
        return _completed(attempt, value)

    def _failed(self, function: JobFunction[..., Any], attempt: Attempt, error: Exception) -> o.Outcome:
        key, number = attempt.job.key, attempt.job.attempt
        match error:
            case Fail():
                return o.Fail(key, number, error.detail or "failed by the handler", final=True)
            case Reject():
                return o.Reject(key, number, error.detail)
            case Retry():
                return o.Retry(key, number, error.detail, None if error.delay is None else round(error.delay * 1000))
            case _:
                log.warning(
                    "a job failed",
                    type=attempt.job.type,
                    key=key,
                    attempt=number,
                    worker=self._worker,
                    exc_info=error,
                )
                return o.Fail(key, number, _text(error), final=function.retry is None)

    def _stopped(self, function: JobFunction[..., Any], attempt: Attempt) -> o.Outcome | None:
        """The outcome of an attempt that was told to stop; None if nobody would accept one, or it cannot be known."""
        key, number = attempt.job.key, attempt.job.attempt
        is_running = attempt.thread is not None and not attempt.thread.done()
        match attempt.stop:
            case Stop.TIMED_OUT:
                more = "; its thread still runs" if is_running else ""
                return o.Fail(key, number, f"timed out after {attempt.timeout:g} s{more}", final=function.retry is None)
            case Stop.SHUTDOWN if not is_running:
                return o.Release(key, number)
            case _:
                return None

    # Reports ------------------------------------------------------------------------------------

    def _report(self, attempt: Attempt, outcome: o.Outcome | None) -> None:
        if attempt.is_reported:
            return
        attempt.is_reported = True
        if not self._reports:
            self._loop.call_soon(self._flush)
        self._reports.append((attempt, outcome))

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
                    self._report(attempt, self._stopped(pool.function, attempt))
            has_any = has_any or bool(pool.inbox)
        if has_any:
            self._watch = self._loop.call_later(WATCH_SECONDS, self._look)


def _completed(attempt: Attempt, value: Any) -> o.Outcome:
    if value is None:
        return o.Complete(attempt.job.key, attempt.job.attempt)
    try:
        return o.Complete(attempt.job.key, attempt.job.attempt, encode("result", value, PAYLOAD_BYTES_MAX))
    except InvalidInput as error:
        return o.Fail(attempt.job.key, attempt.job.attempt, f"the handler's {error}", final=True)


async def _absorb_stop(attempt: Attempt, outcome: o.Outcome | None) -> o.Outcome | None:
    """Take in a cancellation that came when the handler had ended already; what counts of its end, if anything."""
    if attempt.task is not None and attempt.task.cancelling():
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            attempt.task.uncancel()
    return outcome if attempt.stop is Stop.SHUTDOWN else None


def _text(error: BaseException) -> str:
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return text[:ERROR_CHARS_MAX]
