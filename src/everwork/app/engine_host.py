"""Hosts an application's engine: opened on first use, in its own thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, WeakSet

from everwork.aio.batcher import CLOSED
from everwork.aio.loops import warn_if_loop_runs
from everwork.app.caller_engine import CallerEngine
from everwork.app.function import JobFunction
from everwork.core.job import NewJob
from everwork.core.leasing import Created, Judged
from everwork.core.outcome import Complete
from everwork.engines.contract import Clock, Engine
from everwork.engines.open import open_engine
from everwork.engines.values import Durability
from everwork.exceptions import BadConfiguration, EngineError, EngineUnavailable, InvalidInput
from everwork.runtime.portal import Portal, Use
from everwork.runtime.runtime import WorkerName
from everwork.service.service import JobService, is_repeatable
from everwork.spool.settings import Offline, Spool

T = TypeVar("T")


class EngineHost:
    """The engine thread of one application, called from any thread and any event loop."""

    def __init__(
        self,
        url: str,
        name: WorkerName,
        clock: Clock | None,
        functions: Mapping[str, JobFunction[..., Any, ..., Any]],
        offline: str | Spool | None = None,
    ) -> None:
        # An invalid URL is reported here, not by the first job.
        self._engine = open_engine(url, clock=clock, own_loop=True)
        self._offline = Offline.of(offline, url)
        self.transactions = TransactionStore(self._engine)
        self._name = name
        self._functions = functions
        self._is_borrowed = False
        self._before_use: Callable[[], None] | None = None
        self._has_warned = False
        self._reset()

    def _reset(self) -> None:
        self._portal: Portal[JobService] | None = None
        self._opened_engine: Engine | None = None
        self._guard = threading.Lock()
        self._loop_engines = LoopEngines(self._make_loop_service) if self._may_have_loop_engines else None
        self._caller_engine = CallerEngine(self._make_caller_service)

    def reset_after_fork(self) -> object:
        """In a forked child: forget the parent's engines and locks. Returns them."""
        of_parent = (self._portal, self._loop_engines, self._caller_engine)
        self._reset()
        return of_parent

    def borrow(self, engine: Engine, before_use: Callable[[], None] | None = None) -> Callable[[], None]:
        """Use another engine, which the caller sweeps and closes; returns a function that restores the previous one.

        `before_use` is called before each use of the engine, in the caller's thread.
        """
        before = (
            self._engine, self.transactions, self._portal, self._loop_engines, self._caller_engine, self._is_borrowed,
        )  # fmt: skip
        self._engine, self.transactions, self._is_borrowed = engine, TransactionStore(engine), True
        self._before_use = before_use
        self._reset()

        def restore() -> None:
            self._is_borrowed, self._before_use = False, None
            self.close()
            (
                self._engine, self.transactions, self._portal, self._loop_engines, self._caller_engine,
                self._is_borrowed,
            ) = before  # fmt: skip

        return restore

    @property
    def is_borrowed(self) -> bool:
        """Whether a test has moved the application to another store."""
        return self._is_borrowed

    async def open_in_loop(self) -> None:
        """Open the engine for an application that will also be closed in the running loop."""
        await self.open()
        if self._loop_engines is not None:
            self._loop_engines.allow_this_loop()
            await self._loop_engines.service()  # So that the first create does not have to open it.

    async def open(self) -> None:
        """Open the engine, unless it is open already."""
        if not self._is_open:
            # Cancelling one caller must not cancel the opening for the others.
            opening = asyncio.wrap_future(self._opening())
            opening.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # Callers may have left.
            await asyncio.shield(opening)

    def open_blocking(self) -> None:
        """Open the engine from a thread without an event loop."""
        self._has_warned = self._has_warned or warn_if_loop_runs("app.sync", "app")
        self.open_unwarned()

    def open_unwarned(self) -> None:
        """Like `open_blocking`, without the warning: for a store that opens quickly, even in a thread with a loop."""
        if not self._is_open:
            self._opening().result()

    async def call(self, use: Use[JobService, T]) -> T:
        """Use the service."""
        await self.open()
        return await self._opened.call(use)

    def run(self, use: Use[JobService, T]) -> T:
        """Use the service from a thread without an event loop."""
        self.open_blocking()
        return self._opened.run(use)

    def create(self, jobs: list[NewJob]) -> Coroutine[Any, Any, list[Created]]:
        """Create jobs; concurrent callers share one hop to the engine's thread, if it is needed, and one commit."""
        service = None if self._loop_engines is None else self._loop_engines.opened()
        return service.create_retrying(jobs) if service is not None and service.is_remote else self._create(jobs)

    async def _create(self, jobs: list[NewJob]) -> list[Created]:
        if not self._is_open:
            await self.open()
        service = None if self._loop_engines is None else await self._loop_engines.service()
        if service is not None and service.is_remote:
            return await service.create_retrying(jobs)
        try:
            created = None if service is None else await service.create_alone(jobs)
            if created is not None:
                return created
            promise: asyncio.Future[list[Created]] = asyncio.get_running_loop().create_future()
            self._opened.service.start_create(jobs, promise)
            return await promise
        except EngineUnavailable:
            if not is_repeatable(jobs):
                raise
        return await self._opened.call(lambda service: service.create_retrying(jobs))

    def create_blocking(self, jobs: list[NewJob]) -> list[Created]:
        """Like `create`, without an event loop: in this thread, or with concurrent callers in the engine's thread."""
        self.open_blocking()
        try:
            created = self._caller_engine.create(jobs)
            return self._create_with_others(jobs) if created is None else created
        except EngineUnavailable:
            if not is_repeatable(jobs):
                raise
        return self._opened.run(lambda service: service.create_retrying(jobs))

    def _create_with_others(self, jobs: list[NewJob]) -> list[Created]:
        self._opened.require_other_thread()
        promise: Future[list[Created]] = Future()
        self._opened.service.start_create(jobs, promise)
        return promise.result()

    async def delivered(self, spool_id: str, *, wait: bool = True) -> Created:
        """The store's reply for a spooled job."""
        return await self.call(lambda service: service.delivered(spool_id, wait=wait))

    async def create_in(self, tx: object, jobs: list[NewJob]) -> list[Created]:
        """Create jobs inside the caller's transaction.

        The engine is not opened here: opening it could wait for this very transaction.
        """
        return await self._known_engine().create_in(tx, jobs)

    def create_in_blocking(self, tx: object, jobs: list[NewJob]) -> list[Created]:
        """Like `create_in`, in the calling thread."""
        return run_without_suspending(self._known_engine().create_in(tx, jobs), "await app.within(...).enqueue(...)")

    async def prepare(self, service: JobService) -> None:
        """Store the policies that this application declares."""
        declared = {one.type: one.policy_said for one in list(self._functions.values())}
        await service.once_connected(lambda: service.declare_policies(declared))

    def close(self) -> None:
        """Close the engine; blocks until it is closed."""
        if self._is_borrowed:
            return
        if (opened := self._portal) is not None:
            opened.require_other_thread()  # Checked first: another thread can still close it.
        if self._loop_engines is not None:
            self._loop_engines.close()
        with self._guard:
            portal, self._portal = self._portal, None
            caller_engine, self._caller_engine = self._caller_engine, CallerEngine(self._make_caller_service)
        caller_engine.close()
        if portal is not None:
            portal.close()

    @property
    def portal(self) -> Portal[JobService]:
        """The engine's thread while it is open."""
        if self._portal is None:
            raise BadConfiguration("the application is not open: use `async with app`")
        if self._before_use is not None:
            self._before_use()
        return self._portal

    @property
    def _opened(self) -> Portal[JobService]:
        """The engine's thread for a caller that has just opened it; another caller may have closed it since."""
        if self._portal is None:
            raise EngineUnavailable(CLOSED)
        if self._before_use is not None:
            self._before_use()
        return self._portal

    @property
    def _is_open(self) -> bool:
        portal = self._portal
        return portal is not None and portal.is_open

    def _opening(self) -> Future[None]:
        """Start opening the engine. If it fails, every waiting caller gets the error, and the next call tries again."""
        with self._guard:
            if self._portal is None or self._portal.is_broken:
                self._portal = Portal(self._make_service, upkeep=not self._is_borrowed)
            return self._portal.open(self.prepare)

    def _make_service(self) -> JobService:
        self._opened_engine = engine = self._engine.fresh()
        return JobService(engine, self._name.process, offline=self._offline)

    def _make_caller_service(self) -> JobService | None:
        """A service for blocking callers; None if only the engine's thread may have one.

        Offline mode delivers in the background, an in-memory store belongs to one engine, and a borrowed engine
        belongs to a test.
        """
        opened = self._opened_engine
        if opened is None or self._is_borrowed or self._offline is not None:
            return None
        if not opened.is_remote and opened.durability is Durability.NONE:
            return None
        return JobService(self._engine.fresh(), self._name.process)

    @property
    def _may_have_loop_engines(self) -> bool:
        """Whether event loops may have engines of their own. Offline mode delivers from one spool to one local file."""
        return self._engine.is_remote or (self._offline is None and self._engine.for_callers() is not None)

    def _make_loop_service(self) -> JobService:
        engine = self._engine.for_callers() or self._engine.fresh()
        return JobService(engine, self._name.process, offline=self._offline)

    def _known_engine(self) -> Engine:
        """The open engine, if there is one: it knows its store and refuses a connection to another."""
        return self._opened_engine or self._engine


