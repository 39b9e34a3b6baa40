"""A worker process of the torture: takes jobs, does what their plan says, and sweeps."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from everwork.core.job import LeasedJob
from everwork.core.leasing import Demand, Judged, Lease, LeaseStatus, Verdict
from everwork.core.limits import DEFAULT_GROUP
from everwork.core.outcome import Complete, Failed, Outcome, Reject, Release, Throw
from everwork.runtime.capacity import AttemptId
from everwork.runtime.hand_over import HandOver
from everwork.runtime.handler import QueueKey
from everwork.service.service import JobService
from tests.torture import plan
from tests.torture.history import entries_of, host_clock_ms
from tests.torture.logged import LoggedEngine, LoggedReceiver, outcome_again
from tests.torture.process import Life, main, patiently

_WAIT_MS = 50
_AGAIN_MS = 300
_SWEEP_EVERY_MS = (200, 500)
_EXTENDS = 3


@dataclass(slots=True)
class Held:
    """An attempt that goes on over several turns and is extended meanwhile."""

    job: plan.Taken
    extends_left: int = _EXTENDS


@dataclass(slots=True)
class Desk:
    """What a worker has before it: outcomes to report now, some to report late, attempts that go on."""

    outcomes: list[Outcome] = field(default_factory=list)
    late: list[tuple[int, int, Outcome]] = field(default_factory=list)
    puts: int = 0
    held: dict[tuple[int, int], Held] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    repeated: set[tuple[int, int, type]] = field(default_factory=set)
    """Outcomes that were reported a second time, for protocols whose responses do not show this."""
    handed: list[LeasedJob] = field(default_factory=list)
    """Jobs that creates have leased to this worker."""

    def take(self, job: LeasedJob) -> bool:
        """Take a job that a create has leased to this worker."""
        self.handed.append(job)
        return True

    def known(self) -> set[AttemptId]:
        """The attempts that are not lost."""
        late = [outcome for _, _, outcome in self.late]
        ended = {(outcome.key, outcome.attempt) for outcome in (*self.outcomes, *late)}
        return ended | self.held.keys() | {(job.key, job.attempt) for job in self.handed}

    def release(self, attempts: Iterable[AttemptId]) -> None:
        """Hand back what was leased to this worker and has not arrived."""
        self.outcomes += [Release(*attempt) for attempt in attempts]

    def put_off(self, outcome: Outcome, until_ms: int) -> None:
        """Report this outcome later."""
        self.puts += 1
        heapq.heappush(self.late, (until_ms, self.puts, outcome))


async def work(life: Life, engine: LoggedEngine, stop: asyncio.Event) -> None:
    """Turn after turn: report, take, run; extend and sweep in between."""
    rng, desk = life.rng, Desk()
    desk.outcomes += unanswered(life)
    hand_over, parked = waiting(life, engine, desk)
    sweep_at_ms = 0
    while not stop.is_set():
        if hand_over.must_unpark:
            await hand_over.unpark(is_last=False)
        leased = await take_turn(life, engine, desk, [*demands(life, rng.randint(1, 25)), parked])
        arrived, desk.handed = desk.handed, []
        for job in (*leased, *arrived):
            run(engine, desk, job, life.lease_ms)
        await extend_held(life, engine, desk)
        now_ms = host_clock_ms()
        if now_ms >= sweep_at_ms:
            await patiently(lambda: engine.engine.sweep(f"{life.name}.{life.life}"), outages=life.outages)
            sweep_at_ms = now_ms + rng.randint(*_SWEEP_EVERY_MS)
        if not leased and not desk.outcomes and not desk.handed:
            await patiently(lambda: engine.engine.wait(plan.TYPES, _WAIT_MS), outages=life.outages)
    await hand_over.unpark(is_last=True)
    desk.release((job.key, job.attempt) for job in desk.handed)
    await engine.settle(desk.outcomes)


def waiting(life: Life, engine: LoggedEngine, desk: Desk) -> tuple[HandOver, Demand]:
    """Parks a demand as a worker of the product does, under a name that only this life has."""
    name = f"{life.name}.{life.life}"
    hand_over = HandOver(
        JobService(engine.engine, name), name, owns_name=True, parks=True,
        take=desk.take, release=desk.release, known=desk.known, wake=lambda: None,
    )  # fmt: skip
    hand_over.receiver(QueueKey(plan.LONE, DEFAULT_GROUP), may_park=True)
    receiver = LoggedReceiver(hand_over, engine.history)
    return hand_over, Demand(plan.LONE, name, 2, life.lease_ms, receiver=receiver)


async def take_turn(life: Life, engine: LoggedEngine, desk: Desk, wanted: Sequence[Demand]) -> list[LeasedJob]:
    """Report what is due and take new jobs in the same step; then repeat, and requeue, as planned."""
    now_ms = host_clock_ms()
    while desk.late and desk.late[0][0] <= now_ms:
        desk.outcomes.append(heapq.heappop(desk.late)[2])
    outcomes, desk.outcomes = desk.outcomes, []
    done = await engine.settle(outcomes, wanted)
    if done is None:
        for outcome in outcomes:
            desk.put_off(outcome, now_ms + _AGAIN_MS)
        return []
    reported = list(zip(outcomes, done.judged, strict=True))
    desk.outcomes += repeats(desk, reported)
    dead = dead_letters(desk, reported)
    if dead:
        await engine.requeue(dead)
    return done.activation.jobs


def demands(life: Life, limit: int) -> list[Demand]:
    """The first worker serves the further group alone; all serve the default groups."""
    wanted = [Demand(kind, life.name, limit, life.lease_ms) for kind in plan.TYPES if kind != plan.LONE]
    if life.name.endswith("-0"):
        wanted.append(Demand(plan.WORK, life.name, limit, life.lease_ms, plan.AUDIT))
    return wanted


def run(engine: LoggedEngine, desk: Desk, job: plan.Taken, lease_ms: int) -> None:
    """The handler: what becomes of one attempt."""
    name = plan.name_of(job.variables)
    desk.names[job.key] = name
    engine.history.begin(job.key, job.attempt)
    chosen = plan.action(name, job.attempt)
    outcome = plan.outcome(job, chosen)
    if plan.wants_stale(name, job.attempt):
        desk.outcomes.append(plan.stale_complete(job.key, job.attempt - 1))
    if chosen == "hang":
        # Reported long after the lease has lapsed, when another worker may have the job.
        desk.put_off(outcome, job.lease_until_ms + 2 * lease_ms)
    elif chosen == "slow":
        desk.held[job.key, job.attempt] = Held(job)
    else:
        desk.outcomes.append(outcome)
    engine.history.end(job.key, job.attempt, chosen)


async def extend_held(life: Life, engine: LoggedEngine, desk: Desk) -> None:
    """Prolong the attempts that go on; those that are through are reported, lost ones too, to be refused."""
    due_ms = host_clock_ms() + life.lease_ms // 2
    due = [held for held in desk.held.values() if held.job.lease_until_ms <= due_ms]
    if not due:
        return
    leases = [Lease(held.job.key, held.job.attempt) for held in due]
    # Leases of earlier attempts, in the same batch as the live ones: they must be told to be lost.
    stale = [Lease(lease.key, lease.attempt - 1) for lease in leases if lease.attempt > 1]
    answered = await engine.extend([*leases, *stale], life.lease_ms)
    statuses = [LeaseStatus.HELD] * len(due) if answered is None else answered[: len(due)]
    now_ms = host_clock_ms()
    for held, status in zip(due, statuses, strict=True):
        held.extends_left -= 1
        held.job = held.job._replace(lease_until_ms=now_ms + life.lease_ms)
        if held.extends_left == 0 or status is not LeaseStatus.HELD:
            del desk.held[held.job.key, held.job.attempt]
            desk.outcomes.append(plan.outcome(held.job, "slow"))


def repeats(desk: Desk, reported: Iterable[tuple[Outcome, Judged]]) -> list[Outcome]:
    """Accepted outcomes that are reported once more, and completed jobs handed back, which must be refused."""
    again: list[Outcome] = []
    for outcome, judged in reported:
        if judged.verdict is Verdict.ACCEPTED and plan.wants_repeat(desk.names.get(outcome.key, ""), outcome.attempt):
            again.append(outcome)
            if isinstance(outcome, Complete):
                again.append(Release(outcome.key, outcome.attempt))
    return again


def dead_letters(desk: Desk, reported: Iterable[tuple[Outcome, Judged]]) -> list[int]:
    """Jobs to requeue: some that have just failed for good, and a few completed ones, which must be refused."""
    return [
        outcome.key
        for outcome, judged in reported
        if judged.verdict is Verdict.ACCEPTED
        and plan.wants_requeue(desk.names.get(outcome.key, ""), outcome.attempt)
        and (isinstance(outcome, Reject | Throw) or _is_final(outcome) or _is_tenth_completion(outcome))
    ]


def unanswered(life: Life) -> list[Outcome]:
    """What the life before reported without learning the answer: reporting it again is safe."""
    if life.life == 0 or not life.file(life.life - 1).exists():
        return []
    invoked = {}
    for entry in entries_of(life.file(life.life - 1)):
        if entry["e"] == "invoked" and entry["call"] == "settle":
            invoked[entry["id"]] = entry["items"]
        elif entry["e"] in ("ok", "refused"):
            invoked.pop(entry["id"], None)
    return [outcome_again(item) for items in invoked.values() for item in items]


def _is_final(outcome: Outcome) -> bool:
    return isinstance(outcome, Failed) and outcome.final


def _is_tenth_completion(outcome: Outcome) -> bool:
    return isinstance(outcome, Complete) and outcome.key % 10 == 0


if __name__ == "__main__":
    main(work)
