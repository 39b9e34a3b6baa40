"""Calls that walk over many keys: a list goes on in the next bucket, and unused types are deleted in few steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import redis

from everwork.core.leasing import Demand
from everwork.core.queries import JobFilter
from tests.factories import a_new_job
from tests.stores import DAY_MS

if TYPE_CHECKING:
    from everwork.engines.redis.engine import RedisEngine
    from tests.stores import VirtualClock

BUCKET = 1_000
"""So many keys share one hash of the store."""
COUNTS = 25_000
"""More counts, by state, type and tenant, than one call looks up types."""


@pytest.mark.parametrize("in_newest", [1, 200, BUCKET])
async def test_a_walk_that_ends_with_a_bucket_goes_on_in_the_next(engine: RedisEngine, in_newest: int) -> None:
    jobs = [a_new_job(correlation_id="c" if number % 3 else "d") for number in range(2 * BUCKET + in_newest - 1)]
    for start in range(0, len(jobs), 500):
        await engine.create(jobs[start : start + 500])
    found, cursor = 0, None
    while True:
        page = await engine.find(JobFilter(correlation_id="c"), BUCKET, cursor)
        found, cursor = found + len(page.jobs), page.next
        if cursor is None:
            break
    assert found == sum(job.correlation_id == "c" for job in jobs)


async def test_unused_types_are_deleted_in_few_calls_beside_the_counts_of_many_tenants(
    engine: RedisEngine, url: str, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = f"{{{url.partition('namespace=')[2]}}}:n"
    with redis.Redis.from_url(url.partition("?")[0]) as client:
        client.hset(counts, mapping={f"c\nbusy\ntenant-{number}": 1 for number in range(COUNTS)})
    names = [f"t{number}" for number in range(100)]
    await engine.activate([Demand(name, "w", 1) for name in names])
    clock.advance(ms=DAY_MS)
    calls: list[Any] = []
    run = engine._connection.run

    async def counted(name: str, args: Any, **more: Any) -> Any:
        calls.append(args)
        return await run(name, args, **more)

    monkeypatch.setattr(engine._connection, "run", counted)
    assert await engine.forget_types(dict.fromkeys(names), DAY_MS) == names
    assert len(calls) == 1
