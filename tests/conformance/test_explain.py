"""explain: why is this job not running?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from everwork.core.outcome import Failed
from everwork.core.queries import Explanation, Reason
from everwork.core.states import State
from tests.conformance.observe import sight
from tests.factories import (
    LEASE_MS,
    TYPE,
    Stage,
    a_cancelled_job,
    a_completed_job,
    a_dead_letter,
    a_new_job,
    a_pending_job,
    a_processing_job,
    a_scheduled_job,
    asked,
    settled,
)
from tests.stores import MINUTE_MS

if TYPE_CHECKING:
    from everwork.engines.contract import Engine
    from tests.stores import VirtualClock


async def explained(engine: Engine, key: int) -> Explanation:
    """The explanation of a job that must exist; it always has words for people, and changes nothing."""
    before = await sight(engine, key)
    explanation = await engine.explain(key)
    assert explanation is not None
    assert explanation.key == key
    assert explanation.text
    assert await sight(engine, key) == before
    return explanation


async def test_a_scheduled_job_waits_for_its_instant(engine: Engine, clock: VirtualClock) -> None:
    job = await a_scheduled_job(engine, delay_ms=MINUTE_MS)
    why = await explained(engine, job.key)
    assert (why.state, why.reason, why.until_ms) == (State.PENDING, Reason.SCHEDULED, clock.now_ms + MINUTE_MS)


async def test_a_retried_job_waits_for_its_backoff(engine: Engine, clock: VirtualClock) -> None:
    job = await a_processing_job(engine)
    await settled(engine, Failed(job.key, 1, "boom"))
    why = await explained(engine, job.key)
    assert (why.reason, why.until_ms) == (Reason.SCHEDULED, clock.now_ms + 5_000)


async def test_a_running_job_is_held_by_its_worker_until_its_lease_ends(engine: Engine, clock: VirtualClock) -> None:
    job = await a_processing_job(engine, worker="w7")
    why = await explained(engine, job.key)
    assert (why.state, why.reason) == (State.PROCESSING, Reason.RUNNING)
    assert (why.worker, why.until_ms) == ("w7", clock.now_ms + LEASE_MS)
    assert "w7" in why.text


async def test_a_lease_that_nobody_has_taken_back_yet_is_said_to_have_lapsed(
    engine: Engine, clock: VirtualClock
) -> None:
    job = await a_processing_job(engine, worker="w7")
    clock.advance(ms=LEASE_MS)
    why = await explained(engine, job.key)
    assert why.reason is Reason.RUNNING
    assert why.text.startswith("the lease of worker 'w7' expired at ")


@pytest.mark.parametrize("stage", [a_completed_job, a_dead_letter, a_cancelled_job])
async def test_a_finished_job_is_finished(engine: Engine, stage: Stage) -> None:
    job = await stage(engine)
    why = await explained(engine, job.key)
    assert (why.state, why.reason) == (job.state, Reason.FINISHED)


async def test_a_job_of_a_paused_type_waits_for_it_to_be_resumed(engine: Engine) -> None:
    job = await a_pending_job(engine)
    await asked(engine, type=TYPE, limit=1, tenants=("nobody",))
    await engine.pause(TYPE, True)
    assert (await explained(engine, job.key)).reason is Reason.PAUSED
    await engine.pause(TYPE, False)
    assert (await explained(engine, job.key)).reason is not Reason.PAUSED


async def test_a_job_that_nobody_has_asked_for_says_so(engine: Engine) -> None:
    job = await a_pending_job(engine)
    await asked(engine, type="another-type")
    why = await explained(engine, job.key)
    assert (why.state, why.reason) == (State.PENDING, Reason.NOT_ASKED)


async def test_a_job_behind_others_knows_how_many_are_ahead(engine: Engine) -> None:
    created = await engine.create([a_new_job(priority=priority) for priority in (0, 9, 0, -9, 0)])
    await asked(engine, 1)
    ahead = {}
    for job in (created[0], created[2], created[3], created[4]):
        why = await explained(engine, job.key)
        assert why.reason is Reason.QUEUED
        ahead[job.key] = why.ahead
    assert ahead == {created[0].key: 0, created[2].key: 1, created[4].key: 2, created[3].key: 3}


async def test_an_unknown_job_has_no_explanation(engine: Engine) -> None:
    assert await engine.explain(999_999) is None
