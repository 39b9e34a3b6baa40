"""Requests of the jobs API: converts messages to validated values; errors name the message's field."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

from everwork.codec.json import decode_json, decode_object, encode
from everwork.codec.new_job import wire_job
from everwork.codec.proto_requests import tenant_names
from everwork.core import checks
from everwork.core.instants import moment_ms
from everwork.core.job import NewJob
from everwork.core.leasing import Demand
from everwork.core.limits import (
    ATTEMPTS_MAX,
    DEFAULT_GROUP,
    DELAY_MS_MAX,
    FETCHED_MAX,
    LEASE_MS_DEFAULT,
    LEASE_MS_MAX,
    LIST_LIMIT_MAX,
    NAME_CHARS_MAX,
    PAYLOAD_BYTES_MAX,
)
from everwork.core.outcome import Complete, Failed, Throw
from everwork.core.queries import JobFilter
from everwork.core.texts import error_text, traceback_text
from everwork.exceptions import InvalidInput
from everwork.proto import jobs_pb2
from everwork.server.grpc.jobs_replies import PROCESS_FIELDS
from everwork.server.grpc.offset_pages import Order, sort_named
from everwork.service.access.principal import Principal

JOBS_DEFAULT: Final = 10
JOBS_MAX: Final = 100
LISTED_DEFAULT: Final = 10
OFFSET_MAX: Final = 10_000
HOURS_OF: Final[Mapping[str, int]] = {"1h": 1, "24h": 24, "7d": 7 * 24, "30d": 30 * 24}
HOURS_DEFAULT: Final = "24h"

OfOneJob: TypeAlias = (
    jobs_pb2.CompleteJobRequest
    | jobs_pb2.FailJobRequest
    | jobs_pb2.ThrowErrorRequest
    | jobs_pb2.UpdateJobRetriesRequest
    | jobs_pb2.UpdateJobTimeoutRequest
    | jobs_pb2.CancelJobRequest
    | jobs_pb2.GetJobRequest
)

_FIELD_NAMES: Final[Mapping[str, str]] = {
    "type": "job_type",
    "max_attempts": "retries",
    "headers": "custom_headers",
    "tenant": "tenant_id",
    "timeout_ms": "timeout",
    "expires_at_ms": "expires_at",
}
"""Maps a field's name in the service to its name in the message."""


@contextmanager
def message_field_names(variables: str) -> Iterator[None]:
    """Make errors use the field name of the message."""
    try:
        yield
    except InvalidInput as error:
        names = {**_FIELD_NAMES, "variables": variables}
        raise InvalidInput(names.get(error.field, error.field), error.problem) from None


def new_job(request: jobs_pb2.CreateJobRequest, principal: Principal) -> NewJob:
    """A validated job, for a tenant that the caller may act for."""
    extra = {field: _extra(field, getattr(request, field)) for field in PROCESS_FIELDS}
    kept = {field: text for field, text in extra.items() if text}
    with message_field_names("variables_json" if request.variables_json else "variables"):
        return wire_job(
            request.job_type,
            one_of_two(request.variables, request.variables_json) or {},
            tenant=principal.tenant_for_create(request.tenant_id or None),
            priority=request.priority,
            delay_ms=request.delay_ms,
            max_attempts=request.retries or None,
            dedupe_key=request.dedupe_key or None,
            limit_key=request.limit_key or None,
            correlation_id=request.correlation_id or None,
            expires_at_ms=moment_ms("expires_at", request.expires_at) if request.expires_at else None,
            timeout_ms=request.timeout or None,
            headers=dict(request.custom_headers) or None,
            extra=kept or None,
        )


def demand(request: jobs_pb2.ActivateJobsRequest) -> Demand:
    """A validated demand."""
    return Demand(
        checks.name("type", request.type),
        checks.name("worker", request.worker),
        checks.whole_number("max_jobs_to_activate", request.max_jobs_to_activate or JOBS_DEFAULT, 1, JOBS_MAX),
        checks.whole_number("timeout", request.timeout or LEASE_MS_DEFAULT, 1, LEASE_MS_MAX),
        checks.name("group", request.group) if request.group else DEFAULT_GROUP,
        tenants("tenant_ids", request.tenant_ids.split(",")),
    )


