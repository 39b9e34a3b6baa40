"""Runs the workers of an application in this process, until they are stopped or for one tick."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from everwork.aio.retrying import backoff_delays, bounded_delays
from everwork.app.engine_host import EngineHost
from everwork.app.function import JobFunction
from everwork.app.registration import registered
from everwork.app.tick import TickResult, TickRunner, jobs_per_tick
from everwork.codec.filters import several
from everwork.core import checks
from everwork.exceptions import BadConfiguration, InvalidInput
from everwork.logs import get_logger
from everwork.runtime.capacity import Budget
from everwork.runtime.dependencies.plan import Overrides, Plan
from everwork.runtime.dependencies.process import ProcessScope, ProcessScopes
from everwork.runtime.fetcher import Fetcher
from everwork.runtime.handler import Handler
from everwork.runtime.job_log import JobLog
from everwork.runtime.middleware import Middleware
from everwork.runtime.runtime import Runtime, WorkerName
from everwork.runtime.shutdown import StopSignal
from everwork.service.service import JobService

if TYPE_CHECKING:
    from everwork.app.function_triggers import FunctionTrigger

log = get_logger("everwork")

Functions = Mapping[str, JobFunction[..., Any, ..., Any]]

SHUTDOWN_SECONDS_MAX: Final = 86_400.0


class StopRequest:
    """A stop requested after `work()` or `run_once()` was called, but before the coroutine was first awaited."""

    is_requested = False


class Workers:
    """Runs the functions of an application: one runtime at a time, and any number of concurrent ticks."""

    def __init__(
        self,
        host: EngineHost,
        name: WorkerName,
        functions: Functions,
        middleware: tuple[Middleware, ...],
        *,
        lease_ms: int,
        lifespan: Plan | None = None,
    ) -> None:
        self._host = host
        self._name = name
        self._functions = functions
        self._middleware = middleware
        self._lease_ms = lease_ms
        self._lifespan = lifespan
        self.overrides = Overrides()
        self._wrappers: dict[str, Callable[[Handler], Callable[..., Any]]] = {}
        self._reset()

    def _reset(self) -> None:
        self.is_working = False
        """Whether permanent workers (not ticks) are running or starting."""
        self.runtime: Runtime | None = None
        self._stopped: StopSignal | None = None
        self._stop_requests: WeakSet[StopRequest] = WeakSet()
        self.scopes = ProcessScopes(self._lifespan, self.overrides)
        self._ended: set[Future[None]] = set()
        self._ticks = TickRunner(self._host, self._new_tick_runtime, self.process)

    def reset_after_fork(self) -> object:
        """In a forked child: no workers run. Returns the objects that belong to the parent."""
        of_parent = (self.runtime, self._stopped, self._stop_requests, self._ticks, self.scopes, self._ended)
        self._reset()
        return of_parent

    # Run ----------------------------------------------------------------------------------------

    def work(self, shutdown_timeout: float, types: Iterable[str] | None = None) -> Coroutine[Any, Any, None]:
        """Run all functions, or those of these types, until `stop()`, which takes effect from this call on."""
        return self._work(self._stop_request(), shutdown_timeout, types)

    def tick(self, max_jobs: int | None, shutdown_timeout: float) -> Coroutine[Any, Any, TickResult]:
        """Run one tick; `stop()` takes effect from this call on."""
        return self._tick(self._stop_request(), max_jobs, shutdown_timeout)

    def _stop_request(self) -> StopRequest:
        request = StopRequest()
        self._stop_requests.add(request)
        return request

    async def _work(self, request: StopRequest, shutdown_timeout: float, types: Iterable[str] | None) -> None:
        self.require_startable(shutdown_timeout)
        functions = chosen(self._functions, types)
        self.is_working = True
        self._stopped = stopped = StopSignal()
        self._stop_requests.discard(request)
        try:
            if request.is_requested:
                return
            # Opening can wait for another program; a stop must not wait for it.
            if await stopped.comes_before(self._host.call(self._prepare)):
                return
            async with self.process(stopped, shutdown_timeout) as process:
                if process is None:
                    return
                handlers = self.handlers(process, functions)
                self.runtime = runtime = self._new_runtime(stopped, handlers)
                is_registered = registered(self._host.portal, self._name, runtime, handlers, stopped.soft.is_set)
                async with is_registered, self._firing(functions):
                    await runtime.run(shutdown_timeout)
        finally:
            self.is_working, self.runtime, self._stopped = False, None, None

    async def _tick(self, request: StopRequest, max_jobs: int | None, shutdown_timeout: float) -> TickResult:
        jobs_max = jobs_per_tick(max_jobs)
        self.require_startable(shutdown_timeout)
        self._stop_requests.discard(request)
        return TickResult() if request.is_requested else await self._ticks.run(self._upkeep, jobs_max, shutdown_timeout)

    def require_startable(self, shutdown_timeout: float) -> None:
        """Refuse to start without functions, a second time, or with an invalid timeout."""
        checks.number("shutdown_timeout", shutdown_timeout, 0, SHUTDOWN_SECONDS_MAX)
        if not self._functions:
            raise BadConfiguration("there is nothing to run: declare at least one function with @app.job")
        if self.is_working:
            raise BadConfiguration("the workers of this application are already running")

    @asynccontextmanager
    async def process(self, stopped: StopSignal, close_seconds: float) -> AsyncIterator[ProcessScope | None]:
        """Enter the lifespan before the first job and exit it after the last; None if a stop was requested first."""
        ended: Future[None] = Future()
        self._ended.add(ended)
        try:
            async with self.scopes.entered(stopped, close_seconds) as process:
                yield process
        finally:
            self._ended.discard(ended)
            ended.set_result(None)

    async def _prepare(self, service: JobService) -> None:
        await service.connected()
        await self._host.prepare(service)
        await service.fleet.declare([], [one.entry for one in self.triggers], self._functions)

    async def _upkeep(self, service: JobService) -> None:
        service.require_connected()  # Unlike workers, a tick does not wait for an unavailable store.
        await self._prepare(service)
        await service.run_upkeep([one.scheduled for one in self.triggers])

    def _firing(self, functions: Functions) -> AbstractAsyncContextManager[None]:
        triggers = [function.trigger for function in functions.values() if function.trigger is not None]
        if not triggers:
            return nullcontext()
        from everwork.app.function_triggers import firing  # noqa: PLC0415 - loaded only with schedules

        return firing(self._host.portal, triggers)

    @property
    def triggers(self) -> list[FunctionTrigger]:
        """The triggers of functions that have a schedule."""
        return [function.trigger for function in self._functions.values() if function.trigger is not None]

    def handlers(self, process: ProcessScope, functions: Functions | None = None) -> list[Handler]:
        """The handlers of these functions, or of all; functions of one pool share a handler."""
        pools: dict[str, Handler] = {}
        for function in (functions or self._functions).values():
            one = self._wrapped(function.handler(self._middleware, process))
            first = pools.get(one.name)
            pools[one.name] = one if first is None else replace(first, queues=(*first.queues, *one.queues))
        return list(pools.values())

    def wrap_calls(self, framework: str, wrap: Callable[[Handler], Callable[..., Any]]) -> None:
        """Wrap every handler function, inside all middleware and in the handler's thread.

        A later wrapper of the same framework replaces an earlier one.
        """
        self._wrappers[framework] = wrap

    def _wrapped(self, handler: Handler) -> Handler:
        for wrap in self._wrappers.values():
            handler = replace(handler, function=wrap(handler))
        return handler

    def _new_tick_runtime(self, stopped: StopSignal, process: ProcessScope, budget: Budget) -> Runtime:
        return self._new_runtime(stopped, self.handlers(process), budget)

    def _new_runtime(self, stopped: StopSignal, handlers: Sequence[Handler], budget: Budget | None = None) -> Runtime:
        portal, job_log = self._host.portal, JobLog(self._name.process)
        # Several ticks can run concurrently under the same name.
        owns_name = self._name.is_unique and self.is_working and not self._ticks.is_live
        make_fetcher = partial(
            Fetcher,
            portal.service,
            self._name.text,
            job_log=job_log,
            owns_name=owns_name,
            budget=budget,
            lease_ms=self._lease_ms,
            delays=backoff_delays if budget is None else bounded_delays,  # A tick does not wait forever.
        )
        return Runtime(
            make_fetcher,
            portal,
            stopped,
            self._host.transactions,
            handlers=handlers,
        )

    # Stop ---------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Let running jobs finish and start no others. The second call cancels running jobs."""
        for request in tuple(self._stop_requests):
            request.is_requested = True
        if self._stopped is not None:
            self._log_stop(is_second=self._stopped.soft.is_set())
            self._stopped.request()
        self._ticks.stop()

    def _log_stop(self, *, is_second: bool) -> None:
        """Log why the process does not exit yet, if jobs are running."""
        if self.runtime is not None and (running := self.runtime.running):
            log.info("cancelling running jobs" if is_second else "stopping, waiting for running jobs", running=running)

    def release_running(self, seconds: float) -> None:
        """Release running jobs without waiting for their handlers: for a process that exits right after this.

        Works from another thread even while a handler blocks the event loop; waits up to `seconds` for the store.
        """
        if (runtime := self.runtime) is not None:
            runtime.release_running()
            with suppress(TimeoutError):
                runtime.fetched.result(seconds)

    async def stop_and_wait(self) -> None:
        """Stop running workers, if any, and wait until they have stopped."""
        if any(runtime.is_runner(asyncio.current_task()) for runtime in self.runtimes):
            raise BadConfiguration("close: a handler cannot wait for itself to finish; call app.stop() instead")
        if self.scopes.is_current:
            raise BadConfiguration("close: the lifespan cannot close its own application; call app.stop() instead")
        ended = list(self._ended)
        if ended:
            self.stop()
        for one in ended:
            await asyncio.shield(asyncio.wrap_future(one))

    def stop_and_wait_blocking(self) -> None:
        """Like `stop_and_wait`, from a thread that can block."""
        if any(runtime.is_in_its_thread for runtime in self.runtimes):
            raise BadConfiguration("close: the workers run in this thread, which cannot wait for itself")
        ended = list(self._ended)
        if ended:
            self.stop()
        for one in ended:
            one.result()

    @property
    def runtimes(self) -> list[Runtime]:
        """Every runtime that is running handlers."""
        ticks = list(self._ticks.runtimes)
        return ticks if self.runtime is None else [self.runtime, *ticks]


def chosen(functions: Functions, types: Iterable[str] | None) -> Functions:
    """The functions of these types; a type may be a pattern such as `mail-*`."""
    if types is None:
        return functions
    found: set[str] = set()
    for type in [types] if isinstance(types, str) else several("types", types):
        if not isinstance(type, str):
            raise InvalidInput("types", f"must be a type or a pattern, not {checks.shown(type)}")
        matching = {one for one in functions if one == type or fnmatchcase(one, type)}
        if not matching:
            raise InvalidInput(
                "types", f"no function matches {checks.shown(type)}; known types: {', '.join(sorted(functions))}"
            )
        found |= matching
    if not found:
        raise InvalidInput("types", "must name at least one type")
    return {type: function for type, function in functions.items() if type in found}
