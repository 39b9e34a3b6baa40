"""How many requests a second a key may make: one number per key, whatever it asks for and however it arrives."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from everwork.core.limits import RATE_BUCKETS_MAX
from everwork.exceptions import TooManyRequests

Seconds = Callable[[], float]
"""A clock that never goes back."""


class RateLimiter:
    """Token buckets that hold one second's worth of requests, at least one.

    Of each bucket only the time at which it will be full again is kept; one that is full needs no entry.
    """

    __slots__ = ("_clock", "_full_at", "_per_second")

    def __init__(self, per_second: float = 0.0, clock: Seconds = time.monotonic) -> None:
        self._per_second = per_second
        self._clock = clock
        self._full_at: dict[str, float] = {}

    def spend(self, id: str, per_second: float | None = None) -> None:
        """Take one token, by the key's own rate or by the default one; 0 is no limit."""
        rate = self._per_second if per_second is None else per_second
        if rate <= 0:
            return
        now = self._clock()
        full_at = max(self._full_at.get(id, now), now)
        wait = full_at - now - (max(rate, 1.0) - 1.0) / rate
        if wait > 1e-9:  # Sums of fractions are not exact, and nobody is to wait for that.
            raise _refused(rate, wait)
        if id not in self._full_at and len(self._full_at) >= RATE_BUCKETS_MAX:
            self._make_room(now)
        self._full_at[id] = full_at + 1.0 / rate

    def _make_room(self, now: float) -> None:
        """Forget full buckets; if all are in use, the one that has been here longest."""
        self._full_at = {id: full_at for id, full_at in self._full_at.items() if full_at > now}
        if len(self._full_at) >= RATE_BUCKETS_MAX:
            del self._full_at[next(iter(self._full_at))]


def _refused(rate: float, wait: float) -> TooManyRequests:
    retry_after_ms = max(1, math.ceil(wait * 1000))
    return TooManyRequests(
        f"the API key may make {rate:g} requests a second; try again in {retry_after_ms} ms", retry_after_ms
    )