CLOSE_SECONDS = 5.0


class LoopEngines:
    """Services in the event loops of an application's callers, opened on first use: calls need no other thread."""

    def __init__(self, make_service: Callable[[], JobService]) -> None:
        self._make_service = make_service
        self._guard = threading.Lock()
        self._loops: WeakSet[asyncio.AbstractEventLoop] = WeakSet()
        self._services: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Task[JobService | None]]
        self._services = WeakKeyDictionary()

    def allow_this_loop(self) -> None:
        """Record that the application is opened in this loop and will be closed in it."""
        with self._guard:
            self._loops.add(asyncio.get_running_loop())

    def opened(self) -> JobService | None:
        """The service of the running loop, if it is open."""
        opening = self._services.get(asyncio.get_running_loop())
        return None if opening is None or not opening.done() else opening.result()

    async def service(self) -> JobService | None:
        """The service of the running loop, opened if necessary; None if the caller must use the engine's thread."""
        loop = asyncio.get_running_loop()
        opening = self._services.get(loop)
        if opening is None:
            with self._guard:
                if loop not in self._loops:
                    return None
                self._services[loop] = opening = loop.create_task(self._open(loop))
        return opening.result() if opening.done() else await asyncio.shield(opening)

    async def _open(self, loop: asyncio.AbstractEventLoop) -> JobService | None:
        service = self._make_service()
        try:
            await service.open(upkeep=False)
            await service.now()  # Opens a connection, if the engine has a pool.
        except BaseException as error:
            self._forget(loop)
            await service.close()
            if isinstance(error, EngineError):
                return None  # The caller uses the engine's thread, which raises the error.
            raise
        return service

    def _forget(self, loop: asyncio.AbstractEventLoop) -> None:
        """Forget a service that failed to open; the next create tries again."""
        with self._guard:
            if self._services.get(loop) is asyncio.current_task():
                del self._services[loop]

    def close(self) -> None:
        """Close every service in its own loop; called from a thread without any of these loops."""
        with self._guard:
            services = list(self._services.items())
            self._services.clear()
            self._loops.clear()
        for loop, opening in services:
            if loop.is_running():
                closing = asyncio.run_coroutine_threadsafe(_close(opening), loop)
                with suppress(TimeoutError):
                    closing.result(0 if _runs_in_this_thread(loop) else CLOSE_SECONDS)
            elif opening.done() and not opening.cancelled() and opening.exception() is None:
                _close_without_loop(opening.result())


