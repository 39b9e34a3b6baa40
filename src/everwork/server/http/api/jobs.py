"""REST: list, get and create jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import orjson
from starlette.responses import Response

from everwork.codec.job_reports import explanation_report, job_report
from everwork.codec.json import spliced
from everwork.core import checks
from everwork.core.job import StoredJob
from everwork.core.leasing import Created
from everwork.core.limits import (
    FILTER_STATES_MAX,
    LIST_LIMIT_DEFAULT,
    LIST_LIMIT_MAX,
    PAGE_BYTES_MAX,
    PAYLOAD_BYTES_MAX,
)
from everwork.core.queries import CURSOR_MAX, ORDERS, JobFilter, Order, Page
from everwork.exceptions import InvalidInput
from everwork.server.http.api.create import NEW_JOB, created_jobs, created_key, read_jobs
from everwork.server.http.api.schemas import list_of, ref
from everwork.server.http.framework.body import BULK_BYTES_MAX, read_json
from everwork.server.http.framework.fields import INSTANT, NAME, SEARCH_TEXT, STATE, Integer, ListOf, OneOf
from everwork.server.http.framework.operations import (
    Call,
    Field,
    Operation,
    ResponseSpec,
    append_list,
    json_response,
    long_response,
)
from everwork.service.jobs import Jobs

PAGE_CHARS_MAX: Final = 16 * 1_048_576
"""After this many characters of variables and results, a page is full, whatever its limit."""
BUILT_BYTES_MAX: Final = 3 * PAGE_BYTES_MAX
"""The memory that a page takes while it is built: its rows, their texts, and the response."""
PAGE_STEP: Final = 100
JOB_BYTES_MAX: Final = 3 * (PAYLOAD_BYTES_MAX + PAYLOAD_BYTES_MAX)
"""What a job of unknown size takes while it is read and reported, with its variables and its result."""
TENANTS_MAX: Final = 50

ORDER_HELP: Final = "`newest`; `due`: pending jobs, earliest first; `failed`: dead letters, latest failure first."
CURSOR_DIGITS: Final = len(str(CURSOR_MAX))


class Cursor:
    """The cursor of a list: digits that the caller sends back unchanged."""

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema."""
        return {"type": "string", "pattern": f"^[1-9][0-9]{{0,{CURSOR_DIGITS - 1}}}$"}

    def read(self, name: str, value: object) -> int:
        """The position in the list."""
        is_number = isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= CURSOR_DIGITS
        return checks.whole_number(name, int(str(value)) if is_number else value, 1, CURSOR_MAX)

    parse = read


FILTER: Final = (
    Field("type", NAME, "Jobs of this type."),
    Field("worker", NAME, "Jobs that this worker is running or ran last."),
    Field("tenant", ListOf(NAME, TENANTS_MAX, 1), "Jobs of these tenants.", default=()),
    Field("correlation_id", NAME, "Jobs with this correlation id."),
    Field("dedupe_key", NAME, "Jobs with this dedupe key: at most one per type and tenant."),
    Field("created_after", INSTANT, "Jobs created at or after this time."),
    Field("created_before", INSTANT, "Jobs created before this time."),
    Field("error", SEARCH_TEXT, "Jobs whose last error contains this text, ignoring case."),
    Field("variables", SEARCH_TEXT, "Jobs whose variables, as compact JSON, contain this text; case-sensitive."),
)
_LIST_QUERY: Final = (
    Field(
        "state",
        ListOf(STATE, FILTER_STATES_MAX),
        "Jobs in these states. `activatable` means pending and due.",
        default=(),
    ),
    *FILTER,
    Field("order", OneOf(ORDERS), ORDER_HELP, default=Order.NEWEST.label),
    Field("limit", Integer(1, LIST_LIMIT_MAX), "Page size.", default=LIST_LIMIT_DEFAULT),
    Field("cursor", Cursor(), "`next` from the previous page, with the same order."),
)


async def list_jobs(call: Call) -> Response:
    """List matching jobs, newest first or in another order."""
    filter_ = replace(job_filter(call.query), order=Order[call.query["order"].upper()])
    page = await _bounded_page(call, filter_, call.query["limit"])
    body = bytearray(b'{"jobs":')
    await append_list(body, page.jobs, call.slices, partial(job_report, read=spliced))
    body += b',"next":%b}' % orjson.dumps(None if page.next is None else str(page.next))
    return long_response(body)


async def _bounded_page(call: Call, filter_: JobFilter, limit: int) -> Page:
    """Read up to `limit` jobs, or fewer if they are large, to bound memory."""
    jobs: list[StoredJob] = []
    page = Page([], call.query["cursor"])
    chars = 0
    while len(jobs) < limit and chars < PAGE_CHARS_MAX:
        wanted = min(limit - len(jobs), PAGE_STEP)
        page = await call.jobs.find(filter_, wanted, page.next)
        jobs += page.jobs
        chars += sum(len(job.variables) + len(job.result or "") for job in page.jobs)
        if page.next is None or len(page.jobs) < wanted:
            break
        await call.slices.give_way()
    return Page(jobs, page.next)


