"""Page: the overview of throughput, failures, and what needs attention."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from everwork.core.breaker import BreakerState
from everwork.core.queries import Count, Oldest
from everwork.core.states import State
from everwork.server.http.ui.address import address, type_url
from everwork.server.http.ui.chart import share
from everwork.server.http.ui.flow import RANGES, Charts, charts, range_of
from everwork.server.http.ui.page import Action, Page, View
from everwork.server.http.ui.pages.dead_letters import CAUSES, recent_failures
from everwork.server.http.ui.pages.types import NO_WORKER_MS, RATE_MINUTES, without_worker
from everwork.server.http.ui.render import duration, number
from everwork.server.http.ui.status import LATE_MS, Facts, status_of
from everwork.server.http.ui.visit import Visit
from everwork.service.fleet.entries import ProcessView, WorkerView
from everwork.service.fleet.fleet import types_taken
from everwork.service.monitor.minutes import MINUTE_MS
from everwork.service.monitor.sampler import MINUTES_KEPT, MetricsSampler, Sample
from everwork.spool.contents import SpoolStatus

ROWS_MAX: Final = 10
NAMES_MAX: Final = 3


class Notice(NamedTuple):
    """Something that needs attention, its tone (`warn`, `bad`), and a link to details."""

    text: str
    tone: str
    href: str


class Cause(NamedTuple):
    """A cause of failed attempts: how many, and a bar of their share."""

    label: str
    name: str
    jobs: int
    bar: str


class Waiting(NamedTuple):
    """A type with due jobs, and how long the oldest has waited."""

    type: str
    group: str
    since_ms: int
    is_late: bool
    pending: int
    processing: int
    failed: int
    per_minute: float


async def show(visit: Visit) -> View:
    """Show the overview."""
    counts, failed = await asyncio.gather(_counts(visit), recent_failures(visit))
    context: dict[str, Any] = {"totals": totals_of(counts), "failures": failed, "is_whole": visit.sees_all}
    if visit.sees_all:
        context |= await _whole(visit, counts)
    return View("overview.html", context)


async def _counts(visit: Visit) -> Sequence[Count]:
    """Counts of jobs by state, even for administrators who may not see jobs."""
    if visit.may_see_jobs or not visit.may_administer:
        return await visit.jobs.count()
    return (await visit.context.sampler.recent()).counts


async def _whole(visit: Visit, counts: Sequence[Count]) -> dict[str, Any]:
    """The part of the page that covers all tenants."""
    sampler, range_ = visit.context.sampler, range_of(visit)
    sample = sampler.latest or await sampler.fresh()
    drawn, processes, workers = await asyncio.gather(
        charts(visit, range_), visit.admin.processes(), visit.admin.workers()
    )
    served = types_taken((view.entry for view in processes), workers)
    needs = list(_notices(sample, counts, _not_starting(processes, workers), served))
    if (spooled := spool_notice(await visit.context.service.spool_status())) is not None:
        needs.insert(0, spooled)
    has_problems = any(one.tone == "bad" for one in needs)
    return {
        "range": range_,
        "ranges": [(one, visit.url(range=one.name)) for one in RANGES],
        "charts": drawn,
        "causes": _causes(drawn),
        "status": status_of(_facts(sampler, sample, counts, processes)._replace(has_problems=has_problems)),
        "needs": needs,
        "waiting": _waiting(sampler, sample, counts),
        "oldest_ms": min((one.run_at_ms for one in sample.oldest), default=None),
        "processes": len(processes),
        "running": totals_of(counts)[State.PROCESSING.label],
    }


def totals_of(counts: Sequence[Count]) -> dict[str, int]:
    """The number of jobs per state."""
    totals = {state.label: 0 for state in State}
    for count in counts:
        totals[count.state.label] += count.jobs
    return totals


# Notices --------------------------------------------------------------------------------------------


def _notices(
    sample: Sample, counts: Sequence[Count], not_starting: Sequence[str], served: Collection[str]
) -> Iterator[Notice]:
    """Notices about everything that needs attention, worst first."""
    broken = sorted(one.type for one in sample.types if one.breaker is not BreakerState.CLOSED)
    if broken:
        yield Notice(_named(broken, "breaker is not closed", "breakers are not closed"), "bad", address("/breakers"))
    if not_starting:
        yield Notice(_named(not_starting, "worker fails to start", "workers fail to start"), "bad", address("/workers"))
    running = {one.type for one in counts if one.state is State.PROCESSING and one.jobs}
    if idle := without_worker(sample, running.union(served)):
        href = type_url(idle[0]) if len(idle) == 1 else address("/types", show="unasked")
        texts = ("type has due jobs but no worker", "types have due jobs but no worker")
        yield Notice(_named(idle, *texts), "warn", href)
    if paused := sorted(one.type for one in sample.types if one.paused):
        href = type_url(paused[0]) if len(paused) == 1 else address("/types", show="paused")
        yield Notice(_named(paused, "type is paused", "types are paused"), "warn", href)


def spool_notice(spool: SpoolStatus | None) -> Notice | None:
    """A notice about the entries in this server's spool: waiting, and set aside."""
    if spool is None or not (spool.waiting or spool.counts.aside):
        return None
    kept = []
    if spool.waiting:
        oldest = duration(spool.counts.oldest_ms or 0)
        kept.append(f"{number(spool.waiting)} waiting for delivery, the oldest for {oldest}")
    if spool.counts.aside:
        kept.append(f"{number(spool.counts.aside)} set aside")
    return Notice(
        f"Spool of this server: {'; '.join(kept)}", "bad" if spool.counts.aside else "warn", address("/settings")
    )


