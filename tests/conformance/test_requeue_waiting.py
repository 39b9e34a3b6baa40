"""requeue of jobs that wait for a retry: due now, with all their attempts, and nothing of their past is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from everwork.core.leasing import Verdict
from everwork.core.outcome import Complete, Failed, Release
from everwork.core.states import State
from tests.conformance.observe import kinds, seen, sight
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
    judged,
    leased_keys,
    settled,
    the_job,
)
from tests.stores import HOUR_MS, SECOND_MS

if TYPE_CHECKING:
    from typing import Any

    from everwork.core.job import StoredJob
    from everwork.engines.contract import Engine
    from tests.stores import VirtualClock


async def a_waiting_job(engine: Engine, *, backoff_ms: int = HOUR_MS, **fields: Any) -> StoredJob:
    """A job that has failed once and waits for its second attempt."""
    job = await a_processing_job(engine, **fields)
    return await settled(engine, Failed(job.key, job.attempt, "boom", backoff_ms=backoff_ms))


async def test_a_job_that_waits_for_its_backoff_is_due_now_with_all_its_attempts(
    engine: Engine, clock: VirtualClock
) -> None:
    job = await a_waiting_job(engine, max_attempts=3)
    clock.advance(seconds=9)
    assert seen(await engine.requeue([job.key], waiting=True)) == [(Verdict.ACCEPTED, State.PENDING)]
    back = await the_job(engine, job.key)
    assert (back.state, back.run_at_ms, back.last_error) == (State.PENDING, clock.now_ms, None)
    assert (back.attempts, back.max_attempts, back.retries) == (0, 3, 3)
    assert await leased_keys(engine) == [job.key]


async def test_its_attempt_number_goes_on_and_its_history_tells_of_the_requeue(
    engine: Engine, clock: VirtualClock
) -> None:
    job = await a_waiting_job(engine)
    clock.advance(seconds=1)
    await engine.requeue([job.key], waiting=True)
    assert (await engine.history(job.key))[-1].at_ms == clock.now_ms
    [leased] = (await asked(engine)).jobs
    assert (leased.attempt, leased.attempts) == (2, 1)
    assert await kinds(engine, job.key) == [(1, "fail"), (1, "requeue")]
    assert (await the_job(engine, job.key)).last_error is None


async def test_the_retries_that_it_showed_before_are_answered(engine: Engine) -> None:
    job = await a_waiting_job(engine, max_attempts=3)
    [answer] = await engine.requeue([job.key], waiting=True)
    assert answer.retries == job.retries == 2


async def test_a_changed_number_of_attempts_is_as_created_again(engine: Engine) -> None:
    job = await a_waiting_job(engine, max_attempts=3)
    await engine.set_retries(job.key, 9)
    await engine.requeue([job.key], waiting=True)
    assert (await the_job(engine, job.key)).max_attempts == 3


async def test_a_retry_that_is_due_already_keeps_its_place(engine: Engine, clock: VirtualClock) -> None:
    job = await a_waiting_job(engine, backoff_ms=SECOND_MS)
    clock.advance(seconds=2)
    other = await a_pending_job(engine)
    clock.advance(seconds=2)
    await engine.requeue([job.key], waiting=True)
    assert (await the_job(engine, job.key)).run_at_ms == job.run_at_ms
    assert await leased_keys(engine) == [job.key, other.key]


async def test_priority_lane_and_payload_stay(engine: Engine) -> None:
    job = await a_waiting_job(engine, variables='{"n":1}', priority=7, limit_key="c", tenant="acme")
    await engine.requeue([job.key], waiting=True)
    back = await the_job(engine, job.key)
    for name in ("variables", "priority", "limit_key", "tenant", "created_at_ms"):
        assert getattr(back, name) == getattr(job, name)
    assert await leased_keys(engine, tenants=("acme",)) == [job.key]


@pytest.mark.parametrize("stage", [a_pending_job, a_scheduled_job, a_processing_job, a_completed_job, a_cancelled_job])
async def test_a_job_that_has_not_been_tried_or_is_not_pending_is_refused(engine: Engine, stage: Stage) -> None:
    job = await stage(engine)
    before = await sight(engine, job.key)
    assert seen(await engine.requeue([job.key], waiting=True)) == [(Verdict.WRONG_STATE, job.state)]
    assert await sight(engine, job.key) == before


async def test_without_being_asked_for_a_waiting_job_is_refused(engine: Engine) -> None:
    job = await a_waiting_job(engine)
    before = await sight(engine, job.key)
    assert seen(await engine.requeue([job.key])) == [(Verdict.WRONG_STATE, State.PENDING)]
    assert await sight(engine, job.key) == before


async def test_dead_letters_and_waiting_jobs_are_judged_item_by_item(engine: Engine) -> None:
    waiting, fresh = await a_waiting_job(engine), await a_scheduled_job(engine)
    dead = await a_dead_letter(engine)
    keys = [waiting.key, dead.key, fresh.key, 999_999, waiting.key]
    assert [answer.verdict for answer in await engine.requeue(keys, waiting=True)] == [
        Verdict.ACCEPTED,
        Verdict.ACCEPTED,
        Verdict.WRONG_STATE,
        Verdict.NOT_FOUND,
        Verdict.WRONG_STATE,
    ]


async def test_a_job_can_fail_and_be_requeued_before_its_retry_again_and_again(engine: Engine) -> None:
    job = await a_waiting_job(engine, max_attempts=2)
    for attempt in (2, 3):
        assert (await engine.requeue([job.key], waiting=True))[0].ok
        assert not (await engine.requeue([job.key], waiting=True))[0].ok
        await activated(engine, job)
        await settled(engine, Failed(job.key, attempt, "boom", backoff_ms=HOUR_MS))
    back = await the_job(engine, job.key)
    assert (back.state, back.attempt, back.attempts) == (State.PENDING, 3, 1)


async def test_a_job_that_was_handed_back_later_on_can_be_requeued(engine: Engine, clock: VirtualClock) -> None:
    job = await a_waiting_job(engine, backoff_ms=SECOND_MS)
    clock.advance(seconds=2)
    await activated(engine, job)
    await settled(engine, Release(job.key, 2))
    assert (await engine.requeue([job.key], waiting=True))[0].ok
    back = await the_job(engine, job.key)
    assert (back.attempt, back.attempts, back.last_error) == (2, 0, None)
    assert await kinds(engine, job.key) == [(1, "fail"), (2, "release"), (2, "requeue")]


async def test_the_outcome_of_an_attempt_before_the_requeue_is_refused(engine: Engine) -> None:
    job = await a_waiting_job(engine)
    await engine.requeue([job.key], waiting=True)
    assert (await judged(engine, Complete(job.key, 1))).verdict is Verdict.WRONG_STATE
    assert (await judged(engine, Failed(job.key, 1, "boom", backoff_ms=HOUR_MS))).verdict is Verdict.REPEATED
    await activated(engine, job)
    assert (await settled(engine, Complete(job.key, 2))).state is State.COMPLETED


async def test_a_requeued_waiting_job_still_expires(engine: Engine, clock: VirtualClock) -> None:
    job = await a_waiting_job(engine, expires_at_ms=clock.now_ms + SECOND_MS)
    await engine.requeue([job.key], waiting=True)
    clock.advance(seconds=2)
    assert await leased_keys(engine) == []
    await engine.sweep("s")
    assert (await the_job(engine, job.key)).state is State.CANCELLED
