"""Page: create a job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from everwork.codec.json import decode_typed_object
from everwork.core import checks
from everwork.core.instants import utc_text
from everwork.core.leasing import Created
from everwork.core.limits import (
    ATTEMPTS_MAX,
    DEFAULT_TENANT,
    DELAY_MS_MAX,
    HEADERS_BYTES_MAX,
    LEASE_MS_MAX,
    NAME_CHARS_MAX,
    PAYLOAD_BYTES_MAX,
    PRIORITY_MAX,
    PRIORITY_MIN,
)
from everwork.exceptions import EngineError, InvalidInput, PermissionDenied
from everwork.server.errors import wire
from everwork.server.http.api.create import read_job
from everwork.server.http.ui.address import address, job_url
from everwork.server.http.ui.dashboard import OUTCOME_UNKNOWN, detail_of
from everwork.server.http.ui.moments import utc_moment
from everwork.server.http.ui.page import Action, Done, Page, View
from everwork.server.http.ui.visit import Visit
from everwork.service.jobs import Jobs
from everwork.service.verb import rule_of

TYPES_OFFERED_MAX: Final = 300
TEXT: Final = "text"
MOMENT: Final = "moment"
JSON: Final = "json"


class JobField(NamedTuple):
    """A field of the form. `sent_as` is its name in the API, `read` parses what was typed."""

    name: str
    label: str
    hint: str
    read: Callable[[str, str], Any]
    kind: str = TEXT
    unit: str = ""
    api_name: str = ""

    @property
    def sent_as(self) -> str:
        """The field's name in the API."""
        return self.api_name or self.name


def _number(low: int, high: int) -> Callable[[str, str], int]:
    return lambda name, text: checks.whole_number(name, checks.typed(text), low, high)


def _seconds(low: float, high_ms: int) -> Callable[[str, str], int]:
    return lambda name, text: checks.milliseconds(name, checks.typed(text), low, high_ms / 1000)


def _moment(name: str, text: str) -> str:
    return utc_text(utc_moment(name, text))


def _object(bytes_max: int) -> Callable[[str, str], dict[str, Any]]:
    return lambda name, text: decode_typed_object(name, text, bytes_max)


_NAME: Final = f"up to {NAME_CHARS_MAX} characters"
MAIN: Final = (
    JobField("type", "Type", f"The job type that workers take, such as email-send; {_NAME}.", checks.name),
    JobField(
        "variables",
        "Variables",
        f"A JSON object, at most {PAYLOAD_BYTES_MAX // 1_048_576} MiB.",
        _object(PAYLOAD_BYTES_MAX),
        JSON,
    ),
)
MORE: Final = (
    JobField("delay", "Delay", "Seconds until the job is due. Default: due now.",
             _seconds(0, DELAY_MS_MAX), unit="seconds", api_name="delay_ms"),
    JobField("run_at", "Run at", "Instead of a delay: the time at which the job is due.", _moment, MOMENT),
    JobField("priority", "Priority", f"Higher runs first; {PRIORITY_MIN} to {PRIORITY_MAX}. Default: 0.",
             _number(PRIORITY_MIN, PRIORITY_MAX)),
    JobField("tenant", "Tenant", f"The owner of the job; {_NAME}.", checks.name),
    JobField("dedupe_key", "Dedupe key", "No second job is created with the same key while the first one is kept.",
             checks.name),
    JobField("limit_key", "Limit key", "The key to which the type's limit per key applies.", checks.name),
    JobField("correlation_id", "Correlation id", "To find related jobs.", checks.name),
    JobField("max_attempts", "Maximum attempts", f"1 to {ATTEMPTS_MAX}. Default: the type's policy.",
             _number(1, ATTEMPTS_MAX)),
    JobField("timeout", "Timeout", f"For each attempt; up to {LEASE_MS_MAX // 1000:,}. Default: the worker's timeout.",
             _seconds(0.001, LEASE_MS_MAX), unit="seconds", api_name="timeout_ms"),
    JobField("expires_at", "Expires at", "If the job has not started by then, it is cancelled.", _moment, MOMENT),
    JobField("headers", "Headers",
             f"A JSON object, at most {HEADERS_BYTES_MAX // 1_024} KiB. Passed to the handler unchanged.",
             _object(HEADERS_BYTES_MAX), JSON),
)  # fmt: skip
FIELDS: Final = (*MAIN, *MORE)
_FORM_NAMES: Final = {one.sent_as: one.name for one in FIELDS}


