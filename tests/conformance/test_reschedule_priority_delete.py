"""reschedule and set_priority of what waits; delete of what is finished."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from everwork.core.leasing import Verdict
from everwork.core.outcome import Complete, Failed
from everwork.core.states import State
from tests.conformance.observe import every_job, seen, sight
from tests.factories import (
    Stage,
    a_cancelled_job,
    a_completed_job,
    a_dead_letter,
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
from tests.stores import DAY_MS, MINUTE_MS

if TYPE_CHECKING:
    from everwork.engines.contract import Engine
    from tests.stores import VirtualClock

NOT_PENDING: list[Stage] = [a_processing_job, a_completed_job, a_dead_letter, a_cancelled_job]
PENDING: list[Stage] = [a_pending_job, a_scheduled_job]

# reschedule ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", PENDING)
async def test_a_pending_job_runs_at_the_instant_it_was_moved_to(
    engine: Engine, clock: VirtualClock, stage: Stage
) -> None:
    job = await stage(engine)
    run_at_ms = clock.now_ms + 5 * MINUTE_MS
    assert seen(await engine.reschedule([job.key], run_at_ms=run_at_ms)) == [(Verdict.ACCEPTED, State.PENDING)]
    assert (await the_job(engine, job.key)).run_at_ms == run_at_ms
    clock.advance(ms=5 * MINUTE_MS - 1)
    assert await leased_keys(engine) == []
    clock.advance(ms=1)
    assert await leased_keys(engine) == [job.key]


@pytest.mark.parametrize("stage", PENDING)
async def test_a_pending_job_runs_after_the_delay_it_was_given(
    engine: Engine, clock: VirtualClock, stage: Stage
) -> None:
    job = await stage(engine)
    clock.advance(seconds=7)
    await engine.reschedule([job.key], delay_ms=1_500)
    assert (await the_job(engine, job.key)).run_at_ms == clock.now_ms + 1_500


async def test_without_a_delay_a_scheduled_job_runs_now(engine: Engine, clock: VirtualClock) -> None:
    job = await a_scheduled_job(engine, delay_ms=DAY_MS)
    clock.advance(seconds=1)
    await engine.reschedule([job.key])
    assert (await the_job(engine, job.key)).run_at_ms == clock.now_ms
    assert await leased_keys(engine) == [job.key]


async def test_a_retry_that_waits_can_be_brought_forward(engine: Engine) -> None:
    job = await a_processing_job(engine)
    await settled(engine, Failed(job.key, 1, "boom"))
    await engine.reschedule([job.key])
    after = await activated(engine, job)
    assert (after.attempt, after.attempts, after.last_error) == (2, 2, "boom")


async def test_moving_a_job_changes_its_place_in_the_queue(engine: Engine, clock: VirtualClock) -> None:
    first, second, third = [await a_pending_job(engine) for _ in range(3)]
    clock.advance(seconds=10)
    await engine.reschedule([second.key])
    await engine.reschedule([third.key], run_at_ms=clock.now_ms - MINUTE_MS)
    assert await leased_keys(engine) == [third.key, first.key, second.key]


async def test_moving_a_job_changes_nothing_else(engine: Engine) -> None:
    job = await a_pending_job(engine, priority=4, limit_key="c", tenant="acme", dedupe_key="d")
    before = await sight(engine, job.key)
    await engine.reschedule([job.key], delay_ms=MINUTE_MS)
    await engine.reschedule([job.key], run_at_ms=job.run_at_ms)
    assert await sight(engine, job.key) == before


@pytest.mark.parametrize("stage", NOT_PENDING)
async def test_only_a_pending_job_can_be_moved(engine: Engine, stage: Stage) -> None:
    job = await stage(engine)
    before = await sight(engine, job.key)
    assert seen(await engine.reschedule([job.key], delay_ms=1)) == [(Verdict.WRONG_STATE, job.state)]
    assert await sight(engine, job.key) == before


async def test_a_batch_of_moves_is_judged_item_by_item(engine: Engine) -> None:
    done, waiting = await a_completed_job(engine), await a_pending_job(engine)
    answer = await engine.reschedule([999_999, done.key, waiting.key], delay_ms=MINUTE_MS)
    assert [judged.verdict for judged in answer] == [Verdict.NOT_FOUND, Verdict.WRONG_STATE, Verdict.ACCEPTED]


# set_priority -------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", PENDING)
async def test_a_pending_job_can_get_another_priority(engine: Engine, stage: Stage) -> None:
    job = await stage(engine)
    assert seen(await engine.set_priority([job.key], 42)) == [(Verdict.ACCEPTED, State.PENDING)]
    after = await the_job(engine, job.key)
    assert (after.priority, after.run_at_ms) == (42, job.run_at_ms)


async def test_another_priority_changes_the_place_in_the_queue(engine: Engine) -> None:
    first, second, third = [await a_pending_job(engine) for _ in range(3)]
    await engine.set_priority([third.key], 5)
    await engine.set_priority([first.key], -5)
    assert await leased_keys(engine) == [third.key, second.key, first.key]


async def test_the_priority_of_a_scheduled_job_counts_when_it_is_due(engine: Engine, clock: VirtualClock) -> None:
    first, second = await a_scheduled_job(engine), await a_scheduled_job(engine)
    await engine.set_priority([second.key], 5)
    clock.advance(ms=MINUTE_MS)
    assert await leased_keys(engine) == [second.key, first.key]


async def test_the_priority_stays_from_attempt_to_attempt(engine: Engine) -> None:
    job = await a_pending_job(engine)
    await engine.set_priority([job.key], 42)
    assert (await asked(engine)).jobs[0].priority == 42
    await settled(engine, Failed(job.key, 1, "boom", backoff_ms=0))
    assert (await activated(engine, job)).priority == 42
    assert (await settled(engine, Complete(job.key, 2))).priority == 42


async def test_the_same_priority_again_changes_nothing(engine: Engine) -> None:
    job = await a_pending_job(engine, priority=3)
    before = await sight(engine, job.key)
    assert (await engine.set_priority([job.key], 3))[0].ok
    assert await sight(engine, job.key) == before


@pytest.mark.parametrize("stage", NOT_PENDING)
async def test_only_a_pending_job_can_get_another_priority(engine: Engine, stage: Stage) -> None:
    job = await stage(engine)
    before = await sight(engine, job.key)
    assert seen(await engine.set_priority([job.key], 42)) == [(Verdict.WRONG_STATE, job.state)]
    assert await sight(engine, job.key) == before


async def test_a_batch_of_priorities_is_judged_item_by_item(engine: Engine) -> None:
    done, waiting = await a_completed_job(engine), await a_pending_job(engine)
    answer = await engine.set_priority([done.key, waiting.key, 999_999], 1)
    assert [judged.verdict for judged in answer] == [Verdict.WRONG_STATE, Verdict.ACCEPTED, Verdict.NOT_FOUND]


# delete -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", [a_completed_job, a_dead_letter, a_cancelled_job])
async def test_a_finished_job_can_be_deleted_with_all_that_belongs_to_it(engine: Engine, stage: Stage) -> None:
    job = await stage(engine)
    assert seen(await engine.delete([job.key])) == [(Verdict.ACCEPTED, job.state)]
    assert await engine.get([job.key]) == [None]
    assert await engine.history(job.key) == []
    assert await engine.explain(job.key) is None
    assert await every_job(engine) == []
    assert await engine.count() == []


@pytest.mark.parametrize("stage", [a_pending_job, a_scheduled_job, a_processing_job])
async def test_a_live_job_cannot_be_deleted(engine: Engine, stage: Stage) -> None:
    job = await stage(engine)
    before = await sight(engine, job.key)
    assert seen(await engine.delete([job.key])) == [(Verdict.WRONG_STATE, job.state)]
    assert await sight(engine, job.key) == before


async def test_a_deleted_job_is_not_found_again(engine: Engine) -> None:
    job = await a_completed_job(engine)
    await engine.delete([job.key])
    gone = (Verdict.NOT_FOUND, None)
    assert seen(await engine.delete([job.key])) == [gone]
    assert seen(await engine.cancel([job.key])) == [gone]
    assert seen(await engine.requeue([job.key])) == [gone]
    assert seen((await engine.settle([Complete(job.key, 1)])).judged) == [gone]


async def test_a_batch_of_deletes_is_judged_item_by_item(engine: Engine) -> None:
    done, waiting = await a_completed_job(engine), await a_pending_job(engine)
    answer = await engine.delete([waiting.key, done.key, done.key, 999_999])
    assert [judged.verdict for judged in answer] == [
        Verdict.WRONG_STATE,
        Verdict.ACCEPTED,
        Verdict.NOT_FOUND,
        Verdict.NOT_FOUND,
    ]


async def test_deleting_one_job_leaves_the_others_alone(engine: Engine) -> None:
    first, second = await a_completed_job(engine), await a_completed_job(engine)
    await engine.delete([first.key])
    assert await every_job(engine) == [second]


async def test_a_job_that_was_requeued_and_has_finished_again_is_not_deleted_by_its_earlier_attempt(
    engine: Engine,
) -> None:
    letter, other = await a_dead_letter(engine), await a_dead_letter(engine)
    await engine.requeue([letter.key])
    assert await leased_keys(engine) == [letter.key]
    await settled(engine, Complete(letter.key, letter.attempt + 1))
    judged = await engine.delete([letter.key, other.key, 999_999], [letter.attempt, other.attempt, 1])
    assert [one.verdict for one in judged] == [Verdict.WRONG_STATE, Verdict.ACCEPTED, Verdict.NOT_FOUND]
    assert await the_state(engine, letter.key) is State.COMPLETED
    [judged_again] = await engine.delete([letter.key], [letter.attempt + 1])
    assert judged_again.verdict is Verdict.ACCEPTED
