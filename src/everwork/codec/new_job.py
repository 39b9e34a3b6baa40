"""Checks every value of a new job before it reaches an engine; errors name the field."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from everwork.codec.json import decode_object, encode_object, encode_policy
from everwork.core import checks
from everwork.core.instants import instant_ms
from everwork.core.job import NewJob
from everwork.core.limits import (
    ATTEMPTS_MAX,
    DEFAULT_TENANT,
    DELAY_MS_MAX,
    ERROR_CHARS_MAX,
    HEADERS_BYTES_MAX,
    INSTANT_MS_MAX,
    LEASE_MS_MAX,
    PAYLOAD_BYTES_MAX,
    PRIORITY_MAX,
    PRIORITY_MIN,
)
from everwork.core.retry import RetryPolicy, require_policy
from everwork.exceptions import InvalidInput

_CHECKED_TYPES: set[str] = set()


def new_job(  # noqa: PLR0913 - every field of a job
    type: str,
    variables: Mapping[str, Any],
    *,
    tenant: str = DEFAULT_TENANT,
    priority: int = 0,
    delay: float | None = None,
    run_at: datetime | None = None,
    max_attempts: int | None = None,
    dedupe_key: str | None = None,
    limit_key: str | None = None,
    correlation_id: str | None = None,
    expires_at: datetime | None = None,
    timeout: float | None = None,
    headers: Mapping[str, Any] | None = None,
    retry: RetryPolicy | None = None,
    extra: Mapping[str, Any] | None = None,
) -> NewJob:
    """Return a validated job for `Client.create_many`: `new_job("email-send", {"to": "ada"}, delay=60)`.

    Args:
        type: The job type.
        variables: The job's arguments, a JSON object.
        tenant: The tenant that the job belongs to.
        priority: From -512 to 511; higher runs first.
        delay: Seconds to wait before the job is due.
        run_at: When the job is due: a datetime with a time zone. Cannot be combined with `delay`.
        max_attempts: Maximum number of attempts, including the first.
        dedupe_key: If a job of the same tenant and type with this key exists, no new job is created.
        limit_key: Jobs with the same key share the limit `max_running_per_key` of their type's policy.
        correlation_id: Your own id, to find related jobs by.
        expires_at: If the job has not started by then, it is cancelled.
        timeout: Time limit of one attempt, in seconds.
        headers: Metadata, separate from the variables.
        retry: A retry policy for this job only.
        extra: Additional values to store with the job.

    Raises `InvalidInput`, naming the first invalid field.
    """
    if delay is not None and run_at is not None:
        raise InvalidInput("delay", "cannot be combined with run_at")
    return wire_job(
        type,
        variables,
        tenant=tenant,
        priority=priority,
        delay_ms=0 if delay is None else checks.milliseconds("delay", delay, 0, DELAY_MS_MAX / 1000),
        run_at_ms=None if run_at is None else instant("run_at", run_at),
        max_attempts=max_attempts,
        dedupe_key=dedupe_key,
        limit_key=limit_key,
        correlation_id=correlation_id,
        expires_at_ms=None if expires_at is None else instant("expires_at", expires_at),
        timeout_ms=None if timeout is None else checks.milliseconds("timeout", timeout, 0.001, LEASE_MS_MAX / 1000),
        headers=headers,
        retry=require_policy("retry", retry),
        extra=extra,
    )


def wire_job(  # noqa: PLR0913 - every field of a job
    type: str,
    variables: Mapping[str, Any],
    *,
    tenant: str = DEFAULT_TENANT,
    priority: int = 0,
    delay_ms: int = 0,
    run_at_ms: int | None = None,
    max_attempts: int | None = None,
    dedupe_key: str | None = None,
    limit_key: str | None = None,
    correlation_id: str | None = None,
    expires_at_ms: int | None = None,
    timeout_ms: int | None = None,
    headers: Mapping[str, Any] | None = None,
    retry: RetryPolicy | None = None,
    extra: Mapping[str, Any] | None = None,
) -> NewJob:
    """A checked job from an API: times are whole milliseconds."""
    if delay_ms and run_at_ms is not None:
        raise InvalidInput("delay_ms", "cannot be combined with run_at")
    if retry is not None and max_attempts is None:
        max_attempts = retry.max_attempts
    return NewJob(
        _type(type),
        encode_object("variables", variables, PAYLOAD_BYTES_MAX),
        tenant if tenant is DEFAULT_TENANT else checks.name("tenant", tenant),
        checks.whole_number("priority", priority, PRIORITY_MIN, PRIORITY_MAX),
        checks.whole_number("delay_ms", delay_ms, 0, DELAY_MS_MAX),
        None if run_at_ms is None else checks.whole_number("run_at_ms", run_at_ms, 0, INSTANT_MS_MAX),
        None if max_attempts is None else checks.whole_number("max_attempts", max_attempts, 1, ATTEMPTS_MAX),
        None if dedupe_key is None else checks.name("dedupe_key", dedupe_key),
        None if limit_key is None else checks.name("limit_key", limit_key),
        None if correlation_id is None else checks.name("correlation_id", correlation_id),
        None if expires_at_ms is None else checks.whole_number("expires_at_ms", expires_at_ms, 0, INSTANT_MS_MAX),
        None if timeout_ms is None else checks.whole_number("timeout_ms", timeout_ms, 1, LEASE_MS_MAX),
        None if headers is None else encode_object("headers", headers, HEADERS_BYTES_MAX),
        None if retry is None else encode_policy(retry),
        None if extra is None else encode_object("extra", extra, HEADERS_BYTES_MAX),
    )


def require_valid(job: NewJob) -> None:
    """Check a job from a file again: another version or a user may have written it."""
    fields = job._asdict() | {"retry": None, "variables": _object("variables", job.variables, PAYLOAD_BYTES_MAX)}
    for name in ("headers", "extra"):
        text = fields[name]
        fields[name] = None if text is None else _object(name, text, HEADERS_BYTES_MAX)
    wire_job(fields.pop("type"), fields.pop("variables"), **fields)


def _object(field: str, text: object, bytes_max: int) -> dict[str, Any]:
    if not isinstance(text, str):
        raise InvalidInput(field, f"must be a JSON string, not {checks.shown(text)}")
    return decode_object(field, text, bytes_max)


def instant(field: str, value: object) -> int:
    """A datetime with a time zone, from 1970 to 9999, as milliseconds."""
    if not isinstance(value, datetime):
        raise InvalidInput(field, f"must be a datetime with a time zone, not {checks.shown(value)}")
    if value.tzinfo is None:
        raise InvalidInput(field, f"must have a time zone (for example timezone.utc), not {value.isoformat()}")
    return checks.whole_number(field, instant_ms(value), 0, INSTANT_MS_MAX)


def search_text(field: str, value: object) -> str:
    """A text to search for in errors or variables; a blank one, which would match nearly every job, is refused."""
    found = checks.text(field, value, ERROR_CHARS_MAX)
    if not found.strip():
        allowed = f"must have 1 to {ERROR_CHARS_MAX:,} characters, at least one of them not a space"
        raise InvalidInput(field, f"{allowed}, not {checks.shown(value)}")
    return found


def _type(value: object) -> str:
    """A checked type. Known types are cached: there are few, and every job has one."""
    if isinstance(value, str) and value in _CHECKED_TYPES:
        return value
    checked = checks.name("type", value)
    if len(_CHECKED_TYPES) < 10_000:
        _CHECKED_TYPES.add(checked)
    return checked
