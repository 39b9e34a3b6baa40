"""The one shape of every background loop: a bounded tick, a jittered sleep, errors logged, a stop that waits."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

from everwork.aio.retrying import engine_outage, pauses
from everwork.exceptions import EngineError
from everwork.logs import get_logger

log = get_logger("everwork")


T = TypeVar("T")


class BackgroundLoop:
    """Calls `tick` until it is stopped. A tick that returns True is followed by the next one at once."""

    def __init__(self, name: str, tick: Callable[[], Awaitable[bool]], seconds: float) -> None:
        self._name = name
        self._tick = tick
        self._seconds = seconds
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._outage = engine_outage(name)
        self.errors = 0

    def start(self) -> None:
        """Begin to tick in the running event loop."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name=self._name)

    def hurry(self) -> None:
        """Tick at once, or once more if a tick is under way; in the loop that it was started in."""
        self._hurry.set()

    async def stop(self) -> None:
        """End after the tick that is under way."""
        self._stop.set()
        self._hurry.set()
        if self._task is not None:
            await self._task

    async def abort(self) -> None:
        """End at once, also in the middle of a tick that waits for something that may not come."""
        self._stop.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        delays = pauses()
        while not self._stop.is_set():
            again, seconds = False, self._seconds
            self._hurry.clear()
            try:
                again = await self._tick()
                self._outage.over()
                delays = pauses()
            except EngineError as error:
                self.errors += 1
                self._outage.tell(error)
                # What had to be done is still to be done: a lost connection must not cost a whole turn.
                seconds = min(seconds, next(delays))
            except Exception:
                self.errors += 1
                log.exception("a background loop failed and goes on", loop=self._name, errors=self.errors)
            if not again:
                await self._sleep(seconds)

    async def _sleep(self, seconds: float) -> None:
        seconds *= random.uniform(0.6, 1.0)  # noqa: S311 - jitter, not a secret
        with suppress(TimeoutError):
            await asyncio.wait_for(self._hurry.wait(), seconds)


async def first_of(
    *events: asyncio.Event, work: asyncio.Future[Any] | None = None, seconds: float | None = None
) -> None:
    """Wait for one of the events, or for some work to end, at most so long."""
    waiting = [asyncio.ensure_future(event.wait()) for event in events]
    everything: list[asyncio.Future[Any]] = [*waiting] if work is None else [*waiting, work]
    try:
        await asyncio.wait(everything, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for one in waiting:
            one.cancel()


def new_loop() -> asyncio.AbstractEventLoop:
    """The fastest event loop there is."""
    try:
        import uvloop  # noqa: PLC0415 - it is not there on every platform
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


async def to_the_end(work: Awaitable[T], gone: Callable[[], None] = lambda: None) -> T:
    """What has begun is done, also when the caller goes away in between; he is held until it is."""
    task = asyncio.ensure_future(work)
    _unfinished.add(task)
    task.add_done_callback(_unfinished.discard)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        gone()
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # Nobody else asks for it, and Python would complain.
        raise


_unfinished: Final[set[asyncio.Future[Any]]] = set()
