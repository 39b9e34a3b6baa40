"""What runs of limited types is counted anew: whatever has made a number wrong, it is right again after a sweep."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from everwork.core.limits import SWEEP_STEP_MAX
from everwork.core.outcome import Complete
from everwork.engines.redis.engine import RedisEngine
from tests.factories import TYPE, a_new_job, a_policy, leased_keys
from tests.stores import SECOND_MS, VirtualClock

MINUTE_MS = 60 * SECOND_MS
LANE = "\x1fk"
MANY = 2 * SWEEP_STEP_MAX + 100


class Numbers:
    """The numbers of the default group, as the store keeps them."""

    def __init__(self, client: redis.Redis, namespace: str) -> None:
        self._client, self._tag = client, f"{{{namespace}}}"

    def write(self, lane: str, number: int) -> None:
        self._client.hset(f"{self._tag}:run:{TYPE}", lane, str(number))

    def read(self, lane: str = "\n") -> int:
        return int(self._client.hget(f"{self._tag}:run:{TYPE}", lane) or 0)

    def set_aside(self, lane: str) -> None:
        """Let a lane stand among the full ones."""
        self._client.zrem(f"{self._tag}:lanes:{TYPE}", lane)
        self._client.zadd(f"{self._tag}:full:{TYPE}", {lane: 1})

    def left_over(self) -> set[str]:
        """The sorts of keys that only counting needs."""
        sorts = {key.decode().removeprefix(self._tag).split(":")[1] for key in self._client.scan_iter(f"{self._tag}*")}
        return sorts & {"recount", "recounted", "error", "wasfull"}


@pytest.fixture
def numbers(url: str) -> Iterator[Numbers]:
    with redis.Redis.from_url(url.partition("?")[0]) as client:
        yield Numbers(client, url.partition("namespace=")[2])


async def running(engine: RedisEngine, jobs: int) -> list[int]:
    """So many jobs of one limit key, leased; their keys."""
    await engine.create([a_new_job(limit_key="k") for _ in range(jobs)])
    return await leased_keys(engine, jobs)


async def test_a_type_that_seems_full_is_worked_on_again(engine: RedisEngine, numbers: Numbers) -> None:
    await a_policy(engine, max_running=2)
    await engine.create([a_new_job() for _ in range(3)])
    numbers.write("\n", 2)
    assert await leased_keys(engine, 9) == []
    await engine.sweep("h")
    assert len(await leased_keys(engine, 9)) == 2


async def test_a_lane_that_seems_full_is_worked_on_again(engine: RedisEngine, numbers: Numbers) -> None:
    await a_policy(engine, max_running_per_key=2)
    await engine.create([a_new_job(limit_key="k") for _ in range(3)])
    numbers.write(LANE, 2)
    assert await leased_keys(engine, 9) == []
    await engine.sweep("h")
    assert len(await leased_keys(engine, 9)) == 2


async def test_a_lane_that_stands_aside_without_reason_is_worked_on_again(
    engine: RedisEngine, numbers: Numbers
) -> None:
    await a_policy(engine, max_running_per_key=2)
    await engine.create([a_new_job(limit_key="k") for _ in range(3)])
    numbers.set_aside(LANE)
    assert await leased_keys(engine, 9) == []
    await engine.sweep("h")
    assert len(await leased_keys(engine, 9)) == 2


@pytest.mark.parametrize(("limit", "lane"), [("max_running", "\n"), ("max_running_per_key", LANE)])
async def test_a_number_that_is_too_low_lets_no_more_run_than_may(
    engine: RedisEngine, numbers: Numbers, limit: str, lane: str
) -> None:
    said: dict[str, Any] = {limit: 3}
    await a_policy(engine, **said)
    await running(engine, 2)
    numbers.write(lane, 0)
    await engine.sweep("h")
    await engine.create([a_new_job(limit_key="k") for _ in range(5)])
    assert len(await leased_keys(engine, 9)) == 1


async def test_who_holds_the_turn_counts_once_a_minute(
    engine: RedisEngine, numbers: Numbers, clock: VirtualClock
) -> None:
    await a_policy(engine, max_running=2)
    seen = []
    for wait_ms in (0, MINUTE_MS - SECOND_MS, SECOND_MS):
        clock.advance(ms=wait_ms)
        numbers.write("\n", 7)
        await engine.sweep("h")
        seen.append(numbers.read())
    assert seen == [0, 7, 0]


async def test_who_takes_the_turn_over_counts_at_once(
    engine: RedisEngine, numbers: Numbers, clock: VirtualClock
) -> None:
    await a_policy(engine, max_running=2)
    await engine.sweep("h")
    numbers.write("\n", 7)
    clock.advance(ms=20 * SECOND_MS)
    await engine.sweep("another")
    assert numbers.read() == 0


async def test_jobs_that_start_and_end_between_the_steps_are_counted_once(
    engine: RedisEngine, numbers: Numbers
) -> None:
    await a_policy(engine, max_running=MANY * 2, max_running_per_key=MANY * 2)
    keys = await running(engine, MANY)
    numbers.write("\n", 5)
    numbers.write(LANE, 1)
    steps = 0
    while (await engine.sweep("h")).more:
        await engine.settle([Complete(key, 1) for key in (keys.pop(0), keys.pop())])
        keys += await running(engine, 1)
        steps += 1
    assert steps == 2
    assert numbers.read() == numbers.read(LANE) == len(keys)
    assert not numbers.left_over()


async def test_a_job_deleted_between_the_steps_is_not_counted(engine: RedisEngine, numbers: Numbers) -> None:
    await a_policy(engine, max_running=MANY * 2)
    keys = await running(engine, MANY)
    await engine.sweep("h")
    await engine.settle([Complete(keys[-1], 1)])
    await engine.delete([keys[-1]])
    while (await engine.sweep("h")).more:
        pass
    assert numbers.read() == MANY - 1


async def test_a_first_limit_holds_over_all_that_runs_however_many_they_are(
    engine: RedisEngine, numbers: Numbers
) -> None:
    await running(engine, MANY)
    await a_policy(engine, max_running=MANY + 3, max_running_per_key=MANY + 1)
    assert numbers.read() == numbers.read(LANE) == MANY
    assert not numbers.left_over()
    await engine.create([a_new_job(limit_key="k") for _ in range(2)] + [a_new_job() for _ in range(9)])
    assert len(await leased_keys(engine, 20)) == 3


async def test_a_first_limit_that_a_dead_process_left_uncounted_is_counted_by_a_sweep(
    engine: RedisEngine, numbers: Numbers
) -> None:
    keys = await running(engine, MANY)
    words = (TYPE, '{"max_running_per_key":1}', 3, "- - - 1 - - - - - -")
    assert await engine._connection.call("registry", "set_policy", *words) == 1
    await engine.settle([Complete(keys.pop(), 1)])
    while (await engine.sweep("h")).more:
        pass
    assert numbers.read(LANE) == len(keys)
    assert await running(engine, 1) == []
