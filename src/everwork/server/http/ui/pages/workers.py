"""Page: all workers and what they do: worker classes, functions, streams and pollers, their processes and managers."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from everwork.server.http.ui.address import address
from everwork.server.http.ui.page import Action, Done, Page, View
from everwork.server.http.ui.pages.types import without_worker
from everwork.server.http.ui.visit import Visit
from everwork.service.admin import Admin
from everwork.service.fleet.entries import APPLICATION, MANAGED, POLLER, STREAM, ProcessView, WorkerView, own_source
from everwork.service.fleet.fleet import types_taken
from everwork.service.fleet.running import RunningJob

ROWS_MAX: Final = 200
JOBS_SHOWN: Final = 5
TYPES_SHOWN: Final = 10
FILTERED_FROM: Final = 15
"""From this many rows on, the page has a filter."""
LATE_MS: Final = 15_000
"""A process without a heartbeat for this long counts as stuck."""
_GROUP: Final = " (group "

STUCK: Final = "stuck"
BROKEN: Final = "broken"
OFF: Final = "disabled"
UNSERVED: Final = "not running"
BUSY: Final = "busy"
IDLE: Final = "idle"
LABELS: Final = {BROKEN: "does not start"}
"""Statuses whose label differs from their name."""
_ORDER: Final = (STUCK, BROKEN, UNSERVED, "starting", "stopping", BUSY, IDLE, OFF)
"""The statuses in the order of the list; those that need attention come first."""
KINDS: Final = {MANAGED: "worker class", APPLICATION: "function", STREAM: "stream", POLLER: "poller"}


class ProcessRow(NamedTuple):
    """A running process, stream or poller: its status, jobs, worker classes, and those that fail to start."""

    view: ProcessView
    status: str
    jobs: Sequence[RunningJob]
    workers: Sequence[str]
    broken: Sequence[tuple[str, str]]
    is_late: bool
    expired: Sequence[RunningJob]

    @property
    def kind(self) -> str:
        """What the process runs."""
        return KINDS.get(self.view.entry.kind, self.view.entry.kind)

    @property
    def statuses(self) -> frozenset[str]:
        """The values of the status filter that match this worker."""
        return frozenset({self.status, BROKEN} if self.broken else {self.status})

    @property
    def text(self) -> str:
        """The text in which the filter searches."""
        entry = self.view.entry
        return " ".join([entry.name, entry.host, entry.worker, entry.via, *entry.types, *self.workers])


class HandlerRow(NamedTuple):
    """A worker class, or the functions, streams or pollers of one type; `view` only for a worker class."""

    title: str
    kind: str
    status: str
    types: Sequence[str]
    processes: int
    running: int
    view: WorkerView | None = None
    own_source: str = ""

    @property
    def statuses(self) -> frozenset[str]:
        """The values of the status filter that match this worker."""
        return frozenset({self.status})

    @property
    def text(self) -> str:
        """The text in which the filter searches."""
        return " ".join([self.title, *self.types])


class Filter(NamedTuple):
    """The filter of the page, as typed."""

    status: str
    kind: str
    text: str

    def keeps(self, row: ProcessRow | HandlerRow) -> bool:
        """Whether a row is shown."""
        is_found = self.text.casefold() in row.text.casefold()
        return is_found and self.kind in ("", row.kind) and (not self.status or self.status in row.statuses)


async def show(visit: Visit) -> View:
    """Show all workers; those that need attention come first."""
    admin = visit.admin
    managers, processes, workers, running, left_out = await asyncio.gather(
        admin.managers(), admin.processes(), admin.workers(), admin.running(), admin.left_out()
    )
    sample = visit.context.sampler.latest or await visit.context.sampler.fresh()
    held, others = _by_holder(running.jobs)
    titles = {view.entry.id: view.entry.title for view in workers}
    rows = sorted((_process(view, titles, held, sample.at_ms) for view in processes), key=_process_order)
    handlers = sorted([*_classes(workers, running.jobs), *_functions(processes, running.jobs)], key=_handler_order)
    unserved = without_worker(sample, {*types_taken((one.entry for one in processes), workers), *_types(running.jobs)})
    filter_ = Filter(visit.param("status") or "", visit.param("kind") or "", visit.param("text") or "")
    context = {
        "filter": filter_,
        "is_filtered": any(filter_),
        "has_filter": any(filter_) or len(rows) + len(handlers) >= FILTERED_FROM,
        "tiles": _tiles(visit, rows, handlers, unserved),
        "kinds": list(KINDS.values()),
        "statuses": {status: LABELS.get(status, status) for status in _ORDER},
        "stuck": [row for row in rows if row.status == STUCK][:ROWS_MAX],
        "broken": [row for row in handlers if row.status == BROKEN][:ROWS_MAX],
        "unserved": unserved[:TYPES_SHOWN],
        "managers": [(one, sum(row.view.entry.manager == one.name for row in rows)) for one in managers[:ROWS_MAX]],
        "processes": [row for row in rows if filter_.keeps(row)][:ROWS_MAX],
        "handlers": [row for row in handlers if filter_.keeps(row)][:ROWS_MAX],
        "others": sorted(others.items())[:ROWS_MAX],
        "counts": {"managers": len(managers), "processes": len(rows), "handlers": len(handlers)},
        "running": len(running.jobs),
        "is_cut": running.is_cut,
        "rows_max": ROWS_MAX,
        "jobs_shown": JOBS_SHOWN,
        "types_shown": TYPES_SHOWN,
        "left_out": left_out,
    }
    return View("workers.html", context)


async def switch(visit: Visit) -> Done:
    """Enable or disable a worker class."""
    is_on = visit.required("on") == "yes"
    done = await visit.admin.switch_worker(visit.required("worker"), is_on)
    state = "enabled: it takes jobs" if is_on else "disabled: it takes no new jobs; running jobs continue"
    return Done(f"{done.entry.title} is {'' if done.is_changed else 'already '}{state}.")


async def restart(visit: Visit) -> Done:
    """Restart a process."""
    entry = await visit.admin.restart_process(visit.required("process"))
    return Done(f"Process {entry.name} is being replaced. Its running jobs can finish first.")


# Rows ----------------------------------------------------------------------------------------------------


def _by_holder(
    jobs: Iterable[RunningJob],
) -> tuple[Mapping[str, Sequence[RunningJob]], Mapping[str, Sequence[RunningJob]]]:
    """Leased jobs by process; jobs of unregistered workers are listed by worker name."""
    held: defaultdict[str, list[RunningJob]] = defaultdict(list)
    others: defaultdict[str, list[RunningJob]] = defaultdict(list)
    for job in jobs:
        (others if job.process is None else held)[job.process or job.worker].append(job)
    return held, others


def _process(
    view: ProcessView, titles: Mapping[str, str], held: Mapping[str, Sequence[RunningJob]], now_ms: int
) -> ProcessRow:
    entry, jobs = view.entry, held.get(view.entry.name, ())
    started = [titles.get(id, id) for id in entry.workers if id not in entry.broken]
    broken = [(titles.get(id, id), reason) for id, reason in entry.broken.items()]
    is_late = now_ms - view.beat_ms > LATE_MS
    expired = [job for job in jobs if job.lease_until_ms + LATE_MS <= now_ms]
    if is_late or expired:
        status = STUCK
    elif entry.state != "running":
        status = entry.state
    elif jobs or entry.running:
        status = BUSY
    else:
        status = BROKEN if broken and not started else IDLE
    return ProcessRow(view, status, jobs, started, broken, is_late, expired)


def _classes(workers: Sequence[WorkerView], jobs: Sequence[RunningJob]) -> list[HandlerRow]:
    running = Counter(job.type for job in jobs if job.kind == MANAGED)
    return [_class(view, sum(running[type] for type in view.entry.types)) for view in workers]


def _class(view: WorkerView, running: int) -> HandlerRow:
    own = own_source(view.entry.id)
    sources = [source for source in view.entry.sources if source != own]
    if not view.is_on:
        status = OFF
    elif view.broken:
        status = BROKEN
    elif not view.processes:
        status = UNSERVED
    else:
        status = BUSY if running else IDLE
    return HandlerRow(view.entry.title, KINDS[MANAGED], status, sources, view.processes, running, view, own)


def _functions(processes: Sequence[ProcessView], jobs: Sequence[RunningJob]) -> list[HandlerRow]:
    """Rows for functions, streams and pollers, which take jobs without a worker class, by kind and type."""
    serving: Counter[tuple[str, str]] = Counter()
    for one in processes:
        serving.update({(one.entry.kind, type) for type in one.entry.types})
    running = Counter((job.kind, job.type) for job in jobs)
    found = []
    for (kind, type), count in serving.items():
        now = running[kind, type.partition(_GROUP)[0]]
        found.append(HandlerRow(type, KINDS.get(kind, kind), BUSY if now else IDLE, [type], count, now))
    return found


def _rank(status: str) -> int:
    return _ORDER.index(status) if status in _ORDER else _ORDER.index(BUSY)


def _process_order(row: ProcessRow) -> tuple[int, str, str]:
    rank = min(_rank(status) for status in row.statuses)
    return rank, row.view.entry.kind, row.view.entry.name


def _handler_order(row: HandlerRow) -> tuple[int, str, str]:
    return _rank(row.status), row.kind, row.title.casefold()


def _types(jobs: Iterable[RunningJob]) -> set[str]:
    return {job.type for job in jobs}


def _tiles(
    visit: Visit, rows: Sequence[ProcessRow], handlers: Sequence[HandlerRow], unserved: Sequence[str]
) -> list[dict[str, Any]]:
    """How many processes are busy, idle or stuck, and how many worker classes do not start or are disabled."""
    processes = Counter(row.status for row in rows)
    classes = Counter(row.status for row in handlers)
    return [
        _tile(visit, BUSY, processes[BUSY], "process", "processing" if processes[BUSY] else ""),
        _tile(visit, IDLE, processes[IDLE], "process", ""),
        _tile(visit, STUCK, processes[STUCK], "process", "failed" if processes[STUCK] else ""),
        _tile(visit, BROKEN, classes[BROKEN], "worker class", "failed" if classes[BROKEN] else ""),
        _tile(visit, OFF, classes[OFF], "worker class", ""),
        {
            "label": "no worker",
            "count": len(unserved),
            "href": address("/types"),
            "tone": "failed" if unserved else "",
            "note": f"type{'' if len(unserved) == 1 else 's'} with due jobs",
        },
    ]


def _tile(visit: Visit, status: str, count: int, what: str, tone: str) -> dict[str, Any]:
    noun = what if count == 1 else f"{what}es"
    href = visit.url(status=None if visit.param("status") == status else status)
    return {"label": LABELS.get(status, status), "count": count, "href": href, "tone": tone, "note": noun}


PAGES = (Page("/workers", show),)
ACTIONS = (
    Action("/workers/switch", switch, Admin.switch_worker, confirms=True),
    Action("/workers/restart", restart, Admin.restart_process, confirms=True),
)
