"""requeue with other variables: they take the place of the job's own, in the step that requeues it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from everwork.core.leasing import Verdict
from everwork.core.limits import PAYLOAD_BYTES_MAX
from everwork.core.outcome import Failed
from everwork.core.states import State
from tests.conformance.observe import assert_counts_add_up, kinds, seen, sight
from tests.conformance.test_requeue_waiting import a_waiting_job
from tests.factories import (
    Stage,
    a_cancelled_job,
    a_completed_job,
    a_dead_letter,
    a_pending_job,
    a_policy,
    a_processing_job,
    a_scheduled_job,
    activated,
    asked,
    settled,
    the_job,
)
from tests.stores import DAY_MS, HOUR_MS

if TYPE_CHECKING:
    from everwork.engines.contract import Engine
    from tests.stores import VirtualClock

OLD, NEW = '{"step":1}', '{"step":2,"seen":["é","\\n"]}'
RARE: dict[str, Any] = {
    "headers": '{"h":1}', "correlation_id": "c1", "timeout_ms": 9, "extra": '{"e":1}', "dedupe_key": "d1",
    "limit_key": "k", "tenant": "acme", "expires_at_ms": 9_999_999_999_999, "priority": 7,
}  # fmt: skip
STAGES: list[Any] = [a_dead_letter, a_waiting_job]


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("rare", [{}, RARE], ids=["plain", "rare"])
async def test_a_requeued_job_has_the_given_variables_and_all_else_as_before(
    engine: Engine, stage: Any, rare: dict[str, Any]
) -> None:
    job = await stage(engine, variables=OLD, **rare)
    assert seen(await engine.requeue([job.key], waiting=True, variables=NEW)) == [(Verdict.ACCEPTED, job.state)]
    back = await the_job(engine, job.key)
    assert (back.state, back.variables, back.attempts, back.last_error) == (State.PENDING, NEW, 0, None)
    for field in ("type", "created_at_ms", "attempt", "max_attempts", *RARE):
        assert getattr(back, field) == getattr(job, field)
    await assert_counts_add_up(engine)


@pytest.mark.parametrize("stage", STAGES)
async def test_the_next_attempt_gets_the_given_variables(engine: Engine, stage: Any) -> None:
    job = await stage(engine, variables=OLD, headers='{"h":1}')
    await engine.requeue([job.key], waiting=True, variables=NEW)
    [leased] = (await asked(engine)).jobs
    assert (leased.key, leased.variables, leased.headers, leased.attempt) == (job.key, NEW, '{"h":1}', 2)


@pytest.mark.parametrize("stage", STAGES)
async def test_the_history_tells_that_the_arguments_were_changed(
    engine: Engine, clock: VirtualClock, stage: Any
) -> None:
    job = await stage(engine)
    clock.advance(seconds=1)
    await engine.requeue([job.key], waiting=True, variables=NEW)
    last = (await engine.history(job.key))[-1]
    assert (last.kind, last.error, last.at_ms) == ("requeue", "arguments changed", clock.now_ms)
    assert await kinds(engine, job.key) == [(1, "fail"), (1, "requeue")]


@pytest.mark.parametrize("stage", STAGES)
async def test_without_variables_the_job_keeps_its_own_and_the_history_has_no_note(engine: Engine, stage: Any) -> None:
    job = await stage(engine, variables=OLD)
    await engine.requeue([job.key], waiting=True)
    assert (await the_job(engine, job.key)).variables == OLD
    assert (await engine.history(job.key))[-1].error is None


@pytest.mark.parametrize("stage", [a_pending_job, a_scheduled_job, a_processing_job, a_completed_job, a_cancelled_job])
async def test_a_job_that_is_refused_keeps_its_variables(engine: Engine, stage: Stage) -> None:
    job = await stage(engine, variables=OLD)
    before = await sight(engine, job.key)
    for waiting in (False, True):
        answer = await engine.requeue([job.key], waiting=waiting, variables=NEW)
        assert seen(answer) == [(Verdict.WRONG_STATE, job.state)]
    assert await sight(engine, job.key) == before


async def test_a_job_that_waits_for_its_retry_keeps_its_variables_if_only_dead_letters_are_requeued(
    engine: Engine,
) -> None:
    job = await a_waiting_job(engine, variables=OLD)
    before = await sight(engine, job.key)
    assert seen(await engine.requeue([job.key], variables=NEW)) == [(Verdict.WRONG_STATE, State.PENDING)]
    assert await sight(engine, job.key) == before


async def test_an_unknown_job_is_not_found(engine: Engine) -> None:
    assert seen(await engine.requeue([999_999], waiting=True, variables=NEW)) == [(Verdict.NOT_FOUND, None)]


async def test_each_job_of_a_batch_that_is_requeued_gets_the_variables(engine: Engine) -> None:
    done = await a_completed_job(engine, variables=OLD)
    waiting, dead = await a_waiting_job(engine, variables=OLD), await a_dead_letter(engine, variables=OLD)
    await engine.requeue([done.key, waiting.key, dead.key], waiting=True, variables=NEW)
    found = [(await the_job(engine, job.key)).variables for job in (done, waiting, dead)]
    assert found == [OLD, NEW, NEW]


async def test_variables_may_be_as_large_as_those_of_a_new_job(engine: Engine) -> None:
    job = await a_dead_letter(engine, variables=OLD)
    large = '{"text":"' + "x" * (PAYLOAD_BYTES_MAX - 11) + '"}'
    await engine.requeue([job.key], variables=large)
    [leased] = (await asked(engine)).jobs
    assert leased.variables == large


async def test_a_job_can_fail_and_be_requeued_with_other_variables_again_and_again(engine: Engine) -> None:
    job = await a_dead_letter(engine, max_attempts=1, variables=OLD)
    for attempt, variables in ((2, NEW), (3, "{}")):
        await engine.requeue([job.key], variables=variables)
        await activated(engine, job)
        after = await settled(engine, Failed(job.key, attempt, "boom", backoff_ms=HOUR_MS))
        assert (after.state, after.variables) == (State.FAILED, variables)
    notes = [entry.error for entry in await engine.history(job.key) if entry.kind == "requeue"]
    assert notes == ["arguments changed"] * 2


async def test_it_uses_up_no_round_of_the_automatic_requeue(engine: Engine, clock: VirtualClock) -> None:
    await a_policy(engine, failed_job_retry_hours=24.0)
    job = await a_dead_letter(engine)
    await engine.requeue([job.key], variables=NEW)
    await activated(engine, job)
    await settled(engine, Failed(job.key, 2, "boom", final=True))
    clock.advance(ms=DAY_MS)
    assert (await engine.sweep("s")).requeued == 1
    assert (await the_job(engine, job.key)).variables == NEW
