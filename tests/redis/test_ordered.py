"""Lists in another order: dead letters of an earlier version, and pending jobs in very many lanes."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Final

import pytest
import redis

from everwork.core.limits import LIST_SCAN_MAX, SWEEP_STEP_MAX
from everwork.core.outcome import Failed, Release
from everwork.core.queries import JobFilter, Order
from everwork.core.states import State
from everwork.exceptions import InvalidInput
from tests.factories import TYPE, a_new_job, a_pending_job, asked
from tests.redis.conftest import opened

if TYPE_CHECKING:
    from everwork.engines.redis.engine import RedisEngine
    from tests.servers import RedisServer

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


async def test_a_list_of_pending_jobs_does_not_read_the_counts_of_many_tenants(server: RedisServer) -> None:
    async with opened(f"{server.url}?namespace=n") as engine:
        for type in (TYPE, "other"):
            await engine.add_group(type, "kept")
            await engine.add_group(type, "dropped")
            await engine.create([a_new_job(type=type), a_new_job(type=type, delay_ms=60_000)])
            [leased] = (await asked(engine, type=type, group="dropped")).jobs
            await engine.drop_group(type, "dropped")
            await engine.settle([Release(leased.key, leased.attempt)])
        pending = frozenset([State.PENDING])
        lists = [
            JobFilter(type=type, states=pending, order=order)
            for type in (None, TYPE)
            for order in (Order.NEWEST, Order.DUE)
        ]
        before = [await engine.find(one, 100) for one in lists]
        assert {(job.type, job.group) for job in before[0].jobs} == set(
            product((TYPE, "other"), ("", "kept", "dropped"))
        )
        with redis.Redis.from_url(server.url) as client:
            client.hset("{n}:n", mapping={f"c\nbusy\ntenant-{number}": 1 for number in range(1_000)})
        calls = hkeys_at(server)
        assert [await engine.find(one, 100) for one in lists] == before
        assert hkeys_at(server) == calls


def hkeys_at(server: RedisServer) -> int:
    _, found, rest = server.ask("INFO", "commandstats").partition("cmdstat_hkeys:calls=")
    return int(rest.split(",")[0]) if found else 0
