"""Callers who share the engine's steps: each gets his own, whoever comes, goes or fails beside him."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

import pytest

from everwork.core.job import LeasedJob, NewJob
from everwork.core.leasing import Activation, Demand, Settlement, Verdict
from everwork.core.outcome import Complete, Outcome
from everwork.core.states import State
from everwork.engines.contract import Engine
from everwork.exceptions import EngineUnavailable, TooManyRequests
from everwork.service import activation, dispatcher
from everwork.service.access.budgets import Budgets, PollLimits
from everwork.service.activation import activate_bounded
from everwork.service.jobs import in_process
from everwork.service.service import JobService
from tests.app.waiting import DEADLINE_S, until
from tests.factories import TYPE, a_cancelled_job, a_pending_job, a_processing_job, the_job

pytestmark = pytest.mark.every_engine

LONG_MS = 600_000
STEP_BYTES = 1_048_576
"""What one step may lease here, instead of ACTIVATE_BYTES_MAX: smaller jobs show the same."""
LARGE = f'{{"text":"{"x" * (STEP_BYTES // dispatcher.JOBS_MIN - 20)}"}}'
"""The variables of a job of which `JOBS_MIN` fit into one step."""


def demand(worker: str = "w1", limit: int = 1, type: str = TYPE, **more: Any) -> Demand:
    return Demand(type, worker, limit, **more)


def _are_waiting(service: JobService, number: int) -> bool:
    return service.waiting(TYPE) == number


class Pauses:
    """In place of `asyncio`: notes how long is slept."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    async def sleep(self, seconds: float) -> None:
        """Sleep for one pass of the loop."""
        self.seconds.append(seconds)
        await asyncio.sleep(0)


