"""The application under test on an in-memory store: its handlers, triggers and clock."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

from everwork.app.app import Everwork
from everwork.app.entries import subscribe
from everwork.app.schedules import CronSchedule, scheduled_triggers
from everwork.core.checks import shown
from everwork.engines.sqlite.store_url import StoreUrl
from everwork.exceptions import BadConfiguration
from everwork.manager.worker import AbstractWorker
from everwork.manager.worker_pool import WorkerSpec, handler_of
from everwork.runtime.context import CompletesInTransaction
from everwork.runtime.dependencies.process import ProcessScope
from everwork.runtime.handler import Handler, QueueKey
from everwork.runtime.middleware import Middleware
from everwork.runtime.portal import Portal, Use
from everwork.runtime.shutdown import SHUTDOWN_SECONDS, StopSignal
from everwork.service.service import JobService
from everwork.service.triggers.loop import Scheduled, TriggerLoop
from everwork.testing.clock import VirtualClock, next_instants
from everwork.testing.faults import FaultPlan
from everwork.testing.store import RehearsalEngine
from everwork.testing.transactions import RecordedTransactions

HOLDER: Final = "rehearsal"
"""The name of the worker in the history of jobs and in sweeps."""
TICKS_MAX: Final = 10_000

T = TypeVar("T")


class Harness:
    """An application moved to another store for the duration of a test."""

    def __init__(
        self, app: Everwork, workers: WorkersUnderTest, clock: VirtualClock, middleware: Sequence[Middleware]
    ) -> None:
        self.app = app
        self.workers = workers
        self.clock = clock
        self.faults = FaultPlan()
        self._middleware = tuple(middleware)
        self._host = app._host  # noqa: SLF001 - the kit is part of the package
        self._triggers: list[Scheduled] = []
        self._trigger_loop: TriggerLoop | None = None
        self._restore: Callable[[], None] | None = None
        self._is_used = False
        self._process: ProcessScope | None = None
        self._leave: Callable[[], Awaitable[None]]
        self._store: RehearsalEngine
        self._recorded: RecordedTransactions

    def open(self, file: Path | None) -> None:
        """Move the application; blocks for the few milliseconds that an in-memory store takes."""
        if self.app._workers.is_working:  # noqa: SLF001
            raise BadConfiguration("rehearse: the workers of this application are running; stop them first")
        if self._host._is_borrowed:  # noqa: SLF001
            raise BadConfiguration("rehearse: this application is already in a rehearsal; use one per test")
        if self._is_used:
            raise BadConfiguration("rehearse: a rehearsal can be used only once; call rehearse(...) again")
        self._is_used = True
        url = StoreUrl.from_url("sqlite:///:memory:" if file is None else f"sqlite:///{file}")
        engine = RehearsalEngine(url, self.clock, own_loop=True)
        engine.refusals = self.faults.refusals
        engine.handled_types = lambda: {queue.type for queue in self.queues}
        engine.recorded = self._recorded = RecordedTransactions(engine, self.run)
        self._store = engine
        self._restore = self._host.borrow(engine, self._confirm_commits)
        try:
            self._host.open_unwarned()
            self.run(self._declare)
        except BaseException:
            self.close()
            raise

    def _confirm_commits(self) -> None:
        """Detect commits before the stage is queried. The engine's own loop skips this: it must not wait for itself."""
        portal = self._host._portal  # noqa: SLF001
        if portal is not None and not _is_running_here(portal.loop):
            self._recorded.confirm()

    def close(self) -> None:
        """Move the application back to its own store."""
        if self._restore is not None:
            self._recorded.close()
            self._restore()
            self._restore = None

    async def call(self, use: Use[JobService, T]) -> T:
        """Use the service from a coroutine."""
        return await self._portal.call(use)

    def run(self, use: Use[JobService, T]) -> T:
        """Use the service and block; an in-memory store replies immediately, in its own thread."""
        return self._portal.run(use)

    @property
    def _portal(self) -> Portal[JobService]:
        if self._restore is None:
            raise BadConfiguration("the rehearsal has ended")
        return self._host.portal

    @property
    def own(self) -> CompletesInTransaction:
        """Completes jobs inside handlers' transactions."""
        return self._host.transactions

    @property
    def queues(self) -> list[QueueKey]:
        """The queues of the handlers, in the order of declaration."""
        return [*(QueueKey(type) for type in self.app.functions), *self.workers.queues]

    async def handlers(self) -> list[Handler]:
        """All handlers, with the test's middleware outermost."""
        process = await self._entered()
        handlers = [*self.app._workers.handlers(process), *await self.workers.handlers()]  # noqa: SLF001
        return [replace(one, middleware=(*self._middleware, *one.middleware), process=process) for one in handlers]

    async def _entered(self) -> ProcessScope:
        """The process scope: the lifespan is entered before the first job of the test and exited at its end."""
        if self._process is None:
            stack = AsyncExitStack()
            scopes = self.app._workers.scopes  # noqa: SLF001
            self._process = await stack.enter_async_context(scopes.entered(StopSignal(), SHUTDOWN_SECONDS))
            self._leave = stack.aclose
        return self._process or ProcessScope()

    async def shutdown(self) -> None:
        """Shut down the worker classes and exit the lifespan, in the event loop in which they were started."""
        try:
            await self.workers.shutdown()
        finally:
            if self._process is not None:
                self._process = None
                await self._leave()

    @property
    def is_started(self) -> bool:
        """Whether anything was started that needs `shutdown`."""
        return self.workers.is_started or self._process is not None

    async def upkeep(self) -> None:
        """Do due maintenance: fire triggers, expire leases and jobs, requeue dead letters."""
        await self.call(self._upkeep)

    async def pass_until(self, end_ms: int) -> None:
        """Let time pass, in one call to the engine's loop, because switching to its thread takes longer than a jump."""

        async def jump_on(service: JobService) -> None:
            while await self.jump(service, end_ms):
                pass

        await self.call(jump_on)

    # In the engine's loop -----------------------------------------------------------------------

    async def jump(self, service: JobService, end_ms: int | None) -> bool:
        """Move to the next time at which something happens. Returns False at the end, or with nothing to wait for.

        If `end_ms` is None, time advances only while there is a job that can run.
        """
        next_ms = await self._next_ms(end_ms)
        if next_ms is None:
            return False
        self.clock.move_to(next_ms)
        await self._upkeep(service)
        return True

    async def _declare(self, service: JobService) -> None:
        await self.workers.declare(service)
        functions = self.app._workers.triggers  # noqa: SLF001
        self._triggers = [*(one.scheduled for one in functions), *self.workers.triggers]
        self._trigger_loop = service.trigger_loop(self._triggers)
        await self._upkeep(service)

    async def _upkeep(self, service: JobService) -> None:
        await self._host.prepare(service)  # More functions may have been declared.
        if self._triggers and self._trigger_loop is not None:
            await self._trigger_loop.catch_up(TICKS_MAX)
        while await service.sweep(HOLDER):
            pass

    async def _next_ms(self, end_ms: int | None) -> int | None:
        if end_ms is not None and self.clock.now_ms >= end_ms:
            return None
        work_ms, any_ms = await next_instants(self._store.service_engine, self.queues, self._triggers)
        if end_ms is None:
            return None if work_ms is None else any_ms
        return end_ms if any_ms is None else min(any_ms, end_ms)


