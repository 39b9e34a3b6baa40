"""News for one who waits: lighter than an event, and whoever waits for something else, too, needs no second task."""

from __future__ import annotations

import asyncio


class Wakeup:
    """Whether there is something new. One coroutine at a time waits for it, in the loop in which it is told."""

    __slots__ = ("_waiter", "is_there")

    def __init__(self) -> None:
        self.is_there = False
        self._waiter: asyncio.Future[None] | None = None

    def tell(self) -> None:
        """There is something new."""
        self.is_there = True
        self.wake()

    def clear(self) -> None:
        """What is there is known now."""
        self.is_there = False

    def wake(self, _: object = None) -> None:
        """Let go whoever waits, though there may be nothing new."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self, seconds: float | None = None) -> None:
        """Return when there is something new, or after these seconds, or when somebody says `wake`."""
        if self.is_there:
            return
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = None if seconds is None else loop.call_later(seconds, self.wake)
        try:
            await self._waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()
