"""Page: the list of types with their counts, rates and limits."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from everwork.codec.json import decode_policy
from everwork.core.breaker import BreakerState
from everwork.core.limits import NAME_CHARS_MAX
from everwork.core.policy import TypePolicy
from everwork.core.queries import TypeInfo
from everwork.core.states import State
from everwork.server.http.ui.page import Action, Done, Page, View
from everwork.server.http.ui.render import duration
from everwork.server.http.ui.status import LATE_MS
from everwork.server.http.ui.visit import Visit
from everwork.service.admin import Admin, TypeView
from everwork.service.fleet.entries import WorkerView, own_source
from everwork.service.fleet.fleet import types_taken
from everwork.service.monitor.minutes import MINUTE_MS, OTHER_TYPES
from everwork.service.monitor.sampler import MetricsSampler, Sample

PAGE_ROWS: Final = 100
RATE_MINUTES: Final = 5
NO_WORKER_MS: Final = 2 * 60_000
"""If no worker has requested a type's due jobs for this long, the type counts as having no worker."""
FILTER_LABELS: Final[Mapping[str, str]] = {
    "": "all",
    "waiting": "with pending jobs",
    "failed": "with dead letters",
    "paused": "paused",
    "stopped": "with an open breaker",
    "unasked": "with due jobs but no worker",
}


class Badge(NamedTuple):
    """The state of a type: a CSS class and a word."""

    name: str
    label: str


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the list; `worker` is the title of the worker whose own source this type is."""

    info: TypeInfo
    counts: Mapping[State, int]
    oldest_ms: int | None
    has_no_worker: bool
    is_broken: bool
    per_minute: float | None
    worker: str | None

    @property
    def pending(self) -> int:
        """The number of pending jobs, due or not."""
        return self.counts[State.PENDING]

    @property
    def running(self) -> int:
        """The number of running jobs."""
        return self.counts[State.PROCESSING]

    @property
    def failed(self) -> int:
        """The number of dead letters."""
        return self.counts[State.FAILED]

    @property
    def badge(self) -> Badge:
        """The type's most important state."""
        return badge_of(self.info, has_no_worker=self.has_no_worker, is_broken=self.is_broken)

    @property
    def limits(self) -> list[str]:
        """The type's limits in words."""
        return [] if self.info.policy is None else limits_of(decode_policy(self.info.policy))


SORTS: Final[Mapping[str, Callable[[Row], Any]]] = {
    "name": lambda row: row.worker is not None,
    "waiting": lambda row: -row.pending,
    "running": lambda row: -row.running,
    "failed": lambda row: -row.failed,
    "rate": lambda row: -(row.per_minute or 0),
    "oldest": lambda row: row.oldest_ms or 1 << 62,
}
_FILTERS: Final[Mapping[str, Callable[[Row], bool]]] = {
    "waiting": lambda row: row.pending > 0,
    "failed": lambda row: row.failed > 0,
    "paused": lambda row: row.info.paused,
    "stopped": lambda row: row.info.breaker is not BreakerState.CLOSED,
    "unasked": lambda row: row.has_no_worker,
}


async def show(visit: Visit) -> View:
    """List the types."""
    sampler = visit.context.sampler
    views, sample = await visit.admin.types(), sampler.latest or await sampler.fresh()
    sort = visit.param("sort") or "name"
    sort = sort if sort in SORTS else "name"
    rows = [row for row in await _rows(visit, views, sample) if _matches(visit, row)]
    rows.sort(key=lambda row: (SORTS[sort](row), row.worker or row.info.type))
    first = _first(visit, len(rows))
    shown = rows[first : first + PAGE_ROWS]
    context = {
        "rows": shown,
        "p95_ms": {row.info.type: sampler.span(RATE_MINUTES, row.info.type).execution_ms(0.95) for row in shown},
        "all": len(views),
        "matching": len(rows),
        "first": first,
        "older": visit.url(first=str(first + PAGE_ROWS)) if first + PAGE_ROWS < len(rows) else None,
        "newer": visit.url(first=str(first - PAGE_ROWS) if first > PAGE_ROWS else None) if first else None,
        "sort": sort,
        "sorts": {name: visit.url(sort=name, first=None) for name in SORTS},
        "q": visit.param("q") or "",
        "show": visit.param("show") or "",
        "shows": FILTER_LABELS,
    }
    return View("types.html", context)


async def pause(visit: Visit) -> Done:
    """Pause a type."""
    type = visit.required("type")
    await visit.admin.pause(type)
    return Done(f"{type} is paused. No new jobs start; running jobs continue.")


async def resume(visit: Visit) -> Done:
    """Resume a type."""
    type = visit.required("type")
    await visit.admin.resume(type)
    return Done(f"{type} is resumed.")


