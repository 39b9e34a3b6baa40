"""Replies of the jobs API: jobs and statistics as messages, and the texts of refusals."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any, Final

import orjson

from everwork.codec.json import decode, decode_shown
from everwork.core.instants import utc_text
from everwork.core.job import LeasedJob, StoredJob
from everwork.core.leasing import Judged, Verdict
from everwork.core.queries import Stats
from everwork.core.states import State
from everwork.exceptions import JobNotFound
from everwork.proto import jobs_pb2
from everwork.service.reports import performance

PROCESS_FIELDS: Final = (
    "process_instance_key",
    "bpmn_process_id",
    "process_definition_version",
    "process_definition_key",
    "element_id",
    "element_instance_key",
)
"""Fields that a process engine attaches to its jobs: stored and returned unchanged."""
VIEW_BYTES_MAX: Final = 3_000_000
"""A job with large variables and a large result still fits into one message."""
MAP_BYTES_MAX: Final = 1024 * 1024
NUMBER_BYTES_MAX: Final = 12
"""The size of a number in a map, not counting its name."""
INT32_MAX: Final = 2**31 - 1


def activated(job: LeasedJob, worker: str, fetched: Collection[str]) -> jobs_pb2.ActivatedJob:
    """A leased job as sent to its worker."""
    return jobs_pb2.ActivatedJob(
        job_key=str(job.key),
        type=job.type,
        custom_headers=texts(job.headers),
        worker=worker,
        retries=job.max_attempts - job.attempts + 1,
        deadline=job.lease_until_ms,
        variables=chosen(job.variables, fetched),
        tenant_id=job.tenant,
        attempt=job.attempt,
        **process_fields(job.extra),
    )


def job_view(job: StoredJob) -> jobs_pb2.Job:
    """A job with all its fields."""
    view = jobs_pb2.Job(
        job_key=str(job.key),
        job_type=job.type,
        state=job.state.name,
        worker=job.worker or "",
        retries=job.retries,
        variables=texts(job.variables),
        custom_headers=texts(job.headers),
        error_message=job.last_error or "",
        timeout=job.timeout_ms or 0,
        **process_fields(job.extra),
    )
    _add_times(view, job)
    _add_own_fields(view, job)
    if view.ByteSize() > VIEW_BYTES_MAX:
        view.ClearField("variables")  # They are also in variables_json.
    return view


def stats_view(stats: Stats, type: str, worker: str) -> jobs_pb2.JobStats:
    """Current counts and worker activity, optionally for one type or worker."""
    counts = [count for count in stats.counts if type in ("", count.type)]
    hours = [row for row in stats.hours if type in ("", row.type) and worker in ("", row.worker)]
    by_state: defaultdict[str, int] = defaultdict(int)
    by_type: defaultdict[str, int] = defaultdict(int)
    by_worker: defaultdict[str, int] = defaultdict(int)
    for count in counts:
        by_state[count.state.name] += count.jobs
        by_type[count.type] += count.jobs
    for row in hours:
        by_worker[row.worker] += row.completed + row.failed
    return jobs_pb2.JobStats(
        total_jobs=int32(sum(by_state.values())),
        by_state=_int32s(by_state),
        by_type=_int32s(_largest(by_type)),
        by_worker=_int32s(_largest(by_worker)),
        performance=_performance(Stats(counts, hours, stats.generated_at_ms)),
        generated_at=utc_text(stats.generated_at_ms),
    )


def texts(text: str | None) -> dict[str, str]:
    """A JSON object as a map of strings; values that are not strings are written as JSON."""
    if text is None or text == "{}":
        return {}
    return {name: shown(value) for name, value in _object(text).items()}


def _object(text: str) -> dict[str, Any]:
    """A stored JSON object; empty if it was damaged in the store."""
    value = decode_shown(text)
    return value if isinstance(value, dict) else {}


def chosen(variables: str, fetched: Collection[str]) -> str:
    """A JSON object, reduced to the requested names; the whole object if none is given."""
    if not fetched:
        return variables
    kept = {name: value for name, value in decode(variables).items() if name in fetched}
    return orjson.dumps(kept).decode()


def process_fields(extra: str | None) -> dict[str, Any]:
    """The fields that a process engine attached to a job."""
    if extra is None:
        return {}
    attached = _object(extra)
    return {field: shown(attached[field]) for field in PROCESS_FIELDS if attached.get(field) is not None}


def shown(value: object) -> str:
    """Any JSON value as a string."""
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _add_times(view: jobs_pb2.Job, job: StoredJob) -> None:
    view.created_at = utc_text(job.created_at_ms)
    view.activated_at = _time(job.activated_at_ms)
    view.completed_at = _time(job.finished_at_ms)
    view.deadline = _time(job.lease_until_ms)
    view.run_at = utc_text(job.run_at_ms)
    view.expires_at = _time(job.expires_at_ms)


def _add_own_fields(view: jobs_pb2.Job, job: StoredJob) -> None:
    view.attempt = job.attempt
    view.attempts = job.attempts
    view.max_attempts = job.max_attempts
    view.variables_json = job.variables
    view.result_json = job.result or ""
    view.tenant_id = job.tenant
    view.group = job.group
    view.priority = job.priority
    view.dedupe_key = job.dedupe_key or ""
    view.correlation_id = job.correlation_id or ""
    view.limit_key = job.limit_key or ""
    view.error_code = job.error_code or ""
    view.rejected = job.rejected
    view.copy_of = "" if job.copy_of is None else str(job.copy_of)


def _performance(stats: Stats) -> jobs_pb2.PerformanceStats:
    summed = performance(stats)
    ended = summed.completed + summed.failed
    return jobs_pb2.PerformanceStats(
        avg_execution_time=summed.avg_execution_ms,
        avg_wait_time=summed.avg_wait_ms,
        successful_jobs=int32(summed.completed),
        failed_jobs=int32(summed.failed),
        success_rate=summed.success_rate,
        retry_count=int32(summed.retried),
        avg_retries_per_job=summed.retried / ended if ended else 0.0,
    )


def _time(instant_ms: int | None) -> str:
    return "" if instant_ms is None else utc_text(instant_ms)


def int32(number: int) -> int:
    """A count, capped at what the field can hold."""
    return min(number, INT32_MAX)


def _largest(numbers: Mapping[str, int]) -> dict[str, int]:
    """The entries with the largest numbers, as many as fit into a message with other maps."""
    kept: dict[str, int] = {}
    size = 0
    for name, number in sorted(numbers.items(), key=lambda one: -one[1]):
        size += len(name.encode()) + NUMBER_BYTES_MAX
        if size > MAP_BYTES_MAX:
            break
        kept[name] = number
    return kept


def _int32s(numbers: Mapping[str, int]) -> dict[str, int]:
    return {name: int32(number) for name, number in numbers.items()}


def refusal(key: int, judged: Judged) -> str:
    """Why an outcome was not accepted; raises if the job does not exist."""
    if judged.verdict is Verdict.NOT_FOUND:
        raise JobNotFound(key)
    if judged.verdict is Verdict.LEASE_LOST:
        return f"Job '{key}': lease lost, this attempt no longer holds it"
    return of_state(key, judged.state)


def of_state(key: int, state: State | None) -> str:
    """Why a job in this state accepts no outcome."""
    match state:
        case State.CANCELLED:
            return f"Job '{key}' was cancelled"
        case State.PENDING:
            return f"Job '{key}' is not activated"
        case _:
            return f"Job '{key}' not found or already completed"
