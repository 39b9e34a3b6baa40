"""cancel: pending and running jobs, once, for good."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from everwork.core.leasing import Verdict
from everwork.core.outcome import Failed
from everwork.core.states import State
from tests.conformance.observe import seen, sight
from tests.factories import (
    Stage,
    a_cancelled_job,
    a_completed_job,
    a_dead_letter,
    a_pending_job,
    a_processing_job,
    a_scheduled_job,
    leased_keys,
    settled,
    the_job,
    the_state,
)
from tests.stores import HOUR_MS

if TYPE_CHECKING:
    from everwork.engines.contract import Engine
    from tests.stores import VirtualClock


@pytest.mark.parametrize("stage", [a_pending_job, a_scheduled_job, a_processing_job])
async def test_a_live_job_can_be_cancelled(engine: Engine, clock: VirtualClock, stage: Stage) -> None:
    job = await stage(engine)
    clock.advance(seconds=3)
    assert seen(await engine.cancel([job.key])) == [(Verdict.ACCEPTED, job.state)]
    after = await the_job(engine, job.key)
    assert (after.state, after.finished_at_ms) == (State.CANCELLED, clock.now_ms)
    assert (after.retries, after.lease_until_ms) == (0, None)


@pytest.mark.parametrize("stage", [a_pending_job, a_scheduled_job, a_processing_job])
async def test_a_cancelled_job_never_runs(engine: Engine, clock: VirtualClock, stage: Stage) -> None:
    job = await stage(engine)
    await engine.cancel([job.key])
    clock.advance(ms=HOUR_MS)
    await engine.sweep("s")
    assert await leased_keys(engine) == []
    assert await the_state(engine, job.key) is State.CANCELLED


@pytest.mark.parametrize("stage", [a_pending_job, a_processing_job])
async def test_the_history_keeps_the_reason(engine: Engine, clock: VirtualClock, stage: Stage) -> None:
    job = await stage(engine)
    await engine.cancel([job.key], "not needed")
    event = (await engine.history(job.key))[-1]
    assert (event.kind, event.at_ms, event.error) == ("cancel", clock.now_ms, "not needed")


async def test_a_retried_job_can_be_cancelled_before_its_next_attempt(engine: Engine) -> None:
    job = await a_processing_job(engine)
    await settled(engine, Failed(job.key, 1, "boom"))
    assert seen(await engine.cancel([job.key])) == [(Verdict.ACCEPTED, State.PENDING)]
    assert [event.kind for event in await engine.history(job.key)] == ["fail", "cancel"]


@pytest.mark.parametrize("stage", [a_pending_job, a_processing_job])
async def test_cancelling_twice_is_a_repeat(engine: Engine, clock: VirtualClock, stage: Stage) -> None:
    job = await stage(engine)
    await engine.cancel([job.key], "first")
    before = await sight(engine, job.key)
    clock.advance(seconds=1)
    assert seen(await engine.cancel([job.key], "second")) == [(Verdict.REPEATED, State.CANCELLED)]
    assert await sight(engine, job.key) == before


@pytest.mark.parametrize("stage", [a_completed_job, a_dead_letter])
async def test_a_finished_job_cannot_be_cancelled(engine: Engine, stage: Stage) -> None:
    job = await stage(engine)
    before = await sight(engine, job.key)
    assert seen(await engine.cancel([job.key])) == [(Verdict.WRONG_STATE, job.state)]
    assert await sight(engine, job.key) == before


async def test_an_unknown_job_cannot_be_cancelled(engine: Engine) -> None:
    assert seen(await engine.cancel([999_999])) == [(Verdict.NOT_FOUND, None)]


async def test_a_batch_is_judged_item_by_item(engine: Engine) -> None:
    done, cancelled = await a_completed_job(engine), await a_cancelled_job(engine)
    running, waiting = await a_processing_job(engine), await a_scheduled_job(engine)
    keys = [waiting.key, 999_999, done.key, running.key, cancelled.key, waiting.key]
    verdicts = [judged.verdict for judged in await engine.cancel(keys)]
    assert verdicts == [
        Verdict.ACCEPTED,
        Verdict.NOT_FOUND,
        Verdict.WRONG_STATE,
        Verdict.ACCEPTED,
        Verdict.REPEATED,
        Verdict.REPEATED,
    ]


async def test_cancelling_one_job_leaves_the_others_alone(engine: Engine) -> None:
    first, second = await a_pending_job(engine), await a_pending_job(engine)
    await engine.cancel([first.key])
    assert await leased_keys(engine) == [second.key]


async def test_cancelling_a_copy_leaves_the_other_copies_alone(engine: Engine) -> None:
    await engine.add_group("email-send", "audit")
    job = await a_pending_job(engine)
    await engine.cancel([job.key])
    assert await leased_keys(engine) == []
    assert len(await leased_keys(engine, group="audit")) == 1
