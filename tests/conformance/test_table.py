"""Every state against every operation, generated from the table of transitions.

What the table allows, the engine does; everything else it refuses, and changes nothing.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

import pytest

from everwork.core.leasing import Judged, Lease, LeaseStatus, Verdict
from everwork.core.outcome import Complete, Failed, Outcome, Reject, Release, Retry, Throw
from everwork.core.states import FINISHED_STATES, TRANSITIONS, Cause, State, after, is_allowed
from tests.conformance.observe import assert_counts_add_up, sight
from tests.factories import (
    Stage,
    a_cancelled_job,
    a_completed_job,
    a_dead_letter,
    a_pending_job,
    a_processing_job,
    asked,
    judged,
    the_job,
    the_state,
)
from tests.stores import DAY_MS, HOUR_MS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from everwork.core.job import StoredJob
    from everwork.engines.contract import Engine
    from tests.stores import VirtualClock

pytestmark = pytest.mark.every_way("sqlite-own-loop", "redis-cluster")

STAGES: dict[State, Stage] = {
    State.PENDING: a_pending_job,
    State.PROCESSING: a_processing_job,
    State.COMPLETED: a_completed_job,
    State.FAILED: a_dead_letter,
    State.CANCELLED: a_cancelled_job,
}


class Bench(NamedTuple):
    """Where an operation is tried: the engine, its clock and the job."""

    engine: Engine
    clock: VirtualClock
    job: StoredJob


async def activate(at: Bench) -> bool:
    return bool((await asked(at.engine)).jobs)


async def cancel(at: Bench) -> bool:
    [answer] = await at.engine.cancel([at.job.key])
    return answer.verdict is Verdict.ACCEPTED


async def requeue(at: Bench) -> bool:
    [answer] = await at.engine.requeue([at.job.key])
    return answer.verdict is Verdict.ACCEPTED


async def lapse(at: Bench) -> bool:
    at.clock.advance(ms=2 * HOUR_MS)
    return (await at.engine.sweep("s")).lapsed > 0


async def expire(at: Bench) -> bool:
    at.clock.advance(ms=18 * HOUR_MS)
    if at.job.state is State.PROCESSING:
        await at.engine.extend([Lease(at.job.key, at.job.attempt)], HOUR_MS)
    return (await at.engine.sweep("s")).expired > 0


def settle(outcome: Outcome) -> Callable[[Bench], Awaitable[bool]]:
    async def act(at: Bench) -> bool:
        return (await judged(at.engine, outcome._replace(key=at.job.key))).verdict is Verdict.ACCEPTED

    return act


# The operations that bring each cause; jobs have one attempt and expire after half a day,
# which is before any engine forgets finished ones; leases last an hour.
OPERATIONS: list[tuple[str, Cause, Callable[[Bench], Awaitable[bool]]]] = [
    ("activate", Cause.ACTIVATE, activate),
    ("complete", Cause.COMPLETE, settle(Complete(0, 0))),
    ("fail", Cause.FAIL, settle(Failed(0, 0, "boom"))),
    ("fail finally", Cause.FAIL, settle(Failed(0, 0, "boom", final=True))),
    ("retry without attempts left", Cause.FAIL, settle(Retry(0, 0))),
    ("reject", Cause.REJECT, settle(Reject(0, 0))),
    ("throw", Cause.THROW, settle(Throw(0, 0, "E42"))),
    ("release", Cause.RELEASE, settle(Release(0, 0))),
    ("lapse", Cause.LAPSE, lapse),
    ("requeue", Cause.REQUEUE, requeue),
    ("cancel", Cause.CANCEL, cancel),
    ("expire", Cause.EXPIRE, expire),
]
EVERY_PAIR = [
    pytest.param(state, cause, act, id=f"{state.label}-{name}")
    for state, (name, cause, act) in itertools.product(State, OPERATIONS)
]


async def a_job_in(engine: Engine, clock: VirtualClock, state: State, max_attempts: int = 1) -> Bench:
    fields = {} if state in {State.PENDING, State.CANCELLED} else {"lease_ms": HOUR_MS}
    job = await STAGES[state](engine, max_attempts=max_attempts, expires_at_ms=clock.now_ms + 12 * HOUR_MS, **fields)
    assert job.state is state
    return Bench(engine, clock, job)


@pytest.mark.parametrize(("state", "cause", "act"), EVERY_PAIR)
async def test_the_engine_does_what_the_table_allows_and_nothing_else(
    engine: Engine, clock: VirtualClock, state: State, cause: Cause, act: Callable[[Bench], Awaitable[bool]]
) -> None:
    at = await a_job_in(engine, clock, state)
    before = await sight(engine, at.job.key)
    done = await act(at)
    assert done == is_allowed(state, cause)
    if done:
        assert await the_state(engine, at.job.key) is after(state, cause)
        assert len(await engine.history(at.job.key)) == len(before.history) + (cause is not Cause.ACTIVATE)
    elif not (cause is Cause.EXPIRE and state is State.PROCESSING):  # Its lease was extended to get there.
        assert await sight(engine, at.job.key) == before
    await assert_counts_add_up(engine)


def test_every_cause_of_the_table_has_an_operation() -> None:
    assert {cause for _, cause, _ in OPERATIONS} | {Cause.RETRY} == {cause for _, cause in TRANSITIONS}


@pytest.mark.parametrize("outcome", [Failed(0, 0, "boom"), Retry(0, 0)], ids=["fail", "retry"])
async def test_a_retried_failure_is_two_transitions_in_one_step(
    engine: Engine, clock: VirtualClock, outcome: Outcome
) -> None:
    at = await a_job_in(engine, clock, State.PROCESSING, max_attempts=2)
    await settle(outcome)(at)
    assert await the_state(engine, at.job.key) is after(after(State.PROCESSING, Cause.FAIL), Cause.RETRY)
    assert len(await engine.history(at.job.key)) == 1


# The operations that no transition belongs to: the states that they act on.
ON_STATES: list[tuple[str, frozenset[State], Callable[[Bench], Awaitable[Judged]]]] = []


def changes(*states: State) -> Callable[[Callable[[Bench], Awaitable[Judged]]], Callable[[Bench], Awaitable[Judged]]]:
    """Lists an operation with the states in which it is accepted."""

    def keep(act: Callable[[Bench], Awaitable[Judged]]) -> Callable[[Bench], Awaitable[Judged]]:
        ON_STATES.append((act.__name__, frozenset(states), act))
        return act

    return keep


@changes(State.PENDING)
async def reschedule(at: Bench) -> Judged:
    [answer] = await at.engine.reschedule([at.job.key], delay_ms=HOUR_MS)
    return answer


@changes(State.PENDING)
async def set_priority(at: Bench) -> Judged:
    [answer] = await at.engine.set_priority([at.job.key], 9)
    return answer


@changes(State.PENDING, State.PROCESSING, State.FAILED)
async def set_retries(at: Bench) -> Judged:
    return await at.engine.set_retries(at.job.key, 9)


@changes(*FINISHED_STATES)
async def delete(at: Bench) -> Judged:
    [answer] = await at.engine.delete([at.job.key])
    return answer


@pytest.mark.parametrize(
    ("state", "allowed", "act"),
    [
        pytest.param(state, allowed, act, id=f"{state.label}-{name}")
        for state, (name, allowed, act) in itertools.product(State, ON_STATES)
    ],
)
async def test_every_other_change_is_made_in_its_states_only(
    engine: Engine,
    clock: VirtualClock,
    state: State,
    allowed: frozenset[State],
    act: Callable[[Bench], Awaitable[Judged]],
) -> None:
    at = await a_job_in(engine, clock, state)
    before = await sight(engine, at.job.key)
    answer = await act(at)
    assert answer.verdict is (Verdict.ACCEPTED if state in allowed else Verdict.WRONG_STATE)
    assert answer.state is state
    assert (await sight(engine, at.job.key) == before) == (state not in allowed)
    await assert_counts_add_up(engine)


@pytest.mark.parametrize("state", State)
async def test_only_a_processing_job_has_a_lease_to_extend(engine: Engine, clock: VirtualClock, state: State) -> None:
    at = await a_job_in(engine, clock, state)
    clock.advance(seconds=1)
    [status] = await engine.extend([Lease(at.job.key, max(at.job.attempt, 1))], DAY_MS)
    assert (status is LeaseStatus.HELD) == (state is State.PROCESSING)
    assert (await the_job(engine, at.job.key) == at.job) == (state is not State.PROCESSING)