async def get_job(call: Call) -> Response:
    """Get a job, its history, and the reason it is not running."""
    job = await call.jobs.get(call.key)
    report = job_report(job, await call.jobs.history(call.key))
    report["explanation"] = explanation_report(await call.jobs.explain(call.key))
    return json_response(report)


async def create_jobs(call: Call) -> Response:
    """Create one job or a list of jobs, all or none."""
    sent = await read_json(call.request, BULK_BYTES_MAX)
    if not isinstance(sent, dict | list):
        raise InvalidInput("body", "must be a job or a list of jobs")
    jobs = await read_jobs(sent, call.principal, call.slices)
    created = await call.jobs.create(jobs)
    is_spooled = any(one.is_spooled for one in created)
    is_short = is_spooled or call.prefers_minimal or not await _has_room_for(call, created)
    reports = [created_key(one) for one in created] if is_short else await created_jobs(call, jobs, created)
    body = await _created_body(call, sent, reports)
    if not call.hold.has_room(len(body)):
        body = await _created_body(call, sent, [created_key(one) for one in created])
    return long_response(body, 202 if is_spooled else 201)


async def _has_room_for(call: Call, created: Sequence[Created]) -> bool:
    """Whether the jobs can be read for the response: deduplicated ones may be far larger than the request."""
    found = sum(one.deduplicated for one in created)
    return not found or await call.hold.reserve_more(min(found * JOB_BYTES_MAX, BUILT_BYTES_MAX))


async def _created_body(call: Call, sent: object, reports: Sequence[dict[str, Any]]) -> bytearray:
    if isinstance(sent, dict):
        return bytearray(orjson.dumps(reports[0]))
    body = bytearray()
    await append_list(body, reports, call.slices, dict)
    return body


async def get_spooled(call: Call) -> Response:
    """Report the state of a spooled job."""
    spool_id = call.path_param("spool_id")
    created, reason = await call.jobs.spooled(spool_id)
    return json_response(
        {
            "spool_id": spool_id,
            "state": "delivered" if created else "set_aside" if reason else "waiting",
            "key": str(created.key) if created else None,
            "deduplicated": bool(created and created.deduplicated),
            "reason": reason,
        }
    )


def job_filter(sent: dict[str, Any]) -> JobFilter:
    """The filter of a query or body."""
    states, due = checks.state_filters(sent.get("state", ()))
    return JobFilter(
        type=sent["type"],
        states=states,
        tenants=sent["tenant"],
        worker=sent["worker"],
        correlation_id=sent["correlation_id"],
        dedupe_key=sent["dedupe_key"],
        created_after_ms=sent["created_after"],
        created_before_ms=sent["created_before"],
        error_text=sent["error"],
        variables_text=sent["variables"],
        due=due,
    )


_PAGE: Final = {200: ResponseSpec("A page of jobs, in the requested order.", ref("JobPage"))}
_CREATED_ONE: Final = {"anyOf": [ref("CreatedJob"), ref("CreatedKey")]}
_CREATED: Final = {"anyOf": [*_CREATED_ONE["anyOf"], list_of(_CREATED_ONE)]}
_SPOOLED: Final = {"anyOf": [ref("SpooledKey"), list_of(ref("SpooledKey"))]}

OPERATIONS: Final = (
    Operation(
        "listJobs",
        "GET",
        "/api/v1/jobs",
        list_jobs,
        "List jobs",
        _PAGE,
        Jobs.find,
        query=_LIST_QUERY,
        response_bytes_max=BUILT_BYTES_MAX,
    ),
    Operation(
        "listJobsShort",
        "GET",
        "/jobs",
        list_jobs,
        "List jobs (alias of /api/v1/jobs)",
        _PAGE,
        Jobs.find,
        query=_LIST_QUERY,
        response_bytes_max=BUILT_BYTES_MAX,
    ),
    Operation(
        "createJobs",
        "POST",
        "/api/v1/jobs",
        create_jobs,
        "Create a job, or a list of jobs in one transaction",
        {
            201: ResponseSpec(
                "The job, or the list of jobs. Only keys with `Prefer: return=minimal`, or if the jobs are large.",
                _CREATED,
            ),
            202: ResponseSpec("The engine is unavailable. The jobs are spooled and will be created later.", _SPOOLED),
        },
        Jobs.create,
        body=NEW_JOB,
        is_bulk=True,
    ),
    Operation(
        "getJob",
        "GET",
        "/api/v1/jobs/{key}",
        get_job,
        "Get a job, its history, and why it is not running",
        {200: ResponseSpec("The job.", ref("JobInDetail"))},
        Jobs.get,
        problems=(404,),
        response_bytes_max=JOB_BYTES_MAX,
    ),
    Operation(
        "getSpooledJob",
        "GET",
        "/api/v1/spool/{spool_id}",
        get_spooled,
        "Get the state of a spooled job",
        {
            200: ResponseSpec(
                "The state of the spooled job, with its key or the reason it was set aside.", ref("SpooledJob")
            )
        },
        Jobs.spooled,
        problems=(404,),
    ),
)
