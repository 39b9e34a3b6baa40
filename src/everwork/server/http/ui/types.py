"""Types of jobs: what waits, runs and fails of each, at what rate, and by which policy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from everwork.core.breaker import BreakerState
from everwork.core.limits import NAME_CHARS_MAX
from everwork.core.policy import TypePolicy, fields_of
from everwork.core.states import State
from everwork.engines.codec import decode_policy
from everwork.engines.values import TypeInfo
from everwork.server.http.ui.pages import Action, Done, Page, View
from everwork.server.http.ui.visit import Visit
from everwork.service.administration import TypeView
from everwork.service.minutes import Span

PAGE_ROWS: Final = 100
RATE_MINUTES: Final = 5
SHOWS: Final = ("", "paused", "waiting", "failed")


@dataclass(frozen=True, slots=True)
class Row:
    """A type in the list."""

    info: TypeInfo
    counts: Mapping[State, int]
    oldest_ms: int | None
    span: Span
    limits: Sequence[str]

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
    def per_minute(self) -> float:
        """How many attempts end in a minute."""
        return self.span.per_second * 60


SORTS: Final[Mapping[str, Callable[[Row], Any]]] = {
    "name": lambda row: row.info.type,
    "waiting": lambda row: -row.pending,
    "running": lambda row: -row.running,
    "failed": lambda row: -row.failed,
    "rate": lambda row: -row.per_minute,
    "oldest": lambda row: row.oldest_ms or 1 << 62,
}


async def show(visit: Visit) -> View:
    """The list of types."""
    views = await visit.administration.types()
    sort = visit.asked("sort") or "name"
    sort = sort if sort in SORTS else "name"
    oldest = oldest_of(visit)
    rows = [_row(visit, view, oldest) for view in views if _is_sought(visit, view)]
    rows.sort(key=lambda row: (SORTS[sort](row), row.info.type))
    first = _first(visit, len(rows))
    context = {
        "rows": rows[first : first + PAGE_ROWS],
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
    await visit.administration.pause(type)
    return Done(f"{type} is paused: none of its jobs starts; what runs goes on.")


async def resume(visit: Visit) -> Done:
    """Let jobs of a type start again."""
    type = visit.sent("type")
    await visit.administration.resume(type)
    return Done(f"{type} is active again.")


def limits_of(policy: TypePolicy) -> list[str]:
    """The limits of a type, in few words."""
    said = []
    if policy.max_running is not None:
        said.append(f"{policy.max_running:,} at once")
    if policy.max_running_per_key is not None:
        said.append(f"{policy.max_running_per_key:,} at once per key")
    if policy.rate is not None:
        said.append(f"{policy.rate.jobs:,} per {policy.rate.seconds:g} s")
    return said


def state_of(info: TypeInfo) -> str:
    """What a type is like, in one word of the stylesheet."""
    if info.paused:
        return "paused"
    return {BreakerState.OPEN: "open", BreakerState.HALF_OPEN: "half-open"}.get(info.breaker, "on")


def oldest_of(visit: Visit) -> Mapping[str, int]:
    """Since when work of each type waits."""
    reading = visit.parts.pulse.reading
    found: dict[str, int] = {}
    for one in reading.oldest if reading else ():
        found[one.type] = min(one.run_at_ms, found.get(one.type, one.run_at_ms))
    return found


def policy_rows(policy: TypePolicy, said: Mapping[str, Any]) -> list[tuple[str, Any, bool]]:
    """Each field of a policy with its value, and whether it was set for this type."""
    return [(name, value, name in said) for name, value in fields_of(policy).items()]


def _row(visit: Visit, view: TypeView, oldest: Mapping[str, int]) -> Row:
    pulse = visit.parts.pulse
    limits = [] if view.info.policy is None else limits_of(decode_policy(view.info.policy))
    counts = Counter(view.counts)
    span = pulse.span(RATE_MINUTES, view.info.type)
    return Row(view.info, counts, oldest.get(view.info.type), span, limits)


def _is_sought(visit: Visit, view: TypeView) -> bool:
    part, show = (visit.asked("q") or "")[:NAME_CHARS_MAX].lower(), visit.asked("show")
    if part not in view.info.type.lower():
        return False
    if show == "paused":
        return view.info.paused
    wanted = {"waiting": State.PENDING, "failed": State.FAILED}.get(show or "")
    return wanted is None or view.counts[wanted] > 0


def _first(visit: Visit, rows: int) -> int:
    asked = visit.asked("first") or "0"
    return min(int(asked) if asked.isdecimal() and len(asked) < 9 else 0, max(rows - 1, 0))


PAGES = (Page("/ui/types", show),)
ACTIONS = (Action("/ui/type/pause", pause), Action("/ui/type/resume", resume))
