"""sweep: lapsed leases and expiries by whoever looks first, retention by one at a time (G6)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from everwork.core.leasing import Created
from everwork.core.outcome import Complete, Failed, Release
from everwork.core.states import FINISHED_STATES, State
from everwork.engines.values import Swept
from tests.conformance.observe import count_of, kinds, sight
from tests.factories import (
    TYPE,
    Stage,
    a_cancelled_job,
    a_completed_job,
    a_dead_letter,
    a_new_job,
    a_pending_job,
    a_processing_job,
    a_scheduled_job,
    activated,
    asked,
    leased_keys,
    settled,
    the_job,
    the_state,
)
from tests.stores import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS

if TYPE_CHECKING:
    from everwork.core.outcome import Outcome
    from everwork.engines.contract import Engine
    from tests.stores import VirtualClock

pytestmark = pytest.mark.every_way("sqlite-own-loop", "redis-cluster")


async def swept(engine: Engine) -> Swept:
    """The sum of as many steps as the sweep asks for."""
    total = Swept()
    for _ in range(100):
        step = await engine.sweep("s")
        total = Swept(
            total.lapsed + step.lapsed,
            total.expired + step.expired,
            total.requeued + step.requeued,
            total.deleted + step.deleted,
        )
        if not step.more:
            return total
    raise AssertionError("the sweep never ends")


# Lapsed leases ------------------------------------------------------------------------------------


async def test_a_lapsed_lease_goes_to_another_worker_with_the_next_attempt(engine: Engine, clock: VirtualClock) -> None:
    job = await a_processing_job(engine, worker="w1", lease_ms=SECOND_MS)
    clock.advance(ms=SECOND_MS + 1)
    assert await swept(engine) == Swept(lapsed=1)
    clock.advance(seconds=5)
    [leased] = (await asked(engine, worker="w2")).jobs
    assert (leased.key, leased.attempt, leased.attempts) == (job.key, 2, 2)


async def test_a_lapsed_lease_is_a_failed_attempt_with_the_default_backoff(engine: Engine, clock: VirtualClock) -> None:
    job = await a_processing_job(engine, worker="w1", lease_ms=SECOND_MS)
    clock.advance(seconds=2)
    await swept(engine)
    again = await the_job(engine, job.key)
    assert (again.state, again.run_at_ms, again.retries) == (State.PENDING, clock.now_ms + 5_000, 4)
    assert again.last_error is not None
    assert "w1" in again.last_error


async def test_the_history_tells_of_a_lapsed_lease(engine: Engine, clock: VirtualClock) -> None:
    job = await a_processing_job(engine, worker="w1", lease_ms=SECOND_MS)
    clock.advance(seconds=2)
    await swept(engine)
    [event] = await engine.history(job.key)
    assert (event.attempt, event.kind, event.worker, event.at_ms) == (1, "lapse", "w1", clock.now_ms)
    assert (event.activated_at_ms, event.retry_at_ms) == (job.activated_at_ms, clock.now_ms + 5_000)


async def test_a_job_that_kills_its_worker_cannot_loop_for_ever(engine: Engine, clock: VirtualClock) -> None:
    job = await a_pending_job(engine, max_attempts=3)
    for _ in range(5):
        await asked(engine, lease_ms=SECOND_MS)
        clock.advance(ms=10 * MINUTE_MS)
        await swept(engine)
    dead = await the_job(engine, job.key)
    assert (dead.state, dead.attempts) == (State.FAILED, 3)
    assert await kinds(engine, job.key) == [(1, "lapse"), (2, "lapse"), (3, "lapse")]


async def test_a_lease_within_its_time_is_left_alone(engine: Engine, clock: VirtualClock) -> None:
    job = await a_processing_job(engine, lease_ms=30_000)
    before = await sight(engine, job.key)
    clock.advance(ms=29_999)
    assert await swept(engine) == Swept()
    assert await sight(engine, job.key) == before


async def test_only_the_lapsed_of_many_leases_are_taken_away(engine: Engine, clock: VirtualClock) -> None:
    short = await a_processing_job(engine, lease_ms=SECOND_MS)
    long = await a_processing_job(engine, lease_ms=HOUR_MS)
    clock.advance(ms=MINUTE_MS)
    assert await swept(engine) == Swept(lapsed=1)
    assert [await the_state(engine, job.key) for job in (short, long)] == [State.PENDING, State.PROCESSING]


async def test_a_lapsed_lease_is_taken_away_once(engine: Engine, clock: VirtualClock) -> None:
    await a_processing_job(engine, lease_ms=SECOND_MS)
    clock.advance(seconds=2)
    assert [(await swept(engine)).lapsed for _ in range(3)] == [1, 0, 0]


async def test_a_great_number_of_lapsed_leases_is_taken_away_in_bounded_steps(
    engine: Engine, clock: VirtualClock
) -> None:
    await engine.create([a_new_job() for _ in range(2_500)])
    for _ in range(3):
        await asked(engine, 1_000, lease_ms=SECOND_MS)
    clock.advance(seconds=2)
    first = await engine.sweep("s")
    assert (0 < first.lapsed < 2_500, first.more) == (True, True)
    assert first.lapsed + (await swept(engine)).lapsed == 2_500
    assert await count_of(engine, State.PENDING) == 2_500


# Expiry -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", [a_pending_job, a_scheduled_job])
async def test_a_pending_job_past_its_expiry_is_cancelled(engine: Engine, clock: VirtualClock, stage: Stage) -> None:
    job = await stage(engine, expires_at_ms=clock.now_ms + SECOND_MS)
    clock.advance(seconds=2)
    assert await swept(engine) == Swept(expired=1)
    after = await the_job(engine, job.key)
    assert (after.state, after.finished_at_ms) == (State.CANCELLED, clock.now_ms)
    [event] = await engine.history(job.key)
    assert (event.kind, event.error, event.at_ms) == ("expire", "expired", clock.now_ms)


async def test_a_job_before_its_expiry_is_left_alone(engine: Engine, clock: VirtualClock) -> None:
    job = await a_pending_job(engine, expires_at_ms=clock.now_ms + SECOND_MS)
    clock.advance(ms=999)
    assert await swept(engine) == Swept()
    assert await leased_keys(engine) == [job.key]


async def test_a_job_handed_back_after_its_expiry_is_cancelled(engine: Engine, clock: VirtualClock) -> None:
    job = await a_processing_job(engine, expires_at_ms=clock.now_ms + SECOND_MS)
    clock.advance(seconds=2)
    await settled(engine, Release(job.key, 1))
    assert await leased_keys(engine) == []
    await swept(engine)
    assert await kinds(engine, job.key) == [(1, "release"), (1, "expire")]


@pytest.mark.parametrize("outcome", [Release(0, 1), Failed(0, 1, "boom", backoff_ms=0)], ids=["release", "fail"])
async def test_an_expiry_that_passed_a_sweep_while_the_job_ran_is_not_forgotten(
    engine: Engine, clock: VirtualClock, outcome: Outcome
) -> None:
    job = await a_processing_job(engine, expires_at_ms=clock.now_ms + SECOND_MS)
    clock.advance(seconds=2)
    assert await swept(engine) == Swept()
    await settled(engine, outcome._replace(key=job.key))
    assert await leased_keys(engine) == []
    await swept(engine)
    assert await the_state(engine, job.key) is State.CANCELLED


@pytest.mark.parametrize("stage", [a_completed_job, a_dead_letter, a_cancelled_job])
async def test_a_finished_job_does_not_expire(engine: Engine, clock: VirtualClock, stage: Stage) -> None:
    job = await stage(engine, expires_at_ms=clock.now_ms + SECOND_MS)
    before = await sight(engine, job.key)
    clock.advance(seconds=2)
    assert await swept(engine) == Swept()
    assert await sight(engine, job.key) == before


# Retention ----------------------------------------------------------------------------------------

KEPT: list[Stage] = [a_completed_job, a_cancelled_job, a_dead_letter]


async def test_dead_letters_are_kept_for_90_days_and_others_for_days(engine: Engine) -> None:
    kept = engine.retention
    assert set(kept) == FINISHED_STATES
    assert kept[State.FAILED] == 90 * DAY_MS
    assert kept[State.COMPLETED] == kept[State.CANCELLED] >= DAY_MS


@pytest.mark.parametrize("stage", KEPT)
async def test_a_finished_job_is_kept_for_its_days(engine: Engine, clock: VirtualClock, stage: Stage) -> None:
    job = await stage(engine)
    clock.advance(ms=engine.retention[job.state] - 1)
    assert await swept(engine) == Swept()
    assert await engine.get([job.key]) == [job]


@pytest.mark.parametrize("stage", KEPT)
async def test_after_its_days_a_finished_job_is_deleted_with_all_that_belongs_to_it(
    engine: Engine, clock: VirtualClock, stage: Stage
) -> None:
    job = await stage(engine, dedupe_key="d")
    clock.advance(ms=engine.retention[job.state] + SECOND_MS)
    assert await swept(engine) == Swept(deleted=1)
    assert await engine.get([job.key]) == [None]
    assert await engine.history(job.key) == []
    assert (await engine.create([a_new_job(dedupe_key="d")]))[0] != Created(job.key, True)


async def test_the_days_count_from_the_end_and_not_from_the_creation(engine: Engine, clock: VirtualClock) -> None:
    job = await a_processing_job(engine, lease_ms=DAY_MS)
    clock.advance(ms=100 * DAY_MS)
    done = await settled(engine, Complete(job.key, 1))
    assert await swept(engine) == Swept()
    assert await engine.get([job.key]) == [done]


@pytest.mark.parametrize("stage", [a_pending_job, a_scheduled_job])
async def test_a_waiting_job_is_never_deleted(engine: Engine, clock: VirtualClock, stage: Stage) -> None:
    job = await stage(engine)
    clock.advance(ms=1_000 * DAY_MS)
    assert await swept(engine) == Swept()
    assert await leased_keys(engine) == [job.key]


async def test_a_running_job_is_never_deleted(engine: Engine, clock: VirtualClock) -> None:
    job = await a_processing_job(engine, lease_ms=DAY_MS, max_attempts=100)
    clock.advance(ms=1_000 * DAY_MS)
    assert await swept(engine) == Swept(lapsed=1)
    clock.advance(ms=1_000 * DAY_MS)
    assert await leased_keys(engine) == [job.key]


async def test_a_great_number_of_old_jobs_is_deleted_in_bounded_steps(engine: Engine, clock: VirtualClock) -> None:
    created = await engine.create([a_new_job() for _ in range(2_500)])
    await engine.cancel([job.key for job in created])
    clock.advance(ms=8 * DAY_MS)
    first = await engine.sweep("s")
    assert (0 < first.deleted < 2_500, first.more) == (True, True)
    assert first.deleted + (await swept(engine)).deleted == 2_500
    assert await engine.count() == []


async def test_a_dead_letter_stays_where_it_is_unless_somebody_requeues_it(engine: Engine, clock: VirtualClock) -> None:
    job = await a_dead_letter(engine)
    clock.advance(ms=30 * DAY_MS)
    assert await swept(engine) == Swept()
    assert await engine.get([job.key]) == [job]


# Who may do what ------------------------------------------------------------------------------------


async def test_a_lapsed_lease_is_taken_away_by_whoever_looks_first(engine: Engine, clock: VirtualClock) -> None:
    await engine.take_turn("sweep", "first", DAY_MS)
    job = await a_processing_job(engine, lease_ms=SECOND_MS)
    clock.advance(seconds=2)
    assert (await engine.sweep("second")).lapsed == 1
    assert await the_state(engine, job.key) is State.PENDING


async def test_an_expired_job_is_cancelled_by_whoever_looks_first(engine: Engine, clock: VirtualClock) -> None:
    await engine.take_turn("sweep", "first", DAY_MS)
    job = await a_pending_job(engine, expires_at_ms=clock.now_ms + SECOND_MS)
    clock.advance(seconds=2)
    assert (await engine.sweep("second")).expired == 1
    assert await the_state(engine, job.key) is State.CANCELLED


async def test_only_the_holder_of_the_turn_deletes_finished_jobs(engine: Engine, clock: VirtualClock) -> None:
    await engine.take_turn("sweep", "first", 30 * DAY_MS)
    job = await a_completed_job(engine)
    clock.advance(ms=8 * DAY_MS)
    before = await sight(engine, job.key)
    assert await engine.sweep("second") == Swept()
    assert await sight(engine, job.key) == before
    assert (await engine.sweep("first")).deleted == 1


async def test_when_the_holder_of_the_turn_is_gone_another_takes_it(engine: Engine, clock: VirtualClock) -> None:
    await engine.sweep("first")
    await a_completed_job(engine)
    clock.advance(ms=8 * DAY_MS)
    assert (await engine.sweep("second")).deleted == 1


async def test_an_empty_store_has_nothing_to_sweep(engine: Engine) -> None:
    assert await engine.sweep("s") == Swept()


async def test_every_way_of_failing_leads_to_the_next_attempt_by_itself(engine: Engine, clock: VirtualClock) -> None:
    job = await a_processing_job(engine, lease_ms=SECOND_MS)
    await settled(engine, Failed(job.key, 1, "boom"))
    clock.advance(seconds=5)
    await activated(engine, job, lease_ms=SECOND_MS)
    clock.advance(seconds=5)
    await swept(engine)
    clock.advance(seconds=10)
    assert [(leased.key, leased.attempt) for leased in (await asked(engine, type=TYPE)).jobs] == [(job.key, 3)]
