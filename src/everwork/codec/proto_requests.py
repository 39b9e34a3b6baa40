"""Requests of everwork.v1, to and from messages: new jobs, demands and leased jobs, outcomes, filters.

Values from messages are validated, and errors name the field. New and leased jobs are a hot path: their conversion
names every field, because a loop takes up to twice as long. Tests compare it with the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from everwork.codec.fields import MessageFields
from everwork.codec.json import decode_json, decode_object, encode, encode_object
from everwork.codec.new_job import search_text, wire_job
from everwork.core import checks
from everwork.core import outcome as o
from everwork.core.job import LeasedJob, NewJob
from everwork.core.leasing import Demand, Stamp
from everwork.core.limits import (
    ACTIVATE_MAX,
    API_KEYS_TENANTS_MAX,
    ATTEMPTS_MAX,
    DEFAULT_TENANT,
    DELAY_MS_MAX,
    ERROR_CHARS_MAX,
    ERROR_RULE_CHARS_MAX,
    HEADERS_BYTES_MAX,
    INSTANT_MS_MAX,
    KEY_MAX,
    LEASE_MS_DEFAULT,
    LEASE_MS_MAX,
    NAME_CHARS_MAX,
    PAYLOAD_BYTES_MAX,
    PRODUCER_CHARS_MAX,
    STAMP_NUMBER_MAX,
)
from everwork.core.queries import JobFilter, Order, cursor_at
from everwork.core.retry import RetryPolicy
from everwork.core.states import State
from everwork.core.texts import traceback_text
from everwork.exceptions import InvalidInput
from everwork.proto import work_pb2 as pb

TENANT_NAMES_MAX: Final = 10 * API_KEYS_TENANTS_MAX
"""How many tenant names are read of one list, duplicates included."""
LIMIT_DEFAULT: Final = 10
"""How many jobs are leased by default."""
ERROR_CLASSES_MAX: Final = 100

TenantOf = Callable[[str | None], str]
"""Returns the tenant of a new job for a requested tenant; raises if the caller may not act for it."""


# New jobs -------------------------------------------------------------------------------------------


def new_job_message(job: NewJob) -> pb.NewJob:
    """A job to create; the default tenant is left out, because the server knows the key's own tenant."""
    return pb.NewJob(
        type=job.type,
        variables=job.variables.encode(),
        tenant="" if job.tenant == DEFAULT_TENANT else job.tenant,
        priority=job.priority,
        delay_ms=job.delay_ms,
        run_at_ms=job.run_at_ms,
        max_attempts=job.max_attempts or 0,
        dedupe_key=job.dedupe_key or "",
        limit_key=job.limit_key or "",
        correlation_id=job.correlation_id or "",
        expires_at_ms=job.expires_at_ms,
        timeout_ms=job.timeout_ms,
        headers=(job.headers or "").encode(),
        retry=(job.retry or "").encode(),
        extra=(job.extra or "").encode(),
    )


def stamp_of(request: pb.CreateJobsRequest) -> Stamp | None:
    """The checked stamp of a request; None if there is none."""
    if not request.HasField("stamp"):
        return None
    producer, number = request.stamp.producer, request.stamp.number
    if not (1 <= len(producer) <= PRODUCER_CHARS_MAX and producer.isascii() and producer.isprintable()):
        allowed = f"1 to {PRODUCER_CHARS_MAX} printable ASCII characters"
        raise InvalidInput("stamp.producer", f"must have {allowed}, not {checks.shown(producer)}")
    return Stamp(producer, checks.whole_number("stamp.number", number, 1, STAMP_NUMBER_MAX))


def new_jobs_of(
    messages: Sequence[pb.NewJob], tenant_of: TenantOf, field: str = "jobs", first: int = 0
) -> list[NewJob]:
    """Checked jobs; an error names the index of the first invalid one. `first` is the index of the first message."""
    checked = []
    for index, message in enumerate(messages, first):
        try:
            checked.append(new_job_of(message, tenant_of))
        except InvalidInput as error:
            raise InvalidInput(f"{field}[{index}].{error.field}", error.problem) from None
    return checked


