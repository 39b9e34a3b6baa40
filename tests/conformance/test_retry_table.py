"""When a failed job is tried again, and that nobody can make it try twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

from everwork.codec.json import encode_policy
from everwork.core.breaker import BreakerState
from everwork.core.leasing import Verdict
from everwork.core.outcome import Complete, Failed, Release, Retry
from everwork.core.retry import RetryPolicy
from everwork.core.states import State
from tests.conformance.failing import RULE, another, standing, where_it_is_decided
from tests.conformance.observe import kinds, sight
from tests.conformance.test_sweep import swept
from tests.factories import (
    LEASE_MS,
    a_completed_job,
    a_pending_job,
    a_policy,
    a_processing_job,
    activated,
    asked,
    judged,
    leased_keys,
    settled,
    the_job,
)

if TYPE_CHECKING:
    from everwork.core.job import StoredJob
    from everwork.core.outcome import Outcome
    from everwork.engines.contract import Engine
    from tests.stores import VirtualClock

pytestmark = where_it_is_decided

OWN = encode_policy(RetryPolicy(base=2.0, factor=3.0))


async def delays(engine: Engine, clock: VirtualClock, job: StoredJob, outcome: Outcome) -> list[int]:
    """Let every attempt end so, each as soon as it may; the seconds in between. The job is failed in the end."""
    waited: list[int] = []
    while await leased_keys(engine) == [job.key]:
        job = await the_job(engine, job.key)
        job = await settled(engine, outcome._replace(key=job.key, attempt=job.attempt))
        delay_ms = job.run_at_ms - clock.now_ms
        if job.state is State.PENDING:
            waited.append(delay_ms // 1000)
            clock.advance(ms=delay_ms - 1)
            assert await leased_keys(engine) == []
            clock.advance(ms=1)
    assert job.state is State.FAILED
    return waited


@pytest.mark.parametrize("outcome", [Failed(0, 0, "boom"), Retry(0, 0)], ids=["fail", "retry"])
async def test_a_job_is_tried_after_5_10_20_and_40_seconds_and_then_no_more(
    engine: Engine, clock: VirtualClock, outcome: Outcome
) -> None:
    job = await a_pending_job(engine)
    assert await delays(engine, clock, job, outcome) == [5, 10, 20, 40]
    dead = await the_job(engine, job.key)
    assert (dead.attempts, dead.attempt, dead.retries, dead.finished_at_ms) == (5, 5, 0, clock.now_ms)


async def test_lapsed_leases_are_tried_by_the_same_table(engine: Engine, clock: VirtualClock) -> None:
    job = await a_pending_job(engine)
    waited = []
    for _ in range(5):
        await activated(engine, job, lease_ms=1_000)
        clock.advance(ms=1_001)
        await swept(engine)
        waited.append((await the_job(engine, job.key)).run_at_ms - clock.now_ms)
        clock.advance(ms=max(0, waited[-1]))
    assert waited[:4] == [5_000, 10_000, 20_000, 40_000]
    assert (await the_job(engine, job.key)).state is State.FAILED


async def test_the_table_of_a_type_comes_from_its_policy(engine: Engine, clock: VirtualClock) -> None:
    await a_policy(engine, max_attempts=4, base=1, factor=3, cap=5)
    job, other = await a_pending_job(engine), await a_pending_job(engine, type="other")
    assert await delays(engine, clock, job, Failed(0, 0, "boom")) == [1, 3, 5]
    assert (other.max_attempts, (await the_job(engine, other.key)).attempts) == (5, 0)


async def test_the_table_of_a_job_s_own_beats_its_type_s(engine: Engine, clock: VirtualClock) -> None:
    await a_policy(engine, max_attempts=4, base=50)
    job = await a_pending_job(engine, retry=OWN)
    assert await delays(engine, clock, job, Failed(0, 0, "boom")) == [2, 6, 18]


async def test_a_lapsed_lease_is_tried_by_the_job_s_own_table_too(engine: Engine, clock: VirtualClock) -> None:
    await a_policy(engine, base=50)
    job = await a_processing_job(engine, retry=OWN)
    clock.advance(ms=LEASE_MS + 1)
    await swept(engine)
    assert (await the_job(engine, job.key)).run_at_ms == clock.now_ms + 2_000


async def test_the_error_rules_of_the_type_hold_for_a_job_with_a_table_of_its_own(
    engine: Engine, clock: VirtualClock
) -> None:
    await a_policy(engine, base=50, errors=[{"strategy": "permanent", "text": "no such card"}])
    job = await a_processing_job(engine, retry=OWN)
    again = await settled(engine, Failed(job.key, 1, "boom", classes=()))
    assert again.run_at_ms == clock.now_ms + 2_000
    clock.advance(seconds=2)
    await activated(engine, job)
    assert (await settled(engine, Failed(job.key, 2, "No such card", classes=()))).state is State.FAILED


async def test_two_failures_of_one_attempt_count_once(engine: Engine, clock: VirtualClock) -> None:
    await a_policy(engine, **RULE)
    job = await a_processing_job(engine)
    first = await settled(engine, Failed(job.key, 1, "boom"))
    clock.advance(seconds=1)
    assert (await judged(engine, Failed(job.key, 1, "boom, later"))).verdict is Verdict.REPEATED
    assert await the_job(engine, job.key) == first
    assert await kinds(engine, job.key) == [(1, "fail")]
    assert await standing(engine) == (BreakerState.CLOSED, 1)


async def test_a_hundred_failures_of_one_job_at_once_give_exactly_one_retry(
    engine: Engine, clock: VirtualClock
) -> None:
    await a_policy(engine, **RULE)
    job = await a_processing_job(engine)
    async with AsyncExitStack() as stack:
        fleet = [engine, await stack.enter_async_context(another(engine))]
        fails = [fleet[n % 2].settle([Failed(job.key, 1, f"boom {n}")]) for n in range(100)]
        verdicts = Counter(answer.judged[0].verdict for answer in await asyncio.gather(*fails))
    assert verdicts == {Verdict.ACCEPTED: 1, Verdict.REPEATED: 99}
    assert (await kinds(engine, job.key), await standing(engine)) == ([(1, "fail")], (BreakerState.CLOSED, 1))
    clock.advance(seconds=5)
    assert [(one.key, one.attempts) for one in (await asked(engine)).jobs] == [(job.key, 2)]


async def test_a_completed_job_is_never_tried_again(engine: Engine, clock: VirtualClock) -> None:
    await a_policy(engine, failed_job_retry_hours=1.0)
    job = await a_completed_job(engine)
    before = await sight(engine, job.key)
    late: list[Outcome] = [Failed(job.key, 1, "late"), Retry(job.key, 1), Release(job.key, 1), Complete(job.key, 1)]
    await engine.settle([*late, *(one._replace(attempt=0) for one in late)])
    await engine.requeue([job.key])
    await engine.set_retries(job.key, 9)
    clock.advance(seconds=7_200)
    await swept(engine)
    assert (await sight(engine, job.key), await leased_keys(engine)) == (before, [])
