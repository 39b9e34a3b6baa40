"""Runs handlers on a stream: a few tasks for many jobs, and a prefetch that adapts to the throughput.

Each type has up to `concurrency` runners; see `everwork.aio.runners`.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from everwork.aio.runners import Runners, absorb_cancellation
from everwork.client import requests
from everwork.client.job import ActiveJob
from everwork.client.stream import Stream
from everwork.core import checks, ending
from everwork.core import outcome as o
from everwork.core.limits import CONCURRENCY_MAX
from everwork.exceptions import BadConfiguration, Fail, InvalidInput, Reject, Retry
from everwork.logs import get_logger, job_here

log = get_logger("everwork")

Handler = Callable[[ActiveJob], Any]
"""Takes a job and returns its result; a coroutine function, or a plain one, which runs in a thread."""
PREFETCH_SECONDS: Final = 0.1
"""As many jobs are prefetched as were recently done in this time: it hides the round trip to the server."""
PREFETCH_MAX: Final = 2_000
WATCH_SECONDS: Final = 0.1
GRACE_SECONDS: Final = 1.0


class Pool:
    """The jobs of one type: waiting, running, and their runners."""

    def __init__(self, type: str, handler: Handler, concurrency: int) -> None:
        if not callable(handler):
            raise BadConfiguration(f"handler of '{type}': must be a function, not {checks.shown(handler)}")
        self.type = checks.name("type", type)
        self.handler = handler
        self.is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
            getattr(handler, "__call__", None)  # noqa: B004 - an object with an async __call__ is a handler too
        )
        self.concurrency = concurrency
        self.running: dict[ActiveJob, Run] = {}
        self.runners: Runners[ActiveJob]
        self.window = concurrency
        self.outstanding = 0
        self.done = 0
        self.counted_at = time.monotonic()

    def adapt(self) -> None:
        """Set the prefetch to what is done in a short time."""
        now = time.monotonic()
        seconds = now - self.counted_at
        if seconds >= PREFETCH_SECONDS:
            self.window = self.concurrency + min(int(self.done / seconds * PREFETCH_SECONDS), PREFETCH_MAX)
            self.done, self.counted_at = 0, now


class Run:
    """A running handler."""

    __slots__ = ("is_cancelled", "is_timed_out", "started_at", "task")

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self.task = task
        self.started_at = time.monotonic()
        self.is_cancelled = False
        """Whether its task was cancelled to stop the handler."""
        self.is_timed_out = False


class StreamWorker:
    """The handlers of one worker, for one call of `run`."""

    def __init__(self, handlers: Mapping[str, Handler], concurrency: int) -> None:
        checks.whole_number("concurrency", concurrency, 1, CONCURRENCY_MAX)
        if not handlers:
            raise BadConfiguration("there is nothing to run: give at least one handler")
        self._pools = {type: Pool(type, handler, concurrency) for type, handler in handlers.items()}
        for pool in self._pools.values():
            pool.runners = Runners(
                functools.partial(self._run, pool), concurrency, pool.type, functools.partial(self._top_up, pool)
            )
        self._stream: Stream
        self._threads: ThreadPoolExecutor | None = None
        self._is_stopping = False
        self._idle = asyncio.Event()

    async def run(self, stream: Stream, stop: asyncio.Event) -> None:
        """Work until `stop` is set: then finish what runs and release what has not started."""
        self._stream = stream
        stream.on_loss = self._stop_lost
        watching = asyncio.ensure_future(self._watch())
        try:
            async with stream:
                for pool in self._pools.values():
                    self._top_up(pool)
                await self._work(stop)
        finally:
            watching.cancel()
            self._close()

    async def _work(self, stop: asyncio.Event) -> None:
        receiving = asyncio.ensure_future(self._receive_all())
        try:
            await _either(receiving, stop)
            if not receiving.done():
                self._stop_soft()
                # An unavailable server must not delay the stop: what is left is sent while the stream closes.
                await _either(receiving, self._idle)
            if receiving.done():
                receiving.result()
        except BaseException:
            self._stop_soft()
            await self._stop_hard()
            raise
        finally:
            receiving.cancel()

    async def _receive_all(self) -> None:
        async for jobs in self._stream:
            for job in jobs:
                self._accept(job)
            for pool in self._pools.values():
                pool.runners.wake()

    def _accept(self, job: ActiveJob) -> None:
        pool = self._pools[job.type]
        if self._is_stopping:
            self._stream.put(o.Release(job.key, job.attempt))
        else:
            pool.runners.inbox.append(job)

    # Shutdown -----------------------------------------------------------------------------------

    def _stop_soft(self) -> None:
        """Start nothing more and release what waits; the stream ends when what runs has ended."""
        self._is_stopping = True
        for pool in self._pools.values():
            while pool.runners.inbox:
                job = pool.runners.inbox.popleft()
                self._stream.put(o.Release(job.key, job.attempt))
        self._stream.drain()
        self._note_idle()

    def _note_idle(self) -> None:
        if self._is_stopping and not any(pool.running for pool in self._pools.values()):
            self._idle.set()

    async def _stop_hard(self) -> None:
        """Cancel what runs; it is released when the stream is closed. Threads cannot be stopped, only flagged."""
        for pool in self._pools.values():
            for job in pool.running:
                job.is_lost = job.is_lost or not pool.is_async
            pool.runners.close()
        runners = [runner for pool in self._pools.values() for runner in pool.runners.tasks]
        if runners:
            await asyncio.wait(runners)

    def _close(self) -> None:
        for pool in self._pools.values():
            pool.runners.close()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    # One job ------------------------------------------------------------------------------------

    async def _run(self, pool: Pool, job: ActiveJob, task: asyncio.Task[Any]) -> None:
        """Call the handler of one job, report its outcome, and request more jobs."""
        if not job.is_lost:
            run = pool.running[job] = Run(task)
            job_here.set(job)
            try:
                outcome = await self._outcome(pool, job, run)
            finally:
                job_here.set(None)
                del pool.running[job]
            if not job.is_lost:
                self._stream.put(outcome)
            if self._is_stopping:
                self._note_idle()
        pool.done += 1
        pool.outstanding -= 1
        if pool.window - pool.outstanding > pool.window >> 2:
            self._top_up(pool)

    def _top_up(self, pool: Pool) -> None:
        pool.adapt()
        credits = pool.window - pool.outstanding
        if credits > 0 and not self._is_stopping:
            pool.outstanding += credits
            self._stream.grant(pool.type, credits)

    async def _outcome(self, pool: Pool, job: ActiveJob, run: Run) -> o.Outcome:
        """The outcome of the attempt, whatever the handler does."""
        try:
            return _completed(job, await self._call(pool, job))
        except asyncio.CancelledError as error:
            if not run.is_cancelled and run.task.cancelling():
                raise  # The runner itself is being stopped.
            await absorb_cancellation(run.task)
            return _timed_out(job) if run.is_timed_out else _failed(job, error)
        except GeneratorExit:
            raise
        except BaseException as error:  # noqa: BLE001 - user code
            await absorb_cancellation(run.task)
            return _failed(job, error)

    async def _call(self, pool: Pool, job: ActiveJob) -> Any:
        if pool.is_async:
            return await pool.handler(job)
        if self._threads is None:
            threads = sum(one.concurrency for one in self._pools.values() if not one.is_async)
            self._threads = ThreadPoolExecutor(threads, thread_name_prefix="everwork-handler")
        return await asyncio.get_running_loop().run_in_executor(self._threads, pool.handler, job)

    # Cancellation -------------------------------------------------------------------------------

    def _stop_lost(self, job: ActiveJob) -> None:
        """Stop a handler whose result no longer matters."""
        run = self._pools[job.type].running.get(job)
        if run is not None:
            self._cancel(job, run)

    def _cancel(self, job: ActiveJob, run: Run) -> None:
        if not run.is_cancelled and self._pools[job.type].is_async:
            run.is_cancelled = True
            run.task.cancel()

    async def _watch(self) -> None:
        """One timer for the timeouts of all jobs."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            now = time.monotonic()
            for pool in self._pools.values():
                for job, run in list(pool.running.items()):
                    overdue = 0.0 if job.timeout_ms is None else now - run.started_at - job.timeout_ms / 1000
                    if overdue > 0.0:
                        run.is_timed_out = True
                        self._cancel(job, run)
                    if overdue > (GRACE_SECONDS if pool.is_async else 0.0) and not job.is_lost:
                        # It ignores its cancellation, or is a thread: the job does not wait for it.
                        self._stream.put(_timed_out(job, "; it still runs"))
                        job.is_lost = True


async def _either(task: asyncio.Future[Any], event: asyncio.Event) -> None:
    """Wait for the task or the event, whichever comes first."""
    waiting: asyncio.Future[Any] = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()


def _completed(job: ActiveJob, value: Any) -> o.Outcome:
    if value is None:
        return o.Complete(job.key, job.attempt)
    try:
        return requests.completed(job, 0, value)
    except InvalidInput as error:
        return ending.unusable(job.key, job.attempt, f"the handler's {error}")


def _timed_out(job: ActiveJob, note: str = "") -> o.Failed:
    return ending.timed_out(job.key, job.attempt, (job.timeout_ms or 0) / 1000, note)


def _failed(job: ActiveJob, error: BaseException) -> o.Outcome:
    """The outcome of an attempt whose handler raised; `Fail`, `Reject` and `Retry` are logged without a traceback."""
    if not isinstance(error, Fail | Reject | Retry):
        log.warning("a job failed", type=job.type, key=job.key, attempt=job.attempt, exc_info=error)
    return ending.raised(job.key, job.attempt, error)
