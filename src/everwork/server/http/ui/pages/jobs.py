"""Page: the list of jobs with its filters, and bulk changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from everwork.core import checks
from everwork.core.job import StoredJob
from everwork.core.limits import KEY_MAX
from everwork.core.queries import BulkChange
from everwork.core.queries import Page as JobPage
from everwork.core.states import FINISHED_STATES, State
from everwork.exceptions import InvalidInput
from everwork.server.http.ui.address import job_url
from everwork.server.http.ui.page import Action, Done, Page, View
from everwork.server.http.ui.redaction import Masks, RedactedJob, masks_of
from everwork.server.http.ui.search import DUE, SCHEDULED, SearchForm, read_search
from everwork.server.http.ui.timeline import gist
from everwork.server.http.ui.visit import Visit, parse_pairs
from everwork.service import bulk
from everwork.service.bulk import BulkAction, BulkFilter, Counted
from everwork.service.jobs import Jobs

PAGE_JOBS: Final = 50
DISORDER_MS: Final = 60_000
"""Jobs created concurrently on several servers may have keys out of order by this much."""
NOW_SLACK_MS: Final = 5_000
"""Added to the time of the last sample, which may be older than a job that was just created."""
TYPES_OFFERED_MAX: Final = 300
COUNTED_BY: Final = frozenset({"state", "type", "tenant"})
"""What engines count jobs by: with any other filter, the tabs have no counts."""
TAB_ACTIONS: Final[Mapping[str | None, tuple[BulkAction, ...]]] = {
    None: tuple(BulkAction),
    "pending": (BulkAction.RUN_NOW, BulkAction.CANCEL),
    SCHEDULED: (BulkAction.RUN_NOW, BulkAction.CANCEL),
    DUE: (BulkAction.CANCEL,),
    "processing": (BulkAction.CANCEL,),
    "failed": (BulkAction.REQUEUE, BulkAction.DELETE),
    "completed": (BulkAction.DELETE,),
    "cancelled": (BulkAction.DELETE,),
}
"""The actions offered per tab."""
LABELS: Final = {
    BulkAction.CANCEL: "Cancel",
    BulkAction.REQUEUE: "Requeue",
    BulkAction.RUN_NOW: "Run now",
    BulkAction.DELETE: "Delete",
}
CONSEQUENCES: Final = {
    BulkAction.CANCEL: (
        "Pending jobs will never start. Running jobs are stopped, and their results discarded. Cancelled jobs cannot "
        "be requeued."
    ),
    BulkAction.REQUEUE: (
        "They are due now, with attempts reset to 0. Their history is kept. Handlers start over, so work done before "
        "the failure may be done again."
    ),
    BulkAction.RUN_NOW: "They are due now instead of at their scheduled time.",
    BulkAction.DELETE: (
        "They are deleted with their variables, results and histories, and their dedupe keys can be used again. "
        "This cannot be undone."
    ),
}
CONDITIONS: Final = {
    "state": "in state",
    "type": "of type",
    "worker": "of worker",
    "tenant": "of tenant",
    "correlation": "with correlation id",
    "dedupe": "with dedupe key",
    "after": "created at or after",
    "before": "created before",
    "error": "whose last error contains",
    "variables": "whose variables contain",
}


class Row(NamedTuple):
    """One row of the list."""

    job: StoredJob
    state: str
    error: str | None
    at_label: str
    at_ms: int | None


async def show(visit: Visit) -> View:
    """List the newest matching jobs."""
    masks = masks_of(visit)
    form = read_search(visit.param, masks)
    cursor, problems = _cursor(visit), dict(form.problems)
    now_ms = await now_of(visit)
    found = JobPage([], None)
    if not problems:
        start = await _start(visit, form) if cursor is None else cursor
        found = await bulk.find_within(visit.jobs, form.search, PAGE_JOBS, now_ms, start)
    context = {
        "form": form,
        "rows": [_row(job, now_ms, masks) for job in found.jobs],
        "next": found.next,
        "is_cut": found.next is not None and len(found.jobs) < PAGE_JOBS,
        "cursor": cursor,
        "held": found.jobs[0].key + 1 if found.jobs and cursor is None else None,
        "acts": [(action.value, LABELS[action]) for action in TAB_ACTIONS.get(form.typed.get("state"), ())],
    }
    return View("jobs.html", {**context, **await _tabs(visit, form)}, 422 if problems else 200)


async def _start(visit: Visit, form: SearchForm) -> int | None:
    """Where to start the scan: a search for last week's jobs skips today's."""
    before_ms = form.search.filter.created_before_ms
    return None if before_ms is None else await visit.jobs.key_since(before_ms + DISORDER_MS)


async def find(visit: Visit) -> Done:
    """Redirect to the page of a job by its key."""
    job = await visit.jobs.get(checks.known_key(visit.required("key").strip()))
    return Done("", job_url(job.key))


async def now_of(visit: Visit) -> int:
    """The engine's time of the last sample, plus some seconds: jobs due by then count as due."""
    sample = visit.context.sampler.latest or await visit.context.sampler.fresh()
    return sample.at_ms + NOW_SLACK_MS


def shown_state(job: StoredJob, now_ms: int) -> str:
    """A job's state; `scheduled` if it is pending but not due."""
    return SCHEDULED if job.state is State.PENDING and job.run_at_ms > now_ms else job.state.label


