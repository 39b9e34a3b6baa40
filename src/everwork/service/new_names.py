"""Limits on the number of names that callers may add within an hour. Each server counts separately."""

from __future__ import annotations

import time
from typing import NamedTuple

from everwork.aio.clocks import Seconds
from everwork.core.limits import HOUR_MS, NEW_PRODUCERS_MAX, PRODUCERS_MAX, RATE_BUCKETS_MAX
from everwork.exceptions import TooManyRequests


class _Window(NamedTuple):
    """How many names a caller has added since `since`, on the monotonic clock."""

    since: float
    added: int


class Refusal(NamedTuple):
    """How many names the caller has added within its hour, and when the hour ends."""

    added: int
    retry_after_ms: int


class NewNames:
    """Counts the names that each caller adds; a caller's hour begins with its first new name."""

    def __init__(self, most: int, clock: Seconds) -> None:
        self._most = most
        self._clock = clock
        self._windows: dict[str, _Window] = {}

    def add(self, caller: str, names: int) -> Refusal | None:
        """Count new names of a caller; None if they are allowed, otherwise none of them is counted."""
        now = self._clock()
        window = self._windows.pop(caller, None)
        if window is None or now - window.since >= HOUR_MS / 1000:
            window = _Window(now, 0)
        if window.added + names > self._most:
            self._windows[caller] = window
            return Refusal(window.added, max(1, round(HOUR_MS - (now - window.since) * 1000)))
        self._windows[caller] = window._replace(added=window.added + names)
        if len(self._windows) > RATE_BUCKETS_MAX:
            del self._windows[next(iter(self._windows))]
        return None


class ProducerLimits:
    """Admits producers, whose last creates the store remembers: a limited number of new ones per party."""

    def __init__(self, most: int = NEW_PRODUCERS_MAX, clock: Seconds = time.monotonic) -> None:
        self._most = most
        self._new = NewNames(most, clock)
        self._known: dict[str, None] = {}
        """The producers that have called this server, in the order of their last calls."""

    def admit(self, party: str, producer: str) -> None:
        """Admit a call of a producer; `producer` includes the party."""
        if producer in self._known:
            del self._known[producer]
        elif (refusal := self._new.add(party, 1)) is not None:
            raise TooManyRequests(
                f"stamp.producer: API keys of these tenants have added {refusal.added:,} producers in the last hour; "
                f"the limit is {self._most:,}",
                refusal.retry_after_ms,
            )
        self._known[producer] = None
        if len(self._known) > PRODUCERS_MAX:
            del self._known[next(iter(self._known))]
