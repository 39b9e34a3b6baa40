"""A state machine that drives an engine beside the dictionary model and compares them after every step.

`EVERWORK_MODEL_STEPS` is about how many steps are taken on each engine: in `make test` 4,000 on SQLite and 1,500 on
those with a server, twice that in `make test-all`, by hand 250,000 and 100,000 and more.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from everwork.core.job import NewJob
from everwork.core.leasing import Created, Demand, Lease, LeaseStatus, Stamp, Verdict
from everwork.core.limits import STATISTICS_KEEP_HOURS
from everwork.core.outcome import Complete, Failed, Outcome, Reject, Release, Retry, Throw
from everwork.core.states import State
from everwork.engines.values import Fire
from tests.model.model import Model, Statistic, lane_of
from tests.stores import DAY_MS, ENGINES, MINUTE_MS, SECOND_MS, VirtualClock, at_length, drop_stores, open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from everwork.core.job import LeasedJob, StoredJob
    from everwork.core.leasing import Activation, Judged
    from everwork.engines.contract import Engine

STEPS_PER_EXAMPLE = 40
STEPS = os.environ.get("EVERWORK_MODEL_STEPS")

MEMORY = Path("/dev/shm")
"""Stores of the model live in memory where there is such a place: what survives a crash is tested elsewhere."""

T = TypeVar("T")


def new_job(fields: dict[str, Any]) -> NewJob:
    return NewJob(**fields)


def demand_for(fields: dict[str, Any]) -> Demand:
    return Demand(**fields)


class Taker:
    """Takes the jobs that creates hand over."""

    def __init__(self) -> None:
        self.jobs: dict[int, LeasedJob] = {}
        self._came = asyncio.Event()

    def handed(self, job: LeasedJob) -> None:
        assert job.key not in self.jobs
        self.jobs[job.key] = job
        self._came.set()

    def lost(self) -> None:
        """Nothing gets lost here: on SQLite, a worker is also called when another one has replaced its demand."""

    async def take(self, key: int) -> LeasedJob:
        while key not in self.jobs:
            self._came.clear()
            await asyncio.wait_for(self._came.wait(), 30.0)
        return self.jobs.pop(key)


# The clock moves in whole seconds; leases and expiries end between them, so that no step depends on whether
# the last millisecond counts. That is for the conformance suite.
types = st.sampled_from(["email", "email", "email", "print"])
tenants = st.sampled_from(["acme", "birch"])
picks = st.integers(0, 999)
attempts = st.sampled_from(["live", "live", "live", "live", "stale", "stale", "zero", "future"])
leases_ms = st.sampled_from([1_250, 30_250, 300_250])
delays_ms = st.sampled_from([0, 0, 0, 0, 0, 0, 5_000, MINUTE_MS])
new_jobs = st.fixed_dictionaries(
    {
        "type": types,
        "variables": st.sampled_from(["{}", '{"n":1}']),
        "tenant": tenants,
        "priority": st.integers(-1, 1),
        "delay_ms": delays_ms,
        "max_attempts": st.sampled_from([None, None, 1, 2, 3]),
        "dedupe_key": st.sampled_from([None, None, "d1", "d2"]),
        "limit_key": st.sampled_from([None, "k1", "k2"]),
        "expires_at_ms": st.sampled_from([None, None, None, None, None, 2_500, 90_500]),
    }
).map(new_job)
demands = st.fixed_dictionaries(
    {
        "type": types,
        "worker": st.sampled_from(["w1", "w2"]),
        "limit": st.integers(1, 5),
        "lease_ms": leases_ms,
        "tenants": st.sampled_from([(), (), (), ("acme",), ("birch",)]),
        "receiver": st.sampled_from([None, Taker()]),  # Each machine has its own, see `parkable`.
    }
).map(demand_for)
every_outcome: list[Outcome] = [
    Failed(0, 0, "boom"),
    Failed(0, 0, "bang", backoff_ms=0),
    Failed(0, 0, "bang", retries=1, backoff_ms=0),
    Failed(0, 0, "bang", retries=100, backoff_ms=SECOND_MS),
    Failed(0, 0, "boom", retries=0),
    Failed(0, 0, "boom", final=True),
    Failed(0, 0, "bang", backoff_ms=0, variables='{"tried":1}'),
    Release(0, 0),
    Retry(0, 0, "again", 0),
    Release(0, 0),
    Retry(0, 0, "again"),
    Complete(0, 0),
    Complete(0, 0, '{"r":1}'),
    Reject(0, 0, "nonsense"),
    Throw(0, 0, "E42", "no money"),
    Throw(0, 0, "E42", "no money", '{"tried":"thrown"}'),
]
outcomes = st.sampled_from(every_outcome)
steps_ms = st.sampled_from(
    [0, SECOND_MS, 2 * SECOND_MS, 5 * SECOND_MS, 10 * SECOND_MS, MINUTE_MS, 10 * MINUTE_MS, 8 * DAY_MS, 91 * DAY_MS]
)
aimed_outcomes = st.lists(st.tuples(picks, attempts, outcomes), min_size=1, max_size=3)


class EngineBesideModel(RuleBasedStateMachine):
    """Every rule does the same to the engine and to the model."""

    engine_name: str
    handed_over = expected = 0

    def __init__(self) -> None:
        super().__init__()
        self.clock = VirtualClock()
        self.model = Model(self.clock.now_ms)
        self.ever: list[int] = []
        self.creates = 0
        self.seen: dict[int, StoredJob] = {}
        self.folder = Path(tempfile.mkdtemp(prefix="everwork-model-", dir=MEMORY if MEMORY.is_dir() else None))
        self.taker = Taker()
        self.runner = asyncio.Runner()
        self.engine: Engine = self.run(open_store(self.engine_name, self.folder, self.clock))

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(call)

    def teardown(self) -> None:
        try:
            for key in self.model.jobs:
                self.compare_history(key)
        finally:
            self.close()

    def close(self) -> None:
        self.run(self.engine.close())
        self.runner.close()
        drop_stores()
        shutil.rmtree(self.folder, ignore_errors=True)

    # Few rules with many choices each: hypothesis leaves rules out of a run at random, and a run in which
    # nothing is ever leased tells little.

    @initialize(
        first=st.lists(new_jobs, min_size=2, max_size=6), past=st.lists(st.tuples(demands, outcomes), max_size=4)
    )
    def begin_with_jobs_that_have_a_past(self, first: list[NewJob], past: list[tuple[Demand, Outcome]]) -> None:
        self.create(first)
        for demand, outcome in past:
            self.activate(demand, outcome)

    @rule(
        batch=st.lists(new_jobs, min_size=1, max_size=3),
        point=st.none() | st.integers(0, 30),
        repeats=st.sampled_from([None, None, 0, 1]),
    )
    def create(self, batch: list[NewJob], point: int | None = None, repeats: int | None = None) -> None:
        """Create jobs; or let time points of a trigger pass, which create those that have not passed before.

        `repeats`: with a stamp, and sent so many times more.
        """
        batch = [new._replace(expires_at_ms=self.instant(new.expires_at_ms)) for new in batch]
        if point is not None:
            batch, created = self.fire([Fire("trigger", point + at % 2, new) for at, new in enumerate(batch)])
        else:
            self.creates += 1
            stamp = None if repeats is None else Stamp("model", self.creates)
            created = self.run(self.engine.create(batch, stamp))
            for _ in range(repeats or 0):
                assert self.run(self.engine.create(batch, stamp)) == created
        assert len(created) == len(batch)
        is_lone = point is None and repeats is None and len(batch) == 1
        for new, answer in zip(batch, created, strict=True):
            known = self.model.known_key(new)
            assert answer.deduplicated == (known is not None)
            if known is None:
                assert answer.key > max(self.ever, default=0)
                self.model.create(answer.key, new)
                self.ever.append(answer.key)
                self.hand_over(answer.key, may_be_handed=is_lone)
            else:
                assert answer.key == known

    @rule(demand=demands, news=st.lists(new_jobs, min_size=1, max_size=2), step_ms=st.sampled_from([0, 0, SECOND_MS]))
    def create_for_a_waiting_worker(self, demand: Demand, news: list[NewJob], step_ms: int) -> None:
        """Lease everything, then create a job for a waiting worker, unless something prevents the hand-over."""
        new = news[0]
        demand = demand._replace(type=new.type, limit=1_000, tenants=(), receiver=self.taker)
        self.activate(demand, None)
        self.every_job_is_as_the_model_has_it()  # Before time passes: the engine may have cancelled what has expired.
        self.let_time_pass(step_ms, sweeps=False)
        is_free = new.type not in self.model.paused and not self.model.eligible(demand)
        # An engine may have to prepare a lane for turns first.
        lanes = {(one.new.type, one.lane) for one in self.model.jobs.values() if one.attempt}
        is_known = (new.type, lane_of(new)) in lanes
        self.create([new])
        if is_free and is_known and new.is_plain:
            type(self).expected += 1  # An engine may decline, but not often.
        for more in news[1:]:
            self.create([more])

    def hand_over(self, key: int, *, may_be_handed: bool) -> None:
        """If the create has leased its job, check that the waiting worker would have leased the same one."""
        [job] = self.run(self.engine.get([key]))
        if job is None or job.state is not State.PROCESSING:
            return
        assert may_be_handed
        assert job.worker is not None
        self.model.hand_over(self.run(self.taker.take(key)), job.worker)
        type(self).handed_over += 1

    @rule(aimed=aimed_outcomes, demand=st.none() | demands, then=st.none() | outcomes)
    def work(self, aimed: list[tuple[int, str, Outcome]], demand: Demand | None, then: Outcome | None) -> None:
        """End attempts, lease jobs in the same step and, perhaps, end those attempts too."""
        batch = [self.aim(pick, attempt, outcome) for pick, attempt, outcome in aimed]
        leased = self.end(batch, demand)
        if then is not None:
            self.end([then._replace(key=job.key, attempt=job.attempt) for job in leased], None)

    @rule(demand=demands, then=st.none() | outcomes)
    def activate(self, demand: Demand, then: Outcome | None) -> None:
        demand = self.parkable(demand)
        leased = self.follow(demand, self.run(self.engine.activate([demand])))
        if then is not None:
            self.end([then._replace(key=job.key, attempt=job.attempt) for job in leased], None)

    @rule(
        aimed=st.lists(st.tuples(picks, attempts), min_size=1, max_size=3), lease_ms=leases_ms, reclaims=st.booleans()
    )
    def extend(self, aimed: list[tuple[int, str]], lease_ms: int, reclaims: bool) -> None:
        leases = [Lease(*self.aim(pick, attempt, Release(0, 0))) for pick, attempt in aimed]
        if reclaims:
            reclaimed = self.run(self.engine.reclaim(leases, lease_ms))
            for lease in leases:
                self.model.reclaim(*lease)
            checked = self.run(self.engine.check(leases))
            assert reclaimed == checked
        else:
            checked = self.run(self.engine.check(leases))
            assert self.run(self.engine.extend(leases, lease_ms)) == checked
        for lease, status in zip(leases, checked, strict=True):
            assert status in self.model.lease_status(*lease), f"{lease} is {status}"
            if status is LeaseStatus.HELD:
                self.model.jobs[lease.key].lease_until_ms = self.clock.now_ms + lease_ms

    @rule(name=st.sampled_from(["cancel", "requeue", "requeue", "delete"]), pick=picks)
    def change(self, name: str, pick: int) -> None:
        key = self.key(pick)
        [answer] = self.run(getattr(self.engine, name)([key]))
        self.compare_verdict(key, answer, getattr(self.model, name))

    @rule(pick=picks, variables=st.sampled_from([None, '{"other":1}', "{}"]))
    def requeue_waiting(self, pick: int, variables: str | None) -> None:
        key = self.key(pick)
        [answer] = self.run(self.engine.requeue([key], waiting=True, variables=variables))
        self.compare_verdict(key, answer, lambda key: self.model.requeue_with(key, variables))

    @rule(name=st.sampled_from(["reschedule", "set_priority", "set_retries"]), pick=picks, number=st.integers(0, 4))
    def adjust(self, name: str, pick: int, number: int) -> None:
        key = self.key(pick)
        match name:
            case "reschedule":
                [answer] = self.run(self.engine.reschedule([key], delay_ms=number * SECOND_MS))
                self.compare_verdict(key, answer, lambda key: self.model.reschedule(key, number * SECOND_MS))
            case "set_priority":
                [answer] = self.run(self.engine.set_priority([key], number - 2))
                self.compare_verdict(key, answer, lambda key: self.model.set_priority(key, number - 2))
            case _:
                retries = [0, 1, 2, 5, 100][number]
                shown = self.model.jobs[key].retries if key in self.model.jobs else None
                answer = self.run(self.engine.set_retries(key, retries))
                assert answer.retries == shown or not answer.ok
                self.compare_verdict(key, answer, lambda key: self.model.set_retries(key, retries))

    @rule(type=types, paused=st.sampled_from([False, False, False, True]))
    def pause(self, type: str, paused: bool) -> None:
        self.run(self.engine.pause(type, paused))
        (self.model.paused.add if paused else self.model.paused.discard)(type)

    @rule(step_ms=steps_ms, sweeps=st.booleans())
    def let_time_pass(self, step_ms: int, sweeps: bool) -> None:
        self.model.now_ms = self.clock.advance(ms=step_ms)
        if sweeps:
            self.sweep()

    def sweep(self) -> None:
        lapsed = expired = deleted = 0
        for _ in range(10):
            step = self.run(self.engine.sweep("s"))
            lapsed, expired, deleted = lapsed + step.lapsed, expired + step.expired, deleted + step.deleted
            if not (step.lapsed or step.expired or step.deleted or step.more):
                break
        assert (lapsed, expired, deleted) == self.model.sweep()

    def fire(self, fires: list[Fire]) -> tuple[list[NewJob], list[Created]]:
        """The jobs whose points pass, and what the engine says of them."""
        fired = self.run(self.engine.fire(fires))
        passing = [fire.job for fire in fires if self.model.passes(fire.trigger, fire.point_ms) and fire.job]
        assert [one.mark.last_ms for one in fired][-1] == self.model.passed[fires[-1].trigger]
        return passing, [one.created for one in fired if one.created]

    def end(self, batch: list[Outcome], demand: Demand | None) -> list[LeasedJob]:
        demand = demand and self.parkable(demand)
        answer = self.run(self.engine.settle(batch, [demand] if demand else []))
        for outcome, judged in zip(batch, answer.judged, strict=True):
            job = self.model.jobs.get(outcome.key)
            assert judged.verdict in self.model.judge(outcome), f"{outcome} was {judged}; the model has {job}"
            assert judged.state == (job.state if job else None)
            if judged.verdict is Verdict.ACCEPTED:
                self.model.settle(outcome)
        return self.follow(demand, answer.activation) if demand else []

    # What holds after every step ------------------------------------------------------------------

    @invariant()
    def every_job_is_as_the_model_has_it(self) -> None:
        for key, job in zip(self.ever, self.run(self.engine.get(self.ever)), strict=True):
            expected = self.model.jobs.get(key)
            assert (job is None) == (expected is None), f"job {key}: engine {job}, model {expected}"
            if job is None or expected is None:
                continue
            if expected.is_expired(self.clock.now_ms) and job.state is State.CANCELLED:
                self.model.expire(expected)  # An engine may cancel what has expired before a sweep comes.
            shown = expected.shown()
            assert {name: getattr(job, name) for name in shown} == shown, f"job {key}"
            if job != self.seen.get(key):
                self.seen[key] = job
                self.compare_history(key)

    @invariant()
    def the_counts_are_those_of_the_model(self) -> None:
        assert {count[:4]: count.jobs for count in self.run(self.engine.count())} == self.model.counts()

    @invariant()
    def the_statistics_are_those_of_the_model(self) -> None:
        found: dict[Statistic, int] = {}
        for hour in self.run(self.engine.stats(STATISTICS_KEEP_HOURS)).hours:
            assert hour.completed + hour.failed + hour.retried > 0
            for name in ("completed", "failed", "retried", "execution_ms", "wait_ms"):
                found[hour.hour, hour.type, hour.worker, name] = getattr(hour, name)
        assert {key: number for key, number in found.items() if number} == self.model.hours(STATISTICS_KEEP_HOURS)

    # Shared by the rules --------------------------------------------------------------------------

    def parkable(self, demand: Demand) -> Demand:
        return demand if demand.receiver is None else demand._replace(receiver=self.taker)

    def instant(self, offset_ms: int | None) -> int | None:
        return None if offset_ms is None else self.clock.now_ms + offset_ms

    def key(self, pick: int) -> int:
        """A job that exists or did exist, the young ones more often."""
        recent = self.ever[-8:]
        return recent[pick % len(recent)] if pick % 3 else self.ever[pick % len(self.ever)]

    def aim(self, pick: int, attempt: str, outcome: Outcome) -> Outcome:
        """An outcome for a job, preferably a running one, that names its attempt rightly or not."""
        running = [key for key, job in self.model.jobs.items() if job.state is State.PROCESSING]
        key = running[pick % len(running)] if running and pick % 4 else self.key(pick)
        live = self.model.jobs[key].attempt if key in self.model.jobs else 1
        stale = 1 + pick % max(live - 1, 1)
        number = {"live": live, "stale": stale, "zero": 0, "future": live + 1}[attempt]
        return outcome._replace(key=key, attempt=number)

    def follow(self, demand: Demand, activation: Activation) -> list[LeasedJob]:
        """Check a lease, then ask again while the engine says that it stopped early: nothing may be left behind."""
        leased = list(activation.jobs)
        self.model.lease(demand, leased)
        self.model.park(demand, len(leased))
        left = demand._replace(limit=demand.limit - len(leased))
        if left.limit == 0 or not self.model.eligible(left):
            return leased
        assert activation.next_due_ms is not None, "jobs were left behind, and nothing says to ask again"
        assert activation.next_due_ms <= self.clock.now_ms, "jobs were left behind until later"
        again = self.run(self.engine.activate([left]))
        assert again.jobs, "the engine says that asking again may find more, and never does"
        return leased + self.follow(left, again)

    def compare_history(self, key: int) -> None:
        history = [(event.attempt, event.kind) for event in self.run(self.engine.history(key))]
        assert history == self.model.jobs[key].history, f"job {key}"

    def compare_verdict(self, key: int, answer: Judged, act: Callable[[int], Verdict]) -> None:
        """The engine's answer must be the model's, which acts now."""
        job = self.model.jobs.get(key)
        assert answer.state == (job.state if job else None)
        assert answer.verdict is (act(key) if job else Verdict.NOT_FOUND)


@pytest.mark.timeout(120 + int(STEPS or 0) // 10)
@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_does_what_the_model_does(name: str) -> None:
    steps = int(STEPS or (at_length(8_000, 2_500) if name == "sqlite" else at_length(3_000, 1_000)))

    class Machine(EngineBesideModel):
        engine_name = name
        handed_over = expected = 0

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=max(1, steps // STEPS_PER_EXAMPLE),
            stateful_step_count=STEPS_PER_EXAMPLE,
            deadline=None,
            phases=[Phase.reuse, Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert Machine.handed_over > Machine.expected / 2 > 0
