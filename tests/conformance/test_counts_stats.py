"""count and stats: maintained numbers that add up after every operation (V10)."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from everwork.core.leasing import Demand, Lease
from everwork.core.limits import DEFAULT_TENANT
from everwork.core.outcome import Complete, Failed, Outcome, Reject, Release, Retry, Throw
from everwork.core.queries import Count, WorkerHour
from everwork.core.states import State
from tests.conformance.observe import assert_counts_add_up, count_of, counted
from tests.factories import (
    TYPE,
    WORKER,
    a_completed_job,
    a_dead_letter,
    a_new_job,
    a_pending_job,
    a_processing_job,
    a_scheduled_job,
    activated,
    settled,
)
from tests.stores import DAY_MS, HOUR_MS, SECOND_MS, START_MS

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from everwork.engines.contract import Engine
    from tests.stores import VirtualClock

THIS_HOUR = START_MS // HOUR_MS


async def test_an_empty_store_has_no_counts(engine: Engine) -> None:
    assert await engine.count() == []


async def test_jobs_are_counted_by_tenant_type_group_and_state(engine: Engine) -> None:
    await engine.add_group("x", "audit")
    await engine.create([a_new_job(type="x"), a_new_job(type="x", tenant="acme"), a_new_job(type="y")])
    await a_completed_job(engine, type="z", tenant="acme")
    assert sorted(await engine.count()) == sorted(
        [
            Count(DEFAULT_TENANT, "x", "", State.PENDING, 1),
            Count(DEFAULT_TENANT, "x", "audit", State.PENDING, 1),
            Count("acme", "x", "", State.PENDING, 1),
            Count("acme", "x", "audit", State.PENDING, 1),
            Count(DEFAULT_TENANT, "y", "", State.PENDING, 1),
            Count("acme", "z", "", State.COMPLETED, 1),
        ]
    )


@pytest.mark.parametrize("limit", [3, 4])
async def test_jobs_that_are_leased_and_completed_together_are_counted_for_each_tenant(
    engine: Engine, limit: int
) -> None:
    await engine.create([a_new_job(tenant=tenant, limit_key="k") for tenant in ("a", "a", "b", DEFAULT_TENANT)])
    jobs = (await engine.activate([Demand(TYPE, WORKER, limit)])).jobs
    tenants = Counter(job.tenant for job in jobs)
    assert await _by_tenant(engine, State.PROCESSING) == tenants == {"a": limit - 2, "b": 1, DEFAULT_TENANT: 1}
    await engine.settle([Complete(job.key, job.attempt) for job in jobs])
    assert await _by_tenant(engine, State.COMPLETED) == tenants
    assert await _by_tenant(engine, State.PROCESSING) == {}


async def _by_tenant(engine: Engine, state: State) -> dict[str, int]:
    return {count.tenant: count.jobs for count in await engine.count() if count.state is state}


async def test_zeros_are_left_out(engine: Engine) -> None:
    await a_completed_job(engine)
    assert await counted(engine) == {(DEFAULT_TENANT, TYPE, "", State.COMPLETED): 1}


async def test_scheduled_jobs_count_as_pending(engine: Engine) -> None:
    await a_scheduled_job(engine)
    await a_pending_job(engine)
    assert await count_of(engine, State.PENDING) == 2


async def test_the_limit_key_does_not_divide_the_counts(engine: Engine) -> None:
    await engine.create([a_new_job(limit_key=key) for key in ("a", "b", None)])
    assert await engine.count() == [Count(DEFAULT_TENANT, TYPE, "", State.PENDING, 3)]


async def test_the_counts_add_up_after_every_operation(engine: Engine, clock: VirtualClock) -> None:
    job = await a_dead_letter(engine, tenant="acme", limit_key="c", max_attempts=3)
    steps: list[Coroutine[Any, Any, object]] = [
        engine.requeue([job.key]),
        engine.reschedule([job.key], delay_ms=0),
        engine.set_priority([job.key], 9),
        activated(engine, job, lease_ms=SECOND_MS),
        engine.extend([Lease(job.key, 2)], SECOND_MS),
        engine.set_retries(job.key, 2),
        settled(engine, Release(job.key, 2)),
        activated(engine, job, lease_ms=SECOND_MS),
        settled(engine, Failed(job.key, 3, "boom", backoff_ms=0)),
        activated(engine, job, lease_ms=SECOND_MS),
        settled(engine, Failed(job.key, 4, "boom", final=True)),
        engine.set_retries(job.key, 1),
        engine.cancel([job.key]),
        engine.create([a_new_job(dedupe_key="d"), a_new_job(dedupe_key="d")]),
        engine.sweep("s"),
        engine.delete([job.key]),
    ]
    for step in steps:
        await step
        await assert_counts_add_up(engine)
    assert await counted(engine) == {(DEFAULT_TENANT, TYPE, "", State.PENDING): 1}


async def test_the_counts_add_up_after_lapses_expiries_and_retention(engine: Engine, clock: VirtualClock) -> None:
    await a_processing_job(engine, lease_ms=SECOND_MS, max_attempts=1)
    await a_processing_job(engine, lease_ms=SECOND_MS)
    await a_completed_job(engine)
    await a_pending_job(engine, expires_at_ms=clock.now_ms + SECOND_MS)
    for step_ms in (2 * SECOND_MS, 8 * DAY_MS, 91 * DAY_MS):
        clock.advance(ms=step_ms)
        await engine.sweep("s")
        await assert_counts_add_up(engine)


async def test_sweeping_again_and_again_leaves_the_counts_alone(engine: Engine) -> None:
    for _ in range(3):
        await a_completed_job(engine)
        await engine.sweep("s")
        await engine.sweep("s")
    assert await count_of(engine, State.COMPLETED) == 3


# stats --------------------------------------------------------------------------------------------


async def test_stats_carry_the_counts_and_their_instant(engine: Engine, clock: VirtualClock) -> None:
    await a_pending_job(engine)
    stats = await engine.stats(1)
    assert (stats.counts, stats.hours, stats.generated_at_ms) == (await engine.count(), [], clock.now_ms)


async def test_a_completed_job_counts_for_its_worker_with_its_times(engine: Engine, clock: VirtualClock) -> None:
    job = await a_pending_job(engine)
    clock.advance(ms=300)
    await activated(engine, job, worker="w7")
    clock.advance(ms=2_000)
    await settled(engine, Complete(job.key, 1))
    [hour] = (await engine.stats(1)).hours
    assert hour == WorkerHour(THIS_HOUR, TYPE, "w7", 1, 0, 0, execution_ms=2_000, wait_ms=300)


@pytest.mark.parametrize(
    ("outcome", "failed", "retried"),
    [
        (Failed(0, 1, "boom", final=True), 1, 0),
        (Reject(0, 1), 1, 0),
        (Throw(0, 1, "E42"), 1, 0),
        (Failed(0, 1, "boom"), 0, 1),
        (Retry(0, 1), 0, 1),
    ],
    ids=str,
)
async def test_failures_and_retries_are_counted_apart(
    engine: Engine, outcome: Outcome, failed: int, retried: int
) -> None:
    job = await a_processing_job(engine)
    await settled(engine, outcome._replace(key=job.key))
    [hour] = (await engine.stats(1)).hours
    assert (hour.completed, hour.failed, hour.retried) == (0, failed, retried)


async def test_workers_types_and_hours_are_counted_apart(engine: Engine, clock: VirtualClock) -> None:
    await a_completed_job(engine, worker="w1")
    await a_completed_job(engine, worker="w2")
    await a_completed_job(engine, worker="w2", type="other")
    clock.advance(ms=HOUR_MS)
    await a_completed_job(engine, worker="w2")
    await a_completed_job(engine, worker="w2")
    rows = [(hour.hour - THIS_HOUR, hour.type, hour.worker, hour.completed) for hour in (await engine.stats(2)).hours]
    assert sorted(rows) == [(0, TYPE, "w1", 1), (0, TYPE, "w2", 1), (0, "other", "w2", 1), (1, TYPE, "w2", 2)]


async def test_only_the_hours_asked_for_are_shown(engine: Engine, clock: VirtualClock) -> None:
    await a_completed_job(engine)
    clock.advance(ms=5 * HOUR_MS)
    assert (await engine.stats(2)).hours == []
    assert len((await engine.stats(24)).hours) == 1


async def test_what_was_refused_or_repeated_is_not_counted_again(engine: Engine) -> None:
    job = await a_completed_job(engine)
    await engine.settle([Complete(job.key, 1, '{"sent":true}'), Failed(job.key, 1, "boom"), Complete(999_999, 1)])
    assert [(hour.completed, hour.failed) for hour in (await engine.stats(1)).hours] == [(1, 0)]


async def test_the_statistics_outlive_the_jobs(engine: Engine) -> None:
    job = await a_completed_job(engine)
    await engine.delete([job.key])
    assert [hour.completed for hour in (await engine.stats(1)).hours] == [1]
