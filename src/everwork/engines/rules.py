"""Rules that every engine shares: on outcomes, explanations, queries, rows of jobs, and triggers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeVar

from everwork.codec.json import decode_policy
from everwork.core.breaker import Breaker, BreakerState
from everwork.core.checks import shown
from everwork.core.instants import utc_text
from everwork.core.job import HistoryEntry, NewJob, StoredJob
from everwork.core.leasing import Created, Judged, Stamp, Verdict
from everwork.core.limits import INSTANT_MS_MAX
from everwork.core.outcome import Lapse, Outcome, kind_of
from everwork.core.policy import TypePolicy
from everwork.core.queries import STATE_OF_ORDER, Explanation, JobFilter, Reason, TypeInfo
from everwork.core.retry import remaining_retries
from everwork.core.states import Cause, State
from everwork.engines.values import Fire, Fired, TriggerMark
from everwork.exceptions import InvalidInput
from everwork.logs import get_logger

log = get_logger("everwork")
T = TypeVar("T")

TOP_NAME: Final = "\U0010ffff"
"""Sorts after every name: it is not a printable character."""
AUTOMATIC_REQUEUE: Final = "automatic"
"""The error recorded in the history for an automatic requeue."""
AUTOMATIC_REQUEUES: Final = (AUTOMATIC_REQUEUE, "by itself")
"""How a store's history can name an automatic requeue; older stores use the second form."""
CHANGED_ARGUMENTS: Final = "arguments changed"
"""The error recorded in the history for a requeue with other variables."""
AHEAD_MAX: Final = 10_000
"""At most this many jobs ahead are counted."""
REQUESTED_RECENTLY_MS: Final = 60_000
_LAPSED: Final = kind_of(Lapse(0, 0, ""))
_REJECTED: Final = Cause.REJECT.value


def refused(outcome: Outcome, state: State, latest: int, ended: str | None) -> Judged:
    """The verdict on an outcome that did not pass the guard.

    `latest` is the job's latest attempt; `ended` is how the attempt named by the outcome ended, if it has ended.
    """
    if outcome.attempt == 0:
        return Judged(Verdict.WRONG_STATE, state)
    if ended == kind_of(outcome):
        return Judged(Verdict.REPEATED, state)
    if outcome.attempt == latest and ended != _LAPSED:
        return Judged(Verdict.WRONG_STATE, state)
    return Judged(Verdict.LEASE_LOST, state)


def outdated(stamp: Stamp) -> InvalidInput:
    """The error for a create that was repeated after its producer had sent a later one."""
    return InvalidInput("stamp", f"number {stamp.number} of producer '{stamp.producer}' is outdated")


class Facts(NamedTuple):
    """The facts that an engine reads to explain a job."""

    key: int
    state: State
    type: str
    group: str
    run_at_ms: int
    is_paused: bool
    breaker: Breaker
    asked_at_ms: int | None
    ahead: int
    worker: str | None
    lease_until_ms: int | None
    policy: str | None = None
    limit_key: str | None = None
    running: int = 0
    """The number of running jobs of the same type and group."""
    lane_running: int = 0
    is_probe_live: bool = False
    rate_full_until_ms: int | None = None


def explained(facts: Facts, now_ms: int) -> Explanation:
    """The first reason why a job is not running, in the order in which a claim checks them."""
    key, state = facts.key, facts.state
    if state is State.PROCESSING and facts.lease_until_ms is not None:
        until = utc_text(facts.lease_until_ms)
        text = f"running: worker '{facts.worker}' holds the lease until {until}"
        if facts.lease_until_ms <= now_ms:
            text = f"the lease of worker '{facts.worker}' expired at {until}: the next worker or tick retries the job"
        return Explanation(key, state, Reason.RUNNING, text, facts.lease_until_ms, facts.worker)
    if state is not State.PENDING:
        return Explanation(key, state, Reason.FINISHED, _finished_text(state))
    if facts.run_at_ms > now_ms:
        text = f"scheduled to start at {utc_text(facts.run_at_ms)}"
        return Explanation(key, state, Reason.SCHEDULED, text, facts.run_at_ms)
    if facts.is_paused:
        text = f"type '{facts.type}' is paused; resume it to let its jobs start"
        return Explanation(key, state, Reason.PAUSED, text)
    return _stopped_by_breaker(facts, now_ms) or _limited(facts, now_ms) or _waiting(facts, now_ms)


