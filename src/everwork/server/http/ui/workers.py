"""Who works: managers and their processes, what each runs now, worker classes, and workers of other programs."""

from __future__ import annotations

import asyncio
from collections import defaultdict

from everwork.server.http.ui.pages import Action, Done, Page, View
from everwork.server.http.ui.visit import Visit
from everwork.service.at_work import RunningJob


async def show(visit: Visit) -> View:
    """Everybody who works."""
    office = visit.administration
    managers, processes, workers, at_work = await asyncio.gather(
        office.managers(), office.processes(), office.workers(), office.running()
    )
    by_process: defaultdict[str, list[RunningJob]] = defaultdict(list)
    others: defaultdict[str, list[RunningJob]] = defaultdict(list)
    for job in at_work.jobs:
        (others[job.worker] if job.process is None else by_process[job.process]).append(job)
    context = {
        "managers": managers,
        "processes": processes,
        "workers": workers,
        "titles": {view.card.id: view.card.title for view in workers},
        "running": dict(by_process),
        "others": dict(sorted(others.items())),
        "is_cut": at_work.is_cut,
    }
    return View("workers.html", context)


async def switch(visit: Visit) -> Done:
    """Let a worker take jobs, or not."""
    is_on = visit.sent("on") == "yes"
    done = await visit.administration.switch_worker(visit.sent("worker"), is_on)
    state = "on: it takes jobs" if is_on else "off: it takes no more jobs; what runs goes on"
    return Done(f"{done.card.title} is {'' if done.is_changed else 'already '}{state}.")


async def restart(visit: Visit) -> Done:
    """Let another process take the place of one."""
    card = await visit.administration.restart_process(visit.sent("process"))
    return Done(f"Process {card.name} is being replaced: what it runs is finished or handed back first.")


PAGES = (Page("/ui/workers", show),)
ACTIONS = (Action("/ui/workers/switch", switch), Action("/ui/workers/restart", restart))
