"""The workers of one process: created, started, and shut down. A worker that fails does not stop the others."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from everwork.aio.retrying import backoff_delays
from everwork.app.settings import WorkerSettings
from everwork.core.texts import error_text
from everwork.manager.worker import AbstractWorker
from everwork.runtime.dependencies.process import ProcessScope, lifespan_plan
from everwork.runtime.handler import Arguments, Handler, QueueKey
from everwork.runtime.middleware import MakeMiddleware, Middleware, require_middleware
from everwork.runtime.shutdown import SHUTDOWN_SECONDS

RETRY_SECONDS_MIN: Final = 1.0
RETRY_SECONDS_MAX: Final = 60.0
RUNNING_SECONDS: Final = 10.0
"""After this time, a process counts as running even if a `startup()` in it has not ended."""
PROBLEM_CHARS_MAX: Final = 1_000

AddHandler = Callable[[Handler], None]
ReportProblem = Callable[[str, str | None], None]
"""Takes a worker's id and its problem; None means that the problem is solved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """A worker in a process: its class, the queues it takes jobs from, and its index; for `is_final`, see `Handler`."""

    worker: type[AbstractWorker]
    queues: tuple[QueueKey, ...]
    index: int
    id: str
    is_final: bool

    @classmethod
    def of(
        cls, settings: WorkerSettings, worker: type[AbstractWorker], queues: tuple[QueueKey, ...], index: int
    ) -> WorkerSpec:
        """The spec of a worker with these settings: without a retry policy, its first error is final."""
        return cls(worker=worker, queues=queues, index=index, id=settings.id, is_final=settings.retry is None)


class WorkerPool:
    """The workers of one process, in the handlers' event loop."""

    def __init__(
        self,
        workers: Sequence[WorkerSpec],
        log: Any,
        middleware: Sequence[MakeMiddleware] = (),
        lifespan: Callable[..., Any] | None = None,
    ) -> None:
        self._specs = workers
        self._lifespan = lifespan_plan(lifespan)
        self._process = ProcessScope()
        self._entering = asyncio.Lock()
        self._factories = middleware
        self._middleware: tuple[Middleware, ...] = ()
        self._log = log
        self._untried = len(workers)
        self._started: list[AbstractWorker] = []
        self.first_round = asyncio.Event()
        """Set after the first attempt to start every worker."""

    async def start(self, add: AddHandler, report: ReportProblem) -> None:
        """Start all workers concurrently; each runs jobs once it is ready. A failed start is retried with backoff."""
        await asyncio.gather(*(self._bring_up(spec, add, report) for spec in self._specs))

    async def start_once(self, add: AddHandler) -> dict[str, str]:
        """Start all workers concurrently, without retries; returns the problems of those that failed, by class."""
        problems = await asyncio.gather(*(self._try_with_warnings(spec, add, _ignore) for spec in self._specs))
        named = zip(self._specs, problems, strict=True)
        return {spec.worker.__name__: problem for spec, problem in named if problem is not None}

    async def wait_first_round(self, seconds: float) -> None:
        """Wait until the start of every worker has been tried once, at most for a number of seconds."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self.first_round.wait(), seconds)

    async def shutdown(self) -> None:
        """Shut down every worker that was started, and exit the lifespan."""
        try:
            await asyncio.gather(*(self._shut_down(worker) for worker in self._started))
        finally:
            await self._process.close(SHUTDOWN_SECONDS)

    async def _bring_up(self, spec: WorkerSpec, add: AddHandler, report: ReportProblem) -> None:
        problem = await self._try_with_warnings(spec, add, report)
        self._untried -= 1
        if not self._untried:
            self.first_round.set()
        report(spec.id, problem)
        for seconds in backoff_delays(RETRY_SECONDS_MIN, RETRY_SECONDS_MAX):
            if problem is None:
                return
            await asyncio.sleep(seconds)
            problem = await self._try_with_warnings(spec, add, report)
            report(spec.id, problem)

    async def _try_with_warnings(self, spec: WorkerSpec, add: AddHandler, report: ReportProblem) -> str | None:
        """Create and start a worker; log warnings while it takes long."""
        warning_task = asyncio.ensure_future(self._warn_slow_start(spec, report))
        try:
            return await self._try(spec, add)
        finally:
            warning_task.cancel()

    async def _warn_slow_start(self, spec: WorkerSpec, report: ReportProblem) -> None:
        started_at, seconds = time.monotonic(), RUNNING_SECONDS
        while True:
            await asyncio.sleep(started_at + seconds - time.monotonic())
            problem = f"startup() has been running for {seconds:g} s"
            self._log.warning("worker is slow to start", worker=spec.id, of=spec.worker.__name__, problem=problem)
            report(spec.id, problem)
            seconds *= 2

    async def _try(self, spec: WorkerSpec, add: AddHandler) -> str | None:
        """Create and start a worker; returns the problem if it fails."""
        try:
            settings = spec.worker._get_settings()  # noqa: SLF001 - the name is public API
            middleware = self._make_middleware()
            process = await self._enter_lifespan()
            worker = spec.worker()
            await worker.startup()
            handler = replace(handler_of(worker, settings, spec, middleware), process=process)
        except BaseException as error:
            if _is_own_cancellation(error):
                raise
            self._log.error("worker could not be started", worker=spec.id, of=spec.worker.__name__, exc_info=error)
            return error_text(f"{type(error).__name__}: {error_text(error)}")[:PROBLEM_CHARS_MAX]
        self._started.append(worker)
        add(handler)
        return None

    def _make_middleware(self) -> tuple[Middleware, ...]:
        """Create the middleware once for all workers; a failure is retried with the worker."""
        if len(self._middleware) < len(self._factories):
            self._middleware = require_middleware("middleware", [make() for make in self._factories])
        return self._middleware

    async def _enter_lifespan(self) -> ProcessScope:
        """Enter the lifespan once for all workers; a failure is retried with the worker."""
        async with self._entering:
            if self._lifespan is not None:
                await self._process.open(self._lifespan)
                self._lifespan = None
        return self._process

    async def _shut_down(self, worker: AbstractWorker) -> None:
        try:
            await worker.shutdown()
        except BaseException as error:
            if _is_own_cancellation(error):
                raise
            # A worker gets this when it awaits a task that it has just cancelled; that is not a failure.
            if not isinstance(error, asyncio.CancelledError):
                self._log.error("worker failed to shut down", worker=type(worker).__name__, exc_info=error)


def _ignore(_worker: str, _problem: str | None) -> None:
    """A tick has no parent to report to; problems are logged."""


def _is_own_cancellation(error: BaseException) -> bool:
    """Whether the current task is being cancelled, and not a task that the worker itself has cancelled."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def handler_of(
    worker: AbstractWorker, settings: WorkerSettings, spec: WorkerSpec, middleware: tuple[Middleware, ...] = ()
) -> Handler:
    """A worker as a handler of the runtime."""
    return Handler(
        name=spec.id,
        queues=spec.queues,
        function=worker.__call__,
        arguments=Arguments(worker.__call__),
        is_async=inspect.iscoroutinefunction(worker.__call__),
        is_final=spec.is_final,
        concurrency=settings.concurrency,
        timeout=settings.execution_timeout,
        events_max=settings.event_settings.max_events_in_memory,
        settle_events_max=settings.event_settings.max_batch_size,
        index=spec.index,
        middleware=middleware,
        title=settings.title,
    )
