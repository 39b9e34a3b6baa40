"""Instants are integer milliseconds UTC; this is how they are written for people and read from them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@lru_cache(maxsize=4_096)  # Jobs that were created together show the same instants.
def utc_text(instant_ms: int) -> str:
    """An instant in RFC 3339, to the millisecond."""
    moment = _EPOCH + timedelta(milliseconds=instant_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def instant_ms(moment: datetime) -> int:
    """A moment with a time zone as an instant."""
    return (moment - _EPOCH) // timedelta(milliseconds=1)