def _is_running_here(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


def app_and_workers(what: Sequence[Any]) -> tuple[Everwork, list[type[AbstractWorker]]]:
    """Separate the application from the worker classes; classes alone get a new application."""
    apps = [one for one in what if isinstance(one, Everwork)]
    classes = [one for one in what if isinstance(one, type) and issubclass(one, AbstractWorker)]
    if len(apps) > 1 or len(apps) + len(classes) < len(what) or not what:
        given = ", ".join(shown(one) for one in what) or "nothing"
        raise BadConfiguration(f"rehearse: takes one application, worker classes, or both, not {given}")
    return (apps[0] if apps else Everwork("sqlite:///:memory:")), classes


class WorkersUnderTest:
    """The worker classes of one rehearsal."""

    def __init__(self, workers: Sequence[type[AbstractWorker]]) -> None:
        self._settings = {one: one._get_settings() for one in workers}  # noqa: SLF001 - users rely on the name
        self._specs: list[WorkerSpec] = []
        self._started: dict[type[AbstractWorker], AbstractWorker] = {}
        self.triggers: list[Scheduled] = []

    async def declare(self, service: JobService) -> None:
        """Declare the workers' groups and policies to the store, as a manager does."""
        for index, (worker, settings) in enumerate(self._settings.items()):
            subscribed = await subscribe(service, settings)
            self._specs.append(WorkerSpec.of(settings, worker, subscribed.queues, index))
            await service.declare_policies(subscribed.policies)
            self.triggers += scheduled_triggers(settings, CronSchedule())

    @property
    def queues(self) -> list[QueueKey]:
        """The queues of the workers."""
        return [queue for spec in self._specs for queue in spec.queues]

    async def handlers(self) -> list[Handler]:
        """The workers as handlers of the runtime; starts those that have not been started yet."""
        for spec in self._specs:
            if spec.worker not in self._started:
                worker = spec.worker()
                await worker.startup()
                self._started[spec.worker] = worker
        return [handler_of(self._started[spec.worker], self._settings[spec.worker], spec) for spec in self._specs]

    async def shutdown(self) -> None:
        """Shut down every worker that was started, last started first."""
        while self._started:
            await self._started.popitem()[1].shutdown()

    @property
    def is_started(self) -> bool:
        """Whether a worker has been started and not yet shut down."""
        return bool(self._started)
