"""The engine's thread: an event loop that runs the service, called from any thread and any other loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Generic, Protocol, TypeVar

from everwork.aio.batcher import CLOSED
from everwork.aio.loops import new_loop
from everwork.exceptions import EngineUnavailable
from everwork.logs import get_logger

log = get_logger("everwork")

CLOSE_SECONDS = 10.0
CANCEL_SECONDS = 1.0


class Openable(Protocol):
    """An object that a portal opens, runs and closes in its thread."""

    @property
    def is_remote(self) -> bool:
        """Whether opening can wait for a server that does not reply."""
        ...

    async def open(self, *, upkeep: bool = True) -> None:
        """Open it, with or without its background loops."""
        ...

    async def close(self) -> None:
        """Close it."""
        ...


S = TypeVar("S", bound=Openable)
T = TypeVar("T")
Use = Callable[[S], Coroutine[Any, Any, T]]


class CurrentLoop:
    """The running event loop as a host."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()

    def start(self, use: Callable[[Any], Coroutine[Any, Any, T]]) -> tuple[asyncio.Future[T], Callable[[], object]]:
        """Start something as a task."""
        task = self.loop.create_task(use(None))
        return task, task.cancel


class Portal(Generic[S]):
    """Runs the service in its own thread, so that a handler that blocks never stops heartbeats."""

    def __init__(self, make_service: Callable[[], S], *, upkeep: bool = True) -> None:
        self._make_service = make_service
        self._upkeep = upkeep
        self._service: S | None = None
        self._ready: Future[None] = Future()
        self._may_open = threading.Lock()
        self._opening: asyncio.Task[None] | None = None
        self._before_close: list[Callable[[], Coroutine[Any, Any, None]]] = []
        self._is_closing = False
        self._is_remote = False
        self.loop = new_loop()
        self._thread = threading.Thread(target=self._run, name="everwork-engine", daemon=True)
        self._thread.start()

    @property
    def service(self) -> S:
        """The service, once it is open."""
        if self._service is None:
            raise EngineUnavailable(CLOSED)
        return self._service

    @property
    def is_open(self) -> bool:
        """Whether the service can be used."""
        return self._service is not None

    @property
    def is_broken(self) -> bool:
        """Whether opening has failed."""
        return self._ready.done() and self._ready.exception() is not None

    def open(self, prepare: Use[S, None]) -> Future[None]:
        """Open the service once; every waiting caller gets the error if it fails."""
        if self._may_open.acquire(blocking=False):
            self.loop.call_soon_threadsafe(self._start_opening, prepare)
        return self._ready

    def _start_opening(self, prepare: Use[S, None]) -> None:
        self._opening = self.loop.create_task(self._open(prepare))

    async def call(self, use: Use[S, T]) -> T:
        """Use the service from a coroutine of any loop."""
        if asyncio.get_running_loop() is self.loop:
            return await use(self.service)
        future, cancel = self.start(use)
        try:
            return await future
        except asyncio.CancelledError:
            cancel()
            raise

    def start(self, use: Use[S, T]) -> tuple[asyncio.Future[T], Callable[[], None]]:
        """Start a call to the service; returns a future of the calling loop and a function that cancels the call.

        It is a future and not a task, so that it survives if all tasks of the calling loop are cancelled.
        """
        here = asyncio.get_running_loop()
        future: asyncio.Future[T] = here.create_future()
        started: list[asyncio.Task[T]] = []
        self._in_loop(self._start, use, (here, future), started)

        def cancel() -> None:
            with suppress(EngineUnavailable):
                self._in_loop(lambda: [task.cancel() for task in started])

        return future, cancel

    def run(self, use: Use[S, T]) -> T:
        """Use the service from a thread that has no event loop."""
        self.require_other_thread()
        done: Future[T] = Future()
        started: list[asyncio.Task[T]] = []
        self._in_loop(lambda: started.append(_chain(self.loop.create_task(self._use(use)), done)))
        try:
            return done.result()
        except KeyboardInterrupt:
            self._in_loop(lambda: [task.cancel() for task in started])
            raise

    def require_other_thread(self) -> None:
        """Refuse a blocking call from the engine's thread: it would deadlock."""
        if threading.current_thread() is self._thread:
            raise RuntimeError("a blocking call from the engine's thread would deadlock")

    def close(self) -> None:
        """Close the service and end the thread; blocks until both have ended."""
        self.require_other_thread()
        if not self.is_broken:
            closing = asyncio.run_coroutine_threadsafe(self._close(), self.loop)
            try:
                closing.result(CLOSE_SECONDS)
            except TimeoutError:
                log.error("the store is locked by another process, no longer waiting for it")
                return
            self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()

    def _in_loop(self, act: Callable[..., object], *arguments: Any) -> None:
        try:
            self.loop.call_soon_threadsafe(act, *arguments)
        except RuntimeError:
            raise EngineUnavailable(CLOSED) from None

    async def _use(self, use: Use[S, T]) -> T:
        return await use(self.service)

    async def _open(self, prepare: Use[S, None]) -> None:
        service = self._make_service()
        self._is_remote = service.is_remote
        try:
            await service.open(upkeep=self._upkeep)
            await prepare(service)
        except BaseException as error:  # noqa: BLE001 - raised in the callers that open
            await service.close()
            closed = EngineUnavailable(CLOSED)
            self._ready.set_exception(closed if isinstance(error, asyncio.CancelledError) else error)
            if not self._is_closing:
                self.loop.stop()
            return
        self._service = service
        self._ready.set_result(None)

    def before_close(self, act: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Await this in the engine's loop before the service is closed, last added first; called in that loop."""
        self._before_close.append(act)

    async def _close(self) -> None:
        self._is_closing = True
        while self._before_close:
            await self._before_close.pop()()
        if self._opening is not None:
            if self._is_remote:
                self._opening.cancel()  # Do not wait for a server that does not reply.
            await asyncio.wait([self._opening])
        service, self._service = self._service, None
        if service is not None:
            await service.close()
        await _cancel_tasks()

    def _start(
        self,
        use: Use[S, T],
        waiting: tuple[asyncio.AbstractEventLoop, asyncio.Future[T]],
        started: list[asyncio.Task[T]],
    ) -> None:
        task = self.loop.create_task(self._use(use))
        started.append(task)
        there, future = waiting

        def forward(done: asyncio.Task[T]) -> None:
            with suppress(RuntimeError):  # The caller's loop is closed.
                there.call_soon_threadsafe(_resolve, future, done)

        task.add_done_callback(forward)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            self.loop.run_until_complete(_cancel_tasks())  # Tasks that were started while the loop was stopping.
        finally:
            self.loop.close()


Host = Portal[Any] | CurrentLoop
"""The host of a source of jobs: the engine's thread or the handlers' own loop."""


async def _cancel_tasks() -> None:
    """Cancel remaining tasks, so that waiting callers get an error: the loop stops after this."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left, timeout=CANCEL_SECONDS)


def _chain(task: asyncio.Task[T], done: Future[T]) -> asyncio.Task[T]:
    """Pass a task's result to a waiting thread."""

    def forward(ended: asyncio.Task[T]) -> None:
        if ended.cancelled():
            done.set_exception(EngineUnavailable(CLOSED))
        elif (error := ended.exception()) is not None:
            done.set_exception(error)
        else:
            done.set_result(ended.result())

    task.add_done_callback(forward)
    return task


def _resolve(future: asyncio.Future[T], done: asyncio.Task[T]) -> None:
    if future.done():
        return
    if done.cancelled():
        future.set_exception(EngineUnavailable(CLOSED))
    elif (error := done.exception()) is not None:
        future.set_exception(error)
    else:
        future.set_result(done.result())
