"""When triggers fire next, computed from their entries: the same scheduled times as in the trigger loop."""

from __future__ import annotations

from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

from cronsim import CronSimError

from everwork.core.checks import shown
from everwork.core.schedule import Calendar, Every, Plan, next_point
from everwork.engines.values import TriggerMark
from everwork.service.fleet.entries import TriggerEntry, TriggerView
from everwork.service.triggers.cron import matches


class NextFire(NamedTuple):
    """The next scheduled time or, if there is none, the reason why."""

    point_ms: int | None
    why: str | None


OFF: Final = NextFire(None, "it is disabled")
FOREIGN: Final = NextFire(None, "only its own program can compute its schedule")
NOT_BEGUN: Final = NextFire(None, "it starts when a program that declares it first runs")
OVER: Final = NextFire(None, "its lifetime has ended")
NEVER: Final = NextFire(None, "its schedule has no further times")
UNKNOWN: Final = NextFire(None, "its program did not register its schedule")


def trigger_view(
    entry: TriggerEntry, mark: TriggerMark | None, now_ms: int, *, is_on: bool, served: frozenset[str]
) -> TriggerView:
    """The view of a trigger; `served` holds the ids of workers and names of triggers that are being served."""
    return TriggerView(
        entry,
        is_on,
        mark.began_ms if mark else None,
        mark.last_ms if mark and mark.last_ms > mark.began_ms else None,
        *(next_fire(entry, mark, now_ms) if is_on else OFF),
        not served.isdisjoint((entry.worker_id, entry.name)),
    )


def next_fire(entry: TriggerEntry, mark: TriggerMark | None, now_ms: int) -> NextFire:
    """When a trigger fires next, or would fire if it were served."""
    if entry.is_foreign:
        return FOREIGN
    if entry.interval_ms is None and not entry.cron:
        return UNKNOWN
    return NOT_BEGUN if mark is None else _next(entry, mark, now_ms)


def upcoming(view: TriggerView, count: int) -> list[int]:
    """The next scheduled times, up to `count`, as far as they are known."""
    points: list[int] = []
    point_ms = view.next_ms
    while point_ms is not None and len(points) < count:
        points.append(point_ms)
        mark = TriggerMark(view.began_ms or 0, point_ms)
        point_ms = _next(view.entry, mark, point_ms).point_ms
    return points


def _next(entry: TriggerEntry, mark: TriggerMark, now_ms: int) -> NextFire:
    try:
        point_ms = next_point(plan_of(entry), mark.began_ms, mark.last_ms, now_ms)
    except (ValueError, KeyError, OSError, ArithmeticError, CronSimError) as error:
        # The time zone is missing on this machine, or the entry is invalid.
        return NextFire(None, f"its schedule cannot be read here: {shown(str(error))}")
    if point_ms is None:
        return NEVER if entry.lifetime_ms is None else OVER
    return NextFire(point_ms, None)


def plan_of(entry: TriggerEntry) -> Plan:
    """The plan in a trigger's entry; raises if its schedule cannot be read on this machine."""
    if entry.interval_ms is not None:
        return Plan(Every(entry.interval_ms), entry.is_catchup, entry.lifetime_ms)
    zone = ZoneInfo(entry.timezone or "UTC")
    calendar = Calendar(lambda after_ms: next(matches(entry.cron, zone, after_ms), None))
    return Plan(calendar, entry.is_catchup, entry.lifetime_ms)
