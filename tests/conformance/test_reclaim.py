"""reclaim: a worker that was cut off takes its lapsed lease back, unless another attempt has begun."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from everwork.core.job import NewJob
from everwork.core.leasing import Lease, LeaseStatus, Verdict
from everwork.core.outcome import Complete, Failed, Release
from everwork.core.states import State
from tests.factories import (
    LEASE_MS,
    TYPE,
    a_completed_job,
    a_dead_letter,
    a_policy,
    a_processing_job,
    activated,
    judged,
    leased_keys,
    settled,
    the_job,
)

if TYPE_CHECKING:
    from everwork.core.job import StoredJob
    from everwork.engines.contract import Engine
    from tests.stores import VirtualClock


async def a_lapsed_job(engine: Engine, clock: VirtualClock, **fields: Any) -> StoredJob:
    """A job whose lease has lapsed: it waits for its next attempt, or has failed if there is none."""
    job = await a_processing_job(engine, **fields)
    clock.advance(ms=LEASE_MS)
    await engine.sweep("sweeper")
    return await the_job(engine, job.key)


async def reclaimed(engine: Engine, job: StoredJob) -> LeaseStatus:
    [status] = await engine.reclaim([Lease(job.key, job.attempt)], LEASE_MS)
    return status


async def test_a_lapsed_lease_is_held_again_in_the_same_attempt(engine: Engine, clock: VirtualClock) -> None:
    lapsed = await a_lapsed_job(engine, clock)
    assert (lapsed.state, lapsed.attempts) == (State.PENDING, 1)
    assert await reclaimed(engine, lapsed) is LeaseStatus.HELD
    job = await the_job(engine, lapsed.key)
    assert (job.state, job.attempt, job.attempts, job.worker) == (State.PROCESSING, 1, 1, "w1")
    assert job.lease_until_ms == clock.now_ms + LEASE_MS
    assert job.last_error is None


async def test_its_late_completion_is_accepted_and_it_does_not_run_again(engine: Engine, clock: VirtualClock) -> None:
    lapsed = await a_lapsed_job(engine, clock)
    assert (await judged(engine, Complete(lapsed.key, 1))).verdict is Verdict.LEASE_LOST
    await reclaimed(engine, lapsed)
    job = await settled(engine, Complete(lapsed.key, 1, '{"sent":true}'))
    assert (job.state, job.result, job.attempt) == (State.COMPLETED, '{"sent":true}', 1)
    clock.advance(ms=600_000)
    assert await leased_keys(engine) == []
    assert [entry.kind for entry in await engine.history(job.key)] == ["complete"]


async def test_a_lease_that_lapsed_for_the_last_time_is_taken_back_from_the_dead_letters(
    engine: Engine, clock: VirtualClock
) -> None:
    lapsed = await a_lapsed_job(engine, clock, max_attempts=1)
    assert lapsed.state is State.FAILED
    assert await reclaimed(engine, lapsed) is LeaseStatus.HELD
    assert (await settled(engine, Complete(lapsed.key, 1))).state is State.COMPLETED


async def test_a_late_failure_is_decided_as_usual(engine: Engine, clock: VirtualClock) -> None:
    lapsed = await a_lapsed_job(engine, clock)
    await reclaimed(engine, lapsed)
    job = await settled(engine, Failed(lapsed.key, 1, "no such address"))
    assert (job.state, job.attempts, job.last_error) == (State.PENDING, 1, "no such address")
    assert [entry.kind for entry in await engine.history(job.key)] == ["fail"]


async def test_a_job_that_another_worker_has_begun_stays_with_it(engine: Engine, clock: VirtualClock) -> None:
    lapsed = await a_lapsed_job(engine, clock)
    clock.advance(ms=60_000)
    job = await activated(engine, lapsed, worker="w2")
    assert await reclaimed(engine, lapsed) is LeaseStatus.LOST
    assert await the_job(engine, job.key) == job


async def test_a_job_that_another_worker_has_completed_stays_completed(engine: Engine, clock: VirtualClock) -> None:
    lapsed = await a_lapsed_job(engine, clock)
    clock.advance(ms=60_000)
    job = await activated(engine, lapsed, worker="w2")
    job = await settled(engine, Complete(job.key, job.attempt))
    assert await reclaimed(engine, lapsed) is LeaseStatus.LOST
    assert await the_job(engine, job.key) == job


async def test_a_live_lease_is_extended(engine: Engine, clock: VirtualClock) -> None:
    job = await a_processing_job(engine)
    clock.advance(ms=10_000)
    assert await reclaimed(engine, job) is LeaseStatus.HELD
    assert (await the_job(engine, job.key)).lease_until_ms == clock.now_ms + LEASE_MS


async def test_attempts_that_ended_in_another_way_are_lost(engine: Engine) -> None:
    for job in (await a_completed_job(engine), await a_dead_letter(engine)):
        assert await reclaimed(engine, job) is LeaseStatus.LOST
        assert await the_job(engine, job.key) == job
    job = await a_processing_job(engine)
    released = await settled(engine, Release(job.key, job.attempt))
    assert await reclaimed(engine, job) is LeaseStatus.LOST
    assert await the_job(engine, job.key) == released


async def test_a_cancelled_job_is_reported_as_such(engine: Engine) -> None:
    job = await a_processing_job(engine)
    await engine.cancel([job.key], "not needed")
    assert await reclaimed(engine, job) is LeaseStatus.CANCELLED


async def test_a_job_that_does_not_exist_is_lost(engine: Engine) -> None:
    assert await engine.reclaim([Lease(4711, 1)], LEASE_MS) == [LeaseStatus.LOST]
    assert await engine.reclaim([], LEASE_MS) == []


async def test_a_dead_letter_that_was_requeued_is_taken_back_before_it_runs(
    engine: Engine, clock: VirtualClock
) -> None:
    lapsed = await a_lapsed_job(engine, clock, max_attempts=1)
    await engine.requeue([lapsed.key])
    assert await reclaimed(engine, lapsed) is LeaseStatus.HELD
    assert (await settled(engine, Complete(lapsed.key, 1))).state is State.COMPLETED


async def test_a_lease_that_was_taken_back_lapses_again(engine: Engine, clock: VirtualClock) -> None:
    lapsed = await a_lapsed_job(engine, clock)
    await reclaimed(engine, lapsed)
    clock.advance(ms=LEASE_MS)
    await engine.sweep("sweeper")
    job = await the_job(engine, lapsed.key)
    assert (job.state, job.attempts) == (State.PENDING, 1)
    assert [entry.kind for entry in await engine.history(job.key)] == ["lapse"]


async def test_the_error_of_an_earlier_attempt_is_the_last_one_again(engine: Engine, clock: VirtualClock) -> None:
    job = await a_processing_job(engine)
    job = await settled(engine, Failed(job.key, 1, "greylisted"))
    clock.advance(ms=60_000)
    job = await activated(engine, job)
    clock.advance(ms=LEASE_MS)
    await engine.sweep("sweeper")
    assert await reclaimed(engine, job) is LeaseStatus.HELD
    assert (await the_job(engine, job.key)).last_error == "greylisted"


@pytest.mark.parametrize("limit_key", [None, "ada"])
async def test_running_jobs_are_counted_with_it(engine: Engine, clock: VirtualClock, limit_key: str | None) -> None:
    await a_policy(engine, max_running=1, max_running_per_key=1)
    lapsed = await a_lapsed_job(engine, clock, limit_key=limit_key)
    await reclaimed(engine, lapsed)
    await engine.create([_another(limit_key)])
    assert await leased_keys(engine) == []
    await settled(engine, Complete(lapsed.key, 1))
    assert len(await leased_keys(engine)) == 1


def _another(limit_key: str | None) -> NewJob:
    return NewJob(TYPE, limit_key=limit_key)


async def test_two_attempts_of_a_job_in_one_call_undo_only_the_last_expiry(engine: Engine, clock: VirtualClock) -> None:
    key = (lapsed := await a_lapsed_job(engine, clock)).key
    clock.advance(ms=600_000)
    await activated(engine, lapsed)
    clock.advance(ms=LEASE_MS)
    await engine.sweep("sweeper")
    statuses = await engine.reclaim([Lease(key, 1), Lease(key, 2)], LEASE_MS)
    assert statuses == [LeaseStatus.LOST, LeaseStatus.HELD]
    assert [(entry.attempt, entry.kind) for entry in await engine.history(key)] == [(1, "lapse")]
    job = await settled(engine, Complete(key, 2))
    assert (job.state, job.attempts) == (State.COMPLETED, 2)


async def test_a_dead_letter_is_taken_back_once_although_an_earlier_attempt_is_named_too(
    engine: Engine, clock: VirtualClock
) -> None:
    key = (lapsed := await a_lapsed_job(engine, clock, max_attempts=2)).key
    clock.advance(ms=600_000)
    await activated(engine, lapsed)
    clock.advance(ms=LEASE_MS)
    await engine.sweep("sweeper")
    assert (await the_job(engine, key)).state is State.FAILED
    statuses = await engine.reclaim([Lease(key, 2), Lease(key, 1)], LEASE_MS)
    assert statuses == [LeaseStatus.HELD, LeaseStatus.LOST]
    assert [(entry.attempt, entry.kind) for entry in await engine.history(key)] == [(1, "lapse")]