def _finished_text(state: State) -> str:
    will_not = "will not be retried; requeue it to run it again" if state is State.FAILED else "will not run again"
    return f"{state.label} and {will_not}"


def rounds_in(history: Iterable[HistoryEntry]) -> int:
    """How often a job was requeued automatically, as far as its history goes back."""
    return sum(entry.kind == Cause.REQUEUE.value and entry.error in AUTOMATIC_REQUEUES for entry in history)


def with_automatic_requeue(
    explanation: Explanation, job: StoredJob, history: Sequence[HistoryEntry], policy: TypePolicy
) -> Explanation:
    """Add to a dead letter's explanation when it will be requeued automatically, if at all."""
    rounds = rounds_in(history)
    is_rejected = any(entry.kind == "reject" for entry in history[-1:])
    wait_ms, finished_ms = policy.failed_job_retry_ms, job.finished_at_ms
    if wait_ms is None or finished_ms is None or is_rejected or rounds >= policy.failed_job_retry_rounds:
        return explanation
    if job.expires_at_ms is not None and job.expires_at_ms <= finished_ms + wait_ms:
        return explanation
    which = f"round {rounds + 1} of {policy.failed_job_retry_rounds}"
    text = f"failed and will be requeued automatically at {utc_text(finished_ms + wait_ms)} ({which})"
    return replace(explanation, text=text, until_ms=finished_ms + wait_ms)


def _stopped_by_breaker(facts: Facts, now_ms: int) -> Explanation | None:
    until_ms = facts.breaker.open_until_ms
    match facts.breaker.state(now_ms):
        case BreakerState.OPEN:
            text = f"the circuit breaker of type '{facts.type}' is open until {utc_text(until_ms or 0)}"
            return Explanation(facts.key, facts.state, Reason.BREAKER, text, until_ms)
        case BreakerState.HALF_OPEN if facts.is_probe_live:
            text = f"{half_open_text(facts.type)}, job '{facts.breaker.probe_key}'"
            return Explanation(facts.key, facts.state, Reason.BREAKER, text)
        case _:
            return None


def half_open_text(type: str) -> str:
    """Why a job of a type waits for the outcome of another job."""
    return f"the circuit breaker of type '{type}' is half-open: waiting for its probe"


def _limited(facts: Facts, now_ms: int) -> Explanation | None:
    policy, type = decode_policy(facts.policy), facts.type
    per_key = policy.max_running_per_key
    text, until_ms = None, None
    if policy.rate is not None and (until_ms := if_ahead(facts.rate_full_until_ms, now_ms)) is not None:
        allowed = f"{policy.rate.jobs:,} jobs of type '{type}' have started in this window of {policy.rate.seconds:g} s"
        text = f"rate limit: {allowed}; more can start at {utc_text(until_ms)}"
    elif policy.max_running is not None and facts.running >= policy.max_running:
        text = f"concurrency limit: {facts.running:,} of {policy.max_running:,} jobs of type '{type}' are running"
    elif per_key is not None and facts.limit_key and facts.lane_running >= per_key:
        whose = f"limit key '{facts.limit_key}' of type '{type}'"
        text = f"concurrency limit: {facts.lane_running:,} of {per_key:,} jobs of {whose} are running"
    return None if text is None else Explanation(facts.key, facts.state, Reason.LIMIT, text, until_ms)


def _waiting(facts: Facts, now_ms: int) -> Explanation:
    if facts.asked_at_ms is None or now_ms - facts.asked_at_ms > REQUESTED_RECENTLY_MS:
        since = "yet" if facts.asked_at_ms is None else f"since {utc_text(facts.asked_at_ms)}"
        whom = f"group '{facts.group}' of type '{facts.type}'" if facts.group else f"type '{facts.type}'"
        text = f"no worker has polled for {whom} {since}; start one"
        return Explanation(facts.key, facts.state, Reason.NOT_ASKED, text, ahead=facts.ahead)
    more = f"{facts.ahead:,}{'+' if facts.ahead == AHEAD_MAX else ''}"
    text = f"ready: waiting for a free worker, {more} jobs ahead of it in its lane"
    return Explanation(facts.key, facts.state, Reason.QUEUED, text, ahead=facts.ahead)


