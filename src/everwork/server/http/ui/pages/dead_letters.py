"""Page: dead letters by error group, to be requeued or deleted."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from everwork.codec.json import decode_policy
from everwork.codec.new_job import search_text
from everwork.core import checks
from everwork.core.classify import ErrorRule
from everwork.core.ending import TIMED_OUT
from everwork.core.fingerprint import category_of, exception_class, fingerprint
from everwork.core.job import StoredJob
from everwork.core.limits import INSTANT_MS_MAX
from everwork.exceptions import InvalidInput, NotFound
from everwork.server.http.ui.address import address
from everwork.server.http.ui.chart import share
from everwork.server.http.ui.moments import utc_moment
from everwork.server.http.ui.page import Action, Done, Page, View
from everwork.server.http.ui.redaction import MASK, Masks, RedactedJob, masks_of, only_shown
from everwork.server.http.ui.timeline import gist
from everwork.server.http.ui.visit import Visit
from everwork.service import bulk, dead_letters
from everwork.service.bulk import BulkFilter
from everwork.service.dead_letters import DeadLetterAction, DeadLetterGroup, Survey, dead_filter
from everwork.service.jobs import Jobs

CAUSES: Final[Mapping[str, str]] = {
    "retryable": "transient error",
    "temporary": "temporary error",
    "rate_limited": "rate limited upstream",
    "permanent": "permanent error",
    "unclassified": "unclassified error",
    "retry_asked": "retry requested",
    "lapsed": "lease expired",
    "rejected": "rejected by the worker",
    "thrown": "business error",
}
"""Why attempts failed (`core.measures`), in words."""
NO_CLASS: Final = "Other errors"
"""The heading of errors that do not start with an exception class."""
SCAN_MAX: Final = 1_000
"""How many of the newest dead letters the page scans, unless more are requested."""
SCAN_FURTHER_MAX: Final = 20_000
NEWEST: Final = 50
SEARCH_CHARS_MAX: Final = 60
_VARYING: Final = re.compile(rf"[^\s]*\d[^\s]*|['\"]|[^\s]*{MASK}[^\s]*")
_READERS: Final[Mapping[str, Callable[[str, str], Any]]] = {
    "error": search_text,
    "type": checks.name,
    "tenant": checks.name,
    "fingerprint": lambda name, text: dead_letters.require_fingerprint(text, name),
    "after": utc_moment,
    "before": utc_moment,
    "rejected": lambda name, text: bool(checks.whole_number(name, checks.typed(text), 1, 1)),
}
FIELDS: Final = {
    "type": "type",
    "error": "error_text",
    "fingerprint": "fingerprint",
    "after": "failed_after_ms",
    "before": "failed_before_ms",
}
"""Maps the form's fields to the fields of the service's filter."""


class GroupRow(NamedTuple):
    """A group in the list: its redacted error, the URL of its jobs, and the form fields that select it."""

    group: DeadLetterGroup
    error: str
    gist: str
    href: str
    fields: Mapping[str, str]


class ClassRows(NamedTuple):
    """The groups of one exception class, most frequent first, and how many jobs they have."""

    name: str
    jobs: int
    rows: list[GroupRow]


class DeadLetterForm(NamedTuple):
    """A dead-letter filter, the typed texts, and their problems by field."""

    query: BulkFilter
    typed: Mapping[str, str]
    problems: Mapping[str, str]


async def show(visit: Visit) -> View:
    """List the groups; for a single group, list its newest jobs, too."""
    form, is_all = _read_form(visit.param, masks_of(visit)), visit.param("all") == "1"
    newest_max = NEWEST if form.query.fingerprint is not None else 0
    survey: Survey | None = None
    if not form.problems:
        scan_max = SCAN_FURTHER_MAX if is_all else SCAN_MAX
        survey = await dead_letters.survey(visit.jobs, form.query, scan_max, newest_max)
    masks = masks_of(visit)
    groups = [] if survey is None else await _rows(visit, form, survey.grouped.groups)
    context = {
        "form": form,
        "survey": survey,
        "groups": groups,
        "classes": by_class(groups),
        "newest": [] if survey is None else [(job, gist(_redacted(masks, job))) for job in survey.newest],
        "is_all": is_all,
        "further": visit.url(all="1"),
        "all_groups": visit.url(fingerprint=None, type=None, all=None),
        "rejected": visit.url(rejected="1", all=None),
    }
    return View("dead.html", context, 422 if form.problems else 200)


async def sure(visit: Visit) -> View:
    """Confirmation page: how many dead letters match, and what will happen."""
    action, form = _action(visit), _sent_form(visit)
    until_ms = await visit.context.service.now() + 1
    survey = await dead_letters.survey(visit.jobs, _until(form.query, until_ms), SCAN_FURTHER_MAX)
    groups = await _rows(visit, form, survey.grouped.groups[:1])
    context = {
        "act": action.value,
        "sample": groups[0].gist if groups and form.query.fingerprint else "",
        "typed": form.typed,
        "moments": _moments(form),
        "matched": survey.matched,
        "is_cut": survey.grouped.is_cut,
        "types": sorted({group.type for group in survey.grouped.groups}),
        "until_ms": until_ms,
        "returns": await _returns(visit, form.query.filter.type),
        "back": visit.back,
    }
    return View("dead_change.html", context)


async def change(visit: Visit) -> Done:
    """Requeue or delete the confirmed jobs, but not jobs that have failed since."""
    action, form = _action(visit), _sent_form(visit)
    until_ms = checks.whole_number("until", checks.typed(visit.required("until")), 0, INSTANT_MS_MAX)
    done = await visit.jobs.change_dead(action, _until(form.query, until_ms))
    many = "dead letter was" if done.changed == 1 else "dead letters were"
    left = done.matched - done.changed
    others = f" {left:,} had changed in the meantime." if left else ""
    changed = "requeued" if action is DeadLetterAction.REQUEUE else "deleted"
    return Done(f"{done.changed:,} {many} {changed}.{others}", address("/dead"))


# Groups -----------------------------------------------------------------------------------------------


async def _rows(visit: Visit, form: DeadLetterForm, groups: Sequence[DeadLetterGroup]) -> list[GroupRow]:
    """Each group with its latest error, redacted; masked entirely if its job no longer exists."""
    jobs = await visit.jobs.get_many([group.key for group in groups])
    masks = masks_of(visit)
    return [
        _row(form, group, MASK if job is None else _redacted(masks, job))
        for group, job in zip(groups, jobs, strict=True)
    ]


def _row(form: DeadLetterForm, group: DeadLetterGroup, error: str) -> GroupRow:
    fields = {**form.typed, "type": group.type, "fingerprint": group.fingerprint}
    is_alone = form.query.fingerprint is not None
    jobs = address("/jobs", state="failed", type=group.type, error=_search_text(error))
    return GroupRow(group, error, gist(error), jobs if is_alone else address("/dead", **fields), fields)


def by_class(rows: Sequence[GroupRow]) -> list[ClassRows]:
    """The groups by the exception class of their shown errors, most frequent first; errors without a class last."""
    found: dict[str, list[GroupRow]] = {}
    for row in rows:
        found.setdefault(exception_class(row.error), []).append(row)
    ordered = sorted(found.items(), key=lambda one: (not one[0], -sum(row.group.jobs for row in one[1]), one[0]))
    return [ClassRows(name or NO_CLASS, sum(row.group.jobs for row in rows), rows) for name, rows in ordered]


def _redacted(masks: Masks, job: StoredJob) -> str:
    return RedactedJob(masks, job).redact(job.last_error or "")


def _search_text(error: str) -> str | None:
    """A search text that finds errors of the same group: the longest constant part of the error's gist."""
    constant = _VARYING.split(gist(error))
    return max((part.strip() for part in constant), key=len, default="")[:SEARCH_CHARS_MAX] or None