async def _tabs(visit: Visit, form: SearchForm) -> dict[str, Any]:
    """The tabs, with counts where they are known, and the types to choose from."""
    counts = await visit.jobs.count()
    is_counted = form.typed.keys() <= COUNTED_BY
    type, tenants = form.typed.get("type"), form.search.filter.tenants
    by_state = {state.label: 0 for state in State}
    for count in counts:
        if type in (None, count.type) and (not tenants or count.tenant in tenants):
            by_state[count.state.label] += count.jobs
    types = sorted({count.type for count in counts})[:TYPES_OFFERED_MAX]
    total = sum(by_state.values())
    return {"counts": by_state, "total": total, "types": types, "is_empty": not counts, "is_counted": is_counted}


def _row(job: StoredJob, now_ms: int, masks: Masks) -> Row:
    is_over = job.state in FINISHED_STATES
    label, at_ms = ("finished", job.finished_at_ms) if is_over else ("due", job.run_at_ms)
    if job.state is State.PROCESSING:
        label, at_ms = "started", job.activated_at_ms
    error = None if job.last_error is None else gist(RedactedJob(masks, job).redact(job.last_error))
    return Row(job, shown_state(job, now_ms), error, label, at_ms)


def _cursor(visit: Visit) -> int | None:
    text = visit.param("cursor")
    if text is None:
        return None
    try:
        return checks.job_key(text)
    except InvalidInput:
        raise InvalidInput("cursor", f"must be a key from 1 to {KEY_MAX}, not {checks.shown(text)}") from None


# Bulk changes -------------------------------------------------------------------------------------------


async def change(visit: Visit) -> Done | View:
    """Show a confirmation page; once confirmed, change the jobs."""
    action, form = _action(visit), _sent_form(visit)
    keys = [checks.job_key(key) for key in dict.fromkeys(visit.values("key"))]
    if visit.optional("scope") != "all":
        return await _change_selected(visit, action, keys)
    search = bulk.restricted(action, form.search)
    if visit.optional("sure") is None:
        return await _confirm_all(visit, action, form, search)
    done = await visit.jobs.change_matching(action, replace(form.search, below=_below(visit)))
    return _result(action, done)


async def _change_selected(visit: Visit, action: BulkAction, keys: Sequence[int]) -> Done | View:
    if not keys:
        raise InvalidInput("key", "no job is selected: select jobs in the list first")
    if visit.optional("sure") is not None:
        return _result(action, await visit.jobs.change_many(action, keys))
    now_ms = await now_of(visit)
    jobs = await visit.jobs.get_many(keys[: bulk.KEYS_MAX])
    changeable = [job.key for job in jobs if job is not None and bulk.is_allowed(action, job, now_ms)]
    details = {
        "keys": changeable,
        "selected": len(keys),
        "scope": "picked",
        "filter": "",
        "below": "",
        "conditions": [],
    }
    return _confirmation(visit, action, Counted(len(changeable), True), details)


async def _confirm_all(visit: Visit, action: BulkAction, form: SearchForm, search: BulkFilter) -> View:
    newest = await visit.jobs.newest_key()
    count = await bulk.count_matching(visit.jobs, search, await now_of(visit))
    moments = {"after": form.search.filter.created_after_ms, "before": form.search.filter.created_before_ms}
    conditions = [(CONDITIONS[name], value, moments.get(name)) for name, value in form.typed.items()]
    below = "" if newest is None else newest + 1
    details = {"keys": [], "selected": 0, "scope": "all", "filter": form.query, "below": below}
    return _confirmation(visit, action, count, {**details, "conditions": conditions})


def _confirmation(visit: Visit, action: BulkAction, count: Counted, details: dict[str, Any]) -> View:
    about = {"act": action.value, "label": LABELS[action], "done": action.done, "consequence": CONSEQUENCES[action]}
    context = {**about, **details, "count": count, "count_text": count_text(count), "back": visit.back}
    return View("jobs_change.html", context)


def count_text(count: Counted) -> str:
    """The number of jobs in words; an incomplete scan that found none does not prove that there are none."""
    if not count.jobs and not count.is_exact:
        return "all matching jobs"
    return f"{'' if count.is_exact else 'at least '}{count.jobs:,} {'job' if count.jobs == 1 else 'jobs'}"


def _result(action: BulkAction, done: BulkChange) -> Done:
    verb = ("is" if done.changed == 1 else "are") if action is BulkAction.RUN_NOW else _were(done.changed)
    changed = f"{done.changed:,} of {done.matched:,} {'job' if done.matched == 1 else 'jobs'} {verb} {action.done}"
    left = done.matched - done.changed
    others = f"; {left:,} had changed in the meantime and {_were(left)} skipped" if left else ""
    return Done(f"{changed}{others}.", is_good=done.changed > 0)


def _were(jobs: int) -> str:
    return "was" if jobs == 1 else "were"


def _action(visit: Visit) -> BulkAction:
    try:
        return BulkAction(visit.required("act"))
    except ValueError:
        raise InvalidInput("act", f"must be one of {', '.join(one.value for one in BulkAction)}") from None


def _sent_form(visit: Visit) -> SearchForm:
    query = parse_pairs((visit.optional("filter") or "").encode())
    form = read_search(lambda name: query.get(name, [""])[-1] or None, masks_of(visit))
    for name, problem in form.problems.items():
        raise InvalidInput(name, problem)
    return form


def _below(visit: Visit) -> int:
    return checks.job_key(visit.required("below"), "below")


PAGES = (Page("/jobs", show),)
ACTIONS = (
    Action("/jobs/find", find, Jobs.get),
    Action("/jobs/change", change, Jobs.change_matching),
)
