"""Wake-ups without tasks: a flag for one waiter, and watches that call back when something happens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Protocol

from everwork.aio.retrying import backoff_delays

Wake = Callable[[bool], object]
"""Called with True when something may have happened, with False after a timeout."""


class Watch(Protocol):
    """A pending call of a `Wake`, made once unless it is cancelled first. Handles and timers of asyncio are watches."""

    def cancel(self) -> object:
        """Cancel the call."""
        ...


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


class Watches:
    """The watches of one kind of wake-up."""

    def __init__(self) -> None:
        self._watches: dict[_TimedWatch, frozenset[str]] = {}

    def __bool__(self) -> bool:
        return bool(self._watches)

    def add(self, wake: Wake, timeout_ms: float, types: Iterable[str] = ()) -> Watch:
        """Call `wake` when a wake-up comes for one of the types, or after the timeout."""
        watch = _TimedWatch(self._watches, wake, timeout_ms)
        self._watches[watch] = frozenset(types)
        return watch

    def wake(self, woken: Callable[[frozenset[str]], bool] = lambda _: True) -> None:
        """Wake those whose types `woken` accepts; by default, all."""
        for watch, types in list(self._watches.items()):
            if woken(types):
                watch.fire()

    async def wait(self, timeout_ms: float, types: Iterable[str] = ()) -> bool:
        """Wait for a wake-up; False after the timeout."""
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def answer(is_woken: bool) -> None:
            if not future.done():
                future.set_result(is_woken)

        watch = self.add(answer, timeout_ms, types)
        try:
            return await future
        finally:
            watch.cancel()


class _TimedWatch:
    """A watch with a timeout."""

    __slots__ = ("_timer", "_wake", "_watches")

    def __init__(self, watches: dict[_TimedWatch, frozenset[str]], wake: Wake, timeout_ms: float) -> None:
        self._watches = watches
        self._wake = wake
        self._timer = asyncio.get_running_loop().call_later(timeout_ms / 1000, self.fire, False)

    def fire(self, is_woken: bool = True) -> None:
        """Call back, once."""
        if self._watches.pop(self, None) is not None:
            self._timer.cancel()
            self._wake(is_woken)

    def cancel(self) -> None:
        """Cancel the callback."""
        self._watches.pop(self, None)
        self._timer.cancel()


class WaitingTask:
    """A watch that awaits a coroutine in a task; if the coroutine fails, the caller is woken after a pause."""

    __slots__ = ("_is_cancelled", "_task", "_wake")

    def __init__(self, wait: Coroutine[Any, Any, bool], wake: Wake) -> None:
        self._wake = wake
        self._is_cancelled = False
        self._task = asyncio.ensure_future(self._run(wait))

    async def _run(self, wait: Coroutine[Any, Any, bool]) -> None:
        try:
            is_woken = await wait
        except Exception:  # noqa: BLE001 - only a wake-up is lost, and the caller's next call finds out why
            is_woken = False
            await asyncio.sleep(next(backoff_delays()))
        if not self._is_cancelled:
            self._wake(is_woken)

    def cancel(self) -> None:
        """Cancel the callback, even if the coroutine ends later."""
        self._is_cancelled = True
        self._task.cancel()
