"""The workers of an application in this process: until they are stopped, or for one tick."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from everwork.aio.retrying import backoff_delays, bounded_delays
from everwork.app.engine_host import EngineHost
from everwork.app.function import JobFunction
from everwork.app.tick import TickResult, TickRunner, jobs_per_tick
from everwork.exceptions import BadConfiguration
from everwork.runtime.budget import Budget
from everwork.runtime.fetcher import Fetcher
from everwork.runtime.handler import Handler
from everwork.runtime.job_log import JobLog
from everwork.runtime.middleware import Middleware
from everwork.runtime.runtime import Runtime, WorkerName
from everwork.runtime.shutdown import StopSignal
from everwork.service.service import JobService

if TYPE_CHECKING:
    from everwork.app.function_triggers import FunctionTrigger


class StopRequest:
    """A stop requested after `work()` or `run_once()` was called, but before the coroutine was first awaited."""

    is_requested = False


class Workers:
    """Runs the functions of an application: one runtime at a time, and any number of ticks beside it."""

    def __init__(
        self,
        host: EngineHost,
        name: WorkerName,
        functions: Mapping[str, JobFunction[..., Any]],
        middleware: tuple[Middleware, ...],
        *,
        lease_ms: int,
    ) -> None:
        self._host = host
        self._name = name
        self._functions = functions
        self._middleware = middleware
        self._lease_ms = lease_ms
        self._reset()

    def _reset(self) -> None:
        self.is_working = False
        """Whether they run until they are stopped, or are about to."""
        self.runtime: Runtime | None = None
        self._stopped: StopSignal | None = None
        self._stop_requests: WeakSet[StopRequest] = WeakSet()
        self._ticks = TickRunner(self._host, self._new_runtime)

    def reset_after_fork(self) -> object:
        """In a forked child: none run. Returns what belongs to the parent."""
        of_parent = (self.runtime, self._stopped, self._stop_requests, self._ticks)
        self._reset()
        return of_parent

    # Run ----------------------------------------------------------------------------------------

    def work(self, shutdown_timeout: float) -> Coroutine[Any, Any, None]:
        """Run until `stop()`, which counts from now on."""
        return self._work(self._stop_request(), shutdown_timeout)

    def tick(self, max_jobs: int | None, shutdown_timeout: float) -> Coroutine[Any, Any, TickResult]:
        """Run one tick; `stop()` counts from now on."""
        return self._tick(self._stop_request(), max_jobs, shutdown_timeout)

    def _stop_request(self) -> StopRequest:
        request = StopRequest()
        self._stop_requests.add(request)
        return request

    async def _work(self, request: StopRequest, shutdown_timeout: float) -> None:
        self._require_work()
        self.is_working = True
        self._stopped = stopped = StopSignal()
        self._stop_requests.discard(request)
        try:
            if request.is_requested:
                return
            # Opening may have to wait for another program; a stop does not wait with it.
            if await stopped.comes_before(self._host.call(self._prepare)):
                return
            self.runtime = self._new_runtime(stopped)
            with self._firing():
                await self.runtime.run(shutdown_timeout)
        finally:
            self.is_working, self.runtime, self._stopped = False, None, None

    async def _tick(self, request: StopRequest, max_jobs: int | None, shutdown_timeout: float) -> TickResult:
        jobs_max = jobs_per_tick(max_jobs)
        self._require_work()
        self._stop_requests.discard(request)
        return TickResult() if request.is_requested else await self._ticks.run(self._upkeep, jobs_max, shutdown_timeout)

    def _require_work(self) -> None:
        if not self._functions:
            raise BadConfiguration("there is nothing to run: declare at least one function with @app.job")
        if self.is_working:
            raise BadConfiguration("the workers of this application run already")

    async def _prepare(self, service: JobService) -> None:
        await service.connected()
        await self._host.prepare(service)
        await service.fleet.declare([], [one.entry for one in self.triggers], self._functions)

    async def _upkeep(self, service: JobService) -> None:
        service.require_connected()  # A tick does not wait for its store, as workers do.
        await self._prepare(service)
        await service.run_upkeep([one.scheduled for one in self.triggers])

    def _firing(self) -> AbstractContextManager[None]:
        if not self.triggers:
            return nullcontext()
        from everwork.app.function_triggers import firing  # noqa: PLC0415 - loaded only with schedules

        return firing(self._host.portal, self.triggers)

    @property
    def triggers(self) -> list[FunctionTrigger]:
        """The triggers of functions that have a schedule."""
        return [function.trigger for function in self._functions.values() if function.trigger is not None]

    def handlers(self) -> list[Handler]:
        """The handlers of all functions."""
        return [function.handler(self._middleware) for function in self._functions.values()]

    def _new_runtime(self, stopped: StopSignal, budget: Budget | None = None) -> Runtime:
        portal, job_log = self._host.portal, JobLog(self._name.process)
        # A tick may run next to another one under the same name.
        owns_name = self._name.is_unique and self.is_working and not self._ticks.is_live
        make_fetcher = partial(
            Fetcher,
            portal.service,
            self._name.text,
            job_log=job_log,
            owns_name=owns_name,
            budget=budget,
            lease_ms=self._lease_ms,
            delays=backoff_delays if budget is None else bounded_delays,  # A tick raises if the engine stays away.
        )
        return Runtime(
            make_fetcher,
            portal,
            stopped,
            self._host.transactions,
            handlers=self.handlers(),
        )

    # Stop ---------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Finish what runs, begin nothing. The second call cancels what runs."""
        for request in tuple(self._stop_requests):
            request.is_requested = True
        if self._stopped is not None:
            self._stopped.request()
        self._ticks.stop()

    async def stop_and_wait(self) -> None:
        """Stop, if any run, and wait for their end."""
        runtimes = self.runtimes
        if any(runtime.is_runner(asyncio.current_task()) for runtime in runtimes):
            raise BadConfiguration("close: a handler cannot wait for its own end; call app.stop() instead")
        if runtimes:
            self.stop()
        for runtime in runtimes:
            await asyncio.shield(asyncio.wrap_future(runtime.ended))

    def stop_and_wait_blocking(self) -> None:
        """The same from a thread that may wait for them."""
        runtimes = self.runtimes
        if any(runtime.is_in_its_thread for runtime in runtimes):
            raise BadConfiguration("close: the workers run in this thread, which cannot wait for itself")
        if runtimes:
            self.stop()
        for runtime in runtimes:
            runtime.ended.result()

    @property
    def runtimes(self) -> list[Runtime]:
        """Every runtime that runs handlers now."""
        ticks = list(self._ticks.runtimes)
        return ticks if self.runtime is None else [self.runtime, *ticks]
