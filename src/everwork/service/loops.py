"""The one shape of every background loop: a bounded tick, a jittered sleep, errors logged, a stop that waits."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress

from everwork.exceptions import EngineError
from everwork.logs import get_logger

log = get_logger("everwork")


class BackgroundLoop:
    """Calls `tick` until it is stopped. A tick that returns True is followed by the next one at once."""

    def __init__(self, name: str, tick: Callable[[], Awaitable[bool]], seconds: float) -> None:
        self._name = name
        self._tick = tick
        self._seconds = seconds
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.errors = 0

    def start(self) -> None:
        """Begin to tick in the running event loop."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name=self._name)

    async def stop(self) -> None:
        """End after the tick that is under way."""
        self._stop.set()
        if self._task is not None:
            await self._task

    async def abort(self) -> None:
        """End at once, also in the middle of a tick that waits for something that may not come."""
        self._stop.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while not self._stop.is_set():
            again = False
            try:
                again = await self._tick()
            except EngineError as error:
                self.errors += 1
                log.error("a background loop goes on without the engine", loop=self._name, error=str(error))
            except Exception:
                self.errors += 1
                log.exception("a background loop failed and goes on", loop=self._name, errors=self.errors)
            if not again:
                await self._sleep()

    async def _sleep(self) -> None:
        seconds = self._seconds * random.uniform(0.6, 1.0)  # noqa: S311 - jitter, not a secret
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stop.wait(), seconds)
