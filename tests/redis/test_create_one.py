"""A plain job that is created alone leaves exactly what the general part of the scripts leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import redis

from everwork.core.leasing import Demand
from everwork.engines.redis.engine import RedisEngine
from everwork.engines.redis.records import job_args
from tests.conformance.test_hand_over import FIELDS, Taker
from tests.factories import LEASE_MS, TYPE, WORKER, a_new_job, a_policy, a_processing_job, asked
from tests.stores import START_MS, VirtualClock, url_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from everwork.core.job import NewJob

READERS = {
    b"string": lambda client, key: client.get(key),
    b"hash": lambda client, key: client.hgetall(key),
    b"list": lambda client, key: client.lrange(key, 0, -1),
    b"set": lambda client, key: client.smembers(key),
    b"zset": lambda client, key: client.zrange(key, 0, -1, withscores=True),
}


def dump(url: str) -> dict[bytes, Any]:
    """Every key of a store, without its namespace, and what is in it."""
    place, _, namespace = url.partition("?namespace=")
    with redis.Redis.from_url(place) as client:
        keys = list(client.scan_iter(f"{{{namespace}}}*", count=10_000))
        return {key.partition(b"}")[2]: READERS[client.type(key)](client, key) for key in keys}


def without_flags(found: dict[bytes, Any]) -> dict[bytes, Any]:
    """A dump without what is known of waiting processes and parked demands."""
    found.pop(b":bell", None)
    found[b":t:" + TYPE.encode()].pop(b"parked", None)
    return found


async def opened(folder: Path) -> tuple[RedisEngine, str]:
    """A store of its own, with one type that some worker has asked for."""
    url = url_of("redis", folder)
    engine = RedisEngine.from_url(url, clock=VirtualClock())
    await engine.open()
    await a_processing_job(engine, tenant="first")
    return engine, url


async def general(engine: RedisEngine, jobs: Sequence[NewJob]) -> None:
    """Create jobs one by one in the form for any jobs."""
    for job in jobs:
        await engine._connection.call("create", "", "", *job_args([job]))


@pytest.mark.parametrize("fields", FIELDS.values(), ids=list(FIELDS))
@pytest.mark.parametrize("has_policy", [False, True])
async def test_a_plain_job_is_stored_as_by_the_general_script(
    fields: dict[str, Any], has_policy: bool, tmp_path: Path
) -> None:
    (one, one_url), (other, other_url) = await opened(tmp_path / "a"), await opened(tmp_path / "b")
    jobs = [a_new_job(**fields), a_new_job(tenant="other"), a_new_job(**fields), a_new_job(tenant="first")]
    try:
        for engine in (one, other):
            if has_policy:
                await a_policy(engine, max_attempts=2, keep_completed_hours=1)
        for job in jobs:
            await one.create([job])
        await general(other, jobs)
        assert dump(one_url) == dump(other_url)
    finally:
        await one.close()
        await other.close()


@pytest.mark.parametrize("fields", FIELDS.values(), ids=list(FIELDS))
async def test_a_job_is_handed_over_as_if_it_had_been_created_and_activated(
    fields: dict[str, Any], tmp_path: Path
) -> None:
    (one, one_url), (other, other_url) = await opened(tmp_path / "a"), await opened(tmp_path / "b")
    demand, taker = Demand(TYPE, WORKER, 1, LEASE_MS), Taker()
    try:
        for _ in range(2):
            await one.activate([demand._replace(receiver=taker)])
            await one.create([a_new_job(**fields)])
            await general(other, [a_new_job(**fields)])
            await other.activate([demand])
        assert len(await one.get([2, 3])) == 2
        assert without_flags(dump(one_url)) == without_flags(dump(other_url))
        assert len(await taker.came()) >= 1
    finally:
        await one.close()
        await other.close()


async def test_the_short_way_rings_for_a_worker_that_waits(tmp_path: Path) -> None:
    (one, one_url), (other, other_url) = await opened(tmp_path / "a"), await opened(tmp_path / "b")
    try:
        for engine in (one, other):
            await engine.activate([Demand(TYPE, WORKER, 5, LEASE_MS)])
        await one.create([a_new_job()])
        await general(other, [a_new_job()])
        assert dump(one_url) == dump(other_url)
    finally:
        await one.close()
        await other.close()


async def grouped(engine: RedisEngine) -> None:
    await engine.add_group(TYPE, "audit")


async def limited_by_key(engine: RedisEngine) -> None:
    """With a lane at its limit."""
    await a_policy(engine, max_running_per_key=1)
    await engine.create([a_new_job(limit_key="ada"), a_new_job(limit_key="ada")])
    assert len((await asked(engine, 2)).jobs) == 1


async def plain(engine: RedisEngine) -> None:
    """Nothing is set for the type."""


@pytest.mark.parametrize(
    ("prepare", "fields"),
    [
        (plain, {"dedupe_key": "d"}),
        (plain, {"retry": '{"max_attempts":2}'}),
        (plain, {"expires_at_ms": START_MS + 1}),
        (plain, {"run_at_ms": START_MS - 1}),
        (plain, {"delay_ms": 5}),
        (plain, {"type": "new"}),
        (grouped, {}),
        (limited_by_key, {"limit_key": "ada"}),
    ],
    ids=["dedupe key", "own policy", "expiry", "run at", "delay", "new type", "groups", "limit per key"],
)
async def test_what_is_not_plain_takes_the_general_way_in_the_same_call(
    prepare: Callable[[RedisEngine], Awaitable[None]], fields: dict[str, Any], tmp_path: Path
) -> None:
    (one, one_url), (other, other_url) = await opened(tmp_path / "a"), await opened(tmp_path / "b")
    try:
        for engine in (one, other):
            await prepare(engine)
        await one.create([a_new_job(**fields)])
        await general(other, [a_new_job(**fields)])
        assert dump(one_url) == dump(other_url)
    finally:
        await one.close()
        await other.close()