def new_job_of(message: pb.NewJob, tenant_of: TenantOf) -> NewJob:
    """One checked job, for a tenant that the caller may act for."""
    return wire_job(
        message.type,
        _object("variables", message.variables, PAYLOAD_BYTES_MAX) or {},
        tenant=tenant_of(message.tenant or None),
        priority=message.priority,
        delay_ms=message.delay_ms,
        run_at_ms=message.run_at_ms if message.HasField("run_at_ms") else None,
        max_attempts=message.max_attempts or None,
        dedupe_key=message.dedupe_key or None,
        limit_key=message.limit_key or None,
        correlation_id=message.correlation_id or None,
        expires_at_ms=message.expires_at_ms if message.HasField("expires_at_ms") else None,
        timeout_ms=message.timeout_ms if message.HasField("timeout_ms") else None,
        headers=_object("headers", message.headers, HEADERS_BYTES_MAX),
        retry=_retry_policy(message.retry),
        extra=_object("extra", message.extra, HEADERS_BYTES_MAX),
    )


def _retry_policy(raw: bytes) -> RetryPolicy | None:
    if not raw:
        return None
    fields = decode_object("retry", raw, HEADERS_BYTES_MAX)
    try:
        return RetryPolicy(**fields.get("retry", fields))
    except InvalidInput as error:
        raise InvalidInput(f"retry.{error.field}", error.problem) from None
    except (TypeError, AttributeError):
        raise InvalidInput("retry", "must be an object with max_attempts, base, factor, cap, jitter") from None


# Demands --------------------------------------------------------------------------------------------


def demand_message(demand: Demand, wait_ms: int) -> pb.ActivateRequest:
    """A request for jobs, optionally with a long poll."""
    return pb.ActivateRequest(
        type=demand.type,
        worker=demand.worker,
        limit=demand.limit,
        lease_ms=demand.lease_ms,
        group=demand.group,
        tenants=demand.tenants,
        wait_ms=wait_ms,
    )


def demand_of(message: pb.ActivateRequest) -> Demand:
    """A checked demand."""
    return Demand(
        checks.name("type", message.type),
        checks.name("worker", message.worker),
        checks.whole_number("limit", message.limit or LIMIT_DEFAULT, 1, ACTIVATE_MAX),
        checks.whole_number("lease_ms", message.lease_ms or LEASE_MS_DEFAULT, 1, LEASE_MS_MAX),
        checks.text("group", message.group, NAME_CHARS_MAX),
        tenant_names("tenants", message.tenants),
    )


def leased_job_message(job: LeasedJob) -> pb.Job:
    """A leased job as sent to its worker."""
    message = pb.Job(
        key=job.key,
        attempt=job.attempt,
        type=job.type,
        group=job.group,
        tenant=job.tenant,
        variables=job.variables.encode(),
        attempts=job.attempts,
        max_attempts=job.max_attempts,
        lease_until_ms=job.lease_until_ms,
        run_at_ms=job.run_at_ms,
        created_at_ms=job.created_at_ms,
    )
    if job.headers is not None:
        message.headers = job.headers.encode()
    if job.priority:
        message.priority = job.priority
    if job.timeout_ms is not None:
        message.timeout_ms = job.timeout_ms
    if job.correlation_id is not None:
        message.correlation_id = job.correlation_id
    if job.limit_key is not None:
        message.limit_key = job.limit_key
    if job.extra is not None:
        message.extra = job.extra.encode()
    return message


def tenant_names(field: str, names: Iterable[str]) -> tuple[str, ...]:
    """Checked tenant names, without duplicates; an empty name is refused. Of too many, no more are read than needed."""
    given = list(islice(names, TENANT_NAMES_MAX + 1))
    found = tuple(dict.fromkeys(checks.name(field, name) for name in given))
    if len(found) > API_KEYS_TENANTS_MAX or len(given) > TENANT_NAMES_MAX:
        raise InvalidInput(field, f"must name at most {API_KEYS_TENANTS_MAX:,} tenants")
    return found


# Outcomes -------------------------------------------------------------------------------------------


def outcome_message(outcome: o.Outcome) -> pb.Outcome:
    """How an attempt ended."""
    return _MESSAGES[type(outcome)](outcome)


def _complete_message(outcome: o.Complete) -> pb.Outcome:
    events = [new_job_message(event) for event in outcome.events]
    complete = pb.Complete(result=_optional_bytes(outcome.result), events=events)
    return pb.Outcome(key=outcome.key, attempt=outcome.attempt, complete=complete)


