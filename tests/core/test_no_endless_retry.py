"""A search for a job that is tried for ever: whatever policies, jobs and workers say, every job comes to an end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from everwork.codec.json import encode_policy, policy_of
from everwork.core.decide import Known, decide
from everwork.core.limits import ATTEMPTS_MAX, DELAY_MS_MAX, FAILED_RETRY_ROUNDS_MAX
from everwork.core.outcome import DecidedOutcome, Failed, Lapse, Retry
from everwork.core.policy import POLICY_FIELDS, TypePolicy, policy_from
from everwork.core.retry import RetryPolicy, raised_attempts
from everwork.core.states import State
from everwork.engines.open import open_engine
from everwork.engines.values import Swept
from tests.factories import a_new_job, a_policy, asked
from tests.stores import DAY_MS, VirtualClock

if TYPE_CHECKING:
    from everwork.core.job import LeasedJob
    from everwork.engines.contract import Engine

LEASE_MS = 1_000
IDLE_MS_MAX = 3 * DAY_MS
"""Time without anything that happens, after which nothing will: the longest wait of a searched policy is one."""
ROUNDS = 2
"""How many automatic requeues a searched policy may have: each is a life of its own, more of them find no more."""

KEY = 7
ERRORS = ["boom", "timeout", "rate limit", "service unavailable", "card"]
CLASSES: list[tuple[str, ...] | None] = [None, (), ("TimeoutError",), ("CardUnknown",)]


class Step(NamedTuple):
    """What a worker does with one attempt: perhaps it gives the job retries, before and after the attempt ends."""

    ends: Failed | Retry | None
    """None: it does not report at all."""
    gives: int | None
    gives_later: int | None


retries = st.none() | st.integers(0, ATTEMPTS_MAX) | st.just(10**9)
delays = st.none() | st.sampled_from([0, 1, 60_000])
fails = st.builds(
    Failed,
    st.just(KEY),
    st.just(0),
    st.sampled_from(ERRORS),
    retries=retries,
    backoff_ms=delays,
    classes=st.sampled_from(CLASSES),
    is_counted=st.booleans(),
)
steps = st.builds(
    Step, st.one_of(fails, st.builds(Retry, st.just(KEY), st.just(0), delay_ms=delays), st.none()), retries, retries
)
retry_policies = st.builds(
    RetryPolicy,
    st.sampled_from([1, 2, 99, 100]),
    st.sampled_from([0, 0.001, 5.0]),
    st.sampled_from([1.0, 2.0, 100.0]),
    st.sampled_from([0, 1.0, 300.0]),
    st.sampled_from([0, 0.5, 1.0]),
)
rules = st.lists(
    st.fixed_dictionaries(
        {
            "strategy": st.sampled_from(["retryable", "rate_limited", "temporary", "permanent"]),
            "text": st.sampled_from(ERRORS),
        }
    ),
    max_size=3,
)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "max_attempts": st.sampled_from([1, 2, 99, 100]),
    "base": st.sampled_from([0, 0.001, 5.0]),
    "factor": st.sampled_from([1, 2, 100]),
    "cap": st.sampled_from([0, 1, 300]),
    "jitter": st.sampled_from([0, 0.5, 1]),
    "breaker_failures": st.sampled_from([1, 3, 1_000]),
    "breaker_seconds": st.sampled_from([1, 60]),
    "errors": rules,
    "strict": st.booleans(),
    "failed_job_retry_hours": st.sampled_from([0.001, 1, 24]),
    "failed_job_retry_rounds": st.integers(1, ROUNDS),
    "keep_completed_hours": st.sampled_from([0.001, 24]),
    "keep_failed_hours": st.sampled_from([25, 10_000]),
    "max_running": st.sampled_from([1, 10]),
    "max_running_per_key": st.sampled_from([1, 10]),
    "rate_jobs": st.sampled_from([1, 10]),
    "rate_seconds": st.sampled_from([1, 60]),
}
policies = st.fixed_dictionaries({}, optional=VALUES).map(
    lambda said: said if "rate_jobs" in said else {name: said[name] for name in said if name != "rate_seconds"}
)
own_policies = st.none() | retry_policies
programs = st.lists(steps, min_size=1, max_size=6)
"""What workers do, attempt after attempt, and then from the beginning again."""


def test_every_field_of_a_policy_is_searched() -> None:
    assert set(VALUES) == set(POLICY_FIELDS)


def one_life(policy: TypePolicy, first: int, program: list[Step]) -> int:
    """Try a job until it has failed, by the core's decisions; how many attempts it took."""
    attempts, max_attempts = 0, first
    while attempts <= ATTEMPTS_MAX:
        step = program[attempts % len(program)]
        attempts += 1
        if step.gives is not None:
            max_attempts = raised_attempts(attempts, max(step.gives, 1) - 1)
        outcome: DecidedOutcome = step.ends or Lapse(KEY, attempts, "w1")
        decision = decide(Known(KEY, attempts, attempts, max_attempts), outcome, policy)
        assert 0 <= decision.backoff_ms <= DELAY_MS_MAX
        if decision.state is State.FAILED:
            return attempts
        max_attempts = decision.max_attempts
        if step.gives_later:
            max_attempts = raised_attempts(attempts, step.gives_later)
    raise AssertionError("it is tried for ever")