async def _returns(visit: Visit, type: str | None) -> float | None:
    """The number of hours after which dead letters of a type are requeued automatically."""
    if type is None or not visit.sees_all:
        return None
    try:
        return (await visit.admin.policy(type)).policy.failed_job_retry_hours
    except NotFound:
        return None


# Forms -------------------------------------------------------------------------------------------------


def _read_form(read: Callable[[str], str | None], masks: Masks) -> DeadLetterForm:
    typed = {name: value for name in _READERS if (value := read(name)) is not None}
    found: dict[str, Any] = {}
    problems: dict[str, str] = {}
    for name, text in typed.items():
        try:
            found[name] = _READERS[name](name, text)
        except InvalidInput as error:
            problems[name] = error.problem
    tenants = (found["tenant"],) if "tenant" in found else ()
    fields = {field: found.get(name) for name, field in FIELDS.items()}
    query = only_shown(dead_filter(tenants=tenants, rejected="rejected" in found, **fields), masks)
    return DeadLetterForm(query, typed, problems)


def _sent_form(visit: Visit) -> DeadLetterForm:
    """The filter of a posted form. The page filled the form in, so problems are errors."""
    form = _read_form(visit.optional, masks_of(visit))
    for name, problem in form.problems.items():
        raise InvalidInput(name, problem)
    return form


def _moments(form: DeadLetterForm) -> dict[str, int]:
    """The times in the filter, to be shown in the viewer's time zone."""
    found = {"after": form.query.failed_after_ms, "before": form.query.failed_before_ms}
    return {name: at_ms for name, at_ms in found.items() if at_ms is not None}


def _until(filter_: BulkFilter, until_ms: int) -> BulkFilter:
    before_ms = filter_.failed_before_ms
    return replace(filter_, failed_before_ms=until_ms if before_ms is None else min(before_ms, until_ms))