def _fail_message(outcome: o.Failed) -> pb.Outcome:
    fail = pb.Fail(
        error=outcome.error,
        retries=outcome.retries,
        backoff_ms=outcome.backoff_ms,
        final=outcome.final,
        variables=_optional_bytes(outcome.variables),
        by_policy=outcome.classes is not None,
        classes=outcome.classes or (),
        uncounted=not outcome.is_counted,
        strict=outcome.strict,
        traceback=outcome.traceback or "",
    )
    return pb.Outcome(key=outcome.key, attempt=outcome.attempt, fail=fail)


def _retry_message(outcome: o.Retry) -> pb.Outcome:
    retry = pb.Retry(error=outcome.error, delay_ms=outcome.delay_ms, traceback=outcome.traceback or "")
    return pb.Outcome(key=outcome.key, attempt=outcome.attempt, retry=retry)


def _reject_message(outcome: o.Reject) -> pb.Outcome:
    reject = pb.Reject(error=outcome.error, traceback=outcome.traceback or "")
    return pb.Outcome(key=outcome.key, attempt=outcome.attempt, reject=reject)


def _release_message(outcome: o.Release) -> pb.Outcome:
    return pb.Outcome(key=outcome.key, attempt=outcome.attempt, release=pb.Release())


def _throw_message(outcome: o.Throw) -> pb.Outcome:
    throw = pb.Throw(code=outcome.code, error=outcome.error, variables=_optional_bytes(outcome.variables))
    throw.traceback = outcome.traceback or ""
    return pb.Outcome(key=outcome.key, attempt=outcome.attempt, throw=throw)


_MESSAGES: Final[Mapping[type, Callable[[Any], pb.Outcome]]] = {
    o.Complete: _complete_message,
    o.Failed: _fail_message,
    o.Retry: _retry_message,
    o.Reject: _reject_message,
    o.Release: _release_message,
    o.Throw: _throw_message,
}


def outcome_of(message: pb.Outcome, tenant_of: TenantOf, events: Sequence[NewJob] = ()) -> o.Outcome:
    """One checked outcome, with its events if they are checked already.

    The variables of a failure must still be merged into the job's.
    """
    key = checks.job_key(message.key)
    attempt = checks.attempt(message.attempt)
    match message.WhichOneof("kind"):
        case "complete":
            return _complete_of(key, attempt, message.complete, events, tenant_of)
        case "fail":
            return _failed_of(key, attempt, message.fail)
        case "retry":
            retry = message.retry
            delay_ms = _milliseconds("delay_ms", retry.delay_ms, retry.HasField("delay_ms"))
            return o.Retry(key, attempt, _error(retry.error), delay_ms, _traceback(retry.traceback))
        case "reject":
            return o.Reject(key, attempt, _error(message.reject.error), _traceback(message.reject.traceback))
        case "release":
            return o.Release(key, attempt)
        case "throw":
            throw = message.throw
            code, variables = checks.name("code", throw.code), _variables(throw.variables)
            return o.Throw(key, attempt, code, _error(throw.error), variables, _traceback(throw.traceback))
        case _:
            raise InvalidInput("kind", "must be one of complete, fail, retry, reject, release, throw")


def _complete_of(
    key: int, attempt: int, complete: pb.Complete, events: Sequence[NewJob], tenant_of: TenantOf
) -> o.Complete:
    result = None
    if complete.result:
        value = decode_json("result", complete.result, PAYLOAD_BYTES_MAX)
        result = encode("result", value, PAYLOAD_BYTES_MAX)
    if not complete.events:
        return o.Complete(key, attempt, result)
    return o.Complete(key, attempt, result, tuple(events or new_jobs_of(complete.events, tenant_of, "events")))


def _failed_of(key: int, attempt: int, fail: pb.Fail) -> o.Failed:
    retries = None
    if fail.HasField("retries"):
        retries = checks.whole_number("retries", fail.retries, 0, ATTEMPTS_MAX)
    backoff_ms = _milliseconds("backoff_ms", fail.backoff_ms, fail.HasField("backoff_ms"))
    failed = o.Failed(key, attempt, _error(fail.error), retries, backoff_ms, fail.final, _variables(fail.variables))
    failed = failed._replace(classes=_error_classes(fail), is_counted=not fail.uncounted, strict=fail.strict)
    return failed._replace(traceback=_traceback(fail.traceback))


