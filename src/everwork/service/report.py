"""Jobs and figures as people and programs read them: one shape for the command line, Python and, later, REST."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from everwork.codec.json import decode
from everwork.core.instants import utc_text
from everwork.core.job import HistoryEntry, Job
from everwork.core.queries import Explanation, Stats
from everwork.core.states import State


def job_report(
    job: Job, history: list[HistoryEntry] | None = None, *, read: Callable[[str], Any] = decode
) -> dict[str, Any]:
    """A job as a JSON object: the key as text, times in RFC 3339. `read` makes what stands there of a JSON text."""
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
        "retries": job.retries,
        "created_at": utc_text(job.created_at_ms),
        "run_at": utc_text(job.run_at_ms),
        "activated_at": _time(job.activated_at_ms),
        "deadline": _time(job.lease_until_ms),
        "finished_at": _time(job.finished_at_ms),
        "expires_at": _time(job.expires_at_ms),
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


def explanation_report(explanation: Explanation) -> dict[str, Any]:
    """An explanation as a JSON object."""
    return {
        "reason": explanation.reason.value,
        "text": explanation.text,
        "until": _time(explanation.until_ms),
        "worker": explanation.worker,
        "ahead": explanation.ahead,
    }


@dataclass(frozen=True, slots=True)
class Performance:
    """What workers did in a stretch of time."""

    completed: int
    failed: int
    retried: int
    avg_execution_ms: float
    avg_wait_ms: float

    @property
    def success_rate(self) -> float:
        """Completed jobs in a hundred that ended."""
        ended = self.completed + self.failed
        return 100.0 * self.completed / ended if ended else 0.0


def performance(stats: Stats) -> Performance:
    """The hourly rows summed up."""
    completed = sum(row.completed for row in stats.hours)
    failed = sum(row.failed for row in stats.hours)
    retried = sum(row.retried for row in stats.hours)
    attempts = max(completed + failed + retried, 1)
    return Performance(
        completed,
        failed,
        retried,
        sum(row.execution_ms for row in stats.hours) / attempts,
        sum(row.wait_ms for row in stats.hours) / attempts,
    )


def stats_report(stats: Stats) -> dict[str, Any]:
    """Statistics as a JSON object."""
    by_state: dict[str, int] = {state.label: 0 for state in State}
    by_type: defaultdict[str, dict[str, int]] = defaultdict(lambda: {state.label: 0 for state in State})
    by_worker: defaultdict[str, int] = defaultdict(int)
    for count in stats.counts:
        by_state[count.state.label] += count.jobs
        by_type[count.type][count.state.label] += count.jobs
    for row in stats.hours:
        by_worker[row.worker] += row.completed + row.failed
    summed = performance(stats)
    return {
        "total": sum(by_state.values()),
        "by_state": by_state,
        "by_type": dict(by_type),
        "by_worker": dict(by_worker),
        "performance": {
            "completed": summed.completed,
            "failed": summed.failed,
            "retried": summed.retried,
            "success_rate": round(summed.success_rate, 2),
            "avg_execution_ms": round(summed.avg_execution_ms, 2),
            "avg_wait_ms": round(summed.avg_wait_ms, 2),
        },
        "generated_at": utc_text(stats.generated_at_ms),
    }


def _event_report(event: HistoryEntry) -> dict[str, Any]:
    return {
        "attempt": event.attempt,
        "kind": event.kind,
        "at": utc_text(event.at_ms),
        "worker": event.worker,
        "error": event.error,
        "activated_at": _time(event.activated_at_ms),
        "retry_at": _time(event.retry_at_ms),
    }


def _time(instant_ms: int | None) -> str | None:
    return None if instant_ms is None else utc_text(instant_ms)
