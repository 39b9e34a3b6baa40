"""A worker's stream as the job source of a runtime, with a prefetch that adapts to throughput."""

from __future__ import annotations

import asyncio
import functools
import inspect
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from everwork.aio.loops import first_of
from everwork.client.job import ActiveJob
from everwork.client.stream import Stream
from everwork.core import checks
from everwork.core.limits import CONCURRENCY_MAX
from everwork.core.outcome import Complete, Release
from everwork.exceptions import BadConfiguration
from everwork.runtime.attempt import Attempt, Stop
from everwork.runtime.handler import Handler as RuntimeHandler
from everwork.runtime.handler import QueueKey
from everwork.runtime.job_log import JobLog
from everwork.runtime.portal import CurrentLoop
from everwork.runtime.runtime import Runtime
from everwork.runtime.shutdown import StopSignal
from everwork.runtime.source import Deliver, Report, StopAttempt

Handler = Callable[[ActiveJob], Any]
"""Takes a job and returns its result: an async function, or a plain one, which runs in a thread."""
PREFETCH_SECONDS: Final = 0.1
"""The prefetch is the number of jobs recently finished in this time, to hide the round trip to the server."""
PREFETCH_MAX: Final = 2_000


async def work_on(stream: Stream, handlers: Sequence[RuntimeHandler], stop: asyncio.Event) -> None:
    """Work until `stop` is set; then finish running jobs and release those that have not started."""
    job_log = JobLog(stream.worker, is_remote=True)
    make_source = functools.partial(StreamSource, stream, job_log=job_log)
    async with stream:
        runtime = Runtime(make_source, CurrentLoop(), StopSignal(stop), None, handlers=handlers)
        await runtime.run(shutdown_timeout=None, cancel_seconds=math.inf)


def runtime_handlers(handlers: Mapping[str, Handler], concurrency: int) -> list[RuntimeHandler]:
    """The validated handlers, one per type; they add no timeouts to those of the jobs themselves."""
    checks.whole_number("concurrency", concurrency, 1, CONCURRENCY_MAX)
    if not handlers:
        raise BadConfiguration("there is nothing to run: pass at least one handler")
    return [_runtime_handler(type, handler, concurrency) for type, handler in handlers.items()]


def _runtime_handler(type: str, handler: Handler, concurrency: int) -> RuntimeHandler:
    if not callable(handler):
        raise BadConfiguration(f"handler of '{type}': must be a function, not {checks.shown(handler)}")
    return RuntimeHandler(
        name=checks.name("type", type),
        queues=(QueueKey(type),),
        function=handler,
        arguments=None,
        is_async=inspect.iscoroutinefunction(handler)
        or inspect.iscoroutinefunction(getattr(handler, "__call__", None)),  # noqa: B004 - objects may be handlers too
        is_final=False,
        concurrency=concurrency,
        timeout=math.inf,
        can_emit=False,
    )


class Window:
    """How many jobs of a type can be here or in transit: the concurrency plus the prefetch."""

    __slots__ = ("_counted_at", "_done", "handler", "outstanding", "size", "taken")

    def __init__(self, handler: RuntimeHandler) -> None:
        self.handler = handler
        self.size = handler.concurrency
        self.outstanding = 0
        """Granted credits, minus the jobs whose handlers have ended."""
        self.taken = 0
        """Received jobs whose handlers have not ended."""
        self._done = 0
        self._counted_at = time.monotonic()

    def free(self, jobs: int) -> None:
        """Record that the handlers of `jobs` jobs have ended."""
        self._done += jobs
        self.outstanding -= jobs
        self.taken -= jobs

    @property
    def wants_more(self) -> bool:
        """Whether to grant credits: in batches, but immediately if a runner is idle."""
        return self.size - self.outstanding > self.size >> 2 or self.taken < self.handler.concurrency

    def credits(self) -> int:
        """How many credits to grant now."""
        now = time.monotonic()
        seconds = now - self._counted_at
        if seconds >= PREFETCH_SECONDS:
            self.size = self.handler.concurrency + min(int(self._done / seconds * PREFETCH_SECONDS), PREFETCH_MAX)
            self._done, self._counted_at = 0, now
        return self.size - self.outstanding


