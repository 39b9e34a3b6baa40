"""Types of jobs: what waits, runs and fails of each, at what rate, and by which policy."""

from __future__ import annotations

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
from everwork.server.http.ui.visit import Visit
from everwork.service.access.principal import Permission
from everwork.service.admin import TypeView
from everwork.service.fleet.entries import WorkerView, own_source
from everwork.service.monitor.minutes import MINUTE_MS, OTHER_TYPES
from everwork.service.monitor.sampler import MetricsSampler, Sample

PAGE_ROWS: Final = 100
RATE_MINUTES: Final = 5
LATE_MS: Final = 60_000
"""Work that waits for longer is worth a word."""
UNASKED_MS: Final = 2 * 60_000
"""A type with due work that nobody has asked for so long has no worker."""
SHOWS: Final[Mapping[str, str]] = {
    "": "all",
    "waiting": "with waiting jobs",
    "failed": "with dead letters",
    "paused": "paused",
    "stopped": "stopped by a breaker",
    "unasked": "with work that no worker asks for",
}


class Mark(NamedTuple):
    """What a type is like: a class of the stylesheet, and a word."""

    name: str
    label: str


@dataclass(frozen=True, slots=True)
class Row:
    """A type in the list; `worker` is the title of the one whose own source it is."""

    info: TypeInfo
    counts: Mapping[State, int]
    oldest_ms: int | None
    is_unasked: bool
    is_broken: bool
    per_minute: float | None
    worker: str | None

    @property
    def pending(self) -> int:
        """What waits, due or not."""
        return self.counts[State.PENDING]

    @property
    def running(self) -> int:
        """What runs."""
        return self.counts[State.PROCESSING]

    @property
    def failed(self) -> int:
        """Its dead letters."""
        return self.counts[State.FAILED]

    @property
    def mark(self) -> Mark:
        """What matters most about it."""
        return mark_of(self.info, is_unasked=self.is_unasked, is_broken=self.is_broken)

    @property
    def limits(self) -> list[str]:
        """Its limits, in few words."""
        return [] if self.info.policy is None else limits_of(decode_policy(self.info.policy))


SORTS: Final[Mapping[str, Callable[[Row], Any]]] = {
    "name": lambda row: row.worker is not None,
    "waiting": lambda row: -row.pending,
    "running": lambda row: -row.running,
    "failed": lambda row: -row.failed,
    "rate": lambda row: -(row.per_minute or 0),
    "oldest": lambda row: row.oldest_ms or 1 << 62,
}


_IS_SHOWN: Final[Mapping[str, Callable[[Row], bool]]] = {
    "waiting": lambda row: row.pending > 0,
    "failed": lambda row: row.failed > 0,
    "paused": lambda row: row.info.paused,
    "stopped": lambda row: row.info.breaker is not BreakerState.CLOSED,
    "unasked": lambda row: row.is_unasked,
}


async def show(visit: Visit) -> View:
    """The list of types."""
    sampler = visit.parts.sampler
    views, reading = await visit.admin.types(), sampler.reading or await sampler.fresh()
    sort = visit.asked("sort") or "name"
    sort = sort if sort in SORTS else "name"
    rows = [row for row in await _rows(visit, views, reading) if _is_sought(visit, row)]
    rows.sort(key=lambda row: (SORTS[sort](row), row.worker or row.info.type))
    first = _first(visit, len(rows))
    shown = rows[first : first + PAGE_ROWS]
    context = {
        "rows": shown,
        "p95_ms": {row.info.type: sampler.span(RATE_MINUTES, row.info.type).execution_ms(0.95) for row in shown},
        "all": len(views),
        "matching": len(rows),
        "first": first,
        "older": visit.here(first=str(first + PAGE_ROWS)) if first + PAGE_ROWS < len(rows) else None,
        "newer": visit.here(first=str(first - PAGE_ROWS) if first > PAGE_ROWS else None) if first else None,
        "sort": sort,
        "sorts": {name: visit.here(sort=name, first=None) for name in SORTS},
        "q": visit.asked("q") or "",
        "show": visit.asked("show") or "",
        "shows": SHOWS,
    }
    return View("types.html", context)


async def pause(visit: Visit) -> Done:
    """Let no job of a type start."""
    type = visit.sent("type")
    await visit.admin.pause(type)
    return Done(f"{type} is paused: none of its jobs starts; what runs goes on.")


async def resume(visit: Visit) -> Done:
    """Let jobs of a type start again."""
    type = visit.sent("type")
    await visit.admin.resume(type)
    return Done(f"{type} is active again.")


# What is known of types ---------------------------------------------------------------------------------


