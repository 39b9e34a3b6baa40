"""activate: leases with the next attempt number, in order, and only what is due (G2, G9)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from everwork.core.job import LeasedJob
from everwork.core.leasing import Activation, Demand
from everwork.core.outcome import Failed
from everwork.core.states import State
from tests.conformance.observe import sight
from tests.factories import (
    LEASE_MS,
    TYPE,
    WORKER,
    Stage,
    a_cancelled_job,
    a_completed_job,
    a_dead_letter,
    a_new_job,
    a_pending_job,
    a_processing_job,
    a_scheduled_job,
    asked,
    leased_keys,
    settled,
    the_job,
)
from tests.stores import MINUTE_MS, SECOND_MS

if TYPE_CHECKING:
    from everwork.engines.contract import Engine
    from tests.stores import VirtualClock

pytestmark = pytest.mark.every_way


async def test_a_leased_job_comes_with_all_that_a_worker_needs(engine: Engine, clock: VirtualClock) -> None:
    new = a_new_job(variables='{"to":"ann"}', tenant="acme", priority=3, limit_key="c", max_attempts=4, timeout_ms=9)
    [created] = await engine.create([new._replace(headers='{"h":1}', correlation_id="x", extra='{"e":1}')])
    [leased] = (await asked(engine)).jobs
    assert leased == LeasedJob(
        key=created.key,
        attempt=1,
        attempts=1,
        max_attempts=4,
        type=TYPE,
        group="",
        tenant="acme",
        lease_until_ms=clock.now_ms + LEASE_MS,
        variables='{"to":"ann"}',
        headers='{"h":1}',
        priority=3,
        run_at_ms=clock.now_ms,
        created_at_ms=clock.now_ms,
        timeout_ms=9,
        correlation_id="x",
        limit_key="c",
        extra='{"e":1}',
    )


async def test_a_leased_job_is_processing_by_its_worker(engine: Engine, clock: VirtualClock) -> None:
    pending = await a_pending_job(engine)
    clock.advance(seconds=3)
    await asked(engine, worker="w7", lease_ms=5_000)
    job = await the_job(engine, pending.key)
    assert (job.state, job.worker, job.attempt, job.attempts) == (State.PROCESSING, "w7", 1, 1)
    assert (job.activated_at_ms, job.lease_until_ms) == (clock.now_ms, clock.now_ms + 5_000)
    assert job.retries == 5


async def test_a_running_job_is_not_leased_again(engine: Engine) -> None:
    await a_processing_job(engine)
    assert await leased_keys(engine, worker="w2") == []


async def test_a_lease_that_ran_out_is_not_leased_again_before_a_sweep(engine: Engine, clock: VirtualClock) -> None:
    await a_processing_job(engine, lease_ms=LEASE_MS)
    clock.advance(ms=10 * LEASE_MS)
    assert await leased_keys(engine, worker="w2") == []


async def test_concurrent_workers_never_get_the_same_job(engine: Engine) -> None:
    created = await engine.create([a_new_job() for _ in range(60)])
    answers = await asyncio.gather(*(leased_keys(engine, 7, worker=f"w{n}") for n in range(10)))
    assert sorted(key for answer in answers for key in answer) == [job.key for job in created]


async def test_every_activation_has_the_next_attempt_number(engine: Engine) -> None:
    job = await a_pending_job(engine)
    for attempt in (1, 2, 3):
        [leased] = (await asked(engine)).jobs
        assert (leased.key, leased.attempt, leased.attempts) == (job.key, attempt, attempt)
        await settled(engine, Failed(job.key, attempt, "boom", backoff_ms=0))


async def test_a_job_created_with_three_attempts_shows_three_two_one_retries(engine: Engine) -> None:
    job = await a_pending_job(engine, max_attempts=3)
    shown = []
    for attempt in (1, 2, 3):
        await asked(engine)
        shown.append((await the_job(engine, job.key)).retries)
        await settled(engine, Failed(job.key, attempt, "boom", backoff_ms=0))
    assert shown == [3, 2, 1]
    assert (await the_job(engine, job.key)).state is State.FAILED


async def test_no_more_than_the_limit_is_leased(engine: Engine) -> None:
    created = await engine.create([a_new_job() for _ in range(5)])
    assert await leased_keys(engine, 3) == [job.key for job in created[:3]]
    assert await leased_keys(engine, 3) == [job.key for job in created[3:]]


async def test_only_the_type_asked_for_is_leased(engine: Engine) -> None:
    await a_pending_job(engine, type="another-type")
    job = await a_pending_job(engine)
    assert await leased_keys(engine) == [job.key]


async def test_only_the_tenants_asked_for_are_leased(engine: Engine) -> None:
    for tenant in ("acme", "birch", "cedar"):
        await a_pending_job(engine, tenant=tenant)
    answer = await asked(engine, tenants=("acme", "cedar"))
    assert sorted(job.tenant for job in answer.jobs) == ["acme", "cedar"]


async def test_a_tenant_that_has_nothing_gets_nothing_of_the_others(engine: Engine) -> None:
    await a_pending_job(engine)
    assert await leased_keys(engine, tenants=("acme",)) == []


async def test_several_demands_are_answered_in_one_call(engine: Engine) -> None:
    for type in ("a", "b", "c"):
        await engine.create([a_new_job(type=type) for _ in range(4)])
    answer = await engine.activate([Demand("a", "w1", 2, 10_000), Demand("b", "w2", 3, 20_000)])
    assert [job.type for job in answer.jobs] == ["a", "a", "b", "b", "b"]
    held = await the_job(engine, answer.jobs[-1].key)
    assert (held.worker, answer.jobs[0].lease_until_ms + 10_000) == ("w2", held.lease_until_ms)


async def test_two_demands_for_one_type_share_its_jobs(engine: Engine) -> None:
    created = await engine.create([a_new_job() for _ in range(5)])
    answer = await engine.activate([Demand(TYPE, "w1", 2), Demand(TYPE, "w2", 2)])
    assert [job.key for job in answer.jobs] == [job.key for job in created[:4]]
    assert [(await the_job(engine, job.key)).worker for job in answer.jobs] == ["w1", "w1", "w2", "w2"]


async def test_no_demand_gets_no_job(engine: Engine) -> None:
    await a_pending_job(engine)
    assert (await engine.activate([])).jobs == []


# Order inside a lane (G9) -------------------------------------------------------------------------


async def test_higher_priority_comes_first_then_the_order_of_creation(engine: Engine) -> None:
    created = await engine.create([a_new_job(priority=priority) for priority in (0, 5, -512, 511, 5)])
    keys = [job.key for job in created]
    assert await leased_keys(engine) == [keys[3], keys[1], keys[4], keys[0], keys[2]]


async def test_of_equal_priority_the_earlier_run_at_comes_first(engine: Engine, clock: VirtualClock) -> None:
    created = await engine.create([a_new_job(delay_ms=delay) for delay in (3_000, 1_000, 2_000, 1_000)])
    keys = [job.key for job in created]
    clock.advance(seconds=10)
    assert await leased_keys(engine) == [keys[1], keys[3], keys[2], keys[0]]


async def test_priority_beats_run_at(engine: Engine, clock: VirtualClock) -> None:
    early = await a_scheduled_job(engine, delay_ms=1_000, priority=1)
    late = await a_scheduled_job(engine, delay_ms=9_000, priority=2)
    clock.advance(seconds=10)
    assert await leased_keys(engine) == [late.key, early.key]


async def test_a_job_that_became_due_keeps_its_place_among_the_waiting(engine: Engine, clock: VirtualClock) -> None:
    scheduled = await a_scheduled_job(engine, delay_ms=1_000)
    clock.advance(seconds=2)
    later = await a_pending_job(engine)
    assert await leased_keys(engine) == [scheduled.key, later.key]


async def test_a_retried_job_queues_up_by_its_new_run_at(engine: Engine, clock: VirtualClock) -> None:
    retried = await a_processing_job(engine)
    clock.advance(seconds=1)
    await settled(engine, Failed(retried.key, 1, "boom", backoff_ms=1_000))
    waiting = await a_pending_job(engine)
    clock.advance(seconds=1)
    assert await leased_keys(engine) == [waiting.key, retried.key]


# What is never leased -----------------------------------------------------------------------------


@pytest.mark.parametrize("stage", [a_completed_job, a_dead_letter, a_cancelled_job])
async def test_a_finished_job_is_never_leased(engine: Engine, stage: Stage) -> None:
    await stage(engine)
    assert await leased_keys(engine) == []


async def test_a_job_is_leased_at_its_run_at_and_not_a_millisecond_before(engine: Engine, clock: VirtualClock) -> None:
    job = await a_scheduled_job(engine, delay_ms=5_000)
    clock.advance(ms=4_999)
    assert await leased_keys(engine) == []
    clock.advance(ms=1)
    assert await leased_keys(engine) == [job.key]


async def test_an_expired_job_is_not_leased_although_no_sweep_has_run(engine: Engine, clock: VirtualClock) -> None:
    await a_pending_job(engine, expires_at_ms=clock.now_ms + SECOND_MS)
    clock.advance(seconds=2)
    assert await leased_keys(engine) == []


async def test_an_expired_job_does_not_stand_in_the_way_of_the_next(engine: Engine, clock: VirtualClock) -> None:
    await engine.create([a_new_job(priority=9, expires_at_ms=clock.now_ms + SECOND_MS) for _ in range(5)])
    job = await a_pending_job(engine)
    clock.advance(seconds=2)
    assert await leased_keys(engine, 1) == [job.key]


async def test_a_scheduled_job_that_expired_meanwhile_is_not_leased(engine: Engine, clock: VirtualClock) -> None:
    await a_scheduled_job(engine, delay_ms=5_000, expires_at_ms=clock.now_ms + SECOND_MS)
    clock.advance(seconds=10)
    assert await leased_keys(engine) == []


async def test_a_job_before_its_expiry_is_leased_and_may_be_finished_after_it(
    engine: Engine, clock: VirtualClock
) -> None:
    job = await a_processing_job(engine, expires_at_ms=clock.now_ms + SECOND_MS)
    clock.advance(seconds=2)
    assert (await engine.sweep("s")).expired == 0
    assert (await the_job(engine, job.key)).state is State.PROCESSING


async def test_asking_in_vain_changes_nothing(engine: Engine) -> None:
    job = await a_scheduled_job(engine)
    before = await sight(engine, job.key)
    await asked(engine)
    assert await sight(engine, job.key) == before


# When to ask again --------------------------------------------------------------------------------


async def test_an_empty_answer_tells_when_the_next_job_is_due(engine: Engine, clock: VirtualClock) -> None:
    for delay_ms in (9_000, 4_000, 7_000):
        await a_scheduled_job(engine, delay_ms=delay_ms)
    assert await asked(engine) == Activation([], clock.now_ms + 4_000, clock.now_ms, (0,))


async def test_without_scheduled_jobs_there_is_no_instant_to_wait_for(engine: Engine, clock: VirtualClock) -> None:
    await a_scheduled_job(engine, type="another-type")
    assert await asked(engine) == Activation([], None, clock.now_ms, (0,))


async def test_a_retried_job_is_due_after_its_backoff(engine: Engine, clock: VirtualClock) -> None:
    job = await a_processing_job(engine)
    await settled(engine, Failed(job.key, 1, "boom"))
    assert (await asked(engine)).next_due_ms == clock.now_ms + 5_000


async def test_the_earliest_of_several_demands_counts(engine: Engine, clock: VirtualClock) -> None:
    await a_scheduled_job(engine, type="a", delay_ms=9_000)
    await a_scheduled_job(engine, type="b", delay_ms=4_000)
    answer = await engine.activate([Demand("a", WORKER, 1), Demand("b", WORKER, 1)])
    assert answer.next_due_ms == clock.now_ms + 4_000


async def test_a_backlog_that_became_due_is_handed_out_to_the_last_job(engine: Engine, clock: VirtualClock) -> None:
    created = await engine.create([a_new_job(delay_ms=MINUTE_MS) for _ in range(2_500)])
    clock.advance(ms=MINUTE_MS)
    leased: list[int] = []
    for _ in range(20):
        answer = await asked(engine, 1_000)
        leased += [job.key for job in answer.jobs]
        if answer.next_due_ms is None and not answer.jobs:
            break
    assert leased == [job.key for job in created]


# Turns between lanes (G9) are in test_lanes_turns.py, pauses and groups in test_registry.py -------


async def test_asking_for_a_type_is_remembered(engine: Engine, clock: VirtualClock) -> None:
    await a_pending_job(engine)
    clock.advance(seconds=5)
    await asked(engine)
    [info] = [info for info in await engine.types() if info.type == TYPE]
    assert info.last_asked_ms == clock.now_ms
