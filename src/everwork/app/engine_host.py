"""Where an application's engine lives: opened when it is first needed, by whoever needs it, in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, WeakSet

from everwork.aio.batcher import Batcher
from everwork.app.function import JobFunction
from everwork.core.job import NewJob
from everwork.core.leasing import Created, Judged
from everwork.core.limits import CREATE_BATCH_MAX
from everwork.core.outcome import Complete
from everwork.engines.contract import Clock, Engine
from everwork.engines.open import open_engine
from everwork.exceptions import BadConfiguration, EngineError, EngineUnavailable, InvalidInput
from everwork.runtime.portal import Portal, Use
from everwork.runtime.runtime import WorkerName
from everwork.service.service import JobService, retry_create

T = TypeVar("T")


class EngineHost:
    """The engine's thread of one application; calls come from any thread and any event loop."""

    def __init__(
        self, url: str, name: WorkerName, clock: Clock | None, functions: Mapping[str, JobFunction[..., Any]]
    ) -> None:
        # A bad URL is told here, not at the first job.
        self._engine = open_engine(url, clock=clock, own_loop=True)
        self.own = TransactionStore(self._engine)
        self._name = name
        self._functions = functions
        self._is_guest = False
        self._begin()

    def _begin(self) -> None:
        self._portal: Portal | None = None
        self._guard = threading.Lock()
        self._nearby = LoopEngines(self._make_service) if self._engine.is_remote else None
        self._creates: WeakKeyDictionary[asyncio.AbstractEventLoop, Batcher[NewJob, Created]] = WeakKeyDictionary()

    def begin_anew(self) -> object:
        """In a forked child: forget what the parent has open, and its locks; they are answered."""
        of_parent = (self._portal, self._nearby, self._creates)
        self._begin()
        return of_parent

    def move(self, engine: Engine) -> Callable[[], None]:
        """Live on another store, swept by the caller and closed by nobody else, until what is answered is called."""
        before = (self._engine, self.own, self._portal, self._nearby, self._creates, self._is_guest)
        self._engine, self.own, self._is_guest = engine, TransactionStore(engine), True
        self._begin()

        def return_home() -> None:
            self._is_guest = False
            self.close()
            self._engine, self.own, self._portal, self._nearby, self._creates, self._is_guest = before

        return return_home

    async def open_here(self) -> None:
        """Open the engine; whoever does so by name in this loop closes it in this loop, too."""
        await self.open()
        if self._nearby is not None:
            self._nearby.welcome()

    async def open(self) -> None:
        """Open the engine, if that has not happened yet."""
        if not self._is_open:
            # One caller who is cancelled must not take the others' opening away.
            opening = asyncio.wrap_future(self._opening())
            opening.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # They may all have left.
            await asyncio.shield(opening)

    def open_blocking(self) -> None:
        """Open the engine, from a thread without event loop."""
        if not self._is_open:
            self._opening().result()

    async def call(self, use: Use[T]) -> T:
        """Use the service."""
        await self.open()
        return await self._opened.call(use)

    def run(self, use: Use[T]) -> T:
        """Use the service, from a thread without event loop."""
        self.open_blocking()
        return self._opened.run(use)

    async def create(self, jobs: list[NewJob]) -> list[Created]:
        """Create jobs; callers at the same time share a hop to the engine's thread, and a commit."""
        await self.open()  # Outside of the patience below: what is wrong at the start is told at once.
        nearby = None if self._nearby is None else await self._nearby.service()
        if nearby is not None:
            return await nearby.create_retrying(jobs)
        loop = asyncio.get_running_loop()
        coalescer = self._creates.get(loop)
        if coalescer is None:
            self._creates[loop] = coalescer = Batcher(
                lambda batch: self._opened.call(lambda service: service.create(batch)), CREATE_BATCH_MAX
            )
        return await retry_create(lambda: coalescer.add(jobs), jobs)

    async def create_in(self, tx: object, jobs: list[NewJob]) -> list[Created]:
        """Create jobs inside the caller's transaction; nothing is opened: that could wait for this very transaction."""
        return await self._engine.create_in(tx, jobs)

    def create_in_blocking(self, tx: object, jobs: list[NewJob]) -> list[Created]:
        """The same in the calling thread."""
        return at_once(self._engine.create_in(tx, jobs), "await app.enqueue(..., tx=...)")

    async def prepare(self, service: JobService) -> None:
        """Let every process know the policies that this application declares."""
        await service.declare_policies({one.type: one.policy_said for one in list(self._functions.values())})

    def close(self) -> None:
        """Close the engine; blocks until that is done."""
        if self._is_guest:
            return
        if self._nearby is not None:
            self._nearby.close()
        with self._guard:
            portal, self._portal = self._portal, None
        if portal is not None:
            portal.close()

    @property
    def portal(self) -> Portal:
        """The engine's thread while it is open."""
        if self._portal is None:
            raise BadConfiguration("the application is not open: use `async with app`")
        return self._portal

    @property
    def _opened(self) -> Portal:
        """The engine's thread for somebody who has just opened it; another may have closed it since."""
        if self._portal is None:
            raise EngineUnavailable("the application was closed; open it again")
        return self._portal

    @property
    def _is_open(self) -> bool:
        portal = self._portal
        return portal is not None and portal.is_open

    def _opening(self) -> Future[None]:
        """Begin to open; a failure is told to all who wait, and the next call tries again."""
        with self._guard:
            if self._portal is None or self._portal.is_broken:
                self._portal = Portal(self._make_service, upkeep=not self._is_guest)
            return self._portal.open(self.prepare)

    def _make_service(self) -> JobService:
        return JobService(self._engine.fresh(), self._name.process)


