"""Dead letters: by what went wrong, to be brought back or removed, one sort of error at a time."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from everwork.codec.new_job import sought_text
from everwork.core import checks
from everwork.core.fingerprint import fingerprint
from everwork.core.job import Job
from everwork.core.limits import INSTANT_MS_MAX
from everwork.core.queries import JobFilter
from everwork.core.states import State
from everwork.exceptions import InvalidInput, NotFound
from everwork.server.http.ui.page import Action, Done, Page, View
from everwork.server.http.ui.redaction import MASK, Hidden, Masks, masks_of
from everwork.server.http.ui.render import address
from everwork.server.http.ui.search import utc_moment
from everwork.server.http.ui.timeline import gist
from everwork.server.http.ui.visit import Visit
from everwork.service import bulk, dead_letters
from everwork.service.access.principal import Permission
from everwork.service.dead_letters import DeadLetterAction, DeadLetterFilter, DeadLetterGroup, Survey

LOOK_MAX: Final = 1_000
"""Of so many of the newest the page is made, unless more are asked for."""
LOOK_FURTHER_MAX: Final = 20_000
NEWEST: Final = 50
SOUGHT_CHARS_MAX: Final = 60
_DIFFERING: Final = re.compile(rf"[^\s]*\d[^\s]*|['\"]|[^\s]*{MASK}[^\s]*")
_READERS: Final[Mapping[str, Callable[[str, str], Any]]] = {
    "error": sought_text,
    "type": checks.name,
    "tenant": checks.name,
    "fingerprint": lambda name, text: dead_letters.require_fingerprint(text, name),
    "after": utc_moment,
    "before": utc_moment,
}
FIELDS: Final = {
    "type": "type",
    "error": "error_text",
    "fingerprint": "fingerprint",
    "after": "failed_after_ms",
    "before": "failed_before_ms",
}
"""What a filter's field is called in the form, and in the service."""


class Group(NamedTuple):
    """A group as it is shown: its error without secrets, where its jobs are, and what names it in a form."""

    group: DeadLetterGroup
    error: str
    gist: str
    href: str
    fields: Mapping[str, str]


class DeadLetterForm(NamedTuple):
    """Which dead letters somebody wants to see, what they typed, and what is wrong with that."""

    wanted: DeadLetterFilter
    typed: Mapping[str, str]
    problems: Mapping[str, str]


async def show(visit: Visit) -> View:
    """The groups; of one of them, its newest jobs too."""
    asked, is_all = _asked(visit.asked), visit.asked("all") == "1"
    newest_max = NEWEST if asked.wanted.fingerprint is not None else 0
    survey: Survey | None = None
    if not asked.problems:
        look_max = LOOK_FURTHER_MAX if is_all else LOOK_MAX
        survey = await dead_letters.survey(visit.jobs, asked.wanted, look_max, newest_max)
    masks = masks_of(visit)
    context = {
        "asked": asked,
        "survey": survey,
        "groups": [] if survey is None else await _shown(visit, asked, survey.grouped.groups),
        "newest": [] if survey is None else [(job, gist(_cleaned(masks, job))) for job in survey.newest],
        "is_all": is_all,
        "further": visit.here(all="1"),
        "all_sorts": visit.here(fingerprint=None, type=None, all=None),
    }
    return View("dead.html", context, 422 if asked.problems else 200)


async def sure(visit: Visit) -> View:
    """Before many are changed: how many, and what will happen."""
    act, asked = _act(visit), _sent(visit)
    until_ms = await visit.parts.service.now() + 1
    survey = await dead_letters.survey(visit.jobs, _until(asked.wanted, until_ms), LOOK_FURTHER_MAX)
    groups = await _shown(visit, asked, survey.grouped.groups[:1])
    context = {
        "act": act.value,
        "sample": groups[0].gist if groups and asked.wanted.fingerprint else "",
        "typed": asked.typed,
        "matched": survey.matched,
        "is_cut": survey.grouped.is_cut,
        "types": sorted({group.type for group in survey.grouped.groups}),
        "until_ms": until_ms,
        "returns": await _returns(visit, asked.wanted.type),
        "back": visit.back,
    }
    return View("dead_change.html", context)


async def change(visit: Visit) -> Done:
    """Bring back or remove what was meant: nothing that has failed since somebody was asked."""
    act, asked = _act(visit), _sent(visit)
    until_ms = checks.whole_number("until", checks.typed(visit.sent("until")), 0, INSTANT_MS_MAX)
    done = await visit.admin.change_dead(act, _until(asked.wanted, until_ms))
    many = "dead letter was" if done.changed == 1 else "dead letters were"
    said = "brought back, and waits" if done.changed == 1 else "brought back, and wait"
    left = done.matched - done.changed
    others = f" {left:,} had changed meanwhile." if left else ""
    return Done(
        f"{done.changed:,} {many} {said if act is DeadLetterAction.REQUEUE else 'removed'}.{others}", "/ui/dead"
    )


# What is shown -------------------------------------------------------------------------------------------


