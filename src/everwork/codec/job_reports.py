"""Jobs as JSON objects: one shape for REST, the command line and Python.

Lists hold thousands of jobs, so the conversion names every field. Tests compare it with the declaration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from everwork.codec.json import decode, decode_shown
from everwork.core.instants import utc_text, utc_text_or_none
from everwork.core.job import HistoryEntry, LeasedJob, StoredJob
from everwork.core.outcome import label_of
from everwork.core.queries import Explanation
from everwork.core.retry import remaining_retries
from everwork.core.states import State


def job_report(
    job: StoredJob, history: list[HistoryEntry] | None = None, *, read: Callable[[str], Any] = decode_shown
) -> dict[str, Any]:
    """A job as a JSON object: the key as text, times in RFC 3339. `read` decodes the JSON texts.

    `max_retries` is an alias of `max_attempts`, for programs that test `attempts >= max_retries`.
    """
    report: dict[str, Any] = {
        "key": str(job.key),
        "type": job.type,
        "state": job.state.label,
        "tenant": job.tenant,
        "group": job.group or None,
        "variables": read(job.variables),
        "headers": None if job.headers is None else read(job.headers),
        "result": None if job.result is None else read(job.result),
        "priority": job.priority,
        "attempt": job.attempt,
        "attempts": job.attempts,
        "max_attempts": job.max_attempts,
        "max_retries": job.max_attempts,
        "retries": job.retries,
        "created_at": utc_text(job.created_at_ms),
        "run_at": utc_text(job.run_at_ms),
        "activated_at": utc_text_or_none(job.activated_at_ms),
        "deadline": utc_text_or_none(job.lease_until_ms),
        "finished_at": utc_text_or_none(job.finished_at_ms),
        "expires_at": utc_text_or_none(job.expires_at_ms),
        "timeout_ms": job.timeout_ms,
        "worker": job.worker,
        "last_error": job.last_error,
        "error_code": job.error_code,
        "rejected": job.rejected,
        "dedupe_key": job.dedupe_key,
        "limit_key": job.limit_key,
        "correlation_id": job.correlation_id,
        "copy_of": None if job.copy_of is None else str(job.copy_of),
        "extra": None if job.extra is None else read(job.extra),
    }
    if history is not None:
        report["history"] = [_event_report(event) for event in history]
    return report


def leased_report(job: LeasedJob, worker: str, names: Sequence[str]) -> dict[str, Any]:
    """A leased job as a JSON object."""
    return {
        "key": str(job.key),
        "type": job.type,
        "state": State.PROCESSING.label,
        "tenant": job.tenant,
        "group": job.group or None,
        "variables": _selected(decode(job.variables), names),
        "headers": None if job.headers is None else decode(job.headers),
        "priority": job.priority,
        "attempt": job.attempt,
        "attempts": job.attempts,
        "max_attempts": job.max_attempts,
        "max_retries": job.max_attempts,
        "retries": remaining_retries(State.PROCESSING, job.attempts, job.max_attempts),
        "created_at": utc_text(job.created_at_ms),
        "run_at": utc_text(job.run_at_ms),
        "deadline": utc_text(job.lease_until_ms),
        "timeout_ms": job.timeout_ms,
        "worker": worker,
        "correlation_id": job.correlation_id,
        "limit_key": job.limit_key,
        "extra": None if job.extra is None else decode(job.extra),
    }


def explanation_report(explanation: Explanation) -> dict[str, Any]:
    """An explanation as a JSON object."""
    return {
        "reason": explanation.reason.value,
        "text": explanation.text,
        "until": utc_text_or_none(explanation.until_ms),
        "worker": explanation.worker,
        "ahead": explanation.ahead,
    }


def _event_report(event: HistoryEntry) -> dict[str, Any]:
    return {
        "attempt": event.attempt,
        "kind": event.kind,
        "label": label_of(event.kind),
        "at": utc_text(event.at_ms),
        "worker": event.worker,
        "error": event.error,
        "activated_at": utc_text_or_none(event.activated_at_ms),
        "retry_at": utc_text_or_none(event.retry_at_ms),
        "traceback": event.traceback,
    }


def _selected(variables: Mapping[str, Any], names: Sequence[str]) -> Mapping[str, Any]:
    return {name: variables[name] for name in names if name in variables} if names else variables
