"""The first page: whether work flows, what fails, and what needs somebody."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from everwork.core.breaker import BreakerState
from everwork.core.measures import percentile_ms
from everwork.core.states import State
from everwork.engines.values import Count, JobFilter, Oldest
from everwork.server.http.ui.flow import RANGES, SHARES, Charts, charts, range_of
from everwork.server.http.ui.pages import Action, Page, View
from everwork.server.http.ui.render import address, duration, number, type_url
from everwork.server.http.ui.visit import Visit
from everwork.service.pulse import Pulse, Reading

LATE_MS: Final = 60_000
"""Work that waits for longer is worth a word."""
ROWS_MAX: Final = 10
DEAD_MAX: Final = 5
RATE_MINUTES: Final = 5
FAILED: Final = JobFilter(states=frozenset([State.FAILED]))


class Told(NamedTuple):
    """A sentence about the whole, where to go for more, and whether it is good (`good`), or needs a look."""

    text: str
    tone: str
    href: str


class Waiting(NamedTuple):
    """A type in which work waits, and since when."""

    type: str
    group: str
    since_ms: int
    pending: int
    processing: int
    failed: int
    per_second: float


async def show(visit: Visit) -> View:
    """Everything at a glance."""
    counts = await visit.desk.count()
    dead = (await visit.desk.list(FAILED, DEAD_MAX)).jobs if any(one.state is State.FAILED for one in counts) else []
    context: dict[str, Any] = {"totals": totals_of(counts), "dead": dead, "is_whole": visit.sees_all}
    if visit.sees_all:
        context |= await _whole(visit, counts)
    return View("overview.html", context)


async def _whole(visit: Visit, counts: Sequence[Count]) -> dict[str, Any]:
    """What concerns all tenants together."""
    pulse, asked = visit.parts.pulse, range_of(visit)
    reading = pulse.reading or await pulse.fresh()
    drawn = await charts(visit, asked)
    processes = await visit.administration.processes()
    return {
        "range": asked,
        "ranges": [(one, visit.here(range=one.name)) for one in RANGES],
        "charts": drawn,
        "sorts": Counter(drawn.measured.failures).most_common(ROWS_MAX),
        "told": list(_sentences(pulse, reading, counts)),
        "waiting": _waiting(pulse, reading, counts),
        "latency": _latency(drawn),
        "processes": len(processes),
        "running": sum(one.card.running for one in processes),
    }


def totals_of(counts: Sequence[Count]) -> dict[str, int]:
    """How many jobs are in each state."""
    totals = {state.label: 0 for state in State}
    for count in counts:
        totals[count.state.label] += count.jobs
    return totals


def _sentences(pulse: Pulse, reading: Reading, counts: Sequence[Count]) -> Iterator[Told]:
    yield _flow(pulse, reading, counts)
    broken = [one.type for one in reading.types if one.breaker is not BreakerState.CLOSED]
    if broken:
        yield Told(_named(broken, "breaker is not closed", "breakers are not closed"), "bad", "/ui/breakers")
    paused = [one.type for one in reading.types if one.paused]
    if paused:
        yield Told(_named(paused, "type is paused", "types are paused"), "warn", address("/ui/types", show="paused"))
    idle = {one.type for one in reading.types if one.last_asked_ms is None and not one.paused}
    unasked = sorted({one.type for one in reading.oldest} & idle)
    if unasked:
        href = type_url(unasked[0]) if len(unasked) == 1 else "/ui/types"
        yield Told(_named(unasked, "type has work and no worker", "types have work and no worker"), "warn", href)


def _flow(pulse: Pulse, reading: Reading, counts: Sequence[Count]) -> Told:
    span = pulse.span(RATE_MINUTES)
    late_ms = max((reading.at_ms - one.run_at_ms for one in reading.oldest), default=0)
    if span.work.ended:
        rate = f"{number(round(span.per_second, 2))} attempts a second end over the last {RATE_MINUTES} minutes"
        failing = span.work.failed + span.work.retried
        share = f", {100 * failing / span.work.ended:.0f} of 100 fail" if failing else ", none fails"
        return Told(f"Work flows: {rate}{share}.", "bad" if failing * 2 > span.work.ended else "good", "/ui/types")
    if late_ms > LATE_MS:
        text = f"Nothing has ended for {RATE_MINUTES} minutes, although work waits for {duration(late_ms)}."
        return Told(text, "bad", address("/ui/jobs", state="pending"))
    is_busy = any(one.state is State.PROCESSING and one.jobs for one in counts)
    return Told("Jobs are running." if is_busy else "Nothing to do right now.", "good", "/ui/jobs")


def _named(types: Sequence[str], one: str, many: str) -> str:
    shown = ", ".join(types[:3]) + (" and more" if len(types) > 3 else "")
    return f"{len(types)} {one if len(types) == 1 else many}: {shown}"


def _waiting(pulse: Pulse, reading: Reading, counts: Sequence[Count]) -> list[Waiting]:
    """The types whose work waits longest."""
    by_type: Counter[tuple[str, State]] = Counter()
    for count in counts:
        by_type[count.type, count.state] += count.jobs
    oldest = sorted(reading.oldest, key=lambda one: one.run_at_ms)[:ROWS_MAX]
    return [_waits(pulse, one, by_type) for one in oldest]


def _waits(pulse: Pulse, one: Oldest, by_type: Counter[tuple[str, State]]) -> Waiting:
    return Waiting(
        one.type,
        one.group,
        one.run_at_ms,
        by_type[one.type, State.PENDING],
        by_type[one.type, State.PROCESSING],
        by_type[one.type, State.FAILED],
        pulse.span(RATE_MINUTES, one.type).per_second,
    )


def _latency(drawn: Charts) -> list[tuple[str, float | None, float | None]]:
    told = drawn.measured
    return [(name, percentile_ms(told.wait, share), percentile_ms(told.execution, share)) for name, share in SHARES]


PAGES = (Page("/ui", show),)
ACTIONS: tuple[Action, ...] = ()
