"""The hours of the statistics, in portions: of a month of many types there are a million rows, and others wait."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from everwork.core.limits import HOUR_MS, INSTANT_MS_MAX

PORTION_HOURS: Final = 24


class Hours(NamedTuple):
    """The hours behind one, up to another."""

    behind: int
    last: int


def portions(hours: int, now_ms: int) -> Iterator[Hours]:
    """The last so many hours, oldest first; the last portion has also what was counted before a clock was set back."""
    now = now_ms // HOUR_MS
    for behind in range(now - hours, now, PORTION_HOURS):
        last = behind + PORTION_HOURS
        yield Hours(behind, last if last < now else INSTANT_MS_MAX // HOUR_MS)
