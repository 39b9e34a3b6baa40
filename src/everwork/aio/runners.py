"""Few tasks for many calls: a call costs no task of its own.

Runners are started when they are needed. Each takes the next item and awaits its call directly, so calls that never
suspend are made one after the other by one runner; when one suspends, another runner goes on with the rest.
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
"""After so long a runner lets the rest of the loop have its turn."""


class Runners(Generic[T]):
    """Call `run` with each item of the inbox and the task that calls it, up to `most` at the same time.

    Whoever fills the inbox says `wake`. `on_idle` is called by a runner that finds nothing to do.
    """

    __slots__ = ("_idle", "_is_closed", "_most", "_on_idle", "_run", "_whose", "inbox", "tasks")

    def __init__(
        self,
        run: Callable[[T, asyncio.Task[Any]], Awaitable[None]],
        most: int,
        whose: str,
        on_idle: Callable[[], None] | None = None,
    ) -> None:
        self._run = run
        self._most = most
        self._whose = whose
        self._on_idle = on_idle
        self._is_closed = False
        self._idle: list[asyncio.Future[None]] = []
        self.inbox: deque[T] = deque()
        self.tasks: set[asyncio.Task[None]] = set()

    def wake(self) -> None:
        """Let one more runner look into the inbox, if there is work and room."""
        if not self.inbox:
            return
        while self._idle:
            future = self._idle.pop()
            if not future.done():
                future.set_result(None)
                return
        if len(self.tasks) < self._most:
            task = asyncio.get_running_loop().create_task(self._run_all())
            self.tasks.add(task)
            task.add_done_callback(self._forget)

    def close(self) -> None:
        """Cancel the runners, and whatever they call."""
        self._is_closed = True
        for task in self.tasks:
            task.cancel()

    def _forget(self, task: asyncio.Task[None]) -> None:
        """A runner has ended. None should, as long as nobody closes them: say so, and let another go on."""
        self.tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a runner broke down", worker=self._whose, exc_info=task.exception())
        if not self._is_closed:
            self.wake()

    async def _run_all(self) -> None:
        loop, inbox, run, wake = asyncio.get_running_loop(), self.inbox, self._run, self.wake
        task: asyncio.Task[Any] = asyncio.current_task()  # type: ignore[assignment]
        slice_ends = time.monotonic() + SLICE_SECONDS
        while True:
            while not inbox:
                await self._next()
                slice_ends = time.monotonic() + SLICE_SECONDS
            item = inbox.popleft()
            if inbox:
                # If this call suspends, somebody else goes on with the rest.
                loop.call_soon(wake)
            await run(item, task)
            if time.monotonic() > slice_ends:
                await asyncio.sleep(0)
                slice_ends = time.monotonic() + SLICE_SECONDS

    async def _next(self) -> None:
        """Wait until somebody says that there is something to do."""
        if self._on_idle is not None:
            self._on_idle()
        future = asyncio.get_running_loop().create_future()
        self._idle.append(future)
        await future


async def absorb_cancellation(task: asyncio.Task[Any] | None) -> None:
    """Take in a cancellation that came when the call had ended already, so that it does not hit the next one."""
    if task is None or not task.cancelling():
        return
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(0)
    while task.cancelling():
        task.uncancel()
