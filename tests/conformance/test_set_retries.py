"""set_retries: the job shows the number asked for, within the bound of a hundred attempts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from everwork.core.leasing import Judged, Verdict
from everwork.core.outcome import Failed
from everwork.core.states import State
from tests.conformance.observe import kinds, sight
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
)

if TYPE_CHECKING:
    from everwork.core.job import StoredJob
    from everwork.engines.contract import Engine
    from tests.stores import VirtualClock


async def a_job_that_has_used(engine: Engine, attempts: int) -> StoredJob:
    """A pending job with this many counted attempts and one left."""
    job = await a_pending_job(engine, max_attempts=attempts + 1)
    for attempt in range(1, attempts + 1):
        await asked(engine)
        await settled(engine, Failed(job.key, attempt, "boom", backoff_ms=0))
    return await the_job(engine, job.key)


@pytest.mark.parametrize("stage", [a_pending_job, a_scheduled_job])
@pytest.mark.parametrize("retries", [1, 2, 50, 100])
async def test_a_pending_job_shows_the_retries_it_was_given(engine: Engine, stage: Stage, retries: int) -> None:
    job = await stage(engine, max_attempts=3)
    assert await engine.set_retries(job.key, retries) == Judged(Verdict.ACCEPTED, State.PENDING, 3)
    after = await the_job(engine, job.key)
    assert (after.retries, after.max_attempts, after.run_at_ms) == (retries, retries, job.run_at_ms)


async def test_retries_given_to_a_job_come_on_top_of_the_attempts_it_has_used(engine: Engine) -> None:
    job = await a_job_that_has_used(engine, 2)
    assert await engine.set_retries(job.key, 4) == Judged(Verdict.ACCEPTED, State.PENDING, 1)
    after = await the_job(engine, job.key)
    assert (after.retries, after.attempts, after.max_attempts) == (4, 2, 6)


async def test_a_pending_job_refuses_zero_retries(engine: Engine) -> None:
    job = await a_pending_job(engine)
    before = await sight(engine, job.key)
    answer = await engine.set_retries(job.key, 0)
    assert (answer.verdict, answer.state) == (Verdict.WRONG_STATE, State.PENDING)
    assert await sight(engine, job.key) == before


@pytest.mark.parametrize("retries", [1, 2, 50, 100])
async def test_a_running_job_shows_the_retries_it_was_given(engine: Engine, retries: int) -> None:
    job = await a_processing_job(engine, max_attempts=3)
    assert await engine.set_retries(job.key, retries) == Judged(Verdict.ACCEPTED, State.PROCESSING, 3)
    after = await the_job(engine, job.key)
    assert (after.state, after.retries, after.attempt) == (State.PROCESSING, retries, 1)


async def test_zero_retries_of_a_running_job_leave_it_the_attempt_that_runs(engine: Engine) -> None:
    job = await a_processing_job(engine, max_attempts=3)
    assert (await engine.set_retries(job.key, 0)).verdict is Verdict.ACCEPTED
    assert (await the_job(engine, job.key)).retries == 1
    assert (await settled(engine, Failed(job.key, 1, "boom"))).state is State.FAILED


async def test_retries_given_while_the_last_attempt_runs_are_used_after_it(engine: Engine) -> None:
    job = await a_processing_job(engine, max_attempts=1)
    await engine.set_retries(job.key, 3)
    again = await settled(engine, Failed(job.key, 1, "boom"))
    assert (again.state, again.retries) == (State.PENDING, 2)


async def test_a_dead_letter_is_requeued_with_the_retries_it_was_given(engine: Engine, clock: VirtualClock) -> None:
    job = await a_dead_letter(engine, max_attempts=5)
    clock.advance(seconds=4)
    assert await engine.set_retries(job.key, 2) == Judged(Verdict.ACCEPTED, State.FAILED, 0)
    back = await the_job(engine, job.key)
    assert (back.state, back.attempts, back.max_attempts, back.retries) == (State.PENDING, 0, 2, 2)
    assert (back.run_at_ms, back.last_error, back.attempt) == (clock.now_ms, None, 1)
    assert await leased_keys(engine) == [job.key]


async def test_the_history_tells_that_a_dead_letter_was_given_retries(engine: Engine) -> None:
    job = await a_dead_letter(engine)
    await engine.set_retries(job.key, 2)
    assert [kind for _, kind in await kinds(engine, job.key)] == ["fail", "requeue"]


async def test_a_requeue_after_that_gives_the_attempts_of_the_creation_again(engine: Engine) -> None:
    job = await a_dead_letter(engine, max_attempts=5)
    await engine.set_retries(job.key, 1)
    await activated(engine, job)
    await settled(engine, Failed(job.key, 2, "boom"))
    await engine.requeue([job.key])
    assert (await the_job(engine, job.key)).max_attempts == 5


async def test_a_dead_letter_shows_zero_retries_already(engine: Engine) -> None:
    job = await a_dead_letter(engine)
    before = await sight(engine, job.key)
    answer = await engine.set_retries(job.key, 0)
    assert (answer.verdict, answer.state) == (Verdict.REPEATED, State.FAILED)
    assert await sight(engine, job.key) == before


@pytest.mark.parametrize("retries", [0, 1, 100])
@pytest.mark.parametrize("stage", [a_completed_job, a_cancelled_job])
async def test_completed_and_cancelled_jobs_take_no_retries(engine: Engine, stage: Stage, retries: int) -> None:
    job = await stage(engine)
    before = await sight(engine, job.key)
    answer = await engine.set_retries(job.key, retries)
    assert (answer.verdict, answer.state) == (Verdict.WRONG_STATE, job.state)
    assert await sight(engine, job.key) == before


async def test_an_unknown_job_takes_no_retries(engine: Engine) -> None:
    assert await engine.set_retries(999_999, 3) == Judged(Verdict.NOT_FOUND, None)


async def test_a_pending_job_that_has_used_many_attempts_shows_fewer(engine: Engine) -> None:
    job = await a_job_that_has_used(engine, 97)
    await engine.set_retries(job.key, 50)
    after = await the_job(engine, job.key)
    assert (after.retries, after.max_attempts) == (3, 100)


async def test_a_running_job_that_has_used_many_attempts_shows_fewer(engine: Engine) -> None:
    job = await activated(engine, await a_job_that_has_used(engine, 97))
    await engine.set_retries(job.key, 50)
    after = await the_job(engine, job.key)
    assert (after.retries, after.attempts, after.max_attempts) == (3, 98, 100)
