"""One job: what it is, why it is not running, all that happened to it, and what can be done."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final, NamedTuple

from everwork.core import checks
from everwork.core.job import Job
from everwork.core.limits import ATTEMPTS_MAX, KEY_MAX, LIST_SCAN_MAX, PRIORITY_MAX, PRIORITY_MIN
from everwork.core.queries import Explanation, Reason
from everwork.core.states import FINISHED_STATES, LIVE_STATES, State
from everwork.exceptions import NotFound
from everwork.server.http.ui.page import Action, Done, Download, Page, View
from everwork.server.http.ui.pages.jobs import now_of, shown_state
from everwork.server.http.ui.redaction import Hidden, masks_of
from everwork.server.http.ui.render import address, type_url
from everwork.server.http.ui.timeline import timeline, verdict
from everwork.server.http.ui.visit import Visit
from everwork.service.access.principal import Permission

TEXTS: Final = ("result", "variables", "headers", "extra")


class Link(NamedTuple):
    """To what an explanation speaks of."""

    label: str
    href: str


async def show(visit: Visit) -> View:
    """All that is known of a job."""
    job = await visit.jobs.get(visit.key)
    history, explanation = await visit.jobs.history(job.key), await visit.jobs.explain(job.key)
    hidden, now_ms = Hidden(masks_of(visit), job), await now_of(visit)
    job, explanation = hidden.facts, replace(explanation, text=hidden.cleaned(explanation.text))
    moments = timeline(job, history, now_ms, hidden.cleaned)
    context = {
        "job": job,
        "state": shown_state(job, now_ms),
        "attempts": _attempts(job),
        "verdict": verdict(job, explanation, moments, now_ms),
        "related": _related(visit, job),
        "links": _links(visit, job, explanation),
        "texts": {name: shown for name in TEXTS if (shown := hidden.json(name)) is not None},
        "moments": moments,
        "may": _allowed(visit, job, now_ms),
        "bounds": {"priority": (PRIORITY_MIN, PRIORITY_MAX), "retries": (_retries_min(job), ATTEMPTS_MAX)},
    }
    return View("job.html", context)


async def whole(visit: Visit) -> Download:
    """One of the job's texts to the end, as a file; secrets are hidden as on the page."""
    part = visit.asked("part") or "variables"
    hidden = Hidden(masks_of(visit), await visit.jobs.get(visit.key))
    text = await asyncio.to_thread(hidden.whole_json, part) if part in TEXTS else None
    if text is None:
        raise NotFound(f"Job '{visit.key}': text", part)
    return Download(f"job-{visit.key}-{part}.txt", text)


def _attempts(job: Job) -> str:
    """How many it has had of how many it gets, as people count them."""
    counted, left = f"{job.attempts} of {job.max_attempts}", job.max_attempts - job.attempts
    if job.state is State.PROCESSING:
        return f"{counted} is running, {left} more if it fails" if left > 0 else f"{counted} is running, the last one"
    return f"{counted}, {left} left" if job.state is State.PENDING and job.attempts else counted


def _related(visit: Visit, job: Job) -> str:
    """All jobs with its correlation id. In a large store the search begins near this one: such jobs come together."""
    reading = visit.parts.sampler.reading
    is_large = reading is not None and sum(count.jobs for count in reading.counts) > LIST_SCAN_MAX
    start = min(job.key + LIST_SCAN_MAX // 2, KEY_MAX) if is_large else None
    return address("/ui/jobs", correlation=job.correlation_id, cursor=start)


def _allowed(visit: Visit, job: Job, now_ms: int) -> dict[str, bool]:
    """What the state of the job, and the visitor's key, let be done."""
    is_pending = job.state is State.PENDING
    allowed = {
        "cancel": job.state in LIVE_STATES,
        "requeue": job.state is State.FAILED,
        "run_now": is_pending and job.run_at_ms > now_ms,
        "retries": job.state in LIVE_STATES or job.state is State.FAILED,
        "priority": is_pending,
        "delete": job.state in FINISHED_STATES,
    }
    return {name: one and visit.may_change_jobs for name, one in allowed.items()}


def _retries_min(job: Job) -> int:
    return 0 if job.state is State.PROCESSING else 1


def _links(visit: Visit, job: Job, why: Explanation) -> list[Link]:
    """To what has to do with the reason; what concerns all tenants, only for those who may see it."""
    found = []
    if why.reason in (Reason.PAUSED, Reason.BREAKER, Reason.LIMIT):
        found.append(Link(f"Type {job.type}", type_url(job.type)))
    if why.reason is Reason.BREAKER:
        found.append(Link("Breakers", "/ui/breakers"))
    if why.reason in (Reason.NOT_ASKED, Reason.QUEUED, Reason.RUNNING, Reason.LIMIT):
        found.append(Link("Workers", "/ui/workers"))
    if why.reason in (Reason.QUEUED, Reason.LIMIT):
        found.append(Link("Running jobs of its type", address("/ui/jobs", type=job.type, state="processing")))
    if job.state is State.FAILED:
        found.append(Link("Dead letters of its type", address("/ui/dead", type=job.type)))
    return [link for link in found if visit.sees_all or link.href.startswith("/ui/jobs")]


# What can be done ---------------------------------------------------------------------------------------


async def cancel(visit: Visit) -> Done:
    """Let it never run, or stop it."""
    was = await visit.admin.cancel_job(visit.key, visit.optional("reason") or "")
    told = " Its worker is told to stop." if was is State.PROCESSING else ""
    return Done(f"Job {visit.key} is cancelled.{told}")


async def requeue(visit: Visit) -> Done:
    """Bring it back."""
    await visit.admin.requeue_job(visit.key)
    return Done(f"Job {visit.key} is requeued: it is due now, with all its attempts.")


async def run_now(visit: Visit) -> Done:
    """Let its time come now."""
    await visit.admin.run_job_now(visit.key)
    return Done(f"Job {visit.key} is due now.")


async def set_retries(visit: Visit) -> Done:
    """Give it more attempts, or fewer."""
    retries = checks.whole_number("retries", checks.typed(visit.sent("retries")), 0, ATTEMPTS_MAX)
    before = await visit.admin.set_job_retries(visit.key, retries)
    after = (await visit.jobs.get(visit.key)).retries
    return Done(f"Job {visit.key} has {after} attempts left; it had {before}.")


async def set_priority(visit: Visit) -> Done:
    """Let it go before others, or behind them."""
    priority = checks.whole_number("priority", checks.typed(visit.sent("priority")), PRIORITY_MIN, PRIORITY_MAX)
    await visit.admin.set_job_priority(visit.key, priority)
    return Done(f"Job {visit.key} has the priority {priority} now.")


async def delete(visit: Visit) -> Done:
    """Remove it."""
    await visit.admin.delete_job(visit.key)
    return Done(f"Job {visit.key} is deleted.", "/ui/jobs")


PAGES: tuple[Page, ...] = (Page("/ui/jobs/{key}", show), Page("/ui/jobs/{key}/text", whole))
_ACTS: Final = {
    "cancel": cancel,
    "requeue": requeue,
    "run-now": run_now,
    "retries": set_retries,
    "priority": set_priority,
    "delete": delete,
}
ACTIONS = tuple(
    Action(f"/ui/jobs/{{key}}/{name}", act, Permission.JOBS, asks=act in (cancel, delete))
    for name, act in _ACTS.items()
)
