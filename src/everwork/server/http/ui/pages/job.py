"""Page: one job, why it is not running, its timeline, and its actions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final, NamedTuple

from everwork.codec.fields import JSON_TEXTS
from everwork.codec.json import decode_typed_object
from everwork.core import checks
from everwork.core.job import StoredJob
from everwork.core.limits import (
    ATTEMPTS_MAX,
    KEY_MAX,
    LIST_SCAN_MAX,
    PAYLOAD_BYTES_MAX,
    PRIORITY_MAX,
    PRIORITY_MIN,
)
from everwork.core.queries import Explanation, Reason
from everwork.core.states import FINISHED_STATES, LIVE_STATES, State
from everwork.exceptions import InvalidInput, NotFound
from everwork.server.http.ui.address import address, type_url
from everwork.server.http.ui.page import Action, Done, Download, Page, View
from everwork.server.http.ui.pages.jobs import now_of, shown_state
from everwork.server.http.ui.redaction import RedactedJob, masks_of
from everwork.server.http.ui.timeline import summary, timeline
from everwork.server.http.ui.visit import Visit
from everwork.service.jobs import Jobs

_SHOWN_TEXTS: Final = sorted(JSON_TEXTS, key=lambda name: name != "result")
"""The job's JSON values in the order shown: the result comes first."""


class Link(NamedTuple):
    """A link to something that an explanation mentions."""

    label: str
    href: str


async def show(visit: Visit) -> View:
    """Show a job."""
    job = await visit.jobs.get(visit.key)
    history, explanation = await visit.jobs.history(job.key), await visit.jobs.explain(job.key)
    redacted, now_ms = RedactedJob(masks_of(visit), job), await now_of(visit)
    job, explanation = redacted.job, replace(explanation, text=redacted.redact(explanation.text))
    entries = timeline(job, history, now_ms, redacted.redact)
    may = _allowed(visit, job, now_ms)
    context = {
        "job": job,
        "state": shown_state(job, now_ms),
        "attempts": _attempts(job),
        "summary": summary(job, explanation, entries, now_ms),
        "related_cursor": _related_cursor(visit, job),
        "links": _links(visit, job, explanation),
        "texts": {name: shown for name in _SHOWN_TEXTS if (shown := redacted.json(name)) is not None},
        "entries": entries,
        "may": may,
        "typed": redacted.editable if may["requeue"] else None,
        "error": None,
        "bounds": {"priority": (PRIORITY_MIN, PRIORITY_MAX), "retries": (_retries_min(job), ATTEMPTS_MAX)},
    }
    return View("job.html", context)


async def text(visit: Visit) -> Download:
    """Download one of the job's JSON values in full; secrets are masked as on the page."""
    part = visit.param("part") or "variables"
    redacted = RedactedJob(masks_of(visit), await visit.jobs.get(visit.key))
    full = await asyncio.to_thread(redacted.full_json, part) if part in JSON_TEXTS else None
    if full is None:
        raise NotFound(f"Job '{visit.key}': text", part)
    return Download(f"job-{visit.key}-{part}.txt", full)


def _attempts(job: StoredJob) -> str:
    """The attempts of a job in words."""
    counted, left = f"{job.attempts} of {job.max_attempts}", job.max_attempts - job.attempts
    if job.state is State.PROCESSING:
        return f"{counted} running, {left} left if it fails" if left > 0 else f"{counted} running, the last one"
    return f"{counted}, {left} left" if job.state is State.PENDING and job.attempts else counted