def limits_of(policy: TypePolicy) -> list[str]:
    """The limits of a type, in few words."""
    said = []
    if policy.max_running is not None:
        said.append(f"{policy.max_running:,} at once")
    if policy.max_running_per_key is not None:
        said.append(f"{policy.max_running_per_key:,} at once per key")
    if policy.rate is not None:
        said.append(f"{policy.rate.jobs:,} per {duration(policy.rate.window_ms).removeprefix('1 ')}")
    return said


def mark_of(info: TypeInfo, *, is_unasked: bool, is_broken: bool) -> Mark:
    """What matters most about a type: what keeps its jobs from starting, if anything does."""
    if info.paused:
        return Mark("paused", "paused")
    if info.breaker is not BreakerState.CLOSED:
        return Mark(info.breaker.value, f"breaker {info.breaker.value}")
    if is_broken:
        return Mark("broken", "does not start")
    return Mark("warn", "no worker") if is_unasked else Mark("on", "active")


def oldest_of(reading: Sample) -> Mapping[str, int]:
    """Since when work of each type waits that is due."""
    found: dict[str, int] = {}
    for one in reading.oldest:
        found[one.type] = min(one.run_at_ms, found.get(one.type, one.run_at_ms))
    return found


def unasked(reading: Sample, running: Iterable[str]) -> list[str]:
    """Types with work that has been due for a while: no worker asks for it, and none runs any (`running` are those)."""
    asked = {one.type: one.last_asked_ms or 0 for one in reading.types if not one.paused}
    late = {one.type for one in reading.oldest if reading.at_ms - one.run_at_ms > LATE_MS}
    return sorted(type for type in late.difference(running) if reading.at_ms - asked.get(type, 1 << 62) > UNASKED_MS)


def rates(sampler: MetricsSampler) -> Callable[[str], float | None]:
    """How many attempts of a type end in a minute; None if it is among many others that are not told apart."""
    seconds, ended = sampler.span(RATE_MINUTES).seconds, Counter[str]()
    first = sampler.reading.at_ms // MINUTE_MS - RATE_MINUTES + 1 if sampler.reading else 0
    for minute in sampler.minutes[-RATE_MINUTES:]:
        if minute.minute >= first:
            ended.update({type: work.ended for type, work in minute.by_type.items()})
    has_others = OTHER_TYPES in ended

    def rate(type: str) -> float | None:
        if has_others and type not in ended:
            return None
        return 60 * ended[type] / seconds if seconds else 0.0

    return rate


def unstarted(reading: Sample, workers: Sequence[WorkerView]) -> set[str]:
    """Types whose only workers do not start, and which nobody else has asked for lately either."""
    stuck = {type for one in workers if one.broken and not one.processes for type in one.entry.types}
    taken = {type for one in workers if one.processes for type in one.entry.types}
    asked = {one.type for one in reading.types if reading.at_ms - (one.last_asked_ms or 0) <= UNASKED_MS}
    return stuck - taken - asked


def own_sources(workers: Sequence[WorkerView]) -> Mapping[str, str]:
    """The titles of the workers, by the types that are their own sources; nobody has given these a name."""
    return {own_source(one.entry.id): one.entry.title for one in workers}


# The rows -----------------------------------------------------------------------------------------------


async def _rows(visit: Visit, views: Sequence[TypeView], reading: Sample) -> list[Row]:
    oldest, rate = oldest_of(reading), rates(visit.parts.sampler)
    workers = await visit.admin.workers()
    titles, broken = own_sources(workers), unstarted(reading, workers)
    alone = set(unasked(reading, (view.info.type for view in views if view.counts[State.PROCESSING])))
    return [
        Row(view.info, view.counts, oldest.get(type), type in alone, type in broken, rate(type), titles.get(type))
        for view in views
        for type in [view.info.type]
    ]


def _is_sought(visit: Visit, row: Row) -> bool:
    part = (visit.asked("q") or "")[:NAME_CHARS_MAX].lower()
    if part not in row.info.type.lower() and part not in (row.worker or "").lower():
        return False
    return _IS_SHOWN.get(visit.asked("show") or "", _any)(row)


def _any(_: Row) -> bool:
    return True


def _first(visit: Visit, rows: int) -> int:
    asked = visit.asked("first") or "0"
    return min(int(asked) if asked.isdecimal() and len(asked) < 9 else 0, max(rows - 1, 0))


PAGES = (Page("/ui/types", show),)
ACTIONS = (
    Action("/ui/type/pause", pause, Permission.ADMIN, asks=True),
    Action("/ui/type/resume", resume, Permission.ADMIN),
)