class Watched:
    """An engine whose steps are counted, and of which one may fail."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.steps: list[tuple[int, int]] = []
        self.timeouts = 0
        self.error: Exception | None = None
        self.poison = 0
        self.bytes_of_largest_step = 0
        self.gate: asyncio.Event | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def settle(self, outcomes: Sequence[Outcome], demands: Sequence[Demand] = ()) -> Settlement:
        self.steps.append((len(outcomes), len(demands)))
        if any(outcome.key == self.poison for outcome in outcomes):
            raise ValueError("poison")
        if self.error is not None:
            raise self.error
        return await self._engine.settle(outcomes, demands)

    async def activate(self, demands: Sequence[Demand]) -> Any:
        self.steps.append((0, len(demands)))
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        activation = await self._engine.activate(demands)
        size = sum(len(job.variables) for job in activation.jobs)
        self.bytes_of_largest_step = max(self.bytes_of_largest_step, size)
        return activation

    async def wait(self, types: Sequence[str], timeout_ms: int, since: int | None = None) -> bool:
        is_woken = await self._engine.wait(types, timeout_ms, since)
        self.timeouts += not is_woken
        return is_woken


@pytest.fixture
def watched(engine: Engine) -> Any:
    return Watched(engine)


async def test_each_waiting_caller_gets_jobs_under_his_own_name(service: JobService, engine: Engine) -> None:
    waiting = [asyncio.create_task(service.activate(demand(f"w{n}", 2), LONG_MS)) for n in range(10)]
    await until(lambda: service.waiting(TYPE) == 10)
    await service.create([NewJob(TYPE)] * 20)
    shares = await asyncio.wait_for(asyncio.gather(*waiting), DEADLINE_S)
    for number, jobs in enumerate(shares):
        assert jobs
        assert {(await the_job(engine, job.key)).worker for job in jobs} == {f"w{number}"}


async def test_callers_at_the_same_time_share_a_step(watched: Any, engine: Engine) -> None:
    service = JobService(watched, "holder")
    [first, second] = [job.key for job in await engine.create([NewJob(TYPE)] * 2)]
    jobs = await service.activate(demand(limit=2))
    watched.steps.clear()
    await asyncio.gather(
        service.settle([Complete(first, jobs[0].attempt)]),
        service.settle([Complete(second, jobs[1].attempt)]),
        service.activate(demand()),
    )
    assert watched.steps == [(2, 1)]


async def test_after_a_crowded_step_others_gather_callers_unless_some_are_left_over(
    service: JobService, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = Pauses()
    monkeypatch.setattr(dispatcher, "asyncio", pauses)
    monkeypatch.setattr(dispatcher, "CROWD_SECONDS", LONG_MS)
    large = demand(limit=dispatcher.JOBS_MIN // dispatcher.CROWD_MIN)
    await asyncio.gather(*(service.activate(large) for _ in range(dispatcher.CROWD_MIN + 1)))
    assert pauses.seconds == [0, 0]
    for _ in range(2):
        await service.activate(large)
    assert pauses.seconds[2:] == [dispatcher.GATHER_SECONDS] * 2


@pytest.mark.every_engine
async def test_callers_who_wait_for_lone_jobs_take_a_bounded_number_of_steps(watched: Any) -> None:
    service, rounds = JobService(watched, "holder"), 10
    for _ in range(rounds):
        polls = []
        for number in (1, 2):  # The second one ends the wait of the first.
            polls.append(asyncio.create_task(service.activate(demand(f"w{number}"), LONG_MS)))
            await until(partial(_are_waiting, service, number))
        await service.create([NewJob(TYPE)] * 2)
        shares = await asyncio.wait_for(asyncio.gather(*polls), DEADLINE_S)
        await service.settle([Complete(job.key, job.attempt) for jobs in shares for job in jobs])
    # A poll that finds nothing, a wake-up, and perhaps a wake-up that comes late, each; and one settlement for both.
    assert len(watched.steps) - watched.timeouts <= 7 * rounds
    await service.close()


class Bell:
    """In place of an engine: has no jobs, and counts the steps; `ring` ends a wait."""

    def __init__(self) -> None:
        self.steps = 0
        self._rings = asyncio.Semaphore(0)

    def mark(self) -> int:
        return 0

    def ring(self) -> None:
        self._rings.release()

    async def activate(self, demands: Sequence[Demand]) -> Activation:
        self.steps += 1
        return Activation([], None, 0, (0,) * len(demands))

    async def wait(self, _types: Sequence[str], _timeout_ms: int, since: int | None = None) -> bool:
        return await self._rings.acquire()


async def test_a_wake_up_reaches_the_engine_within_a_few_passes_of_the_loop() -> None:
    bell: Any = Bell()
    callers = dispatcher.Dispatcher(bell, lambda _: None, PollLimits(10))
    polling = asyncio.create_task(callers.activate(demand(), LONG_MS))
    await until(lambda: bell.steps == 1)
    for _ in range(10):
        await asyncio.sleep(0)  # Until it waits for the bell.
    passes = 0
    bell.ring()
    while bell.steps < 2:
        passes += 1
        await asyncio.sleep(0)
    assert passes <= 6
    await callers.close()
    assert await polling == []


@pytest.fixture
async def large_jobs(watched: Any, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[JobService]:
    """A service with four times as many large jobs as one step may lease."""
    for module in (dispatcher, activation):
        monkeypatch.setattr(module, "ACTIVATE_BYTES_MAX", STEP_BYTES)
    service = JobService(watched, "holder")
    await service.create([NewJob(TYPE, LARGE)] * (4 * dispatcher.JOBS_MIN))
    yield service
    await service.close()


async def test_a_step_for_many_calls_leases_no_more_bytes_than_allowed(watched: Any, large_jobs: JobService) -> None:
    calls = [large_jobs.activate(demand(limit=2)) for _ in range(2 * dispatcher.JOBS_MIN)]
    assert sum(map(len, await asyncio.gather(*calls))) == 4 * dispatcher.JOBS_MIN
    assert STEP_BYTES // 2 < watched.bytes_of_largest_step <= STEP_BYTES


async def test_a_step_for_many_polls_leases_no_more_bytes_than_allowed(watched: Any, large_jobs: JobService) -> None:
    polls = [large_jobs.activate(demand(limit=2), LONG_MS) for _ in range(2 * dispatcher.JOBS_MIN)]
    shares = await asyncio.wait_for(asyncio.gather(*polls), DEADLINE_S)
    assert sum(map(len, shares)) == 4 * dispatcher.JOBS_MIN
    assert STEP_BYTES // 2 < watched.bytes_of_largest_step <= STEP_BYTES


async def test_a_worker_that_asks_for_1000_large_jobs_gets_as_many_as_one_step_may_lease(
    watched: Any, large_jobs: JobService
) -> None:
    leased = await activate_bounded(large_jobs, in_process(large_jobs), demand(limit=1_000), 0)
    assert len(leased) == dispatcher.JOBS_MIN
    assert STEP_BYTES // 2 < watched.bytes_of_largest_step <= STEP_BYTES


async def test_an_outcome_and_a_question_of_one_step_are_both_answered(service: JobService, engine: Engine) -> None:
    job = await a_processing_job(engine)
    [other] = await service.create([NewJob(TYPE)])
    [judged], leased = await asyncio.gather(
        service.settle([Complete(job.key, job.attempt)]), service.activate(demand("w2"))
    )
    assert judged.verdict is Verdict.ACCEPTED
    assert [one.key for one in leased] == [other.key]


async def test_an_outcome_is_settled_even_if_its_caller_leaves(service: JobService, engine: Engine) -> None:
    first, second = await a_processing_job(engine), await a_processing_job(engine)
    leaving = asyncio.create_task(service.settle([Complete(first.key, first.attempt)]))
    staying = asyncio.create_task(service.settle([Complete(second.key, second.attempt)]))
    await asyncio.sleep(0)
    leaving.cancel()
    assert [judged.verdict for judged in await staying] == [Verdict.ACCEPTED]
    assert (await the_job(engine, first.key)).state is State.COMPLETED


async def test_a_tenants_caller_gets_nothing_of_others_from_a_shared_step(service: JobService) -> None:
    await service.create([NewJob(TYPE, tenant="acme"), NewJob(TYPE, tenant="other")])
    acme, everybody = await asyncio.gather(
        service.activate(demand("acme", 5, tenants=("acme",))), service.activate(demand("all", 5))
    )
    assert {job.tenant for job in acme} <= {"acme"}
    assert {job.tenant for job in [*acme, *everybody]} == {"acme", "other"}


async def test_a_caller_whose_time_ends_while_the_engine_is_asked_gets_the_answer(watched: Any, engine: Engine) -> None:
    service = JobService(watched, "holder")
    job = await a_pending_job(engine)
    watched.gate = asyncio.Event()
    polling = asyncio.create_task(service.activate(demand(), 1))
    await until(lambda: watched.steps)
    [ask] = next(iter(service._dispatcher._queues.values())).polls
    await until(lambda: ask.is_expired)
    assert not polling.done()
    watched.gate.set()
    assert [one.key for one in await asyncio.wait_for(polling, DEADLINE_S)] == [job.key]
    await service.close()


async def test_a_poll_that_is_part_of_a_step_is_answered_when_the_service_closes(watched: Any, engine: Engine) -> None:
    service = JobService(watched, "holder")
    await a_pending_job(engine)
    watched.gate = asyncio.Event()
    polling = asyncio.create_task(service.activate(demand(), LONG_MS))
    await until(lambda: watched.steps)
    closing = asyncio.create_task(service._dispatcher.close())
    assert await asyncio.wait_for(polling, DEADLINE_S) == []
    watched.gate.set()
    await asyncio.wait_for(closing, DEADLINE_S)
    await until(lambda: not service._releases)
    assert await service.activate(demand("w2")) != []
    await service.close()


async def test_who_comes_first_is_served_first(service: JobService) -> None:
    waiting = []
    for number in range(5):
        waiting.append(asyncio.create_task(service.activate(demand(f"w{number}"), LONG_MS)))
        await until(partial(_are_waiting, service, number + 1))
    await service.create([NewJob(TYPE)])
    done, _ = await asyncio.wait(waiting, timeout=DEADLINE_S, return_when=asyncio.FIRST_COMPLETED)
    assert done == {waiting[0]}
    service.end_polls()
    await asyncio.wait(waiting)


async def test_more_callers_than_allowed_are_told_to_come_later(engine: Engine) -> None:
    service = JobService(engine, "holder", budgets=Budgets(pollers_per_type=2))
    waiting = [asyncio.create_task(service.activate(demand(), LONG_MS)) for _ in range(2)]
    await until(lambda: service.waiting(TYPE) == 2)
    with pytest.raises(
        TooManyRequests, match=r"^too many workers: 2 polls of this API key are waiting for jobs of type"
    ):
        await service.activate(demand(), LONG_MS)
    assert await service.activate(demand(type="other"), 1) == []
    assert await service.activate(demand(), 1, "another key") == []
    service.end_polls()
    assert await asyncio.gather(*waiting) == [[], []]
    assert service.waiting(TYPE) == 0


async def test_end_polls_lets_everybody_go_and_nobody_waits_any_more(service: JobService) -> None:
    waiting = [asyncio.create_task(service.activate(demand(), LONG_MS)) for _ in range(3)]
    await until(lambda: service.waiting(TYPE) == 3)
    service.end_polls()
    assert await asyncio.wait_for(asyncio.gather(*waiting), DEADLINE_S) == [[], [], []]
    assert await asyncio.wait_for(service.activate(demand(), LONG_MS), DEADLINE_S) == []


async def test_an_engine_that_is_away_is_told_to_all_who_wait_and_the_next_call_tries_again(
    watched: Any, engine: Engine
) -> None:
    service = JobService(watched, "holder")
    watched.error = EngineUnavailable("gone fishing")
    waiting = [asyncio.create_task(service.activate(demand(), LONG_MS)) for _ in range(3)]
    answers = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), DEADLINE_S)
    assert [str(answer) for answer in answers] == ["gone fishing"] * 3
    watched.error = None
    job = await a_pending_job(engine)
    assert [one.key for one in await service.activate(demand(), LONG_MS)] == [job.key]
    await service.close()


async def test_whoever_spoils_a_step_spoils_it_for_himself_only(watched: Any, engine: Engine) -> None:
    service = JobService(watched, "holder")
    job = await a_processing_job(engine)
    watched.poison = 999
    good, bad = await asyncio.gather(
        service.settle([Complete(job.key, job.attempt)]), service.settle([Complete(999, 1)]), return_exceptions=True
    )
    assert isinstance(good, list)
    assert good[0].verdict is Verdict.ACCEPTED
    assert str(bad) == "poison"
    await service.close()


async def test_callers_who_leave_at_any_moment_strand_nothing(service: JobService, engine: Engine) -> None:
    chance = random.Random(7)
    created = await service.create([NewJob(TYPE) for _ in range(60)])
    got: list[LeasedJob] = []

    async def call(number: int) -> None:
        got.extend(await service.activate(demand(f"w{number}", 3), LONG_MS))

    callers = [asyncio.create_task(call(number)) for number in range(40)]
    for caller in callers[::2]:
        for _ in range(chance.randrange(12)):
            await asyncio.sleep(0)
        caller.cancel()
    await until(lambda: len(got) == 60 or all(caller.done() for caller in callers))

    async def all_accounted_for() -> bool:
        held = {job.key for job in got}
        states = [(await the_job(engine, one.key)).state for one in created if one.key not in held]
        return all(state is State.PENDING for state in states)

    await until(all_accounted_for)
    assert len({job.key for job in got}) == len(got)
    service.end_polls()
    await asyncio.gather(*callers, return_exceptions=True)


async def test_extend_of_an_attempt_that_nobody_names_is_of_the_one_that_runs(
    service: JobService, engine: Engine
) -> None:
    job = await a_processing_job(engine, lease_ms=1_000)
    assert (await in_process(service).extend(job.key, 0, 60_000)).verdict is Verdict.ACCEPTED
    extended = await the_job(engine, job.key)
    assert (extended.lease_until_ms or 0) - (job.lease_until_ms or 0) == 59_000


@pytest.mark.parametrize("attempt", [0, 1])
async def test_extend_of_a_job_that_does_not_run_is_refused(service: JobService, engine: Engine, attempt: int) -> None:
    pending = await a_pending_job(engine)
    refused = await in_process(service).extend(pending.key, attempt, 60_000)
    assert (refused.ok, refused.state) == (False, State.PENDING)
    cancelled = await a_cancelled_job(engine, type="other")
    refused = await in_process(service).extend(cancelled.key, attempt, 60_000)
    assert (refused.ok, refused.state) == (False, State.CANCELLED)


async def test_extend_of_an_old_attempt_is_a_lost_lease(service: JobService, engine: Engine) -> None:
    job = await a_processing_job(engine)
    assert (await in_process(service).extend(job.key, job.attempt + 1, 60_000)).verdict is Verdict.LEASE_LOST