def completion(request: jobs_pb2.CompleteJobRequest) -> Complete:
    """A completed attempt."""
    result = None
    if request.variables_json:
        _require_one(request.variables)
        value = decode_json("variables_json", request.variables_json, PAYLOAD_BYTES_MAX)
        result = encode("variables_json", value, PAYLOAD_BYTES_MAX)
    elif variables := request.variables:
        # Reading one value at a time is twice as fast as `dict`.
        result = encode("variables", {name: variables[name] for name in variables}, PAYLOAD_BYTES_MAX)
    return Complete(job_key(request), request.attempt, result)


def failure(request: jobs_pb2.FailJobRequest) -> Failed:
    """A failed attempt, without its variables."""
    # A long error is truncated, not refused: a failure report must get through.
    error = error_text(request.error_message)
    retries = checks.whole_number("retries", request.retries, 0, ATTEMPTS_MAX)
    backoff_ms = checks.whole_number("backoff_timeout", request.backoff_timeout, 0, DELAY_MS_MAX)
    failed = Failed(job_key(request), request.attempt, error, traceback=traceback_text(request.traceback) or None)
    if request.by_policy or request.strict:
        return failed._replace(classes=(), strict=request.strict)
    return failed._replace(retries=retries, backoff_ms=backoff_ms)


def throw(request: jobs_pb2.ThrowErrorRequest) -> Throw:
    """A business error, without its variables."""
    code = checks.name("error_code", request.error_code)
    traceback = traceback_text(request.traceback) or None
    return Throw(job_key(request), request.attempt, code, error_text(request.error_message), traceback=traceback)


def job_key(request: OfOneJob) -> int:
    """The job key in a request; a malformed key means that the job does not exist."""
    return checks.known_key(request.job_key, "job_key")


def job_filter(request: jobs_pb2.ListJobsRequest) -> JobFilter:
    """Which jobs a list shows."""
    state, is_due = checks.state_filter(request.state) if request.state else (None, False)
    return JobFilter(
        type=checks.name("job_type", request.job_type) if request.job_type else None,
        states=frozenset() if state is None else frozenset([state]),
        tenants=tenants("tenant_ids", request.tenant_ids.split(",")),
        worker=checks.name("worker", request.worker) if request.worker else None,
        due=is_due,
    )


def page(request: jobs_pb2.ListJobsRequest) -> tuple[int, int]:
    """The limit and the offset of a list."""
    limit = checks.whole_number("limit", request.limit or LISTED_DEFAULT, 1, LIST_LIMIT_MAX)
    return limit, checks.whole_number("offset", request.offset, 0, OFFSET_MAX)


def order(request: jobs_pb2.ListJobsRequest) -> Order:
    """How a list is sorted: newest first by default."""
    return Order(sort_named(request.sort_by), request.sort_desc) if request.sort_by else Order()


def hours(request: jobs_pb2.GetJobStatsRequest) -> int:
    """The period of the statistics, in hours."""
    period = request.time_range or HOURS_DEFAULT
    if period not in HOURS_OF:
        raise InvalidInput("time_range", f"must be one of {', '.join(HOURS_OF)}, not {checks.shown(period)}")
    return HOURS_OF[period]


def one_of_two(variables: Mapping[str, str], variables_json: str) -> dict[str, Any]:
    """Variables as a map with string values, or as JSON, which keeps types."""
    if not variables_json:
        return dict(variables)
    _require_one(variables)
    return decode_object("variables_json", variables_json, PAYLOAD_BYTES_MAX)


def tenants(field: str, names: Iterable[str]) -> tuple[str, ...]:
    """The tenants in a request; none means all tenants of the key."""
    stripped = (name.strip() for name in names)
    return tenant_names(field, (name for name in stripped if name))


def fetched(field: str, names: Sequence[str]) -> frozenset[str]:
    """The variables that a worker gets; none means all."""
    if len(names) > FETCHED_MAX:
        raise InvalidInput(field, f"must name at most {FETCHED_MAX:,} variables, not {len(names):,}")
    return frozenset(names)


def _require_one(variables: Mapping[str, str]) -> None:
    if variables:
        raise InvalidInput("variables_json", "cannot be combined with variables")


def _extra(field: str, text: str) -> str:
    return checks.text(field, text, NAME_CHARS_MAX)