def with_breaker(info: TypeInfo, breaker: Breaker, now_ms: int, *, is_probe_live: bool = False) -> TypeInfo:
    """A type with the state of its breaker; `is_probe_live`: the probe is still leased."""
    state = breaker.state(now_ms)
    return replace(
        info,
        breaker=state,
        breaker_failures=breaker.failures,
        breaker_open_until_ms=breaker.open_until_ms if state is BreakerState.OPEN else None,
        breaker_probe_key=breaker.probe_key if state is BreakerState.HALF_OPEN and is_probe_live else None,
    )


def if_ahead(instant_ms: int | None, now_ms: int) -> int | None:
    """The instant if it is in the future, otherwise None."""
    return instant_ms if instant_ms is not None and instant_ms > now_ms else None


def states_to_search(query: JobFilter) -> frozenset[State]:
    """The states to search; empty means all. A completed job has no error."""
    if query.order in STATE_OF_ORDER:
        return frozenset({STATE_OF_ORDER[query.order]})
    if query.due:
        return frozenset({State.PENDING})
    with_error = (query.states or frozenset(State)) - {State.COMPLETED}
    return with_error if query.error_text and with_error else query.states


def attempts_min(query: JobFilter) -> int:
    """The lowest attempt number of a matching pending job: a job without an attempt has no error."""
    return 1 if query.error_text else 0


def error_matches(error: str | None, text: str | None) -> bool:
    """Whether an error contains a text, ignoring case; None matches every error."""
    return text is None or text.casefold() in (error or "").casefold()


def matches(job: StoredJob, query: JobFilter, now_ms: int) -> bool:
    """Whether a job matches a query."""
    return (
        query.type in (None, job.type)
        and query.group in (None, job.group)
        and (not query.states or job.state in query.states)
        and STATE_OF_ORDER.get(query.order) in (None, job.state)
        and (not query.tenants or job.tenant in query.tenants)
        and query.worker in (None, job.worker)
        and query.correlation_id in (None, job.correlation_id)
        and query.dedupe_key in (None, job.dedupe_key)
        and (query.created_after_ms is None or job.created_at_ms >= query.created_after_ms)
        and (query.created_before_ms is None or job.created_at_ms < query.created_before_ms)
        and (not query.due or (job.state is State.PENDING and job.run_at_ms <= now_ms))
        and error_matches(job.last_error, query.error_text)
        and (query.variables_text is None or query.variables_text in job.variables)
    )


def filters_by_job(query: JobFilter) -> bool:
    """Whether a query filters by immutable properties of a job other than type and group."""
    values = (query.correlation_id, query.dedupe_key, query.created_after_ms, query.created_before_ms)
    return bool(query.tenants) or any(value is not None for value in values)


def job_conditions(query: JobFilter) -> tuple[str | None, str | None, int, int]:
    """The filters of `filters_by_job` apart from tenants: correlation id, dedupe key, and the range of creation
    times.
    """
    before_ms = INSTANT_MS_MAX if query.created_before_ms is None else query.created_before_ms
    return query.correlation_id, query.dedupe_key, query.created_after_ms or 0, before_ms


def filters_by_attempt(query: JobFilter) -> bool:
    """Whether a query filters by values that attempts set: worker, error."""
    return query.worker is not None or query.error_text is not None


DAMAGE: Final = (ValueError, TypeError, KeyError, IndexError, OverflowError)
"""The errors that reading a damaged value raises."""


def readable(read: Callable[[Any], T], rows: Iterable[Any]) -> list[T]:
    """The values of rows; a row that was damaged in the store is logged and skipped, so that the others are found."""
    rows = list(rows)
    try:
        return [read(row) for row in rows]
    except DAMAGE:
        return list(_readable_ones(read, rows))


def _readable_ones(read: Callable[[Any], T], rows: Iterable[Any]) -> Iterator[T]:
    for row in rows:
        try:
            found = read(row)
        except DAMAGE as error:
            log_damage(row, error)
        else:
            yield found


def log_damage(record: object, error: Exception) -> None:
    """Log that a record cannot be read."""
    log.error("skipped a damaged record in the store", error=str(error), record=shown(str(record)))


def damaged_text(stored: bytes | None) -> str:
    """A text that is not UTF-8, in readable form; it is never valid JSON."""
    return (stored or b"").decode("utf-8", "backslashreplace")


