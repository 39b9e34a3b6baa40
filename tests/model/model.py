"""Everwork as a dictionary: what the design says, in the fewest words, with no storage and no speed.

It shares nothing with the engines but the names of states and outcomes; the arithmetic is its own.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from everwork.core.leasing import LeaseStatus, Verdict
from everwork.core.outcome import Complete, Failed, Outcome, Reject, Release, Retry, Throw
from everwork.core.states import State
from tests.stores import DAY_MS, HOUR_MS

if TYPE_CHECKING:
    from everwork.core.job import LeasedJob, NewJob
    from everwork.core.leasing import Demand

KINDS = {Complete: "complete", Failed: "fail", Reject: "reject", Retry: "retry", Release: "release", Throw: "throw"}
KEEP_MS = {State.COMPLETED: 7 * DAY_MS, State.CANCELLED: 7 * DAY_MS, State.FAILED: 90 * DAY_MS}
FINISHED = frozenset(KEEP_MS)
Statistic = tuple[int, str, str, str]
"""An hour, a type, a worker, and what was counted of these."""


def lane_of(new: NewJob) -> tuple[str, str | None]:
    return new.tenant, new.limit_key


@dataclass
class ModelJob:
    """A job as the model knows it."""

    new: NewJob
    created_at_ms: int
    run_at_ms: int
    max_attempts: int
    priority: int
    state: State = State.PENDING
    attempt: int = 0
    attempts: int = 0
    worker: str | None = None
    activated_at_ms: int | None = None
    lease_until_ms: int = 0
    finished_at_ms: int = 0
    last_error: str | None = None
    error_code: str | None = None
    rejected: bool = False
    cancelled_attempt: int | None = None
    before_lapse: tuple[str | None, int, int] = (None, 0, 0)
    """The error, run_at and attempts that the latest lapse has changed, or a requeue after it."""
    counted: Counter[Statistic] = field(default_factory=Counter)
    """What the latest failed attempt has added to the statistics."""
    result: str | None = None
    history: list[tuple[int, str]] = field(default_factory=list)

    @property
    def lane(self) -> tuple[str, str | None]:
        return lane_of(self.new)

    @property
    def retries(self) -> int:
        shown = {
            State.PENDING: self.max_attempts - self.attempts,
            State.PROCESSING: self.max_attempts - self.attempts + 1,
        }
        return shown.get(self.state, 0)

    def is_expired(self, now_ms: int) -> bool:
        return self.state is State.PENDING and self.new.expires_at_ms is not None and self.new.expires_at_ms < now_ms

    def has_ended(self, attempt: int) -> str | None:
        """How an attempt of the past ended."""
        ends = [kind for number, kind in self.history if number == attempt and kind not in {"requeue", "expire"}]
        return ends[0] if ends else None

    def shown(self) -> dict[str, Any]:
        """The fields of `get` that the design settles for the state."""
        fields: dict[str, Any] = {
            "state": self.state,
            "type": self.new.type,
            "tenant": self.new.tenant,
            "limit_key": self.new.limit_key,
            "dedupe_key": self.new.dedupe_key,
            "variables": self.new.variables,
            "expires_at_ms": self.new.expires_at_ms,
            "created_at_ms": self.created_at_ms,
            "priority": self.priority,
            "attempt": self.attempt,
            "attempts": self.attempts,
            "max_attempts": self.max_attempts,
            "retries": self.retries,
            "result": self.result,
        }
        ran = {"worker": self.worker, "activated_at_ms": self.activated_at_ms}
        match self.state:
            case State.PENDING:
                idle = dict.fromkeys(("lease_until_ms", "worker", "activated_at_ms", "finished_at_ms"))
                fields |= {"run_at_ms": self.run_at_ms, "last_error": self.last_error, **idle}
            case State.PROCESSING:
                fields |= {"lease_until_ms": self.lease_until_ms, "last_error": self.last_error, **ran}
                fields |= {"run_at_ms": self.run_at_ms}
            case State.COMPLETED:
                fields |= {"run_at_ms": self.run_at_ms, "last_error": None, **ran}
            case State.FAILED:
                fields |= {"last_error": self.last_error, "error_code": self.error_code, "rejected": self.rejected}
                fields |= ran
            case State.CANCELLED:
                pass
        if self.state in FINISHED:
            fields |= {"finished_at_ms": self.finished_at_ms, "lease_until_ms": None}
        return fields


class Model:
    """All jobs, what is paused, and the engine's clock."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.jobs: dict[int, ModelJob] = {}
        self.dedupe: dict[tuple[str, str, str], int] = {}
        self.paused: set[str] = set()
        self.parked: dict[tuple[str, str], Demand] = {}
        self.passed: dict[str, int] = {}
        self.statistics: Counter[Statistic] = Counter()

    # Creating and leasing -------------------------------------------------------------------------

    def known_key(self, new: NewJob) -> int | None:
        """The job that a dedupe key belongs to already."""
        return None if new.dedupe_key is None else self.dedupe.get((new.tenant, new.type, new.dedupe_key))

    def create(self, key: int, new: NewJob) -> None:
        run_at_ms = self.now_ms + new.delay_ms if new.run_at_ms is None else new.run_at_ms
        self.jobs[key] = ModelJob(new, self.now_ms, run_at_ms, new.max_attempts or 5, new.priority)
        if new.dedupe_key is not None:
            self.dedupe[new.tenant, new.type, new.dedupe_key] = key

    def passes(self, trigger: str, point_ms: int) -> bool:
        """Whether a time point has not passed; then it passes now."""
        if point_ms <= self.passed.get(trigger, -1):
            return False
        self.passed[trigger] = point_ms
        return True

    def eligible(self, demand: Demand) -> dict[int, ModelJob]:
        """The jobs that a demand may lease."""
        return {
            key: job
            for key, job in self.jobs.items()
            if job.state is State.PENDING
            and job.new.type == demand.type
            and job.new.type not in self.paused
            and job.run_at_ms <= self.now_ms
            and not job.is_expired(self.now_ms)
            and (not demand.tenants or job.new.tenant in demand.tenants)
        }

    def lease(self, demand: Demand, leased: list[LeasedJob]) -> None:
        """Check what an engine has leased for a demand, and follow it."""
        eligible = self.eligible(demand)
        keys = [job.key for job in leased]
        assert len(set(keys)) == len(keys) <= demand.limit, f"{keys} for a limit of {demand.limit}"
        assert set(keys) <= set(eligible), f"leased {set(keys) - set(eligible)}, which may not run"
        for lane in {eligible[key].lane for key in keys}:
            mine = [key for key in keys if eligible[key].lane == lane]
            order = sorted(
                (key for key in eligible if eligible[key].lane == lane),
                key=lambda key: (-eligible[key].priority, eligible[key].run_at_ms, key),
            )
            assert mine == order[: len(mine)], f"lane {lane} was served {mine}, not {order}"
        for got in leased:
            job = self.jobs[got.key]
            job.state, job.worker = State.PROCESSING, demand.worker
            job.attempt += 1
            job.attempts += 1
            job.activated_at_ms, job.lease_until_ms = self.now_ms, self.now_ms + demand.lease_ms
            assert job.attempts <= job.max_attempts <= 100
            assert (got.attempt, got.attempts, got.max_attempts) == (job.attempt, job.attempts, job.max_attempts)
            assert got.variables == job.new.variables
            assert (got.lease_until_ms, got.priority) == (job.lease_until_ms, job.priority)

    def park(self, demand: Demand, leased: int) -> None:
        """A demand that was not met in full may wait for the next job, perhaps behind another worker's."""
        if demand.parks:
            self.parked.pop((demand.type, demand.worker), None)
        if demand.parks and leased < demand.limit:
            self.parked[demand.type, demand.worker] = demand

    def hand_over(self, leased: LeasedJob, worker: str) -> None:
        """Check a job that its create has leased to a waiting worker, and lease it in the model."""
        demand = self.parked.pop((leased.type, worker))
        first = [key for key in self.eligible(demand) if key != leased.key]
        assert not first, f"{leased.key} was handed over past {first}"
        assert self.jobs[leased.key].new.expires_at_ms is None
        self.lease(demand, [leased])

    # Ending attempts ------------------------------------------------------------------------------

    def judge(self, outcome: Outcome) -> set[Verdict]:
        """The verdicts that the contract allows."""
        job = self.jobs.get(outcome.key)
        if job is None:
            return {Verdict.NOT_FOUND}
        if job.state is State.PROCESSING and outcome.attempt in {0, job.attempt}:
            return {Verdict.ACCEPTED}
        if outcome.attempt == 0:
            return {Verdict.WRONG_STATE}
        if job.has_ended(outcome.attempt) == KINDS[type(outcome)]:
            return {Verdict.REPEATED}
        return {Verdict.LEASE_LOST} if job.state is State.PROCESSING else {Verdict.LEASE_LOST, Verdict.WRONG_STATE}

    def settle(self, outcome: Outcome) -> None:
        """Apply an outcome that was accepted."""
        job = self.jobs[outcome.key]
        job.history.append((job.attempt, KINDS[type(outcome)]))
        if isinstance(outcome, Failed | Throw) and outcome.variables is not None:
            job.new = job.new._replace(variables=outcome.variables)
        match outcome:
            case Complete():
                job.result = outcome.result
                self.count(job, "completed")
                self.finish(job, State.COMPLETED)
            case Release():
                job.state = State.PENDING
                job.attempts -= 1
            case Failed():
                if outcome.retries is not None:
                    job.max_attempts = max(job.attempts, min(job.attempts + outcome.retries, 100))
                self.fail(job, outcome.error, outcome.backoff_ms, final=outcome.final)
            case Retry():
                self.fail(job, outcome.error, outcome.delay_ms)
            case Reject():
                job.rejected = True
                self.fail(job, outcome.error, final=True)
            case Throw():
                job.error_code = outcome.code
                self.fail(job, outcome.error, final=True)

    def fail(
        self, job: ModelJob, error: str, delay_ms: int | None = None, *, final: bool = False, is_lapse: bool = False
    ) -> None:
        job.last_error = error
        if final or job.attempts >= job.max_attempts:
            job.counted = self.count(job, "failed", is_lapse=is_lapse)
            self.finish(job, State.FAILED)
            return
        job.counted = self.count(job, "retried", is_lapse=is_lapse)
        job.state = State.PENDING
        job.run_at_ms = self.now_ms + (min(5_000 * 2 ** (job.attempts - 1), 300_000) if delay_ms is None else delay_ms)

    def count(self, job: ModelJob, ended_as: str, *, is_lapse: bool = False) -> Counter[Statistic]:
        """Add an attempt that ends to the statistics; returns what was added. How long a lapsed one ran is unknown."""
        activated_ms, worker = job.activated_at_ms or 0, job.worker or ""
        ran_ms = 0 if is_lapse else self.now_ms - activated_ms
        sums = {ended_as: 1, "execution_ms": ran_ms, "wait_ms": activated_ms - job.run_at_ms}
        added = Counter({(self.now_ms // HOUR_MS, job.new.type, worker, name): n for name, n in sums.items()})
        self.statistics.update(added)
        return added

    def finish(self, job: ModelJob, state: State) -> None:
        job.state, job.finished_at_ms = state, self.now_ms

    def lease_status(self, key: int, attempt: int) -> set[LeaseStatus]:
        """What the contract allows to be said of a lease."""
        job = self.jobs.get(key)
        if job is None or job.state not in {State.PROCESSING, State.CANCELLED}:
            return {LeaseStatus.LOST}
        if job.state is State.PROCESSING:
            return {LeaseStatus.HELD if job.attempt == attempt else LeaseStatus.LOST}
        if attempt == job.cancelled_attempt:
            return {LeaseStatus.CANCELLED}
        return {LeaseStatus.CANCELLED, LeaseStatus.LOST}

    def reclaim(self, key: int, attempt: int) -> None:
        """Undo a lapse, unless another attempt has begun."""
        job = self.jobs.get(key)
        if job is None or job.state not in {State.PENDING, State.FAILED} or job.attempt != attempt:
            return
        if (attempt, "lapse") not in job.history:
            return
        job.history.remove((attempt, "lapse"))
        if job.history[-1:] == [(attempt, "requeue")]:
            job.history.pop()
        job.state, job.error_code = State.PROCESSING, None
        job.last_error, job.run_at_ms, job.attempts = job.before_lapse
        job.max_attempts = max(job.max_attempts, job.attempts)
        self.statistics.subtract(job.counted)

    # Changes --------------------------------------------------------------------------------------

    def cancel(self, key: int) -> Verdict:
        job = self.jobs[key]
        if job.state is State.CANCELLED:
            return Verdict.REPEATED
        if job.state in FINISHED:
            return Verdict.WRONG_STATE
        job.history.append((job.attempt, "cancel"))
        job.cancelled_attempt = job.attempt if job.state is State.PROCESSING else None
        self.finish(job, State.CANCELLED)
        return Verdict.ACCEPTED

    def requeue(self, key: int, retries: int | None = None) -> Verdict:
        job = self.jobs[key]
        if job.state is not State.FAILED:
            return Verdict.WRONG_STATE
        job.history.append((job.attempt, "requeue"))
        job.state, job.run_at_ms, job.attempts = State.PENDING, self.now_ms, 0
        job.max_attempts = retries or job.new.max_attempts or 5
        job.last_error, job.error_code, job.rejected = None, None, False
        return Verdict.ACCEPTED

    def requeue_with(self, key: int, variables: str | None) -> Verdict:
        verdict = self.requeue_waiting(key)
        if verdict is Verdict.ACCEPTED and variables is not None:
            self.jobs[key].new = self.jobs[key].new._replace(variables=variables)
        return verdict

    def requeue_waiting(self, key: int) -> Verdict:
        job = self.jobs[key]
        if job.state is not State.PENDING:
            return self.requeue(key)
        if not job.attempt or (job.attempt, "requeue") in job.history:
            return Verdict.WRONG_STATE
        job.history.append((job.attempt, "requeue"))
        job.run_at_ms, job.attempts = min(job.run_at_ms, self.now_ms), 0
        job.max_attempts, job.last_error = job.new.max_attempts or 5, None
        return Verdict.ACCEPTED

    def set_retries(self, key: int, retries: int) -> Verdict:
        job = self.jobs[key]
        match job.state:
            case State.PENDING if retries > 0:
                job.max_attempts = min(job.attempts + retries, 100)
            case State.PROCESSING:
                job.max_attempts = min(job.attempts + max(retries, 1) - 1, 100)
            case State.FAILED:
                return self.requeue(key, retries) if retries else Verdict.REPEATED
            case _:
                return Verdict.WRONG_STATE
        return Verdict.ACCEPTED

    def reschedule(self, key: int, delay_ms: int) -> Verdict:
        job = self.jobs[key]
        if job.state is not State.PENDING:
            return Verdict.WRONG_STATE
        job.run_at_ms = self.now_ms + delay_ms
        return Verdict.ACCEPTED

    def set_priority(self, key: int, priority: int) -> Verdict:
        job = self.jobs[key]
        if job.state is not State.PENDING:
            return Verdict.WRONG_STATE
        job.priority = priority
        return Verdict.ACCEPTED

    def delete(self, key: int) -> Verdict:
        job = self.jobs[key]
        if job.state not in FINISHED:
            return Verdict.WRONG_STATE
        del self.jobs[key]
        if job.new.dedupe_key is not None:
            del self.dedupe[job.new.tenant, job.new.type, job.new.dedupe_key]
        return Verdict.ACCEPTED

    # Upkeep and questions -------------------------------------------------------------------------

    def sweep(self) -> tuple[int, int, int]:
        """How many leases lapsed, jobs expired and jobs were deleted."""
        lapsed = [j for j in self.jobs.values() if j.state is State.PROCESSING and j.lease_until_ms < self.now_ms]
        for job in lapsed:
            job.history.append((job.attempt, "lapse"))
            job.before_lapse = job.last_error, job.run_at_ms, job.attempts
            self.fail(job, f"lease expired: worker '{job.worker}' did not report in time", is_lapse=True)
        expired = [job for job in self.jobs.values() if job.is_expired(self.now_ms)]
        for job in expired:
            self.expire(job)
        old = [
            key
            for key, job in self.jobs.items()
            if job.state in FINISHED and job.finished_at_ms + KEEP_MS[job.state] < self.now_ms
        ]
        for key in old:
            self.delete(key)
        return len(lapsed), len(expired), len(old)

    def expire(self, job: ModelJob) -> None:
        job.history.append((job.attempt, "expire"))
        self.finish(job, State.CANCELLED)

    def hours(self, hours: int) -> dict[Statistic, int]:
        """The statistics of the last hours, without zeros."""
        after = self.now_ms // HOUR_MS - hours
        return {key: number for key, number in self.statistics.items() if number and key[0] > after}

    def counts(self) -> dict[tuple[str, str, str, State], int]:
        return dict(Counter((job.new.tenant, job.new.type, "", job.state) for job in self.jobs.values()))