CLOSE_SECONDS = 5.0


class LoopEngines:
    """The services of one application in the event loops of its callers, opened when they are first needed."""

    def __init__(self, make_service: Callable[[], JobService]) -> None:
        self._make_service = make_service
        self._guard = threading.Lock()
        self._loops: WeakSet[asyncio.AbstractEventLoop] = WeakSet()
        self._services: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Task[JobService | None]]
        self._services = WeakKeyDictionary()

    def welcome(self) -> None:
        """The application is opened in this loop, and will be closed in it."""
        with self._guard:
            self._loops.add(asyncio.get_running_loop())

    async def service(self) -> JobService | None:
        """The service of the running loop; None if it has none and must go through the engine's thread."""
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
        except BaseException as error:
            self._forget(loop)
            await service.close()
            if isinstance(error, EngineError):
                return None  # Whoever goes through the engine's thread is told why.
            raise
        return service

    def _forget(self, loop: asyncio.AbstractEventLoop) -> None:
        """The next create tries again."""
        with self._guard:
            if self._services.get(loop) is asyncio.current_task():
                del self._services[loop]

    def close(self) -> None:
        """Close every service in its own loop; from a thread that none of those loops runs in."""
        with self._guard:
            services = list(self._services.items())
            self._services.clear()
            self._loops.clear()
        for loop, opening in services:
            if loop.is_running():
                closing = asyncio.run_coroutine_threadsafe(_close(opening), loop)
                with suppress(TimeoutError):
                    closing.result(0 if _is_here(loop) else CLOSE_SECONDS)


def _is_here(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether this very thread runs the loop: waiting for it would be waiting for ever."""
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


async def _close(opening: asyncio.Task[JobService | None]) -> None:
    service = await opening
    if service is not None:
        await service.close()


class TransactionStore:
    """An engine that is never opened: it only writes through connections that it is given."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def complete_in(self, tx: object, completion: Complete) -> Judged:
        """Complete an attempt inside its handler's transaction."""
        return (await self._engine.complete_in(tx, [completion]))[0]

    def complete_in_blocking(self, tx: object, completion: Complete) -> Judged:
        """The same in the calling thread."""
        return at_once(self._engine.complete_in(tx, [completion]), "await ctx.complete(..., tx=...)")[0]


def at_once(call: Coroutine[Any, Any, T], instead: str) -> T:
    """Run a call in the calling thread: a connection belongs to it, and a synchronous driver never suspends."""
    try:
        call.send(None)
    except StopIteration as done:
        answer: T = done.value
        return answer
    call.close()
    raise InvalidInput("tx", f"must belong to a synchronous driver here; {instead} instead")
