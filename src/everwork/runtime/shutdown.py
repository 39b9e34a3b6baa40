"""Stop requests, signals, and an event loop that ends even if a handler does not."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from everwork.aio.loops import first_of, new_loop
from everwork.exceptions import BadConfiguration
from everwork.logs import get_logger

log = get_logger("everwork")

T = TypeVar("T")

SHUTDOWN_SECONDS = 30.0
"""How long a stopped application waits for running jobs by default."""
SETTLE_SECONDS = 1.0
"""The part of a process's last seconds that is reserved for storing outcomes."""


class StopSignal:
    """The first request stops gracefully, the second cancels. Any thread can request it; one event loop waits for it.

    `soft`: the caller's own event; setting it also stops gracefully.
    """

    def __init__(self, soft: asyncio.Event | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self.soft = soft or asyncio.Event()
        self.hard = asyncio.Event()

    def request(self) -> None:
        """Request a stop."""
        with suppress(RuntimeError):  # The loop is closed: everything has stopped.
            self._loop.call_soon_threadsafe(self._request)

    def _request(self) -> None:
        if self.soft.is_set():
            self.hard.set()
        self.soft.set()

    async def comes_before(self, preparation: Coroutine[Any, Any, None]) -> bool:
        """Whether a stop is requested before a preparation has ended; if so, the preparation is cancelled."""
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


def on_stop_signals(act: Callable[[], object]) -> None:
    """Call `act` for each SIGINT and SIGTERM, in the running event loop; only the main thread gets signals."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, act)


def require_no_loop(what: str, instead: str) -> None:
    """Refuse a call that would run its own event loop inside a running one."""
    with suppress(RuntimeError):
        asyncio.get_running_loop()
        raise BadConfiguration(f"{what}: an event loop is already running in this thread; use `{instead}`")


def run_loop(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in its own event loop; handlers that do not end do not keep the process alive."""
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
                log.error("task ignored cancellation, abandoning it", task=repr(task.get_coro()))
            loop.set_exception_handler(lambda *_: None)
        asyncio.set_event_loop(None)
        loop.close()


def calls_share(seconds: float) -> float:
    """How much of a process's last seconds its cancelled calls get."""
    return max(seconds - SETTLE_SECONDS, seconds / 2)