def _error_classes(fail: pb.Fail) -> tuple[str, ...] | None:
    """The error's classes, limited to a useful number: a failure report must not be refused."""
    if not (fail.by_policy or fail.strict):
        return None
    return tuple(name for name in fail.classes[:ERROR_CLASSES_MAX] if len(name) <= ERROR_RULE_CHARS_MAX)


def _variables(raw: bytes) -> str | None:
    found = _object("variables", raw, PAYLOAD_BYTES_MAX)
    return None if found is None else encode("variables", found, PAYLOAD_BYTES_MAX)


def _error(text: str) -> str:
    """Long errors are truncated, not refused: a failure report must get through."""
    return checks.text("error", text[:ERROR_CHARS_MAX].replace("\0", "\ufffd"), ERROR_CHARS_MAX)


def _traceback(text: str) -> str | None:
    """Also truncated if it is too long."""
    return traceback_text(text) or None


def _milliseconds(field: str, milliseconds: int, is_given: bool) -> int | None:
    return checks.whole_number(field, milliseconds, 0, DELAY_MS_MAX) if is_given else None


def _object(field: str, raw: bytes, bytes_max: int) -> dict[str, Any] | None:
    return decode_object(field, raw, bytes_max) if raw else None


# Changes --------------------------------------------------------------------------------------------


def requeue_message(key: int, variables: Mapping[str, Any] | None) -> pb.RequeueRequest:
    """A request to requeue a job, optionally with new variables."""
    text = None if variables is None else encode_object("variables", variables, PAYLOAD_BYTES_MAX)
    return pb.RequeueRequest(key=key, variables=None if text is None else text.encode())


def new_variables_of(message: pb.RequeueRequest) -> dict[str, Any] | None:
    """The variables that replace the job's own; None keeps them."""
    if not message.HasField("variables"):
        return None
    return decode_object("variables", message.variables, PAYLOAD_BYTES_MAX)


# Filters --------------------------------------------------------------------------------------------


_FILTERS: Final = MessageFields(JobFilter, pb.JobFilter)


def filter_message(filter_: JobFilter) -> pb.JobFilter:
    """Which jobs a list shows."""
    return _FILTERS.message(filter_)


def filter_of(message: pb.JobFilter) -> JobFilter:
    """A checked filter."""
    states = [checks.whole_number("states", number, State.PENDING, State.CANCELLED) for number in message.states]
    return JobFilter(
        type=_name(message, "type"),
        group=checks.text("group", message.group, NAME_CHARS_MAX) if message.HasField("group") else None,
        states=frozenset(State(number) for number in states),
        tenants=tenant_names("tenants", message.tenants),
        worker=_name(message, "worker"),
        correlation_id=_name(message, "correlation_id"),
        dedupe_key=_name(message, "dedupe_key"),
        created_after_ms=_instant(message, "created_after_ms"),
        created_before_ms=_instant(message, "created_before_ms"),
        error_text=_search_text(message, "error_text"),
        variables_text=_search_text(message, "variables_text"),
        due=message.due,
        order=Order(checks.whole_number("order", message.order, Order.NEWEST, Order.FAILED)),
    )


def cursor_from(message: pb.ListRequest) -> int | None:
    """The checked cursor of a list; None for the first page."""
    key = checks.whole_number("cursor", message.cursor, 0, KEY_MAX)
    instant_ms = checks.whole_number("cursor_ms", message.cursor_ms, 0, INSTANT_MS_MAX)
    return cursor_at(instant_ms, key) or None


def _name(message: pb.JobFilter, name: str) -> str | None:
    return checks.name(name, getattr(message, name)) if message.HasField(name) else None


def _search_text(message: pb.JobFilter, name: str) -> str | None:
    return search_text(name, getattr(message, name)) if message.HasField(name) else None


def _instant(message: pb.JobFilter, name: str) -> int | None:
    return checks.whole_number(name, getattr(message, name), 0, INSTANT_MS_MAX) if message.HasField(name) else None


def _optional_bytes(text: str | None) -> bytes | None:
    """A text as the value of an optional field."""
    return None if text is None else text.encode()
