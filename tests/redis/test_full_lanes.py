"""Lanes at their limit stand aside: what waits in them is found by whoever looks for it, and leaves nothing behind."""

from __future__ import annotations

import redis

from everwork.core.outcome import Complete
from everwork.core.queries import JobFilter
from everwork.core.states import State
from everwork.engines.redis.engine import RedisEngine
from tests.conformance.observe import every_job
from tests.factories import TYPE, a_new_job, a_policy, leased_keys

WAITING = JobFilter(states=frozenset({State.PENDING}))


async def full_lanes(engine: RedisEngine) -> list[int]:
    """Three jobs of one limit key, of which one may run at once, in each of two groups; the keys of those that run."""
    await a_policy(engine, max_running_per_key=1)
    await engine.add_group(TYPE, "audit")
    await engine.create([a_new_job(limit_key="k") for _ in range(3)])
    return [*await leased_keys(engine, 9), *await leased_keys(engine, 9, group="audit")]


async def test_what_waits_in_a_full_lane_is_listed(engine: RedisEngine) -> None:
    await full_lanes(engine)
    assert len(await every_job(engine, WAITING)) == 4


async def test_what_waits_in_a_full_lane_of_a_dropped_group_is_cancelled(engine: RedisEngine) -> None:
    await full_lanes(engine)
    assert await engine.drop_group(TYPE, "audit") == 2


async def test_a_full_lane_that_was_emptied_by_hand_leaves_nothing_behind(engine: RedisEngine, url: str) -> None:
    running = await full_lanes(engine)
    await engine.cancel([job.key for job in await every_job(engine, WAITING)])
    await engine.settle([Complete(key, 1) for key in running])
    with redis.Redis.from_url(url.partition("?")[0]) as client:
        tag = f"{{{url.partition('namespace=')[2]}}}"
        left = {key.decode().removeprefix(tag).split(":")[1] for key in client.scan_iter(f"{tag}*")}
    assert not left & {"full", "lanes", "ready"}
