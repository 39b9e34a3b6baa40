"""requeue: dead letters come back as if new, and nothing of their past is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from everwork.core.leasing import Verdict
from everwork.core.outcome import Complete, Failed, Reject, Throw
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
    leased_keys,
    settled,
    the_job,
    the_state,
)
from tests.stores import DAY_MS, SECOND_MS

if TYPE_CHECKING:
    from everwork.core.outcome import Outcome
    from everwork.engines.contract import Engine
    from tests.stores import VirtualClock


async def test_a_dead_letter_comes_back_pending_and_due_now(engine: Engine, clock: VirtualClock) -> None:
    job = await a_dead_letter(engine)
    clock.advance(seconds=9)
    assert seen(await engine.requeue([job.key])) == [(Verdict.ACCEPTED, State.FAILED)]
    back = await the_job(engine, job.key)
    assert (back.state, back.run_at_ms, back.finished_at_ms) == (State.PENDING, clock.now_ms, None)
    assert await leased_keys(engine) == [job.key]


async def test_a_requeued_job_has_no_counted_attempts_and_no_error(engine: Engine) -> None:
    job = await a_dead_letter(engine, max_attempts=3)
    await engine.requeue([job.key])
    back = await the_job(engine, job.key)
    assert (back.attempts, back.max_attempts, back.retries, back.last_error) == (0, 3, 3, None)


async def test_the_attempt_number_goes_on_after_a_requeue(engine: Engine) -> None:
    job = await a_dead_letter(engine)
    await engine.requeue([job.key])
    assert (await the_job(engine, job.key)).attempt == 1
    [leased] = (await asked(engine)).jobs
    assert (leased.attempt, leased.attempts) == (2, 1)


async def test_the_history_stays_and_tells_of_the_requeue(engine: Engine, clock: VirtualClock) -> None:
    job = await a_dead_letter(engine)
    before = await engine.history(job.key)
    clock.advance(seconds=1)
    await engine.requeue([job.key])
    history = await engine.history(job.key)
    assert history[:-1] == before
    assert (history[-1].kind, history[-1].at_ms) == ("requeue", clock.now_ms)


async def test_a_job_can_fail_and_be_requeued_again_and_again(engine: Engine) -> None:
    job = await a_dead_letter(engine, max_attempts=1)
    for attempt in (2, 3):
        await engine.requeue([job.key])
        await activated(engine, job)
        await settled(engine, Failed(job.key, attempt, "boom"))
    ends = ["fail", "requeue", "fail", "requeue", "fail"]
    assert [kind for _, kind in await kinds(engine, job.key)] == ends
    assert [attempt for attempt, kind in await kinds(engine, job.key) if kind == "fail"] == [1, 2, 3]


async def test_the_attempts_are_those_of_the_creation_whatever_workers_asked_for(engine: Engine) -> None:
    job = await a_processing_job(engine, max_attempts=2)
    await settled(engine, Failed(job.key, 1, "boom", retries=50, backoff_ms=0))
    await activated(engine, job)
    await settled(engine, Failed(job.key, 2, "boom", final=True))
    await engine.requeue([job.key])
    assert (await the_job(engine, job.key)).max_attempts == 2


@pytest.mark.parametrize("outcome", [Reject(0, 0, "nonsense"), Throw(0, 0, "E42", "no money")], ids=str)
async def test_nothing_of_how_it_failed_is_left_on_a_requeued_job(engine: Engine, outcome: Outcome) -> None:
    job = await a_processing_job(engine)
    await settled(engine, outcome._replace(key=job.key, attempt=1))
    await engine.requeue([job.key])
    back = await the_job(engine, job.key)
    assert (back.last_error, back.error_code, back.rejected) == (None, None, False)


async def test_an_error_of_before_the_requeue_is_not_shown_while_the_job_runs_again(engine: Engine) -> None:
    job = await a_dead_letter(engine)
    await engine.requeue([job.key])
    assert (await activated(engine, job)).last_error is None
    assert (await settled(engine, Complete(job.key, 2))).last_error is None


async def test_the_payload_priority_and_lane_stay(engine: Engine) -> None:
    job = await a_dead_letter(engine, variables='{"n":1}', priority=7, limit_key="c", tenant="acme", headers='{"h":1}')
    await engine.requeue([job.key])
    back = await the_job(engine, job.key)
    for name in ("variables", "priority", "limit_key", "tenant", "headers", "created_at_ms"):
        assert getattr(back, name) == getattr(job, name)


@pytest.mark.parametrize("stage", [a_pending_job, a_scheduled_job, a_processing_job, a_completed_job, a_cancelled_job])
async def test_only_a_dead_letter_can_be_requeued(engine: Engine, stage: Stage) -> None:
    job = await stage(engine)
    before = await sight(engine, job.key)
    assert seen(await engine.requeue([job.key])) == [(Verdict.WRONG_STATE, job.state)]
    assert await sight(engine, job.key) == before


async def test_a_batch_of_dead_letters_is_judged_item_by_item(engine: Engine) -> None:
    done = await a_completed_job(engine)
    letters = [await a_dead_letter(engine) for _ in range(3)]
    keys = [letters[2].key, done.key, 999_999, letters[0].key, letters[2].key]
    assert [judged.verdict for judged in await engine.requeue(keys)] == [
        Verdict.ACCEPTED,
        Verdict.WRONG_STATE,
        Verdict.NOT_FOUND,
        Verdict.ACCEPTED,
        Verdict.WRONG_STATE,
    ]
    assert await the_state(engine, letters[1].key) is State.FAILED


async def test_a_requeued_job_is_kept_however_old_it_is(engine: Engine, clock: VirtualClock) -> None:
    job = await a_dead_letter(engine)
    clock.advance(ms=89 * DAY_MS)
    await engine.requeue([job.key])
    clock.advance(ms=89 * DAY_MS)
    await engine.sweep("s")
    assert await the_state(engine, job.key) is State.PENDING


async def test_a_requeued_job_still_expires(engine: Engine, clock: VirtualClock) -> None:
    job = await a_dead_letter(engine, expires_at_ms=clock.now_ms + SECOND_MS)
    clock.advance(seconds=2)
    await engine.sweep("s")
    await engine.requeue([job.key])
    assert await leased_keys(engine) == []
    await engine.sweep("s")
    assert await the_state(engine, job.key) is State.CANCELLED