def _close_without_loop(service: JobService | None) -> None:
    """Close a service whose loop has ended. Only a local one: it would keep its files open; servers disconnect."""
    if service is not None and not service.is_remote:
        closing = threading.Thread(target=asyncio.run, args=(service.close(),), name="everwork-close", daemon=True)
        closing.start()
        closing.join(CLOSE_SECONDS)


def _runs_in_this_thread(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether this thread runs the loop, so that waiting for it would deadlock."""
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


async def _close(opening: asyncio.Task[JobService | None]) -> None:
    service = await opening
    if service is not None:
        await service.close()


class TransactionStore:
    """Completes attempts in users' transactions, through their connections; its own engine is never opened."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def complete_in(self, tx: object, completion: Complete) -> Judged:
        """Complete an attempt inside its handler's transaction."""
        return (await self._engine.complete_in(tx, [completion]))[0]

    def complete_in_blocking(self, tx: object, completion: Complete) -> Judged:
        """Like `complete_in`, in the calling thread."""
        return run_without_suspending(self._engine.complete_in(tx, [completion]), "await ctx.complete(..., tx=...)")[0]


def run_without_suspending(call: Coroutine[Any, Any, T], instead: str) -> T:
    """Run a coroutine in the calling thread, which owns the connection; with a synchronous driver it never suspends."""
    try:
        call.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    call.close()
    raise InvalidInput("tx", f"must belong to a synchronous driver here; use {instead} instead")
