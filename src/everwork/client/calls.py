"""The calls of a client that are under way: each has its time, and closing the client ends them all."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

from everwork.exceptions import CallTimeout, EngineUnavailable, EverworkError

END_SECONDS: Final = 15.0
"""How long closing waits for calls that it has ended: handlers may take their time to stop."""


def closed() -> EngineUnavailable:
    """The error of whoever was in a call when its client was closed."""
    return EngineUnavailable("the client was closed")


class Calls:
    """What is under way between the opening of a client and its end."""

    def __init__(self) -> None:
        self._limits: set[asyncio.Timeout] = set()
        self._is_over = False
        self._ended = asyncio.Event()

    @asynccontextmanager
    async def within(self, seconds: float | None = None) -> AsyncIterator[float]:
        """Time for one call; by which moment of the event loop's clock it must be answered."""
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                self._limits.add(limit)
                yield limit.when() or math.inf
        except TimeoutError as error:
            if self._is_over and limit.expired():
                raise closed() from None
            if isinstance(error, EverworkError) or seconds is None:
                raise
            raise CallTimeout(f"no answer within {seconds:g} s") from None
        finally:
            self._limits.discard(limit)
            if not self._limits:
                self._ended.set()

    def break_off(self) -> None:
        """Let every call raise that the client was closed."""
        self._is_over = True
        now = asyncio.get_running_loop().time()
        for limit in self._limits:
            if not limit.expired():
                limit.reschedule(now)

    async def ended(self) -> None:
        """Wait until they have."""
        if self._limits:
            self._ended.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), END_SECONDS)
