"""What comes in by Everwork's own services: messages become checked values, and errors name the field."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from everwork.codec.json import decode_json, decode_object, encode
from everwork.codec.new_job import wire_job
from everwork.core import checks
from everwork.core.job import NewJob
from everwork.core.limits import (
    ATTEMPTS_MAX,
    DELAY_MS_MAX,
    ERROR_CHARS_MAX,
    ERROR_RULE_CHARS_MAX,
    HEADERS_BYTES_MAX,
    PAYLOAD_BYTES_MAX,
)
from everwork.core.outcome import Complete, Failed, Outcome, Reject, Release, Retry, Throw
from everwork.core.retry import RetryPolicy
from everwork.exceptions import InvalidInput
from everwork.proto import work_pb2
from everwork.service.access.principal import Principal

ERROR_CLASSES_MAX: Final = 100


def new_jobs(messages: Sequence[work_pb2.NewJob], principal: Principal, field: str = "jobs") -> list[NewJob]:
    """Checked jobs; the first that is wrong is named by its place."""
    checked = []
    for at, message in enumerate(messages):
        try:
            checked.append(new_job(message, principal))
        except InvalidInput as error:
            raise InvalidInput(f"{field}[{at}].{error.field}", error.problem) from None
    return checked


def new_job(message: work_pb2.NewJob, principal: Principal) -> NewJob:
    """One checked job, of a tenant that the caller may act for."""
    return wire_job(
        message.type,
        _object("variables", message.variables, PAYLOAD_BYTES_MAX) or {},
        tenant=principal.tenant_for_create(message.tenant or None),
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
        retry=_policy(message.retry),
        extra=_object("extra", message.extra, HEADERS_BYTES_MAX),
    )


def outcome(message: work_pb2.Outcome, principal: Principal) -> Outcome:
    """One checked outcome. The variables of a failure are still to be merged into the job's."""
    key = checks.job_key(message.key)
    attempt = checks.attempt(message.attempt)
    match message.WhichOneof("kind"):
        case "complete":
            return _complete(key, attempt, message.complete, principal)
        case "fail":
            return _fail(key, attempt, message.fail)
        case "retry":
            retry = message.retry
            return Retry(
                key, attempt, _error(retry.error), _milliseconds("delay_ms", retry.delay_ms, retry.HasField("delay_ms"))
            )
        case "reject":
            return Reject(key, attempt, _error(message.reject.error))
        case "release":
            return Release(key, attempt)
        case "throw":
            thrown = message.throw
            return Throw(key, attempt, checks.name("code", thrown.code), _error(thrown.error), _json(thrown.variables))
        case _:
            raise InvalidInput("kind", "must be one of complete, fail, retry, reject, release, throw")


def _complete(key: int, attempt: int, complete: work_pb2.Complete, principal: Principal) -> Complete:
    result = None
    if complete.result:
        value = decode_json("result", complete.result, PAYLOAD_BYTES_MAX)
        result = encode("result", value, PAYLOAD_BYTES_MAX)
    if not complete.events:
        return Complete(key, attempt, result)
    return Complete(key, attempt, result, tuple(new_jobs(complete.events, principal, "events")))


def _fail(key: int, attempt: int, fail: work_pb2.Fail) -> Failed:
    retries = None
    if fail.HasField("retries"):
        retries = checks.whole_number("retries", fail.retries, 0, ATTEMPTS_MAX)
    backoff_ms = _milliseconds("backoff_ms", fail.backoff_ms, fail.HasField("backoff_ms"))
    failed = Failed(key, attempt, _error(fail.error), retries, backoff_ms, fail.final, _json(fail.variables))
    return failed._replace(classes=_classes(fail), is_counted=not fail.uncounted)


def _classes(fail: work_pb2.Fail) -> tuple[str, ...] | None:
    """As many names as there is any use for: a failure must get through."""
    if not fail.by_policy:
        return None
    return tuple(name for name in fail.classes[:ERROR_CLASSES_MAX] if len(name) <= ERROR_RULE_CHARS_MAX)


def _json(raw: bytes) -> str | None:
    found = _object("variables", raw, PAYLOAD_BYTES_MAX)
    return None if found is None else encode("variables", found, PAYLOAD_BYTES_MAX)


def _error(text: str) -> str:
    """Long errors are cut, not refused: a failure must get through."""
    return checks.text("error", text[:ERROR_CHARS_MAX].replace("\0", "\ufffd"), ERROR_CHARS_MAX)


def _milliseconds(field: str, milliseconds: int, is_said: bool) -> int | None:
    return checks.whole_number(field, milliseconds, 0, DELAY_MS_MAX) if is_said else None


def _object(field: str, raw: bytes, bytes_max: int) -> dict[str, Any] | None:
    return decode_object(field, raw, bytes_max) if raw else None


def _policy(raw: bytes) -> RetryPolicy | None:
    if not raw:
        return None
    said = decode_object("retry", raw, HEADERS_BYTES_MAX)
    try:
        return RetryPolicy(**said.get("retry", said))
    except InvalidInput as error:
        raise InvalidInput(f"retry.{error.field}", error.problem) from None
    except (TypeError, AttributeError):
        raise InvalidInput("retry", "must be an object of max_attempts, base, factor, cap, jitter") from None
