"""Jobs and outcomes as messages, and messages as values: what a client says and hears."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from everwork.codec.work import new_job_message
from everwork.core import outcome as o
from everwork.core.job import HistoryEntry, Job, NewJob
from everwork.core.leasing import Judged, Verdict
from everwork.core.limits import DEFAULT_TENANT
from everwork.core.queries import Count, Explanation, JobFilter, Page, Reason, Stats, WorkerHour
from everwork.core.states import State
from everwork.proto import work_pb2 as pb

VERDICTS: Final[Mapping[int, Verdict]] = {
    pb.ACCEPTED: Verdict.ACCEPTED,
    pb.REPEATED: Verdict.REPEATED,
    pb.REFUSED_NOT_FOUND: Verdict.NOT_FOUND,
    pb.REFUSED_WRONG_STATE: Verdict.WRONG_STATE,
    pb.REFUSED_LEASE_LOST: Verdict.LEASE_LOST,
}


# Said -----------------------------------------------------------------------------------------------


def asked_job_message(job: NewJob) -> pb.NewJob:
    """A job to be created; the key's own tenant is the server's to know."""
    message = new_job_message(job)
    if job.tenant == DEFAULT_TENANT:
        message.tenant = ""
    return message


def outcome_message(outcome: o.Outcome) -> pb.Outcome:
    """How an attempt ended."""
    return _SAID[type(outcome)](outcome)


def _complete(said: o.Complete) -> pb.Outcome:
    events = [asked_job_message(event) for event in said.events]
    return pb.Outcome(
        key=said.key, attempt=said.attempt, complete=pb.Complete(result=_bytes(said.result), events=events)
    )


def _fail(said: o.Failed) -> pb.Outcome:
    fail = pb.Fail(
        error=said.error,
        retries=said.retries,
        backoff_ms=said.backoff_ms,
        final=said.final,
        variables=_bytes(said.variables),
        by_policy=said.classes is not None,
        classes=said.classes or (),
        uncounted=not said.is_counted,
    )
    return pb.Outcome(key=said.key, attempt=said.attempt, fail=fail)


def _retry(said: o.Retry) -> pb.Outcome:
    return pb.Outcome(key=said.key, attempt=said.attempt, retry=pb.Retry(error=said.error, delay_ms=said.delay_ms))


def _reject(said: o.Reject) -> pb.Outcome:
    return pb.Outcome(key=said.key, attempt=said.attempt, reject=pb.Reject(error=said.error))


def _release(said: o.Release) -> pb.Outcome:
    return pb.Outcome(key=said.key, attempt=said.attempt, release=pb.Release())


def _throw(said: o.Throw) -> pb.Outcome:
    throw = pb.Throw(code=said.code, error=said.error, variables=_bytes(said.variables))
    return pb.Outcome(key=said.key, attempt=said.attempt, throw=throw)


_SAID: Final[Mapping[type, Callable[[Any], pb.Outcome]]] = {
    o.Complete: _complete,
    o.Failed: _fail,
    o.Retry: _retry,
    o.Reject: _reject,
    o.Release: _release,
    o.Throw: _throw,
}


def filter_message(wanted: JobFilter) -> pb.JobFilter:
    """Which jobs a list shows."""
    return pb.JobFilter(
        type=wanted.type,
        group=wanted.group,
        states=sorted(wanted.states),
        tenants=wanted.tenants,
        worker=wanted.worker,
        correlation_id=wanted.correlation_id,
        created_after_ms=wanted.created_after_ms,
        created_before_ms=wanted.created_before_ms,
        error_text=wanted.error_text,
        due=wanted.due,
    )


# Heard ----------------------------------------------------------------------------------------------


def job_of(view: pb.JobView) -> Job:
    """A job as it stands."""
    return Job(
        key=view.key,
        type=view.type,
        state=State(view.state),
        tenant=view.tenant,
        group=view.group,
        variables=view.variables.decode(),
        headers=_text(view, "headers"),
        result=_text(view, "result"),
        priority=view.priority,
        attempt=view.attempt,
        attempts=view.attempts,
        max_attempts=view.max_attempts,
        retries=view.retries,
        created_at_ms=view.created_at_ms,
        run_at_ms=view.run_at_ms,
        rejected=view.rejected,
        extra=_text(view, "extra"),
        **{name: _maybe(view, name) for name in _OPTIONAL},
    )


_OPTIONAL: Final = (
    "activated_at_ms", "lease_until_ms", "finished_at_ms", "expires_at_ms", "timeout_ms", "worker", "last_error",
    "error_code", "dedupe_key", "limit_key", "correlation_id", "copy_of",
)  # fmt: skip


def judged_of(message: pb.Judged) -> Judged:
    """The verdict on one item."""
    return Judged(VERDICTS[message.verdict], State(message.state) if message.state else None)


def page_of(message: pb.Page) -> Page:
    """Jobs, newest first."""
    return Page([job_of(view) for view in message.jobs], message.next or None)


def history_of(message: pb.HistoryResponse) -> list[HistoryEntry]:
    """How a job's attempts ended."""
    return [
        HistoryEntry(
            entry.attempt,
            entry.kind,
            entry.at_ms,
            _maybe(entry, "worker"),
            _maybe(entry, "error"),
            _maybe(entry, "activated_at_ms"),
            _maybe(entry, "retry_at_ms"),
        )
        for entry in message.entries
    ]


def explanation_of(message: pb.Explanation) -> Explanation:
    """Why a job is not running."""
    return Explanation(
        message.key,
        State(message.state),
        Reason(message.reason),
        message.text,
        _maybe(message, "until_ms"),
        _maybe(message, "worker"),
        _maybe(message, "ahead"),
    )


def stats_of(message: pb.StatsResponse) -> Stats:
    """Counts, and what workers did lately."""
    counts = [Count(c.tenant, c.type, c.group, State(c.state), c.jobs) for c in message.counts]
    hours = [
        WorkerHour(h.hour, h.type, h.worker, h.completed, h.failed, h.retried, h.execution_ms, h.wait_ms)
        for h in message.hours
    ]
    return Stats(counts, hours, message.generated_at_ms, message.partial)


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def _maybe(message: Any, name: str) -> Any:
    return getattr(message, name) if message.HasField(name) else None


def _text(message: Any, name: str) -> str | None:
    return getattr(message, name).decode() if message.HasField(name) else None
