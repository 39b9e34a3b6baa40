"""Why a dead letter rests: it is said when it comes back by itself, and that it does not when it does not."""

from __future__ import annotations

import pytest

from everwork.core.job import HistoryEntry
from everwork.core.leasing import Demand
from everwork.core.outcome import Failed, Outcome, Reject
from everwork.engines.contract import Engine
from everwork.engines.rules import rounds_in
from everwork.service.jobs import in_process
from everwork.service.service import JobService
from tests.factories import TYPE, a_policy, a_processing_job
from tests.stores import HOUR_MS, VirtualClock

pytestmark = pytest.mark.every_engine


async def _dead(engine: Engine, outcome: type[Outcome] = Failed) -> int:
    job = await a_processing_job(engine)
    await engine.settle([Failed(job.key, 1, "boom", final=True) if outcome is Failed else Reject(job.key, 1, "boom")])
    return job.key


async def test_a_dead_letter_says_when_it_comes_back_by_itself_and_in_which_round(
    service: JobService, engine: Engine, clock: VirtualClock
) -> None:
    await a_policy(engine, failed_job_retry_hours=24, failed_job_retry_rounds=2)
    key = await _dead(engine)
    why = await in_process(service).explain(key)
    assert why.until_ms == clock.now_ms + 24 * HOUR_MS
    assert why.text == "failed and will be requeued automatically at 2023-11-15T22:00:00.000Z (round 1 of 2)"

    clock.advance(ms=24 * HOUR_MS)
    await engine.sweep("holder")
    assert (await engine.activate([Demand(TYPE, "w1", 1)])).jobs[0].key == key
    await engine.settle([Failed(key, 2, "boom", final=True)])
    assert (await in_process(service).explain(key)).text.endswith("(round 2 of 2)")


@pytest.mark.parametrize("outcome", [Failed, Reject])
async def test_a_dead_letter_that_does_not_come_back_says_so(
    service: JobService, engine: Engine, outcome: type[Outcome]
) -> None:
    if outcome is Reject:
        await a_policy(engine, failed_job_retry_hours=24)
    key = await _dead(engine, outcome)
    why = await in_process(service).explain(key)
    assert (why.text, why.until_ms) == ("failed and will not be retried; requeue it to run it again", None)


def test_the_rounds_of_an_older_store_are_counted_too() -> None:
    notes = ["automatic", "by itself", "arguments changed", None]
    assert rounds_in([HistoryEntry(1, "requeue", 0, error=note) for note in notes]) == 2
