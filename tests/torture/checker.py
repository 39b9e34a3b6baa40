"""The judge: histories and final state in, violations out. Pure; it knows the promises and no engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from everwork.core.job import HistoryEntry, StoredJob
from everwork.core.states import FINISHED_STATES, State
from tests.torture import asked, deaths, duplicates, leases, limited, reported, spooled
from tests.torture.history import Histories
from tests.torture.verdict import FinalState, Verdict

_FAILURES: Final = frozenset({"fail", "retry", "reject", "throw", "lapse"})
_AFTER: Final[Mapping[str, State]] = {
    "complete": State.COMPLETED,
    "cancel": State.CANCELLED,
    "expire": State.CANCELLED,
    "reject": State.FAILED,
    "throw": State.FAILED,
}


def check(histories: Histories, final: FinalState) -> Verdict:
    """Judge a run."""
    verdict = Verdict()
    for text in histories.broken:
        verdict.violation("V0", text)
    for text in histories.foreign:
        verdict.violation("V14", text)
    reports = reported.reports_of(histories.calls)
    asked.check_creates(histories.calls, reports, final, verdict)
    asked.check_dedupe(histories.calls, final, verdict)
    asked.check_triggers(histories.calls, final, verdict)
    asked.check_schedules(histories.calls, final, verdict)
    for key, job in final.jobs.items():
        _check_life(job, final.events.get(key, []), verdict)
    reported.check_attempts(histories, verdict)
    reported.check_fencing(histories.calls, verdict)
    reported.check_finished(histories.calls, verdict)
    reported.check_reports(reports, final, verdict)
    reported.check_changes(histories.calls, final, verdict)
    _check_counters(final, verdict)
    leases.check_leases(histories.calls, final, verdict)
    limited.check_limits(histories.calls, final, verdict)
    deaths.check_deaths(histories, final, verdict)
    spooled.check_spools(histories.calls, final, verdict)
    duplicates.check_duplicates(histories, final, verdict)
    return verdict


# The life of a job --------------------------------------------------------------------------------


def _check_life(job: StoredJob, events: Sequence[HistoryEntry], verdict: Verdict) -> None:
    """V4 to V8 of one job: its own history must be a way through the table of transitions, and lead to its state."""
    attempts_seen: set[int] = set()
    counted, last_end_ms, finished = 0, 0, False
    state = State.PENDING
    for event in events:
        if event.kind == "requeue":
            if state is not State.FAILED and not (state is State.PENDING and attempts_seen):
                verdict.violation("V4", f"job {job.key} was requeued while {state.label}")
            state, counted, finished = State.PENDING, 0, False
            continue
        ran = event.activated_at_ms is not None
        after = state_after(event)
        if finished:
            verdict.violation("V7" if ran else "V4", f"job {job.key}: attempt {event.attempt} after {state.label}")
            if after in FINISHED_STATES:
                verdict.violation("V4", f"job {job.key}: {event.kind} after {state.label}")
        if event.activated_at_ms is not None:
            if event.attempt in attempts_seen or event.attempt < max(attempts_seen, default=0):
                verdict.violation("V5", f"job {job.key}: attempt number {event.attempt} was used again")
            if event.activated_at_ms < last_end_ms:
                verdict.violation("V6", f"job {job.key}: attempt {event.attempt} overlaps the one before")
            attempts_seen.add(event.attempt)
            counted += event.kind != "release"
        last_end_ms = event.at_ms
        state, finished = after, after in FINISHED_STATES
    _check_end_of_life(job, state, attempts_seen, counted, verdict)


def _check_end_of_life(job: StoredJob, state: State, attempts_seen: set[int], counted: int, verdict: Verdict) -> None:
    if job.state not in FINISHED_STATES:
        return  # V1 has it already, and its last attempt has not ended yet.
    if state is not job.state:
        verdict.violation("V8", f"job {job.key} is {job.state.label}, its history ends {state.label}")
    if attempts_seen != set(range(1, job.attempt + 1)):
        verdict.violation("V8", f"job {job.key} had {job.attempt} attempts, its history shows {sorted(attempts_seen)}")
    if counted != job.attempts:
        verdict.violation("V5", f"job {job.key} counts {job.attempts} attempts, its history {counted}")
    if max(counted, job.attempts) > job.max_attempts:
        verdict.violation("V5", f"job {job.key}: {max(counted, job.attempts)} attempts of {job.max_attempts}")


def state_after(event: HistoryEntry) -> State:
    """The state that an event of a job's history leaves it in."""
    if event.kind == "release" or event.retry_at_ms is not None:
        return State.PENDING
    return _AFTER.get(event.kind, State.FAILED)


# Counters -----------------------------------------------------------------------------------------


def _check_counters(final: FinalState, verdict: Verdict) -> None:
    """V10: counts by state are what a look at every job gives; what workers did adds up to the histories."""
    told = {(one.tenant, one.type, one.group, one.state): one.jobs for one in final.counts if one.jobs}
    real = Counter((job.tenant, job.type, job.group, job.state) for job in final.jobs.values())
    for place in told.keys() | real.keys():
        if told.get(place, 0) != real[place]:
            verdict.violation("V10", f"{place}: counted {told.get(place, 0)}, there are {real[place]}")
    happened = Counter(_statistic(event) for events in final.events.values() for event in events)
    for name in ("completed", "failed", "retried"):
        summed = sum(getattr(hour, name) for hour in final.hours)
        if summed != happened[name]:
            verdict.violation("V10", f"workers {name} {summed} by the statistics, {happened[name]} by the histories")


def _statistic(event: HistoryEntry) -> str:
    if event.kind == "complete":
        return "completed"
    if event.kind in _FAILURES:
        return "failed" if event.retry_at_ms is None else "retried"
    return event.kind
