"""Calls that are retried while an engine is unavailable."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Final, TypeVar

from everwork.exceptions import EngineUnavailable
from everwork.logs import Outage, get_logger

log = get_logger("everwork")
T = TypeVar("T")

OUTAGE_SECONDS_MAX: Final = 10.0
"""How long a caller waits for an unavailable engine: about as long as its server takes to restart."""

Delays = Callable[[], Iterator[float]]
"""Starts a series of waits, in seconds, between attempts to reach an engine; when it ends, the caller gives up."""


def backoff_delays(first: float = 0.1, longest: float = 1.5) -> Iterator[float]:
    """Seconds to wait between attempts to reach an unavailable engine: growing, bounded, with jitter."""
    while True:
        yield first * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, not a secret
        first = min(first * 2, longest)


def bounded_delays() -> Iterator[float]:
    """Like `backoff_delays`, for a caller that eventually gives up: after about the time a server takes to restart."""
    ends = time.monotonic() + OUTAGE_SECONDS_MAX
    for seconds in backoff_delays():
        if time.monotonic() + seconds > ends:
            return
        yield seconds


async def retry_while_unavailable(call: Callable[[], Awaitable[T]], deadline: float | None) -> T:
    """Retry an idempotent call while the engine is unavailable, until `deadline` at the latest."""
    outage_ends = asyncio.get_running_loop().time() + OUTAGE_SECONDS_MAX
    return await retrying(call, until=min(outage_ends, deadline or math.inf))


async def retrying(
    call: Callable[[], Awaitable[T]],
    *,
    on: tuple[type[Exception], ...] = (EngineUnavailable,),
    until: float = math.inf,
    delays: Delays = backoff_delays,
    outage: Outage | None = None,
) -> T:
    """Retry an idempotent call while it raises one of the errors `on`, until `delays` ends or `until` has passed."""
    loop, pauses = asyncio.get_running_loop(), delays()
    while True:
        try:
            result = await call()
        except on as error:
            delay = next(pauses, None)
            if delay is None or loop.time() + delay > until:
                raise
            if outage is not None:
                outage.report(error)
            await asyncio.sleep(delay)
        else:
            if outage is not None:
                outage.over()
            return result


def engine_outage(owner: str) -> Outage:
    """The log messages of an outage."""
    return Outage(log, "the engine is unavailable, retrying", "the engine is available again", whose=owner)
