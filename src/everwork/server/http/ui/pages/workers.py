"""Who works: managers and their processes, what each runs now, worker classes, and workers of other programs."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from everwork.server.http.ui.page import Action, Done, Page, View
from everwork.server.http.ui.visit import Visit
from everwork.service.access.principal import Permission
from everwork.service.fleet.entries import ProcessView, WorkerView, own_source
from everwork.service.fleet.running import RunningJob

ROWS_MAX: Final = 200
JOBS_SHOWN: Final = 5
LATE_MS: Final = 15_000
"""A process gives a sign of life every few seconds; one that has not for so long is worth a look."""


class ProcessRow(NamedTuple):
    """A process, what it runs, the titles of its workers, and which of them do not start."""

    view: ProcessView
    jobs: Sequence[RunningJob]
    workers: Sequence[str]
    broken: Sequence[tuple[str, str]]
    is_late: bool


class WorkerRow(NamedTuple):
    """A worker class; `sources` are the types that it takes, but for the one that is its own."""

    view: WorkerView
    sources: Sequence[str]
    own_source: str

    @property
    def is_broken(self) -> bool:
        """Whether it should take jobs, and some process could not start it."""
        return self.view.is_on and bool(self.view.broken)


async def show(visit: Visit) -> View:
    """Everybody who works."""
    office = visit.admin
    managers, processes, workers, at_work = await asyncio.gather(
        office.managers(), office.processes(), office.workers(), office.running()
    )
    held: defaultdict[str, list[RunningJob]] = defaultdict(list)
    others: defaultdict[str, list[RunningJob]] = defaultdict(list)
    for job in at_work.jobs:
        (others if job.process is None else held)[job.process or job.worker].append(job)
    titles = {view.entry.id: view.entry.title for view in workers}
    now_ms = (visit.parts.sampler.reading or await visit.parts.sampler.fresh()).at_ms
    context = {
        "managers": managers[:ROWS_MAX],
        "processes": [_process(view, titles, held, now_ms) for view in processes[:ROWS_MAX]],
        "workers": [_worker(view) for view in workers[:ROWS_MAX]],
        "others": sorted(others.items())[:ROWS_MAX],
        "counts": {"managers": len(managers), "processes": len(processes), "workers": len(workers)},
        "running": len(at_work.jobs),
        "is_cut": at_work.is_cut,
        "rows_max": ROWS_MAX,
        "jobs_shown": JOBS_SHOWN,
    }
    return View("workers.html", context)


async def switch(visit: Visit) -> Done:
    """Let a worker take jobs, or not."""
    is_on = visit.sent("on") == "yes"
    done = await visit.admin.switch_worker(visit.sent("worker"), is_on)
    state = "on: it takes jobs" if is_on else "off: it takes no more jobs; what runs goes on"
    return Done(f"{done.entry.title} is {'' if done.is_changed else 'already '}{state}.")


async def restart(visit: Visit) -> Done:
    """Let another process take the place of one."""
    entry = await visit.admin.restart_process(visit.sent("process"))
    return Done(f"Process {entry.name} is being replaced: what it runs it may finish first.")


def _process(
    view: ProcessView, titles: Mapping[str, str], held: Mapping[str, Sequence[RunningJob]], now_ms: int
) -> ProcessRow:
    entry = view.entry
    sound = [titles.get(id, id) for id in entry.workers if id not in entry.broken]
    broken = [(titles.get(id, id), reason) for id, reason in entry.broken.items()]
    return ProcessRow(view, held.get(entry.name, ()), sound, broken, now_ms - view.beat_ms > LATE_MS)


def _worker(view: WorkerView) -> WorkerRow:
    own = own_source(view.entry.id)
    return WorkerRow(view, [source for source in view.entry.sources if source != own], own)


PAGES = (Page("/ui/workers", show),)
ACTIONS = (
    Action("/ui/workers/switch", switch, Permission.ADMIN, asks=True),
    Action("/ui/workers/restart", restart, Permission.ADMIN, asks=True),
)