def job_from(row: Sequence[Any], tenant: str, limit_key: str | None) -> StoredJob:
    """A job from the columns that every SQL engine reads, by position; access by name takes twice as long.

    The last column is not used; a `*_` for it would add a tenth of a microsecond.
    """
    (
        key, type, group, state_number, variables, headers, result, priority, attempt, attempts, max_attempts,
        created_at_ms, run_at_ms, activated_at_ms, lease_until_ms, finished_at_ms, expires_at_ms, timeout_ms, worker,
        last_error, error_code, kind, dedupe_key, correlation_id, copy_of, extra, _,
    ) = row  # fmt: skip
    state = State(state_number)
    return StoredJob(
        key=key, type=type, group=group, tenant=tenant, limit_key=limit_key, state=state, variables=variables,
        headers=headers, result=result, priority=priority, attempt=attempt, attempts=attempts,
        max_attempts=max_attempts, retries=remaining_retries(state, attempts, max_attempts),
        created_at_ms=created_at_ms, run_at_ms=run_at_ms, activated_at_ms=activated_at_ms,
        lease_until_ms=lease_until_ms, finished_at_ms=finished_at_ms, expires_at_ms=expires_at_ms,
        timeout_ms=timeout_ms, worker=worker, last_error=last_error, error_code=error_code,
        rejected=kind == _REJECTED, dedupe_key=dedupe_key, correlation_id=correlation_id, copy_of=copy_of,
        extra=extra,
    )  # fmt: skip


TRIGGER_MARK: Final = "trigger-mark"
"""The kind of registry entries that record the last scheduled time for which a trigger has fired."""
_MARK: Final = re.compile("([0-9]{1,16}) ([0-9]{1,16})")  # began_ms, last_ms


class Passage(NamedTuple):
    """Whether a scheduled time is accepted now, and the trigger's mark after it."""

    passes: bool
    mark: TriggerMark


def mark_of(body: str) -> TriggerMark | None:
    """Parse the mark of a registry entry; None if it is not valid: that trigger starts over."""
    found = _MARK.fullmatch(body)
    return TriggerMark(*map(int, found.groups())) if found else None


def marks_of(rows: Iterable[tuple[str, str]]) -> dict[str, TriggerMark]:
    """The marks of triggers that have started, from names and bodies of registry entries."""
    return {name: mark for name, body in rows if (mark := mark_of(body)) is not None}


def mark_text(mark: TriggerMark) -> str:
    """A mark as the registry stores it."""
    return f"{mark.began_ms} {mark.last_ms}"


def before(point_ms: int) -> TriggerMark:
    """The mark of a new trigger before its first scheduled time: the trigger starts with that time."""
    return TriggerMark(point_ms, point_ms - 1)


def passages(fires: Sequence[Fire], marks: Mapping[str, TriggerMark]) -> list[Passage]:
    """Judge scheduled times one after the other; each accepted one is the mark for the next."""
    latest = dict(marks)
    judged: list[Passage] = []
    for fire in fires:
        mark = latest.get(fire.trigger) or before(fire.point_ms)
        passes = fire.point_ms > mark.last_ms
        latest[fire.trigger] = mark = TriggerMark(mark.began_ms, fire.point_ms) if passes else mark
        judged.append(Passage(passes, mark))
    return judged


def marks_passed(fires: Sequence[Fire], judged: Sequence[Passage]) -> dict[str, str]:
    """The marks to store, by trigger."""
    pairs = zip(fires, judged, strict=True)
    return {fire.trigger: mark_text(passage.mark) for fire, passage in pairs if passage.passes}


def jobs_of(fires: Sequence[Fire], judged: Sequence[Passage]) -> list[NewJob]:
    """The jobs to create, in the order of their scheduled times."""
    pairs = zip(fires, judged, strict=True)
    return [fire.job for fire, passage in pairs if passage.passes and fire.job is not None]


def fired(fires: Sequence[Fire], judged: Sequence[Passage], created: Sequence[Created]) -> list[Fired]:
    """The result for each scheduled time; `created` belongs to the jobs of `jobs_of`."""
    keys = iter(created)
    return [
        Fired(next(keys) if passage.passes and fire.job is not None else None, passage.mark)
        for fire, passage in zip(fires, judged, strict=True)
    ]
