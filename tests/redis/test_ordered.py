"""Lists in another order: dead letters of an earlier version, and pending jobs in very many lanes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest
import redis

from everwork.core.limits import LIST_SCAN_MAX, SWEEP_STEP_MAX
from everwork.core.outcome import Failed
from everwork.core.queries import JobFilter, Order
from everwork.exceptions import InvalidInput
from tests.factories import TYPE, a_new_job, a_pending_job, asked

if TYPE_CHECKING:
    from everwork.engines.redis.engine import RedisEngine

LATEST: Final = JobFilter(order=Order.FAILED)
MANY: Final = SWEEP_STEP_MAX + 100


async def test_dead_letters_of_an_earlier_version_are_listed_after_sweeps(engine: RedisEngine, url: str) -> None:
    await engine.create([a_new_job() for _ in range(MANY)])
    leased = (await asked(engine, MANY)).jobs
    await engine.settle([Failed(job.key, job.attempt, "boom", final=True) for job in leased])
    with redis.Redis.from_url(url.partition("?")[0]) as client:
        client.delete(f"{{{url.partition('namespace=')[2]}}}:failed-at")
    assert (await engine.find(LATEST, 10)).jobs == []
    while (await engine.sweep("s")).more:
        pass
    found = [job.key for job in (await engine.find(LATEST, MANY)).jobs]
    assert found == sorted((job.key for job in leased), reverse=True)


async def test_pending_jobs_in_too_many_lanes_to_be_ordered_are_refused_by_name(engine: RedisEngine) -> None:
    few = await a_pending_job(engine, type="few")
    await engine.create([a_new_job(limit_key=f"k{number}") for number in range(LIST_SCAN_MAX + 1)])
    for type in (None, TYPE):
        with pytest.raises(InvalidInput, match="order: 'due' would read more than 20,000 lanes"):
            await engine.find(JobFilter(order=Order.DUE, type=type), 10)
    assert [job.key for job in (await engine.find(JobFilter(order=Order.DUE, type="few"), 10)).jobs] == [few.key]
