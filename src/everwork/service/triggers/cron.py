"""The times at which a cron expression matches in a time zone, across clock changes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final

from cronsim import CronSim, CronSimError

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND: Final = timedelta(milliseconds=1)
_SECOND: Final = timedelta(seconds=1)
_WEEK: Final = timedelta(weeks=1)
"""No zone changes its clocks twice within a week."""


def matches(expression: str, zone: tzinfo, after_ms: int) -> Iterator[int]:
    """The times after `after_ms` at which an expression matches in a time zone, in order."""
    walk = CronSim(expression, at(after_ms).astimezone(UTC if str(zone) == "UTC" else zone))
    return _in_real_time(expression, zone, after_ms) if walk.fixup_tz is None else _as_debian_does(walk, after_ms)


def in_words(expression: str) -> str | None:
    """An expression in words, for display; None if it is invalid."""
    try:
        return str(CronSim(expression, EPOCH).explain())
    except CronSimError:
        return None


def _as_debian_does(walk: CronSim, after_ms: int) -> Iterator[int]:
    """Yield matches as Debian's cron does: fixed times match once per day, even if the clocks change."""
    last_ms = after_ms
    for found in walk:
        # If CronSim starts inside a repeated hour, it yields the first occurrence again.
        if (point_ms := ms_of(found)) > last_ms:
            last_ms = point_ms
            yield point_ms


def _in_real_time(expression: str, zone: tzinfo, after_ms: int) -> Iterator[int]:
    """Yield a match whenever the local clock matches. Between two clock changes, a zone has a fixed offset.

    CronSim alone would skip times after a change that is not a whole hour.
    """
    after = begin = at(after_ms)
    while True:
        offset, change = _offset(zone, begin), None
        for found in CronSim(expression, after + offset):
            change = _change(zone, begin, found - offset)
            if change is not None:
                break
            yield ms_of(found - offset)
            begin = found - offset
        if change is None:
            return
        after, begin = change - _SECOND, change


def _change(zone: tzinfo, begin: datetime, end: datetime) -> datetime | None:
    """The first second after `begin`, up to `end`, at which the clocks have changed; None if they do not."""
    offset, early, late = _offset(zone, begin), begin.replace(microsecond=0), begin
    while late < end and _offset(zone, late) == offset:
        early, late = late.replace(microsecond=0), min(late + _WEEK, end)
    if _offset(zone, late) == offset:
        return None
    while late - early > _SECOND:
        middle = (early + (late - early) / 2).replace(microsecond=0)
        early, late = (middle, late) if _offset(zone, middle) == offset else (early, middle)
    return late


def _offset(zone: tzinfo, instant: datetime) -> timedelta:
    return instant.astimezone(zone).utcoffset() or timedelta(0)


def ms_of(instant: datetime) -> int:
    """A datetime as milliseconds."""
    return (instant - EPOCH) // MILLISECOND


def at(instant_ms: int) -> datetime:
    """Milliseconds as a datetime."""
    return EPOCH + instant_ms * MILLISECOND
