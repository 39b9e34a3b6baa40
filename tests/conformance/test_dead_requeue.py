"""Dead letters come back by themselves, if their type's policy says so, and only so often."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from everwork.core.outcome import Complete, Failed, Reject, Throw
from everwork.core.states import State
from everwork.engines.values import Swept
from tests.conformance.failing import where_it_is_decided
from tests.conformance.observe import count_of, kinds, sight
from tests.conformance.test_sweep import swept
from tests.factories import (
    TYPE,
    Stage,
    a_cancelled_job,
    a_completed_job,
    a_dead_letter,
    a_new_job,
    a_policy,
    a_processing_job,
    activated,
    asked,
    leased_keys,
    settled,
    the_job,
    the_state,
)
from tests.stores import DAY_MS, HOUR_MS, SECOND_MS

if TYPE_CHECKING:
    from everwork.core.job import StoredJob
    from everwork.core.outcome import Outcome
    from everwork.engines.contract import Engine
    from tests.stores import VirtualClock

pytestmark = where_it_is_decided

DAILY: dict[str, Any] = {"failed_job_retry_hours": 24.0}


async def died_again(engine: Engine, job: StoredJob) -> StoredJob:
    """The same job, tried once more, in vain."""
    running = await activated(engine, job)
    return await settled(engine, Failed(running.key, running.attempt, "again in vain", final=True))


async def test_a_dead_letter_comes_back_after_its_hours(engine: Engine, clock: VirtualClock) -> None:
    await a_policy(engine, **DAILY)
    job = await a_dead_letter(engine, max_attempts=3)
    clock.advance(ms=DAY_MS)
    assert await swept(engine) == Swept(requeued=1)
    back = await the_job(engine, job.key)
    assert (back.state, back.attempts, back.max_attempts, back.last_error) == (State.PENDING, 0, 3, None)
    assert (back.run_at_ms, back.finished_at_ms, back.attempt) == (clock.now_ms, None, 1)
    assert await leased_keys(engine) == [job.key]


async def test_a_dead_letter_does_not_come_back_before_its_hours(engine: Engine, clock: VirtualClock) -> None:
    await a_policy(engine, **DAILY)
    job = await a_dead_letter(engine)
    clock.advance(ms=DAY_MS - 1)
    assert await swept(engine) == Swept()
    assert await engine.get([job.key]) == [job]


async def test_the_history_says_that_it_came_back_by_itself(engine: Engine, clock: VirtualClock) -> None:
    await a_policy(engine, **DAILY)
    job = await a_dead_letter(engine)
    clock.advance(ms=DAY_MS)
    await swept(engine)
    failed, back = await engine.history(job.key)
    assert (failed.kind, failed.error) == ("fail", job.last_error)
    assert (back.attempt, back.kind, back.error, back.at_ms) == (1, "requeue", "automatic", clock.now_ms)


@pytest.mark.parametrize("rounds", [1, 2])
async def test_a_dead_letter_comes_back_so_many_times_and_no_more(
    engine: Engine, clock: VirtualClock, rounds: int
) -> None:
    await a_policy(engine, **DAILY, failed_job_retry_rounds=rounds)
    job = await a_dead_letter(engine)
    came_back = []
    for _ in range(4):
        clock.advance(ms=DAY_MS)
        came_back.append((await swept(engine)).requeued)
        if came_back[-1]:
            job = await died_again(engine, job)
    assert came_back == [1] * rounds + [0] * (4 - rounds)
    assert await engine.get([job.key]) == [job]


async def test_more_rounds_bring_back_what_had_used_up_its_own(engine: Engine, clock: VirtualClock) -> None:
    await a_policy(engine, **DAILY)
    job = await a_dead_letter(engine)
    clock.advance(ms=DAY_MS)
    await swept(engine)
    await died_again(engine, job)
    clock.advance(ms=DAY_MS)
    assert await swept(engine) == Swept()
    await a_policy(engine, **DAILY, failed_job_retry_rounds=2)
    clock.advance(ms=HOUR_MS)
    assert await swept(engine) == Swept(requeued=1)


async def test_a_requeue_by_hand_uses_no_round_up_and_gives_none_back(engine: Engine, clock: VirtualClock) -> None:
    await a_policy(engine, **DAILY)
    job = await a_dead_letter(engine)
    came_back = []
    for _ in range(3):
        await engine.requeue([job.key])
        await died_again(engine, job)
        clock.advance(ms=DAY_MS)
        came_back.append((await swept(engine)).requeued)
        if came_back[-1]:
            await died_again(engine, job)
    assert came_back == [1, 0, 0]


@pytest.mark.parametrize(
    "outcome", [Failed(0, 1, "boom", final=True), Failed(0, 1, "boom", retries=0), Throw(0, 1, "E42")], ids=str
)
async def test_every_failure_comes_back(engine: Engine, clock: VirtualClock, outcome: Outcome) -> None:
    await a_policy(engine, **DAILY)
    job = await a_processing_job(engine)
    await settled(engine, outcome._replace(key=job.key))
    clock.advance(ms=DAY_MS)
    assert await swept(engine) == Swept(requeued=1)
    assert (await the_job(engine, job.key)).error_code is None


async def test_a_job_whose_last_lease_lapsed_comes_back(engine: Engine, clock: VirtualClock) -> None:
    await a_policy(engine, **DAILY)
    job = await a_processing_job(engine, max_attempts=1, lease_ms=SECOND_MS)
    clock.advance(seconds=2)
    await swept(engine)
    clock.advance(ms=DAY_MS)
    assert await swept(engine) == Swept(requeued=1)
    assert await leased_keys(engine) == [job.key]


async def test_a_rejected_job_never_comes_back_by_itself(engine: Engine, clock: VirtualClock) -> None:
    await a_policy(engine, **DAILY, failed_job_retry_rounds=100)
    job = await a_processing_job(engine)
    await settled(engine, Reject(job.key, 1, "nonsense"))
    before = await sight(engine, job.key)
    clock.advance(ms=5 * DAY_MS)
    assert await swept(engine) == Swept()
    assert await sight(engine, job.key) == before


async def test_a_rejected_job_that_was_requeued_and_then_failed_comes_back(engine: Engine, clock: VirtualClock) -> None:
    await a_policy(engine, **DAILY)
    job = await a_processing_job(engine)
    await settled(engine, Reject(job.key, 1, "nonsense"))
    await engine.requeue([job.key])
    await died_again(engine, job)
    clock.advance(ms=DAY_MS)
    assert await swept(engine) == Swept(requeued=1)


@pytest.mark.parametrize("stage", [a_completed_job, a_cancelled_job])
async def test_a_completed_or_cancelled_job_is_never_tried_again(
    engine: Engine, clock: VirtualClock, stage: Stage
) -> None:
    await a_policy(engine, failed_job_retry_hours=1.0, failed_job_retry_rounds=100)
    job = await stage(engine)
    clock.advance(ms=2 * HOUR_MS)
    assert await swept(engine) == Swept()
    assert await engine.get([job.key]) == [job]


async def test_dead_letters_of_other_types_stay_where_they_are(engine: Engine, clock: VirtualClock) -> None:
    await a_policy(engine, **DAILY)
    await a_policy(engine, type="slow", failed_job_retry_hours=48.0)
    mine, slow, other = [await a_dead_letter(engine, type=type) for type in (TYPE, "slow", "other")]
    clock.advance(ms=DAY_MS)
    assert await swept(engine) == Swept(requeued=1)
    states = [await the_state(engine, job.key) for job in (mine, slow, other)]
    assert states == [State.PENDING, State.FAILED, State.FAILED]


async def test_a_policy_holds_for_jobs_that_had_failed_before_it(engine: Engine, clock: VirtualClock) -> None:
    job = await a_dead_letter(engine)
    clock.advance(ms=DAY_MS)
    await swept(engine)
    await a_policy(engine, **DAILY)
    clock.advance(ms=HOUR_MS)
    assert await swept(engine) == Swept(requeued=1)
    assert await leased_keys(engine) == [job.key]


async def test_shorter_hours_hold_for_jobs_that_had_failed_before_them(engine: Engine, clock: VirtualClock) -> None:
    await a_policy(engine, **DAILY)
    await a_dead_letter(engine)
    clock.advance(ms=HOUR_MS)
    assert await swept(engine) == Swept()
    await a_policy(engine, failed_job_retry_hours=0.5)
    clock.advance(ms=HOUR_MS)
    assert await swept(engine) == Swept(requeued=1)


async def test_a_policy_that_is_taken_away_brings_nothing_back(engine: Engine, clock: VirtualClock) -> None:
    await a_policy(engine, **DAILY)
    job = await a_dead_letter(engine)
    await engine.set_policy(TYPE, None)
    clock.advance(ms=2 * DAY_MS)
    assert await swept(engine) == Swept()
    assert await engine.get([job.key]) == [job]


async def test_a_dead_letter_that_came_back_another_way_is_left_alone(engine: Engine, clock: VirtualClock) -> None:
    await a_policy(engine, **DAILY)
    job = await a_dead_letter(engine)
    await engine.requeue([job.key])
    running = await activated(engine, job, lease_ms=3 * DAY_MS)
    clock.advance(ms=DAY_MS)
    assert await swept(engine) == Swept()
    await settled(engine, Complete(job.key, running.attempt))


async def test_the_dead_letters_of_every_group_come_back_to_it(engine: Engine, clock: VirtualClock) -> None:
    await a_policy(engine, **DAILY)
    await engine.add_group(TYPE, "audit")
    await engine.create([a_new_job()])
    for group in ("", "audit"):
        for job in (await asked(engine, group=group)).jobs:
            await settled(engine, Failed(job.key, 1, "boom", final=True))
    clock.advance(ms=DAY_MS)
    assert await swept(engine) == Swept(requeued=2)
    assert [len(await leased_keys(engine, group=group)) for group in ("", "audit")] == [1, 1]


async def test_only_the_holder_of_the_turn_brings_dead_letters_back(engine: Engine, clock: VirtualClock) -> None:
    await a_policy(engine, **DAILY)
    await engine.take_turn("sweep", "first", 30 * DAY_MS)
    await a_dead_letter(engine)
    clock.advance(ms=DAY_MS)
    assert await engine.sweep("second") == Swept()
    assert (await engine.sweep("first")).requeued == 1


async def test_a_great_number_of_dead_letters_comes_back_in_bounded_steps_and_none_is_deleted_meanwhile(
    engine: Engine, clock: VirtualClock
) -> None:
    await a_policy(engine, **DAILY, keep_failed_hours=36.0)
    await engine.create([a_new_job() for _ in range(1_200)])
    for _ in range(2):
        jobs = (await asked(engine, 1_000)).jobs
        await engine.settle([Failed(job.key, 1, "boom", final=True) for job in jobs])
    clock.advance(ms=2 * DAY_MS)
    first = await engine.sweep("s")
    assert (0 < first.requeued <= 1_000, first.more) == (True, True)
    assert await swept(engine) == Swept(requeued=1_200 - first.requeued)
    assert await count_of(engine, State.PENDING) == 1_200


async def test_old_dead_letters_that_stay_do_not_hide_one_that_comes_back(engine: Engine, clock: VirtualClock) -> None:
    await a_policy(engine, **DAILY)
    await engine.create([a_new_job() for _ in range(1_200)])
    for _ in range(2):
        jobs = (await asked(engine, 1_000)).jobs
        await engine.settle([Reject(job.key, 1, "nonsense") for job in jobs])
    job = await a_dead_letter(engine)
    clock.advance(ms=DAY_MS)
    assert await swept(engine) == Swept(requeued=1)
    assert await leased_keys(engine) == [job.key]


async def test_a_dead_letter_that_came_from_another_store_comes_back_too(engine: Engine, clock: VirtualClock) -> None:
    await a_policy(engine, **DAILY)
    job = await a_dead_letter(engine)
    [record] = await engine.dump(0, 10)
    await engine.delete([job.key])
    await engine.load([record._replace(job=replace(job, key=job.key + 1_000))])
    clock.advance(ms=DAY_MS)
    assert await swept(engine) == Swept(requeued=1)
    assert await kinds(engine, job.key + 1_000) == [(1, "fail"), (1, "requeue")]


async def test_a_dead_letter_that_is_older_than_those_looked_at_comes_back_too(
    engine: Engine, clock: VirtualClock
) -> None:
    await a_policy(engine, **DAILY)
    job = await a_dead_letter(engine)
    [record] = await engine.dump(0, 10)
    clock.advance(ms=DAY_MS)
    await swept(engine)
    old = replace(job, key=job.key + 1_000, finished_at_ms=clock.now_ms - 3 * DAY_MS)
    await engine.load([record._replace(job=old)])
    assert await swept(engine) == Swept(requeued=1)


async def test_a_dead_letter_that_nobody_swept_in_time_comes_back_and_is_not_deleted(
    engine: Engine, clock: VirtualClock
) -> None:
    await a_policy(engine, **DAILY, keep_failed_hours=48.0)
    dead = [await a_dead_letter(engine) for _ in range(3)]
    clock.advance(ms=3 * DAY_MS)
    assert await swept(engine) == Swept(requeued=3)
    assert await leased_keys(engine) == [job.key for job in dead]


async def test_a_dead_letter_that_may_not_come_back_again_is_deleted_when_its_time_is_over(
    engine: Engine, clock: VirtualClock
) -> None:
    await a_policy(engine, **DAILY, keep_failed_hours=48.0)
    spent = await a_dead_letter(engine)
    clock.advance(ms=DAY_MS)
    await swept(engine)
    await died_again(engine, spent)
    fresh = await a_dead_letter(engine)
    clock.advance(ms=3 * DAY_MS)
    assert await swept(engine) == Swept(requeued=1, deleted=1)
    assert await leased_keys(engine) == [fresh.key]


async def test_dead_letters_of_a_dropped_group_stay_failed_until_the_group_is_there_again(
    engine: Engine, clock: VirtualClock
) -> None:
    await a_policy(engine, **DAILY)
    await engine.add_group(TYPE, "audit")
    await engine.create([a_new_job()])
    [copy] = (await asked(engine, group="audit")).jobs
    dead = await settled(engine, Failed(copy.key, 1, "no such address", final=True))
    await engine.drop_group(TYPE, "audit")
    clock.advance(ms=2 * DAY_MS)
    assert [await swept(engine) for _ in range(2)] == [Swept(), Swept()]
    assert await engine.get([dead.key]) == [dead]
    await engine.add_group(TYPE, "audit")
    clock.advance(ms=HOUR_MS)
    assert await swept(engine) == Swept(requeued=1)
    assert await leased_keys(engine, group="audit") == [dead.key]


@pytest.mark.parametrize(("lives_ms", "came_back"), [(DAY_MS, 0), (DAY_MS + 1, 1)], ids=["expired", "not yet expired"])
async def test_a_dead_letter_past_its_own_expiry_stays_failed(
    engine: Engine, clock: VirtualClock, lives_ms: int, came_back: int
) -> None:
    await a_policy(engine, **DAILY)
    job = await a_dead_letter(engine, expires_at_ms=clock.now_ms + lives_ms)
    clock.advance(ms=DAY_MS)
    assert [await swept(engine) for _ in range(2)] == [Swept(requeued=came_back), Swept()]
    assert (await the_job(engine, job.key)).last_error == (None if came_back else job.last_error)
