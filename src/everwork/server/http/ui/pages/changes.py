"""Many jobs changed at once, by those who look at them: first a page that says what will happen, then the deed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from everwork.core import checks
from everwork.core.queries import BulkChange
from everwork.exceptions import InvalidInput
from everwork.server.http.ui.page import Action, Done, Page, View
from everwork.server.http.ui.pages.jobs import LABELS, now_of
from everwork.server.http.ui.search import SearchForm, asked_for
from everwork.server.http.ui.visit import Visit, pairs_of
from everwork.service import bulk
from everwork.service.access.principal import Permission
from everwork.service.bulk import BulkAction, BulkFilter, Counted

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


async def change(visit: Visit) -> Done | View:
    """Ask whether it is meant; then do it."""
    act, asked = _act(visit), _asked(visit)
    keys = [checks.job_key(key) for key in dict.fromkeys(visit.all_sent("key"))]
    if visit.optional("scope") != "all":
        return await _picked(visit, act, keys)
    search = bulk.restricted(act, asked.search)
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
    able = [job.key for job in jobs if job is not None and bulk.is_allowed(act, job, now_ms)]
    more = {"keys": able, "selected": len(keys), "scope": "picked", "filter": "", "below": "", "which": []}
    return _page(visit, act, Counted(len(able), True), more)


async def _ask_for_all(visit: Visit, act: BulkAction, asked: SearchForm, search: BulkFilter) -> View:
    newest = await visit.jobs.newest_key()
    count = await bulk.count_matching(visit.jobs, search, await now_of(visit))
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


PAGES: tuple[Page, ...] = ()
ACTIONS = (Action("/ui/jobs/change", change, Permission.JOBS),)
