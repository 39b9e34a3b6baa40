"""Scheduled times of triggers: which are due, and which comes next. The current time is an argument."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, assert_never

from everwork.core.limits import CATCHUP_POINTS_MAX, INSTANT_MS_MAX

GRACE_MS: Final = 5_000
"""A scheduled time no older than this was not missed: the trigger loop is only a little late."""

WALKS_MAX: Final = 64
"""Enough to bisect any span down to a millisecond; only an inconsistent calendar would need more."""


class Every(NamedTuple):
    """Scheduled times at a fixed interval from the start of the trigger; the first is one interval after it."""

    interval_ms: int


class Calendar(NamedTuple):
    """Scheduled times computed by `next_after`: the first one after an instant, None if there is none.

    `is_foreign`: it is user code, which may be slow.
    """

    next_after: Callable[[int], int | None]
    is_foreign: bool = False


class Awaited(NamedTuple):
    """Scheduled times of a custom schedule that cannot start from an earlier instant: it only returns its next ones.

    Each is kept until a later one is requested.
    """

    next_after: Callable[[int], int | None]


Schedule = Every | Calendar | Awaited


@dataclass(frozen=True, slots=True)
class Plan:
    """When a trigger fires: its schedule, whether it catches up on missed times, and its lifetime from its start."""

    schedule: Schedule
    is_catchup: bool = True
    lifetime_ms: int | None = None

    @property
    def is_foreign(self) -> bool:
        """Whether evaluating it runs user code."""
        return isinstance(self.schedule, Awaited) or (isinstance(self.schedule, Calendar) and self.schedule.is_foreign)


class Due(NamedTuple):
    """Due scheduled times, oldest first, and how many older ones are skipped (`is_more`: at least that many)."""

    points: list[int]
    skipped: int = 0
    is_more: bool = False


class Outlook(NamedTuple):
    """What is due, and the next future scheduled time, None if none is known."""

    due: Due
    next_ms: int | None


def outlook(plan: Plan, began_ms: int, last_ms: int, now_ms: int) -> Outlook:
    """The scheduled times that a trigger must fire now, and its next one."""
    due = due_points(plan, began_ms, last_ms, now_ms)
    return Outlook(due, next_point(plan, began_ms, last_ms, now_ms))


def due_points(plan: Plan, began_ms: int, last_ms: int, now_ms: int) -> Due:
    """The scheduled times that a trigger must fire now, after its last one at `last_ms`.

    Times after the end of the trigger's lifetime never fire; earlier ones are caught up on like any other.
    """
    end_ms = min(now_ms, _end_of_lifetime(plan, began_ms))
    if plan.is_catchup:
        return _latest(plan.schedule, began_ms, _Span(last_ms, end_ms), CATCHUP_POINTS_MAX)
    recent = _Span(max(last_ms, now_ms - GRACE_MS - 1), end_ms)
    return Due(_latest(plan.schedule, began_ms, recent, 1).points)


def next_point(plan: Plan, began_ms: int, last_ms: int, now_ms: int) -> int | None:
    """The next future scheduled time, None if none is known."""
    point_ms = _next(plan.schedule, began_ms, max(last_ms, now_ms))
    return None if point_ms is None or point_ms > _end_of_lifetime(plan, began_ms) else point_ms


class _Span(NamedTuple):
    """The instants after `after_ms`, up to and including `end_ms`."""

    after_ms: int
    end_ms: int


def _end_of_lifetime(plan: Plan, began_ms: int) -> int:
    return INSTANT_MS_MAX if plan.lifetime_ms is None else began_ms + plan.lifetime_ms


def _next(schedule: Schedule, began_ms: int, after_ms: int) -> int | None:
    match schedule:
        case Every(interval_ms):
            return began_ms + max(1, (after_ms - began_ms) // interval_ms + 1) * interval_ms
        case Calendar(next_after) | Awaited(next_after):
            return next_after(after_ms)
        case _:
            assert_never(schedule)


def _latest(schedule: Schedule, began_ms: int, span: _Span, most: int) -> Due:
    """The latest points within a span, at most `most`."""
    match schedule:
        case Every(interval_ms):
            return _latest_of_interval(interval_ms, began_ms, span, most)
        case Calendar(next_after):
            return _latest_of_calendar(next_after, span, most)
        case Awaited(next_after):
            points = _walk(next_after, span, most)
            return Due(points[-most:], max(0, len(points) - most), len(points) > most)
        case _:
            assert_never(schedule)


def _latest_of_interval(interval_ms: int, began_ms: int, span: _Span, most: int) -> Due:
    first = max(1, (span.after_ms - began_ms) // interval_ms + 1)
    last = (span.end_ms - began_ms) // interval_ms
    skipped = max(0, last - first + 1 - most)
    return Due([began_ms + at * interval_ms for at in range(first + skipped, last + 1)], skipped)


def _latest_of_calendar(next_after: Callable[[int], int | None], span: _Span, most: int) -> Due:
    """Iterate from earlier and earlier times: points can be found only by iteration, and starting at the beginning
    could take forever.
    """
    too_early, too_late, is_too_many = span.after_ms - 1, span.end_ms, False
    for _ in range(WALKS_MAX if span.after_ms < span.end_ms else 0):
        back_ms = max(2 * (span.end_ms - too_late), 1_000 * most, GRACE_MS + 1)
        begin_ms = (too_early + too_late) // 2 if is_too_many else max(span.after_ms, span.end_ms - back_ms)
        points = _walk(next_after, _Span(begin_ms, span.end_ms), 2 * most)
        if len(points) > 2 * most:
            too_early, is_too_many = begin_ms, True
        elif len(points) >= most or begin_ms <= span.after_ms:
            is_more = begin_ms > span.after_ms and next_after(span.after_ms) != points[0]
            return Due(points[-most:], max(0, len(points) - most) + is_more, is_more)
        else:
            too_late = begin_ms
    return Due([])


def _walk(next_after: Callable[[int], int | None], span: _Span, most: int) -> list[int]:
    """Points within a span, in order; one more than `most` means that there are too many."""
    points: list[int] = []
    point_ms = next_after(span.after_ms)
    while point_ms is not None and point_ms <= span.end_ms and len(points) <= most:
        points.append(point_ms)
        point_ms = next_after(point_ms)
    return points