class StreamSource:
    """Jobs from a stream, in the handlers' own event loop."""

    def __init__(self, stream: Stream, deliver: Deliver, stop: StopAttempt, *, job_log: JobLog) -> None:
        self._job_log = job_log
        self._stream = stream
        self._deliver = deliver
        self._stop = stop
        self._windows: dict[str, Window] = {}
        self._delivered: dict[ActiveJob, Attempt] = {}
        """Attempts delivered but not yet reported."""
        self._is_stopping = False
        self._idle = asyncio.Event()
        stream.on_loss = self._stop_lost

    def add(self, handler: RuntimeHandler) -> None:
        """Add a handler, even while others are running."""
        self._windows[handler.name] = window = Window(handler)
        self._top_up(window)

    async def run(self) -> None:
        """Receive jobs until stopped and all delivered attempts are reported; the stream settles them."""
        receiving = asyncio.ensure_future(self._receive())
        try:
            # An unavailable server must not delay the stop: remaining outcomes are sent while the stream closes.
            await first_of(self._idle, work=receiving)
            if receiving.done():
                receiving.result()
        except Exception:
            await self._stop_all()  # Do this before the stream closes, which releases their jobs.
            raise
        finally:
            receiving.cancel()

    def take(self, reports: Sequence[Report]) -> None:
        """Send outcomes, and request more jobs if there is capacity."""
        delivered, put = self._delivered, self._stream.put
        freed: dict[RuntimeHandler, int] = {}
        for attempt, outcome, is_free in reports:
            job: Any = attempt.job  # An `ActiveJob`, as it was delivered.
            delivered.pop(job, None)
            if outcome is not None and not job.is_lost:
                if not isinstance(outcome, Complete | Release):
                    self._job_log.failed(attempt, outcome, None)  # Only the server knows about retries.
                elif self._job_log.shows_all:
                    self._job_log.ended(attempt, outcome)
                put(outcome)
            if is_free:
                freed[attempt.handler] = freed.get(attempt.handler, 0) + 1
            else:
                job.is_lost = True  # The handler is still running, but its result will be discarded.
        for handler, jobs in freed.items():
            window = self._windows[handler.name]
            window.free(jobs)
            if window.wants_more:
                self._top_up(window)
        self._note_idle()

    def stop_fetching(self) -> None:
        """Request no more jobs; the executor, in the same loop, releases those that have not started."""
        if not self._is_stopping:
            self._is_stopping = True
            self._stream.drain()
        self._note_idle()

    def release_running(self) -> None:
        """Do nothing: when a stream ends, the server releases the jobs that the stream has not reported."""
        self.abandon()

    def abandon(self) -> None:
        """Stop waiting for running handlers; their jobs are released when the stream closes."""
        self._idle.set()

    async def _receive(self) -> None:
        delivered, windows = self._delivered, self._windows
        async for jobs in self._stream:
            now, attempts = time.monotonic(), []
            for job in jobs:
                window = windows[job.type]
                window.taken += 1
                delivered[job] = attempt = Attempt(job, now, window.handler)
                attempts.append(attempt)
            self._deliver(attempts)

    def _top_up(self, window: Window) -> None:
        credits = 0 if self._is_stopping else window.credits()
        if credits > 0:
            window.outstanding += credits
            self._stream.grant(window.handler.name, credits)

    def _stop_lost(self, job: ActiveJob, is_cancelled: bool) -> None:
        attempt = self._delivered.get(job)
        if attempt is not None:
            self._stop(attempt, Stop.CANCELLED if is_cancelled else Stop.LOST)

    async def _stop_all(self) -> None:
        """After the stream failed: stop running handlers, and wait for them."""
        self.stop_fetching()  # Do this first; otherwise, released jobs would be sent here again.
        for job, attempt in list(self._delivered.items()):
            if attempt.take():
                del self._delivered[job]  # The job has not started; closing the stream releases it.
            else:
                self._stop(attempt, Stop.SHUTDOWN)
        self._note_idle()
        await self._idle.wait()

    def _note_idle(self) -> None:
        if self._is_stopping and not self._delivered:
            self._idle.set()
