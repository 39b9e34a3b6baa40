"""Daemon threads for plain `def` handlers: one that never returns does not keep the process alive."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

Call = tuple[Callable[[], Any], asyncio.Future[Any], asyncio.AbstractEventLoop]


class HandlerThreads:
    """A pool that grows to the number of threads needed concurrently; callers limit that number."""

    def __init__(self) -> None:
        self._inbox: SimpleQueue[Call | None] = SimpleQueue()
        self._threads = 0
        self._is_closed = False
        self._busy = 0
        self._identities: set[int] = set()
        self._at_work: dict[asyncio.Future[Any], int] = {}

    def run(self, call: Callable[[], Any]) -> asyncio.Future[Any]:
        """Run a call in its own thread; the future is resolved in the calling loop."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        future.add_done_callback(self._free)
        self._busy += 1
        if self._is_closed:  # An abandoned handler still closes its resources.
            threading.Thread(target=self._call, args=(call, future, loop), daemon=True).start()
            return future
        if self._busy > self._threads:
            self._threads += 1
            threading.Thread(target=self._work, name=f"everwork-handler-{self._threads}", daemon=True).start()
        self._inbox.put((call, future, loop))
        return future

    def close(self) -> None:
        """Stop idle threads; busy ones end after their call. A later call gets a new thread."""
        self._is_closed = True
        for _ in range(self._threads):
            self._inbox.put(None)

    @property
    def is_current(self) -> bool:
        """Whether the caller runs in one of these threads."""
        return threading.get_ident() in self._identities

    def identity_of(self, future: asyncio.Future[Any]) -> int | None:
        """The thread in which a call is running; None if it is not running."""
        return self._at_work.get(future)

    def _free(self, future: asyncio.Future[Any]) -> None:
        self._busy -= 1
        self._at_work.pop(future, None)
        if not future.cancelled():
            future.exception()  # The attempt may have ended: asyncio would log that the exception was never retrieved.

    def _work(self) -> None:
        self._identities.add(threading.get_ident())
        while (item := self._inbox.get()) is not None:
            if not self._call(*item):
                return

    def _call(self, call: Callable[[], Any], future: asyncio.Future[Any], loop: asyncio.AbstractEventLoop) -> bool:
        """Make one call; return whether its event loop is still running."""
        process = os.getpid()
        self._at_work[future] = threading.get_ident()
        try:
            value, error = call(), None
        except BaseException as raised:  # noqa: BLE001 - user code; it goes to the caller
            value, error = None, raised
        if os.getpid() != process:
            os._exit(0 if error is None else 1)  # The handler forked; the child process must not act as a worker.
        try:
            loop.call_soon_threadsafe(_resolve, future, value, error)
        except RuntimeError:
            return False
        return True


def _resolve(future: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(value)
    elif issubclass(type(error), StopIteration) or not issubclass(type(error), Exception):
        # Not allowed in a future: it would end the loop or look like a cancellation. (`isinstance` can run user code.)
        future.set_exception(RuntimeError(f"the handler raised {error!r}"))
    else:
        future.set_exception(error)