async def show(visit: Visit) -> View:
    """Show the form, filled in from the URL."""
    rule_of(Jobs.create).admit(visit.principal)
    typed = {one.name: visit.param(one.name) or "" for one in FIELDS}
    return await _form(visit, typed, {})


async def create(visit: Visit) -> Done | View:
    """Create the job, or show the form again with all typed values and a problem next to each invalid field."""
    typed = {one.name: visit.optional(one.name) or "" for one in FIELDS}
    item, problems = _read(typed)
    status = 422
    if not problems:
        try:
            [created] = await visit.jobs.create([read_job(item, visit.principal)])
            return _created(created, typed)
        except InvalidInput as error:
            problems = {_FORM_NAMES.get(error.field, error.field): error.problem}
        except PermissionDenied:
            problems, status = {"tenant": f"must be one of your tenants: {', '.join(visit.principal.tenants)}"}, 403
        except EngineError as error:
            problems, status = {"engine": detail_of(error, OUTCOME_UNKNOWN)}, wire(error).http
    return await _form(visit, typed, problems, status)


def _read(typed: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """The job in the form that the API accepts, and problems by field."""
    item: dict[str, Any] = {}
    problems: dict[str, str] = {}
    for one in FIELDS:
        text = typed[one.name].strip()
        try:
            if text:
                item[one.sent_as] = one.read(one.name, text)
        except InvalidInput as error:
            problems[one.name] = error.problem
    if "type" not in item and "type" not in problems:
        problems["type"] = "is required"
    if {"delay_ms", "run_at"} <= item.keys():
        problems["run_at"] = "cannot be combined with a delay"
    return item, problems


def _created(created: Created, typed: Mapping[str, str]) -> Done:
    if created.is_spooled:
        spooled = f"the job is spooled (id {created.spool_id}) and will be created when the engine is back"
        return Done(f"The engine cannot be reached: {spooled}.", address("/jobs"))
    if created.deduplicated:
        exists = f"Already exists: job {created.key} has the dedupe key {checks.shown(typed['dedupe_key'].strip())}"
        return Done(f"{exists}. No job was created.", job_url(created.key), is_good=False)
    return Done(f"Job {created.key} was created.", job_url(created.key))


async def _form(visit: Visit, typed: Mapping[str, str], problems: Mapping[str, str], status: int = 200) -> View:
    context = {
        "main": MAIN,
        "more": [one for one in MORE if one.name != "tenant" or typed["tenant"] or len(visit.principal.tenants) != 1],
        "typed": typed,
        "problems": problems,
        "is_more_open": any(typed[one.name] or one.name in problems for one in MORE),
        "types": await _types(visit),
        "tenants": visit.principal.tenants or (DEFAULT_TENANT,),
    }
    return View("job_new.html", context, status if problems else 200)


async def _types(visit: Visit) -> list[str]:
    """The known types, to choose from; none while the engine is unavailable."""
    try:
        if visit.sees_all:
            return sorted(one.info.type for one in await visit.admin.types())[:TYPES_OFFERED_MAX]
        return sorted({count.type for count in await visit.jobs.count()})[:TYPES_OFFERED_MAX]
    except EngineError:
        return []


PAGES = (Page("/jobs/new", show),)
ACTIONS = (Action("/jobs/new", create, Jobs.create),)