# Figures of types ----------------------------------------------------------------------------------------


def limits_of(policy: TypePolicy) -> list[str]:
    """The limits of a policy in words."""
    limits = []
    if policy.max_running is not None:
        limits.append(f"{policy.max_running:,} concurrently")
    if policy.max_running_per_key is not None:
        limits.append(f"{policy.max_running_per_key:,} concurrently per key")
    if policy.rate is not None:
        limits.append(f"{policy.rate.jobs:,} per {duration(policy.rate.window_ms).removeprefix('1 ')}")
    return limits


def badge_of(info: TypeInfo, *, has_no_worker: bool, is_broken: bool) -> Badge:
    """The most important state of a type: what keeps its jobs from starting, if anything."""
    if info.paused:
        return Badge("paused", "paused")
    if info.breaker is not BreakerState.CLOSED:
        return Badge(info.breaker.value, f"breaker {info.breaker.value}")
    if is_broken:
        return Badge("broken", "fails to start")
    return Badge("warn", "no worker") if has_no_worker else Badge("on", "active")


def oldest_of(sample: Sample) -> Mapping[str, int]:
    """The time since which the oldest due job of each type has waited."""
    found: dict[str, int] = {}
    for one in sample.oldest:
        found[one.type] = min(one.run_at_ms, found.get(one.type, one.run_at_ms))
    return found


def without_worker(sample: Sample, taken: Iterable[str]) -> list[str]:
    """Types with overdue jobs that no worker requests, except types that are running or that a running worker takes."""
    requested_ms = {one.type: one.last_asked_ms or 0 for one in sample.types if not one.paused}
    late = {one.type for one in sample.oldest if sample.at_ms - one.run_at_ms > LATE_MS}
    return sorted(
        type for type in late.difference(taken) if sample.at_ms - requested_ms.get(type, 1 << 62) > NO_WORKER_MS
    )


def rates(sampler: MetricsSampler) -> Callable[[str], float | None]:
    """Return a function that gives a type's attempts per minute, or None if the type is not sampled separately."""
    seconds, ended = sampler.span(RATE_MINUTES).seconds, Counter[str]()
    first = sampler.latest.at_ms // MINUTE_MS - RATE_MINUTES + 1 if sampler.latest else 0
    for minute in sampler.minutes[-RATE_MINUTES:]:
        if minute.minute >= first:
            ended.update({type: work.ended for type, work in minute.by_type.items()})
    has_others = OTHER_TYPES in ended

    def rate(type: str) -> float | None:
        if has_others and type not in ended:
            return None
        return 60 * ended[type] / seconds if seconds else 0.0

    return rate


def failing_to_start(sample: Sample, workers: Sequence[WorkerView]) -> set[str]:
    """Types whose only workers fail to start, and that no other worker has polled for recently."""
    stuck = {type for one in workers if one.broken and not one.processes for type in one.entry.types}
    taken = {type for one in workers if one.processes for type in one.entry.types}
    requested = {one.type for one in sample.types if sample.at_ms - (one.last_asked_ms or 0) <= NO_WORKER_MS}
    return stuck - taken - requested


def own_sources(workers: Sequence[WorkerView]) -> Mapping[str, str]:
    """The titles of workers by the generated types that are their own sources."""
    return {own_source(one.entry.id): one.entry.title for one in workers}


# Rows ----------------------------------------------------------------------------------------------------


async def _rows(visit: Visit, views: Sequence[TypeView], sample: Sample) -> list[Row]:
    oldest, rate = oldest_of(sample), rates(visit.context.sampler)
    workers, processes = await asyncio.gather(visit.admin.workers(), visit.admin.processes())
    titles, broken = own_sources(workers), failing_to_start(sample, workers)
    served = types_taken((view.entry for view in processes), workers)
    idle = set(without_worker(sample, served.union(v.info.type for v in views if v.counts[State.PROCESSING])))
    return [
        Row(view.info, view.counts, oldest.get(type), type in idle, type in broken, rate(type), titles.get(type))
        for view in views
        for type in [view.info.type]
    ]


def _matches(visit: Visit, row: Row) -> bool:
    part = (visit.param("q") or "")[:NAME_CHARS_MAX].lower()
    if part not in row.info.type.lower() and part not in (row.worker or "").lower():
        return False
    return _FILTERS.get(visit.param("show") or "", _any)(row)


def _any(_: Row) -> bool:
    return True


def _first(visit: Visit, rows: int) -> int:
    text = visit.param("first") or "0"
    return min(int(text) if text.isdecimal() and len(text) < 9 else 0, max(rows - 1, 0))


PAGES = (Page("/types", show),)
ACTIONS = (
    Action("/type/pause", pause, Admin.pause, confirms=True),
    Action("/type/resume", resume, Admin.resume),
)
