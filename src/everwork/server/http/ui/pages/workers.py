"""Page: running workers of every kind and their jobs, worker classes, managers, and other leases."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from everwork.server.http.ui.page import Action, Done, Page, View
from everwork.server.http.ui.visit import Visit
from everwork.service.admin import Admin
from everwork.service.fleet.entries import ProcessView, WorkerView, own_source
from everwork.service.fleet.running import RunningJob

ROWS_MAX: Final = 200
JOBS_SHOWN: Final = 5
TYPES_SHOWN: Final = 10
LATE_MS: Final = 15_000
"""A process without a heartbeat for this long is highlighted."""


class ProcessRow(NamedTuple):
    """A running worker, its jobs, the titles of its worker classes, and those that fail to start."""

    view: ProcessView
    jobs: Sequence[RunningJob]
    workers: Sequence[str]
    broken: Sequence[tuple[str, str]]
    is_late: bool


class WorkerRow(NamedTuple):
    """A worker class; `sources` are the types that it takes, except its own source."""

    view: WorkerView
    sources: Sequence[str]
    own_source: str

    @property
    def is_broken(self) -> bool:
        """Whether it is on, but a process could not start it."""
        return self.view.is_on and bool(self.view.broken)


async def show(visit: Visit) -> View:
    """Show managers, processes and workers."""
    admin = visit.admin
    managers, processes, workers, running, left_out = await asyncio.gather(
        admin.managers(), admin.processes(), admin.workers(), admin.running(), admin.left_out()
    )
    held: defaultdict[str, list[RunningJob]] = defaultdict(list)
    others: defaultdict[str, list[RunningJob]] = defaultdict(list)
    for job in running.jobs:
        (others if job.process is None else held)[job.process or job.worker].append(job)
    titles = {view.entry.id: view.entry.title for view in workers}
    now_ms = (visit.context.sampler.latest or await visit.context.sampler.fresh()).at_ms
    context = {
        "managers": managers[:ROWS_MAX],
        "processes": [_process(view, titles, held, now_ms) for view in processes[:ROWS_MAX]],
        "workers": [_worker(view) for view in workers[:ROWS_MAX]],
        "others": sorted(others.items())[:ROWS_MAX],
        "counts": {"managers": len(managers), "processes": len(processes), "workers": len(workers)},
        "running": len(running.jobs),
        "is_cut": running.is_cut,
        "rows_max": ROWS_MAX,
        "jobs_shown": JOBS_SHOWN,
        "types_shown": TYPES_SHOWN,
        "left_out": left_out,
    }
    return View("workers.html", context)


async def switch(visit: Visit) -> Done:
    """Switch a worker on or off."""
    is_on = visit.required("on") == "yes"
    done = await visit.admin.switch_worker(visit.required("worker"), is_on)
    state = "on: it takes jobs" if is_on else "off: it takes no new jobs; running jobs continue"
    return Done(f"{done.entry.title} is {'' if done.is_changed else 'already '}{state}.")


async def restart(visit: Visit) -> Done:
    """Restart a process."""
    entry = await visit.admin.restart_process(visit.required("process"))
    return Done(f"Process {entry.name} is being replaced: what it runs it may finish first.")


def _process(
    view: ProcessView, titles: Mapping[str, str], held: Mapping[str, Sequence[RunningJob]], now_ms: int
) -> ProcessRow:
    entry = view.entry
    started = [titles.get(id, id) for id in entry.workers if id not in entry.broken]
    broken = [(titles.get(id, id), reason) for id, reason in entry.broken.items()]
    return ProcessRow(view, held.get(entry.name, ()), started, broken, now_ms - view.beat_ms > LATE_MS)


def _worker(view: WorkerView) -> WorkerRow:
    own = own_source(view.entry.id)
    return WorkerRow(view, [source for source in view.entry.sources if source != own], own)


PAGES = (Page("/workers", show),)
ACTIONS = (
    Action("/workers/switch", switch, Admin.switch_worker, confirms=True),
    Action("/workers/restart", restart, Admin.restart_process, confirms=True),
)