def _action(visit: Visit) -> DeadLetterAction:
    try:
        return DeadLetterAction(visit.required("act"))
    except ValueError:
        raise InvalidInput("act", f"must be one of {', '.join(one.value for one in DeadLetterAction)}") from None


# Recent dead letters, for other pages ---------------------------------------------------------------------


RECENT_SCAN_MAX: Final = 100
"""How many of the newest dead letters are scanned."""
RECENT_GROUPS_MAX: Final = 5
RECENT_CLASSES_MAX: Final = 8


class ErrorGroup(NamedTuple):
    """Dead letters of one type and error group; `job` is the latest, `error` its redacted error."""

    jobs: int
    job: StoredJob
    error: str
    href: str

    @property
    def failed_ms(self) -> int:
        """When the latest job failed."""
        return _failed_ms(self.job)


class ErrorClass(NamedTuple):
    """The scanned dead letters of one exception class: how many, their share, and their classifications."""

    name: str
    jobs: int
    bar: str
    causes: str
    href: str


class RecentFailures(NamedTuple):
    """The latest error groups among the scanned dead letters; `is_cut`: there are more than were scanned.

    `classes`: all scanned dead letters, by exception class.
    """

    groups: list[ErrorGroup]
    scanned: int
    is_cut: bool
    classes: Sequence[ErrorClass] = ()


async def recent_failures(visit: Visit, type: str | None = None) -> RecentFailures | None:
    """The latest error groups, newest first; None if the visitor may not see jobs."""
    if not visit.may_see_jobs:
        return None
    page = await bulk.find_within(visit.jobs, dead_filter(type=type), RECENT_SCAN_MAX, 0)
    found: dict[tuple[str, str], list[StoredJob]] = {}
    for job in page.jobs:
        found.setdefault((job.type, fingerprint(job.last_error or "")), []).append(job)
    latest = [(group, len(jobs), max(jobs, key=_failed_ms)) for group, jobs in found.items()]
    latest.sort(key=lambda one: _failed_ms(one[2]), reverse=True)
    groups = [
        _error_group(visit, fingerprint_, jobs, job) for (_, fingerprint_), jobs, job in latest[:RECENT_GROUPS_MAX]
    ]
    classes = _error_classes(page.jobs, masks_of(visit), await _rules(visit), type)
    return RecentFailures(groups, len(page.jobs), page.next is not None, classes)


def _error_classes(
    jobs: Sequence[StoredJob], masks: Masks, rules: Mapping[str, Sequence[ErrorRule]], type: str | None
) -> list[ErrorClass]:
    """Jobs by the exception class of their shown errors, most frequent first, with their classifications."""
    found: dict[str, list[StoredJob]] = {}
    for job in jobs:
        found.setdefault(exception_class(_redacted(masks, job)), []).append(job)
    if not any(found):  # A single bar of 100 % would be meaningless.
        return []
    ordered = sorted(found.items(), key=lambda one: (not one[0], -len(one[1]), one[0]))[:RECENT_CLASSES_MAX]
    return [_error_class(name, of_class, len(jobs), rules, type) for name, of_class in ordered]


def _error_class(
    name: str, jobs: Sequence[StoredJob], of: int, rules: Mapping[str, Sequence[ErrorRule]], type: str | None
) -> ErrorClass:
    categories = Counter(category_of(job, rules.get(job.type, ())) for job in jobs)
    causes = ", ".join(CAUSES.get(category, category) for category, _ in categories.most_common())
    # The error of a handler's timeout does not name its class.
    text = name if any(name in (job.last_error or "") for job in jobs) else TIMED_OUT
    return ErrorClass(
        name or NO_CLASS, len(jobs), share(len(jobs), of), causes, address("/dead", type=type, error=text or None)
    )


async def _rules(visit: Visit) -> dict[str, tuple[ErrorRule, ...]]:
    """The error rules of all types that have any, for visitors who may see types."""
    if not visit.sees_all:
        return {}
    sample = visit.context.sampler.latest or await visit.context.sampler.fresh()
    return {one.type: decode_policy(one.policy).errors for one in sample.types if one.policy is not None}


def _error_group(visit: Visit, fingerprint_: str, jobs: int, job: StoredJob) -> ErrorGroup:
    error = gist(RedactedJob(masks_of(visit), job).redact(job.last_error or ""))
    return ErrorGroup(jobs, job, error, address("/dead", type=job.type, fingerprint=fingerprint_))


def _failed_ms(job: StoredJob) -> int:
    return job.finished_at_ms or job.created_at_ms


PAGES = (Page("/dead", show),)
ACTIONS = (
    Action("/dead/sure", sure, Jobs.change_dead),
    Action("/dead/change", change, Jobs.change_dead),
)
