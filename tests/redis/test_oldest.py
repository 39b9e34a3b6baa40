"""oldest: a call looks at a bounded number of lanes and priorities, so that nobody else waits for it for long."""

from __future__ import annotations

from typing import TYPE_CHECKING

import redis

from everwork.core.limits import OLDEST_SCAN_MAX, PRIORITY_MAX, PRIORITY_MIN
from everwork.core.queries import Oldest
from everwork.engines.redis.engine import RedisEngine
from tests.factories import TYPE, a_new_job, a_policy, leased_keys
from tests.redis.conftest import opened
from tests.stores import SECOND_MS, START_MS, VirtualClock

if TYPE_CHECKING:
    from tests.servers import RedisServer


async def test_types_that_one_call_does_not_get_to_are_asked_for_by_another(engine: RedisEngine) -> None:
    types = ("a", "b", "c", "d")
    for type in types:
        await engine.create([a_new_job(type=type, limit_key=str(lane)) for lane in range(OLDEST_SCAN_MAX)])
    assert await engine.oldest() == [Oldest(type, "", START_MS) for type in types]


async def test_of_too_many_lanes_those_that_were_served_longest_ago_are_looked_at(
    engine: RedisEngine, clock: VirtualClock
) -> None:
    await engine.create([a_new_job() for _ in range(2)])
    await leased_keys(engine, 1)
    clock.advance(ms=SECOND_MS)
    later = [SECOND_MS - (n == 0) for n in range(OLDEST_SCAN_MAX)]
    await engine.create([a_new_job(limit_key=str(n), run_at_ms=START_MS + ms) for n, ms in enumerate(later)])
    assert await engine.oldest() == [Oldest(TYPE, "", START_MS + SECOND_MS - 1)]


async def test_the_longest_waiting_job_of_a_lane_stands_behind_any_number_of_priorities(
    engine: RedisEngine, clock: VirtualClock
) -> None:
    for priority in (PRIORITY_MIN, 0, PRIORITY_MAX):
        await engine.create([a_new_job(priority=priority)])
        clock.advance(ms=SECOND_MS)
    assert await engine.oldest() == [Oldest(TYPE, "", START_MS)]


async def test_what_waits_in_a_lane_at_its_limit_waits(engine: RedisEngine, clock: VirtualClock) -> None:
    await a_policy(engine, max_running_per_key=1)
    await engine.create([a_new_job(limit_key="k") for _ in range(2)])
    await leased_keys(engine, 9)
    clock.advance(ms=SECOND_MS)
    await engine.create([a_new_job()])
    assert await engine.oldest() == [Oldest(TYPE, "", START_MS)]


async def test_the_counts_of_many_tenants_are_not_read(server: RedisServer) -> None:
    async with opened(f"{server.url}?namespace=n") as engine:
        [job] = await engine.get([(await engine.create([a_new_job()]))[0].key])
        assert job is not None
        with redis.Redis.from_url(server.url) as client:
            client.hset("{n}:n", mapping={f"c\nbusy\ntenant-{number}": 1 for number in range(1_000)})
        before = reads_at(server)
        assert await engine.oldest() == [Oldest(TYPE, "", job.run_at_ms)]
        assert reads_at(server) == before


def reads_at(server: RedisServer) -> list[str]:
    """The server's statistics of commands that read a whole hash."""
    commands = ("cmdstat_hgetall:", "cmdstat_hkeys:")
    return [line.partition(",")[0] for line in server.ask("INFO", "commandstats").split() if line.startswith(commands)]
