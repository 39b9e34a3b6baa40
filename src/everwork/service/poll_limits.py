"""Limits on waiting long polls: per API key and type, and in total. The polls of one key never affect another key."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

from everwork.core.limits import POLLERS_TOTAL_MAX
from everwork.exceptions import TooManyRequests

T = TypeVar("T")

BUSY_RETRY_MS: Final = 1_000


class PollLimits:
    """Counts waiting polls. `caller` is the id of the API key."""

    def __init__(self, per_type: int, total: int = POLLERS_TOTAL_MAX) -> None:
        self._per_type = per_type
        self._total = total
        self._of_type: Counter[tuple[str, str]] = Counter()
        self._of_caller: Counter[str] = Counter()
        self._waiting = 0

    @contextmanager
    def admitted(self, caller: str, type: str) -> Iterator[None]:
        """Count one poll while it waits; refused if the key has too many."""
        self._require_room(caller, type)
        self._of_type[caller, type] += 1
        self._of_caller[caller] += 1
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1
            _decrement(self._of_type, (caller, type))
            _decrement(self._of_caller, caller)

    def waiting(self, type: str) -> int:
        """How many polls are waiting for a type, for all keys together."""
        return sum(polls for (_, one), polls in self._of_type.items() if one == type)

    def _require_room(self, caller: str, type: str) -> None:
        if self._of_type[caller, type] >= self._per_type:
            raise _too_many(f"{self._per_type:,} polls of this API key are waiting for jobs of type '{type}'")
        own = self._of_caller[caller]
        if own and self._waiting >= self._total and own >= self._share:
            raise _too_many(f"the server has reached its limit of waiting polls, {own:,} of them from this API key")

    @property
    def _share(self) -> int:
        """The share of each key once the server is full, so that one key cannot lock out the others."""
        return self._total // len(self._of_caller)


def _decrement(counter: Counter[T], name: T) -> None:
    counter[name] -= 1
    if not counter[name]:
        del counter[name]


def _too_many(reason: str) -> TooManyRequests:
    return TooManyRequests(f"too many workers: {reason}; retry later", BUSY_RETRY_MS)