def _related_cursor(visit: Visit, job: StoredJob) -> int | None:
    """Where the list of related jobs starts: near this job if the store is large."""
    sample = visit.context.sampler.latest
    is_large = sample is not None and sum(count.jobs for count in sample.counts) > LIST_SCAN_MAX
    return min(job.key + LIST_SCAN_MAX // 2, KEY_MAX) if is_large else None


def _allowed(visit: Visit, job: StoredJob, now_ms: int) -> dict[str, bool]:
    """The actions that the job's state and the visitor's key allow."""
    is_pending = job.state is State.PENDING
    allowed = {
        "cancel": job.state in LIVE_STATES,
        "requeue": job.state is State.FAILED or (is_pending and job.attempts > 0),
        "run_now": is_pending and job.run_at_ms > now_ms,
        "retries": job.state in LIVE_STATES or job.state is State.FAILED,
        "priority": is_pending,
        "delete": job.state in FINISHED_STATES,
    }
    return {name: one and visit.may_change_jobs for name, one in allowed.items()}


def _retries_min(job: StoredJob) -> int:
    return 0 if job.state is State.PROCESSING else 1


def _links(visit: Visit, job: StoredJob, why: Explanation) -> list[Link]:
    """Links related to the reason; only visitors who may see all tenants get links to pages that cover them all."""
    found = []
    if why.reason in (Reason.PAUSED, Reason.BREAKER, Reason.LIMIT):
        found.append(Link(f"Type {job.type}", type_url(job.type)))
    if why.reason is Reason.BREAKER:
        found.append(Link("Breakers", address("/breakers")))
    if why.reason in (Reason.NOT_ASKED, Reason.QUEUED, Reason.RUNNING, Reason.LIMIT):
        found.append(Link("Workers", address("/workers")))
    if why.reason in (Reason.QUEUED, Reason.LIMIT):
        found.append(Link("Running jobs of this type", address("/jobs", type=job.type, state="processing")))
    if job.state is State.FAILED:
        found.append(Link("Dead letters of this type", address("/dead", type=job.type)))
    return [link for link in found if visit.sees_all or link.href.startswith(address("/jobs"))]


# Actions ------------------------------------------------------------------------------------------------


async def cancel(visit: Visit) -> Done:
    """Cancel the job."""
    was = await visit.jobs.cancel(visit.key, visit.optional("reason") or "")
    note = " Its handler will be stopped." if was is State.PROCESSING else ""
    return Done(f"Job {visit.key} was cancelled.{note}")


async def requeue(visit: Visit) -> Done:
    """Requeue the job."""
    await visit.jobs.requeue(visit.key)
    return Done(f"Job {visit.key} was requeued. It is due now, with attempts reset to 0.")


async def requeue_with(visit: Visit) -> Done | View:
    """Requeue the job with the typed variables; invalid ones are shown again, with the problem."""
    typed = visit.optional("variables") or ""
    job = await visit.jobs.get(visit.key)
    if RedactedJob(masks_of(visit), job).editable is None:
        raise InvalidInput("variables", "cannot be edited here, because some of them are masked or too long to show")
    try:
        variables = decode_typed_object("variables", typed, PAYLOAD_BYTES_MAX)
        await visit.jobs.requeue(visit.key, variables=variables)
    except InvalidInput as error:
        return View("job_requeue.html", {"job": job, "typed": typed, "error": str(error), "here": visit.back}, 422)
    return Done(f"Job {visit.key} was requeued with new variables. It is due now, with attempts reset to 0.")


async def run_now(visit: Visit) -> Done:
    """Make the job due now."""
    await visit.jobs.run_now(visit.key)
    return Done(f"Job {visit.key} is due now.")


async def set_retries(visit: Visit) -> Done:
    """Set how many attempts are left."""
    retries = checks.whole_number("retries", checks.typed(visit.required("retries")), 0, ATTEMPTS_MAX)
    before = await visit.jobs.set_retries(visit.key, retries)
    after = (await visit.jobs.get(visit.key)).retries
    return Done(f"Job {visit.key} now has {after} {'attempt' if after == 1 else 'attempts'} left; it had {before}.")


async def set_priority(visit: Visit) -> Done:
    """Set the priority."""
    priority = checks.whole_number("priority", checks.typed(visit.required("priority")), PRIORITY_MIN, PRIORITY_MAX)
    await visit.jobs.set_priority(visit.key, priority)
    return Done(f"Job {visit.key} now has priority {priority}.")


async def delete(visit: Visit) -> Done:
    """Delete the job."""
    await visit.jobs.delete(visit.key)
    return Done(f"Job {visit.key} was deleted.", address("/jobs"))


def _action(
    name: str, act: Callable[[Visit], Awaitable[Done | View]], verb: Callable[..., Any], *, confirms: bool = False
) -> Action:
    return Action(f"/jobs/{{key}}/{name}", act, verb, confirms=confirms)


PAGES: tuple[Page, ...] = (Page("/jobs/{key}", show), Page("/jobs/{key}/text", text))
ACTIONS = (
    _action("cancel", cancel, Jobs.cancel, confirms=True),
    _action("requeue", requeue, Jobs.requeue),
    _action("requeue-with", requeue_with, Jobs.requeue),
    _action("run-now", run_now, Jobs.run_now),
    _action("retries", set_retries, Jobs.set_retries),
    _action("priority", set_priority, Jobs.set_priority),
    _action("delete", delete, Jobs.delete, confirms=True),
)
