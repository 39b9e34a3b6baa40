"""A wake-up flag for one waiter: lighter than an event, and combined waits need no second task."""

from __future__ import annotations

import asyncio


class Wakeup:
    """A flag that one coroutine at a time waits for, in the event loop in which it is set."""

    __slots__ = ("_waiter", "is_notified")

    def __init__(self) -> None:
        self.is_notified = False
        self._waiter: asyncio.Future[None] | None = None

    def notify(self) -> None:
        """Set the flag and wake the waiter."""
        self.is_notified = True
        self.wake()

    def clear(self) -> None:
        """Reset the flag."""
        self.is_notified = False

    def wake(self, _: object = None) -> None:
        """Wake the waiter without setting the flag."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self, seconds: float | None = None) -> None:
        """Return when the flag is set, after `seconds`, or when `wake` is called."""
        if self.is_notified:
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
