"""Calls repeated while an engine is away."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Iterator
from typing import Final, TypeVar

from everwork.exceptions import EngineUnavailable
from everwork.logs import Outage, get_logger

log = get_logger("everwork")
T = TypeVar("T")

AWAY_SECONDS_MAX: Final = 10.0
"""How long a caller is kept waiting for an engine that is away: about a restart of its server."""


Pauses = Callable[[], Iterator[float]]
"""Begins to count the seconds between attempts to reach an engine; it ends where to give up."""


def pauses(first: float = 0.1, most: float = 1.5) -> Iterator[float]:
    """Seconds to wait between attempts to reach an engine that is away: ever longer, never long, never in step."""
    while True:
        yield first * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, not a secret
        first = min(first * 2, most)


async def through_outage(call: Callable[[], Awaitable[T]], ends: float | None) -> T:
    """The answer of a call that may be repeated: while the engine is away, at most so long, it is."""
    loop = asyncio.get_running_loop()
    gives_up = min(loop.time() + AWAY_SECONDS_MAX, ends or math.inf)
    delays = pauses()
    while True:
        try:
            return await call()
        except EngineUnavailable:
            delay = next(delays)
            if loop.time() + delay > gives_up:
                raise
            await asyncio.sleep(delay)


def engine_outage(whose: str) -> Outage:
    """What the log is told of an engine that is away."""
    return Outage(log, "the engine is unavailable, trying again", "the engine is back", whose=whose)