async def _shown(visit: Visit, asked: DeadLetterForm, groups: Sequence[DeadLetterGroup]) -> list[Group]:
    """Each group with its latest error; what is secret in that job stays out of it, of one that is gone everything."""
    jobs = await visit.jobs.get_many([group.key for group in groups])
    masks = masks_of(visit)
    return [
        _group(asked, group, MASK if job is None else _cleaned(masks, job))
        for group, job in zip(groups, jobs, strict=True)
    ]


def _group(asked: DeadLetterForm, group: DeadLetterGroup, error: str) -> Group:
    fields = {**asked.typed, "type": group.type, "fingerprint": group.fingerprint}
    is_alone = asked.wanted.fingerprint is not None
    jobs = address("/ui/jobs", state="failed", type=group.type, error=_sought(error))
    return Group(group, error, gist(error), jobs if is_alone else address("/ui/dead", **fields), fields)


def _cleaned(masks: Masks, job: Job) -> str:
    return Hidden(masks, job).cleaned(job.last_error or "")


def _sought(error: str) -> str | None:
    """What to look for in errors to find those of the same sort: the longest common part of its gist."""
    parts = _DIFFERING.split(gist(error))
    return max((part.strip() for part in parts), key=len, default="")[:SOUGHT_CHARS_MAX] or None


async def _returns(visit: Visit, type: str | None) -> float | None:
    """After how many hours dead letters of a type come back by themselves."""
    if type is None or not visit.sees_all:
        return None
    try:
        return (await visit.admin.policy(type)).policy.failed_job_retry_hours
    except NotFound:
        return None


# What is asked for ---------------------------------------------------------------------------------------


def _asked(read: Callable[[str], str | None]) -> DeadLetterForm:
    typed = {name: value for name in _READERS if (value := read(name)) is not None}
    found: dict[str, Any] = {}
    problems: dict[str, str] = {}
    for name, text in typed.items():
        try:
            found[name] = _READERS[name](name, text)
        except InvalidInput as error:
            problems[name] = error.problem
    tenants = (found["tenant"],) if "tenant" in found else ()
    said = {field: found.get(name) for name, field in FIELDS.items()}
    return DeadLetterForm(DeadLetterFilter(tenants=tenants, **said), typed, problems)


def _sent(visit: Visit) -> DeadLetterForm:
    """What a form has brought: there is no place to tell a mistake at, for nobody has typed it."""
    asked = _asked(visit.optional)
    for name, problem in asked.problems.items():
        raise InvalidInput(name, problem)
    return asked


def _until(wanted: DeadLetterFilter, until_ms: int) -> DeadLetterFilter:
    before_ms = wanted.failed_before_ms
    return replace(wanted, failed_before_ms=until_ms if before_ms is None else min(before_ms, until_ms))


def _act(visit: Visit) -> DeadLetterAction:
    try:
        return DeadLetterAction(visit.sent("act"))
    except ValueError:
        raise InvalidInput("act", f"must be one of {', '.join(one.value for one in DeadLetterAction)}") from None


PAGES = (Page("/ui/dead", show),)
ACTIONS = (Action("/ui/dead/sure", sure, Permission.JOBS), Action("/ui/dead/change", change, Permission.JOBS))


RECENT_LOOK_MAX: Final = 100
"""So many of the newest dead letters are looked at."""
KINDS_MAX: Final = 5
_FAILED: Final = JobFilter(states=frozenset([State.FAILED]))


class Kind(NamedTuple):
    """Dead letters of one type and one kind of error; `job` is the latest of them, `error` its own without secrets."""

    jobs: int
    job: Job
    error: str
    href: str

    @property
    def failed_ms(self) -> int:
        """When the latest of them failed."""
        return _failed_ms(self.job)


class Failing(NamedTuple):
    """The kinds that came last, and of how many dead letters they are; `is_cut`: there are more than were looked at."""

    kinds: list[Kind]
    looked_at: int
    is_cut: bool


async def failing(visit: Visit, type: str | None = None) -> Failing | None:
    """What failed lately, the latest first; None for whoever may not see jobs."""
    if not visit.may_see_jobs:
        return None
    page = await bulk.find_within(visit.jobs, bulk.BulkFilter(replace(_FAILED, type=type)), RECENT_LOOK_MAX, 0)
    found: dict[tuple[str, str], list[Job]] = {}
    for job in page.jobs:
        found.setdefault((job.type, fingerprint(job.last_error or "")), []).append(job)
    latest = [(kind, len(jobs), max(jobs, key=_failed_ms)) for kind, jobs in found.items()]
    latest.sort(key=lambda one: _failed_ms(one[2]), reverse=True)
    kinds = [_kind(visit, mark, jobs, job) for (_, mark), jobs, job in latest[:KINDS_MAX]]
    return Failing(kinds, len(page.jobs), page.next is not None)


def _kind(visit: Visit, mark: str, jobs: int, job: Job) -> Kind:
    error = gist(Hidden(masks_of(visit), job).cleaned(job.last_error or ""))
    return Kind(jobs, job, error, address("/ui/dead", type=job.type, fingerprint=mark))


def _failed_ms(job: Job) -> int:
    return job.finished_at_ms or job.created_at_ms
