"""Validates the arguments of client calls before sending them, so that local and remote calls raise the same errors."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, assert_never

from everwork.client.job import Attempt, lease_of
from everwork.codec.filters import names
from everwork.codec.json import decode_json, decode_object, encode, encode_object
from everwork.codec.new_job import new_job
from everwork.core import checks
from everwork.core import outcome as o
from everwork.core.classify import class_names
from everwork.core.job import NewJob
from everwork.core.leasing import Demand
from everwork.core.limits import (
    ACTIVATE_MAX,
    ATTEMPTS_MAX,
    CREATE_BATCH_MAX,
    DEFAULT_GROUP,
    DELAY_MS_MAX,
    LEASE_MS_MAX,
    NAME_CHARS_MAX,
    PAYLOAD_BYTES_MAX,
    SETTLE_BATCH_MAX,
)
from everwork.core.texts import error_text, traceback_text
from everwork.exceptions import InvalidInput
from everwork.runtime.stacks import traceback_of

JobInput = NewJob | tuple[str, Mapping[str, Any]]
"""A job to create: the return value of `new_job`, or a pair of a type and its variables."""


def worker_name() -> str:
    """A unique name for a worker."""
    return f"{socket.gethostname()[:200]}-{os.getpid()}-{secrets.token_hex(2)}"


def job_from(type: str, variables: Mapping[str, Any] | None, options: Mapping[str, Any]) -> NewJob:
    """One job to create."""
    try:
        return new_job(type, {} if variables is None else variables, **options)
    except TypeError as error:
        unknown = sorted(set(options) - _OPTIONS)
        if not unknown:
            raise
        allowed = ", ".join(sorted(_OPTIONS))
        raise InvalidInput(unknown[0], f"is not a job option; allowed: {allowed}") from error


_OPTIONS = frozenset(new_job.__kwdefaults__ or ())


def jobs_from(jobs: Iterable[JobInput], field: str = "jobs") -> list[NewJob]:
    """Many jobs to create; an error names the index of the first invalid one."""
    if not isinstance(jobs, Iterable):
        raise InvalidInput(field, f"must be jobs, or pairs of a type and variables, not {checks.shown(jobs)}")
    checked = []
    for index, job in enumerate(jobs):
        try:
            checked.append(job if isinstance(job, NewJob) else new_job(*_pair(job)))
        except InvalidInput as error:
            raise InvalidInput(f"{field}[{index}].{error.field}", error.problem) from None
    if len(checked) > CREATE_BATCH_MAX:
        raise InvalidInput(field, f"must be at most {CREATE_BATCH_MAX:,} in one call, not {len(checked):,}")
    return checked


def _pair(job: object) -> tuple[str, Mapping[str, Any]]:
    if not isinstance(job, Sequence) or isinstance(job, str) or len(job) != 2:
        raise InvalidInput("job", f"must be a pair of a type and its variables, not {checks.shown(job)}")
    return job[0], job[1]


def demand_from(
    type: str, worker: str, limit: int, *, lease: float, group: str = DEFAULT_GROUP, tenants: Iterable[str] = ()
) -> Demand:
    """A validated demand for jobs."""
    return Demand(
        checks.name("type", type),
        checks.name("worker", worker),
        checks.whole_number("limit", limit, 1, ACTIVATE_MAX),
        lease_ms(lease),
        checks.text("group", group, NAME_CHARS_MAX),
        names("tenants", tenants),
    )


def lease_ms(seconds: float) -> int:
    """The duration of a lease."""
    return checks.milliseconds("lease", seconds, 0.001, LEASE_MS_MAX / 1000)


def seconds(field: str, value: float) -> float:
    """A duration."""
    return checks.number(field, value, 0, DELAY_MS_MAX / 1000)


# Outcomes -------------------------------------------------------------------------------------------


def completed(job: Attempt, attempt: int, result: Any, events: Iterable[JobInput] = ()) -> o.Complete:
    """The outcome of a completed job."""
    key, number = lease_of(job, attempt)
    text = None if result is None else encode("result", result, PAYLOAD_BYTES_MAX)
    return o.Complete(key, number, text, tuple(jobs_from(events, "events")))


def failed(
    job: Attempt,
    attempt: int,
    error: object,
    *,
    retries: int | None = None,
    backoff: float | None = None,
    final: bool = False,
    variables: Mapping[str, Any] | None = None,
    by_policy: bool = False,
    strict: bool = False,
    traceback: str | None = None,
) -> o.Failed:
    """The outcome of a failed attempt."""
    key, number = lease_of(job, attempt)
    if (by_policy or strict) and (retries is not None or backoff is not None or final):
        rule = "by_policy" if by_policy else "strict"
        raise InvalidInput(rule, "cannot be combined with retries, backoff or final")
    left = None if retries is None else checks.whole_number("retries", retries, 0, ATTEMPTS_MAX)
    failed = o.Failed(
        key, number, error_text(error), left, _delay_ms("backoff", backoff), bool(final), _json(variables),
        traceback=_traceback_of(error) if traceback is None else _traceback_text(traceback),
    )  # fmt: skip
    return failed._replace(classes=_classes(error), strict=bool(strict)) if by_policy or strict else failed


def _classes(error: object) -> tuple[str, ...]:
    return class_names(error) if isinstance(error, BaseException) else ()


def retried(job: Attempt, attempt: int, error: object, delay: float | None) -> o.Retry:
    """The outcome that requests another attempt."""
    return o.Retry(*lease_of(job, attempt), error_text(error), _delay_ms("delay", delay), _traceback_of(error))


def rejected(job: Attempt, attempt: int, error: object) -> o.Reject:
    """The outcome that rejects an invalid job."""
    return o.Reject(*lease_of(job, attempt), error_text(error), _traceback_of(error))


def released(job: Attempt, attempt: int) -> o.Release:
    """The outcome that releases a job."""
    return o.Release(*lease_of(job, attempt))


def thrown(job: Attempt, attempt: int, code: str, error: object, variables: Mapping[str, Any] | None) -> o.Throw:
    """The outcome that fails a job with a business error code."""
    name, text, traceback = checks.name("code", code), error_text(error), _traceback_of(error)
    return o.Throw(*lease_of(job, attempt), name, text, _json(variables), traceback)


def outcomes_from(outcomes: Iterable[o.Outcome]) -> list[o.Outcome]:
    """Validated outcomes that the caller created; an error names the index of the first invalid one."""
    given = list(outcomes)
    if len(given) > SETTLE_BATCH_MAX:
        raise InvalidInput("outcomes", f"must be at most {SETTLE_BATCH_MAX:,} in one call")
    checked_ones = []
    for index, outcome in enumerate(given):
        try:
            checked_ones.append(checked(outcome))
        except InvalidInput as error:
            raise InvalidInput(f"outcomes[{index}].{error.field}", error.problem) from None
    return checked_ones


def checked(outcome: o.Outcome) -> o.Outcome:
    """One validated outcome that the caller created."""
    if not isinstance(outcome, o.Outcome):
        kinds = "Complete, Fail, Retry, Reject, Release or Throw"
        raise InvalidInput("kind", f"must be {kinds}, not {checks.shown(outcome)}")
    named = outcome._replace(key=checks.job_key(outcome.key), attempt=checks.attempt(outcome.attempt))
    if not isinstance(named, o.Complete | o.Release):
        named = named._replace(traceback=_traceback_text(named.traceback))
    match named:
        case o.Complete():
            return named._replace(result=_json_text(named.result), events=tuple(jobs_from(named.events, "events")))
        case o.Failed():
            _optional_number("retries", named.retries, ATTEMPTS_MAX)
            _optional_number("backoff_ms", named.backoff_ms, DELAY_MS_MAX)
            _require_names("classes", named.classes)
            return named._replace(error=error_text(named.error), variables=_object_text(named.variables))
        case o.Retry():
            _optional_number("delay_ms", named.delay_ms, DELAY_MS_MAX)
            return named._replace(error=error_text(named.error))
        case o.Reject():
            return named._replace(error=error_text(named.error))
        case o.Throw():
            checks.name("code", named.code)
            return named._replace(error=error_text(named.error), variables=_object_text(named.variables))
        case o.Release():
            return named
        case _:
            assert_never(named)


def _optional_number(field: str, number: int | None, number_max: int) -> None:
    if number is not None:
        checks.whole_number(field, number, 0, number_max)


def _require_names(field: str, names: object) -> None:
    if names is not None and not (isinstance(names, tuple) and all(isinstance(one, str) for one in names)):
        raise InvalidInput(field, f"must be a tuple of names, or None, not {checks.shown(names)}")


def _traceback_of(error: object) -> str | None:
    """The traceback of an exception, if it was raised."""
    return traceback_of(error) if isinstance(error, BaseException) and error.__traceback__ is not None else None


def _traceback_text(text: object) -> str | None:
    if text is not None and not isinstance(text, str):
        raise InvalidInput("traceback", f"must be a string or None, not {checks.shown(text)}")
    return traceback_text(text) if text else None


def _json_text(text: str | None) -> str | None:
    if text is None:
        return None
    return encode("result", decode_json("result", text, PAYLOAD_BYTES_MAX), PAYLOAD_BYTES_MAX)


def _object_text(text: str | None) -> str | None:
    return None if text is None else _json(decode_object("variables", text, PAYLOAD_BYTES_MAX))


def _delay_ms(field: str, seconds: float | None) -> int | None:
    return None if seconds is None else checks.milliseconds(field, seconds, 0, DELAY_MS_MAX / 1000)


def _json(variables: Mapping[str, Any] | None) -> str | None:
    return None if variables is None else encode_object("variables", variables, PAYLOAD_BYTES_MAX)
