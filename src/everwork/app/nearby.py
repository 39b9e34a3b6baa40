"""An engine in the caller's own event loop, for creating jobs on a server: it saves the hop to the engine's thread and
back, which costs about as much as the server's own work.

Only loops in which the application was opened by name (`async with app`) have one, because they also close it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from weakref import WeakKeyDictionary, WeakSet

from everwork.exceptions import EngineError
from everwork.service.service import JobService

CLOSE_SECONDS = 5.0


class Nearby:
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
