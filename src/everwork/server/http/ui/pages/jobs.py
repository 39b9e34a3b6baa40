"""Jobs: found by what is known of them, and changed many at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from everwork.core import checks
from everwork.core.job import Job
from everwork.core.limits import KEY_MAX
from everwork.core.queries import Page as Found
from everwork.core.states import FINISHED_STATES, State
from everwork.exceptions import InvalidInput
from everwork.server.http.ui.page import Action, Done, Page, View
from everwork.server.http.ui.redaction import Hidden, Masks, masks_of
from everwork.server.http.ui.render import job_url
from everwork.server.http.ui.search import DUE, SCHEDULED, SearchForm, asked_for
from everwork.server.http.ui.timeline import gist
from everwork.server.http.ui.visit import Visit
from everwork.service import bulk
from everwork.service.access.principal import Permission

PAGE_JOBS: Final = 50
DISORDER_MS: Final = 60_000
"""Jobs that come at the same time, from several servers, may get their keys in another order."""
AHEAD_MS: Final = 5_000
"""The last reading may be older than a job that has just come."""
TYPES_OFFERED_MAX: Final = 300
COUNTED_BY: Final = frozenset({"state", "type", "tenant"})
"""What engines count jobs by: with any other filter, nobody knows how many are behind a tab."""
ACTS: Final[Mapping[str | None, tuple[bulk.BulkAction, ...]]] = {
    None: tuple(bulk.BulkAction),
    "pending": (bulk.BulkAction.RUN_NOW, bulk.BulkAction.CANCEL),
    SCHEDULED: (bulk.BulkAction.RUN_NOW, bulk.BulkAction.CANCEL),
    DUE: (bulk.BulkAction.CANCEL,),
    "processing": (bulk.BulkAction.CANCEL,),
    "failed": (bulk.BulkAction.REQUEUE, bulk.BulkAction.DELETE),
    "completed": (bulk.BulkAction.DELETE,),
    "cancelled": (bulk.BulkAction.DELETE,),
}
"""What is offered for the jobs of a tab."""
LABELS: Final = {
    bulk.BulkAction.CANCEL: "Cancel",
    bulk.BulkAction.REQUEUE: "Requeue",
    bulk.BulkAction.RUN_NOW: "Run now",
    bulk.BulkAction.DELETE: "Delete",
}


class Row(NamedTuple):
    """A job in the list."""

    job: Job
    state: str
    error: str | None
    at_label: str
    at_ms: int | None


async def show(visit: Visit) -> View:
    """The newest jobs that match."""
    asked = asked_for(visit.asked)
    cursor, problems = _cursor(visit), dict(asked.problems)
    now_ms = await now_of(visit)
    found = Found([], None)
    if not problems:
        start = await _start(visit, asked) if cursor is None else cursor
        found = await bulk.find_within(visit.jobs, asked.search, PAGE_JOBS, now_ms, start)
    masks = masks_of(visit)
    context = {
        "asked": asked,
        "rows": [_row(job, now_ms, masks) for job in found.jobs],
        "next": found.next,
        "is_cut": found.next is not None and len(found.jobs) < PAGE_JOBS,
        "cursor": cursor,
        "held": found.jobs[0].key + 1 if found.jobs and cursor is None else None,
        "acts": [(act.value, LABELS[act]) for act in ACTS.get(asked.typed.get("state"), ())],
    }
    return View("jobs.html", {**context, **await _around(visit, asked)}, 422 if problems else 200)


async def _start(visit: Visit, asked: SearchForm) -> int | None:
    """Where to begin to look: a search for jobs of last week does not begin with today's."""
    before_ms = asked.search.filter.created_before_ms
    return None if before_ms is None else await visit.jobs.key_since(before_ms + DISORDER_MS)


async def find(visit: Visit) -> Done:
    """To the page of a job whose key somebody has typed."""
    job = await visit.jobs.get(checks.job_key(visit.sent("key").strip()))
    return Done("", job_url(job.key))


async def now_of(visit: Visit) -> int:
    """The engine's now, as it was read last, and some seconds: a job that is due by then is as good as due."""
    reading = visit.parts.sampler.reading or await visit.parts.sampler.fresh()
    return reading.at_ms + AHEAD_MS


def shown_state(job: Job, now_ms: int) -> str:
    """A job's state; one that waits for its time is told apart."""
    return SCHEDULED if job.state is State.PENDING and job.run_at_ms > now_ms else job.state.label


async def _around(visit: Visit, asked: SearchForm) -> dict[str, Any]:
    """The tabs, with how many jobs are behind them if that is known, and the types that can be chosen."""
    counts = await visit.jobs.count()
    is_counted = asked.typed.keys() <= COUNTED_BY
    type, tenants = asked.typed.get("type"), asked.search.filter.tenants
    by_state = {state.label: 0 for state in State}
    for count in counts:
        if type in (None, count.type) and (not tenants or count.tenant in tenants):
            by_state[count.state.label] += count.jobs
    types = sorted({count.type for count in counts})[:TYPES_OFFERED_MAX]
    total = sum(by_state.values())
    return {"counts": by_state, "total": total, "types": types, "is_empty": not counts, "is_counted": is_counted}


def _row(job: Job, now_ms: int, masks: Masks) -> Row:
    is_over = job.state in FINISHED_STATES
    label, at_ms = ("ended", job.finished_at_ms) if is_over else ("due", job.run_at_ms)
    if job.state is State.PROCESSING:
        label, at_ms = "began", job.activated_at_ms
    error = None if job.last_error is None else gist(Hidden(masks, job).cleaned(job.last_error))
    return Row(job, shown_state(job, now_ms), error, label, at_ms)


def _cursor(visit: Visit) -> int | None:
    text = visit.asked("cursor")
    if text is None:
        return None
    try:
        return checks.job_key(text)
    except InvalidInput:
        raise InvalidInput("cursor", f"must be a key from 1 to {KEY_MAX}, not {checks.shown(text)}") from None


PAGES = (Page("/ui/jobs", show),)
ACTIONS = (Action("/ui/jobs/find", find, Permission.JOBS_READ),)