def _not_starting(processes: Sequence[ProcessView], workers: Sequence[WorkerView]) -> list[str]:
    """The titles of workers that a process could not start."""
    broken = {worker for one in processes for worker in one.entry.broken}
    return [one.entry.title for one in workers if one.entry.id in broken]


def _facts(sampler: MetricsSampler, sample: Sample, counts: Sequence[Count], processes: Sequence[ProcessView]) -> Facts:
    """What the status depends on, without `has_problems`."""
    totals = totals_of(counts)
    paused = {one.type for one in sample.types if one.paused}
    due_ms = [sample.at_ms - one.run_at_ms for one in sample.oldest if one.type not in paused]
    is_polled = any(sample.at_ms - (one.last_asked_ms or 0) <= NO_WORKER_MS for one in sample.types)
    return Facts(
        sampler.span(RATE_MINUTES),
        jobs=sum(totals.values()),
        pending=totals[State.PENDING.label],
        running=totals[State.PROCESSING.label],
        due_ms=max(due_ms, default=None),
        has_paused=any(one.type in paused for one in sample.oldest),
        has_workers=is_polled or bool(processes),
        quiet=_quiet(sampler, sample),
    )


def _quiet(sampler: MetricsSampler, sample: Sample) -> str:
    """How long ago the last attempt finished, according to the sampler."""
    busy = [minute.minute for minute in sampler.minutes if minute.total.ended]
    if busy:
        return duration(max(sample.at_ms - (busy[-1] + 1) * MINUTE_MS, MINUTE_MS))
    first = sampler.minutes[0].minute if sampler.minutes else sample.at_ms // MINUTE_MS
    seen_ms = min(sample.at_ms - first * MINUTE_MS, MINUTES_KEPT * MINUTE_MS)
    return f"at least {duration(max(seen_ms, 1_000))}"


def _named(types: Sequence[str], one: str, many: str) -> str:
    rest = len(types) - NAMES_MAX
    shown = ", ".join(types[:NAMES_MAX]) + (f" and {number(rest)} more" if rest > 0 else "")
    return f"{number(len(types))} {one if len(types) == 1 else many}: {shown}"


# Tables ---------------------------------------------------------------------------------------------


def _waiting(sampler: MetricsSampler, sample: Sample, counts: Sequence[Count]) -> list[Waiting]:
    """The types with the longest queue wait."""
    by_type: Counter[tuple[str, str, State]] = Counter()
    for count in counts:
        by_type[count.type, count.group, count.state] += count.jobs
    oldest = sorted(sample.oldest, key=lambda one: (one.run_at_ms, one.type))[:ROWS_MAX]
    return [_waits(sampler, one, sample, by_type) for one in oldest]


def _waits(
    sampler: MetricsSampler, one: Oldest, sample: Sample, by_type: Mapping[tuple[str, str, State], int]
) -> Waiting:
    pending, processing, failed = (
        by_type[one.type, one.group, state] for state in (State.PENDING, State.PROCESSING, State.FAILED)
    )
    per_minute = sampler.span(RATE_MINUTES, one.type).per_second * 60
    is_late = sample.at_ms - one.run_at_ms > LATE_MS
    return Waiting(one.type, one.group, one.run_at_ms, is_late, pending, processing, failed, per_minute)


def _causes(drawn: Charts) -> list[Cause]:
    """The causes of failed attempts, most frequent first."""
    failures = drawn.measured.failures
    whole = sum(failures.values())
    most = sorted(failures.items(), key=lambda one: (-one[1], one[0]))[:ROWS_MAX]
    return [Cause(CAUSES.get(cause, cause), cause, jobs, share(jobs, whole)) for cause, jobs in most if jobs]


PAGES = (Page("/", show),)
ACTIONS: tuple[Action, ...] = ()
