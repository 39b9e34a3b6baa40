"""A few tasks for many calls: a call does not need its own task.

Runners are started on demand. Each takes the next item and awaits its call directly, so calls that never suspend are
made one after the other by one runner; when one suspends, another runner continues with the rest.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, Generic, TypeVar

from everwork.logs import get_logger

log = get_logger("everwork")

T = TypeVar("T")

SLICE_SECONDS: Final = 0.005
"""How long a runner works before it yields to the rest of the loop."""


_closed: Final[set[asyncio.Task[Any]]] = set()
"""Closed runners whose call has not ended. The event loop holds only weak references, so they could be collected."""


class Runners(Generic[T]):
    """Call `run` with each item of the inbox and the task that calls it, up to `concurrency` at the same time.

    Call `wake` after adding to the inbox.
    """

    __slots__ = ("_concurrency", "_idle", "_owner", "_run", "inbox", "is_closed", "tasks")

    def __init__(self, run: Callable[[T, asyncio.Task[Any]], Awaitable[None]], concurrency: int, owner: str) -> None:
        self._run = run
        self._concurrency = concurrency
        self._owner = owner
        self.is_closed = False
        self._idle: list[asyncio.Future[None]] = []
        self.inbox: deque[T] = deque()
        self.tasks: set[asyncio.Task[None]] = set()

    def wake(self) -> None:
        """Wake or start one more runner, if there is work and capacity."""
        if not self.inbox:
            return
        while self._idle:
            future = self._idle.pop()
            if not future.done():
                future.set_result(None)
                return
        if len(self.tasks) < self._concurrency:
            task = asyncio.get_running_loop().create_task(self._run_all())
            self.tasks.add(task)
            task.add_done_callback(self._forget)

    def close(self) -> None:
        """Cancel the runners and the calls they are making."""
        self.is_closed = True
        for task in self.tasks:
            task.cancel()
            _closed.add(task)
            task.add_done_callback(_closed.discard)

    def _forget(self, task: asyncio.Task[None]) -> None:
        """A runner ended before `close`, which should not happen: log it, and let another one continue."""
        self.tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("runner failed, starting another", worker=self._owner, exc_info=task.exception())
        if not self.is_closed:
            self.wake()

    async def _run_all(self) -> None:
        loop, inbox, run, wake = asyncio.get_running_loop(), self.inbox, self._run, self.wake
        task: asyncio.Task[Any] = asyncio.current_task()  # type: ignore[assignment]
        slice_ends = time.monotonic() + SLICE_SECONDS
        while True:
            while not inbox:
                if self.is_closed:
                    return  # The cancellation only ended a call.
                await self._next()
                slice_ends = time.monotonic() + SLICE_SECONDS
            item = inbox.popleft()
            if inbox:
                # If this call suspends, another runner continues with the rest.
                loop.call_soon(wake)
            await run(item, task)
            if time.monotonic() > slice_ends:
                await asyncio.sleep(0)
                slice_ends = time.monotonic() + SLICE_SECONDS

    async def _next(self) -> None:
        """Wait until `wake` reports something to do."""
        future = asyncio.get_running_loop().create_future()
        self._idle.append(future)
        await future


async def absorb_cancellation(task: asyncio.Task[Any] | None) -> None:
    """Absorb a cancellation that arrived after the call had ended, so that it does not hit the next one."""
    if task is None or not task.cancelling():
        return
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(0)
    while task.cancelling():
        task.uncancel()