@given(said=policies, own=own_policies, first=st.integers(1, ATTEMPTS_MAX), program=programs)
def test_no_policy_job_and_worker_together_try_more_than_a_hundred_times(
    said: dict[str, Any], own: RetryPolicy | None, first: int, program: list[Step]
) -> None:
    type_text = encode_policy(policy_from(said))
    policy = policy_of(None if own is None else encode_policy(own), type_text)
    assert one_life(policy, first, program) <= ATTEMPTS_MAX
    assert policy.failed_job_retry_rounds <= FAILED_RETRY_ROUNDS_MAX


async def lives(said: dict[str, Any], own: RetryPolicy | None, program: list[Step]) -> tuple[int, int]:
    """Try a job on an engine until nothing more happens; how many attempts and how many requeues there were."""
    clock = VirtualClock()
    engine = open_engine("sqlite:///:memory:", clock=clock)
    await engine.open()
    try:
        await a_policy(engine, **said)
        text = None if own is None else encode_policy(own)
        [created] = await engine.create([a_new_job(retry=text, max_attempts=own and own.max_attempts)])
        return await _lived(engine, clock, created.key, program)
    finally:
        await engine.close()


async def _lived(engine: Engine, clock: VirtualClock, key: int, program: list[Step]) -> tuple[int, int]:
    attempts, requeues, happened_ms = 0, 0, clock.now_ms
    while clock.now_ms - happened_ms < IDLE_MS_MAX and attempts <= (ROUNDS + 1) * ATTEMPTS_MAX:
        answer = await asked(engine, 1, lease_ms=LEASE_MS)
        for job in answer.jobs:
            await _take(engine, clock, job, program[attempts % len(program)])
            attempts += 1
        if not answer.jobs:
            clock.advance(ms=max(LEASE_MS, (answer.next_due_ms or clock.now_ms + DAY_MS) - clock.now_ms))
        swept = await engine.sweep("s")
        requeues += swept.requeued
        if answer.jobs or swept != Swept():
            happened_ms = clock.now_ms
    [job_in_the_end] = await engine.get([key])
    assert job_in_the_end is None or job_in_the_end.state is State.FAILED
    return attempts, requeues


async def _take(engine: Engine, clock: VirtualClock, job: LeasedJob, step: Step) -> None:
    if step.gives is not None:
        await engine.set_retries(job.key, min(step.gives, ATTEMPTS_MAX))
    if step.ends is None:
        clock.advance(ms=LEASE_MS + 1)
        return
    outcome = step.ends._replace(key=job.key, attempt=job.attempt)
    await engine.settle([outcome])
    [after] = await engine.get([job.key])
    if step.gives_later and after is not None and after.state is State.PENDING:
        await engine.set_retries(job.key, min(step.gives_later, ATTEMPTS_MAX))


@settings(max_examples=12)
@given(said=policies, own=own_policies, program=programs)
def test_no_policy_job_and_worker_together_keep_an_engine_busy_for_ever(
    said: dict[str, Any], own: RetryPolicy | None, program: list[Step]
) -> None:
    attempts, requeues = asyncio.run(lives(said, own, program))
    allowed = policy_from(said).failed_job_retry_rounds if "failed_job_retry_hours" in said else 0
    assert requeues <= allowed
    assert attempts <= (requeues + 1) * ATTEMPTS_MAX
