"""How workers are asked to stop, and an event loop that ends although a handler does not."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from everwork.aio.loops import first_of, new_loop
from everwork.logs import get_logger

log = get_logger("everwork")

T = TypeVar("T")

SHUTDOWN_SECONDS = 30.0
"""How long an application that is stopped waits for what runs, if nobody says."""
SETTLE_SECONDS = 1.0
"""What is left of a process's last seconds to store how its calls have ended."""


class StopSignal:
    """Asked once: stop softly. Asked again: cancel. From any thread, for the loop that has made it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.soft = asyncio.Event()
        self.hard = asyncio.Event()

    def ask(self) -> None:
        """Ask to stop."""
        with suppress(RuntimeError):  # The loop is closed: everything has stopped.
            self._loop.call_soon_threadsafe(self._ask)

    def _ask(self) -> None:
        if self.soft.is_set():
            self.hard.set()
        self.soft.set()

    async def comes_before(self, preparation: Coroutine[Any, Any, None]) -> bool:
        """Whether the stop is asked for before a preparation has ended, which is then left."""
        preparing = asyncio.ensure_future(preparation)
        try:
            await first_of(self.soft, work=preparing)
        finally:
            if not preparing.done():
                preparing.cancel()
        if preparing.done():
            preparing.result()
            return False
        return True


def run_loop(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in an event loop of its own; handlers that will not end do not keep the process alive."""
    loop = new_loop()
    asyncio.set_event_loop(loop)
    try:
        return loop.run_until_complete(main)
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            _, stuck = loop.run_until_complete(asyncio.wait(left, timeout=1.0))
            for task in stuck:
                log.error("a task does not end, it is left behind", task=repr(task.get_coro()))
            loop.set_exception_handler(lambda *_: None)
        asyncio.set_event_loop(None)
        loop.close()


def calls_share(seconds: float) -> float:
    """How much of a process's last seconds its cancelled calls may take."""
    return max(seconds - SETTLE_SECONDS, seconds / 2)
