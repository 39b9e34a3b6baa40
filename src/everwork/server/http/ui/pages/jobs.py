"""Jobs: found by what is known of them, and changed many at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from everwork.core import checks
from everwork.core.job import Job
from everwork.core.limits import KEY_MAX
from everwork.core.queries import BulkChange
from everwork.core.queries import Page as Found
from everwork.core.states import FINISHED_STATES, State
from everwork.exceptions import InvalidInput
from everwork.server.http.ui.page import Action, Done, Page, View
from everwork.server.http.ui.redaction import Hidden, Masks, masks_of
from everwork.server.http.ui.render import job_url
from everwork.server.http.ui.search import DUE, SCHEDULED, SearchForm, asked_for
from everwork.server.http.ui.timeline import gist
from everwork.server.http.ui.visit import Visit, pairs_of
from everwork.service import bulk
from everwork.service.access.principal import Permission
from everwork.service.bulk import BulkAction, BulkFilter, Counted

PAGE_JOBS: Final = 50
DISORDER_MS: Final = 60_000
"""Jobs that come at the same time, from several servers, may get their keys in another order."""
AHEAD_MS: Final = 5_000
"""The last reading may be older than a job that has just come."""
TYPES_OFFERED_MAX: Final = 300
COUNTED_BY: Final = frozenset({"state", "type", "tenant"})
"""What engines count jobs by: with any other filter, nobody knows how many are behind a tab."""
ACTS: Final[Mapping[str | None, tuple[BulkAction, ...]]] = {
    None: tuple(BulkAction),
    "pending": (BulkAction.RUN_NOW, BulkAction.CANCEL),
    SCHEDULED: (BulkAction.RUN_NOW, BulkAction.CANCEL),
    DUE: (BulkAction.CANCEL,),
    "processing": (BulkAction.CANCEL,),
    "failed": (BulkAction.REQUEUE, BulkAction.DELETE),
    "completed": (BulkAction.DELETE,),
    "cancelled": (BulkAction.DELETE,),
}
"""What is offered for the jobs of a tab."""
LABELS: Final = {
    BulkAction.CANCEL: "Cancel",
    BulkAction.REQUEUE: "Requeue",
    BulkAction.RUN_NOW: "Run now",
    BulkAction.DELETE: "Delete",
}
CONSEQUENCES: Final = {
    BulkAction.CANCEL: (
        "Jobs that wait will never start. For those that run, their workers are told to stop, and whatever they bring "
        "is not taken. Cancelled jobs do not come back by themselves, and cannot be requeued."
    ),
    BulkAction.REQUEUE: (
        "They wait again and are due at once, with all their attempts. Their history stays. Workers run them from the "
        "beginning: what they had done before they failed may be done again."
    ),
    BulkAction.RUN_NOW: "They are due at once, instead of at their time; workers take them as soon as they can.",
    BulkAction.DELETE: (
        "They are removed with their variables, results and histories, and their dedupe keys may be used again. "
        "This cannot be undone."
    ),
}
TELLING: Final = {
    "state": "which are",
    "type": "of type",
    "worker": "of worker",
    "tenant": "of tenant",
    "correlation": "with the correlation id",
    "after": "created at (UTC) or after",
    "before": "created before (UTC)",
    "error": "whose last error contains",
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
        found = await bulk.found(visit.jobs, asked.search, PAGE_JOBS, now_ms, start)
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
    before_ms = asked.search.wanted.created_before_ms
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
    type, tenants = asked.typed.get("type"), asked.search.wanted.tenants
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


# Changes of many jobs: first a page that asks, then the change -----------------------------------------


async def change(visit: Visit) -> Done | View:
    """Ask whether it is meant; then do it."""
    act, asked = _act(visit), _asked(visit)
    keys = [checks.job_key(key) for key in dict.fromkeys(visit.all_sent("key"))]
    if visit.optional("scope") != "all":
        return await _picked(visit, act, keys)
    search = bulk.aimed(act, asked.search)
    if visit.optional("sure") is None:
        return await _ask_for_all(visit, act, asked, search)
    done = await visit.admin.change_matching(act, replace(asked.search, below=_below(visit)))
    return _told(act, done)


async def _picked(visit: Visit, act: BulkAction, keys: Sequence[int]) -> Done | View:
    if not keys:
        raise InvalidInput("key", "no job is selected: tick some in the list first")
    if visit.optional("sure") is not None:
        return _told(act, await visit.admin.change_jobs(act, keys))
    now_ms = await now_of(visit)
    jobs = await visit.jobs.get_many(keys[: bulk.KEYS_MAX])
    able = [job.key for job in jobs if job is not None and bulk.allows(act, job, now_ms)]
    more = {"keys": able, "selected": len(keys), "scope": "picked", "filter": "", "below": "", "which": []}
    return _page(visit, act, Counted(len(able), True), more)


async def _ask_for_all(visit: Visit, act: BulkAction, asked: SearchForm, search: BulkFilter) -> View:
    newest = await visit.jobs.newest_key()
    count = await bulk.counted(visit.jobs, search, await now_of(visit))
    which = [(TELLING[name], value) for name, value in asked.typed.items()]
    below = "" if newest is None else newest + 1
    more = {"keys": [], "selected": 0, "scope": "all", "filter": asked.query, "below": below, "which": which}
    return _page(visit, act, count, more)


def _page(visit: Visit, act: BulkAction, count: Counted, more: dict[str, Any]) -> View:
    about = {"act": act.value, "label": LABELS[act], "done": act.done, "happens": CONSEQUENCES[act]}
    context = {**about, **more, "count": count, "meant": meant(count), "back": visit.back}
    return View("jobs_change.html", context)


def meant(count: Counted) -> str:
    """How many jobs; of very many not all are looked at, and none found is not none there."""
    if not count.jobs and not count.is_exact:
        return "the jobs that match"
    return f"{'' if count.is_exact else 'at least '}{count.jobs:,} {'job' if count.jobs == 1 else 'jobs'}"


def _told(act: BulkAction, done: BulkChange) -> Done:
    matched = f"{done.matched:,} {'job was' if done.matched == 1 else 'jobs were'} meant"
    changed = f"{done.changed:,} {'is' if done.changed == 1 else 'are'} {act.done}"
    left = done.matched - done.changed
    others = f"; {left:,} had changed meanwhile and {'was' if left == 1 else 'were'} left as they are" if left else ""
    return Done(f"{matched}, {changed}{others}.", is_good=done.changed > 0)


def _act(visit: Visit) -> BulkAction:
    try:
        return BulkAction(visit.sent("act"))
    except ValueError:
        raise InvalidInput("act", f"must be one of {', '.join(act.value for act in BulkAction)}") from None


def _asked(visit: Visit) -> SearchForm:
    query = pairs_of((visit.optional("filter") or "").encode())
    asked = asked_for(lambda name: query.get(name, [""])[-1] or None)
    for name, problem in asked.problems.items():
        raise InvalidInput(name, problem)
    return asked


def _below(visit: Visit) -> int:
    return checks.job_key(visit.sent("below"), "below")


PAGES = (Page("/ui/jobs", show),)
ACTIONS = (
    Action("/ui/jobs/find", find, Permission.JOBS_READ),
    Action("/ui/jobs/change", change, Permission.JOBS),
)
