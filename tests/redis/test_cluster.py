"""What only a cluster can do: tell that a store is elsewhere, and move it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis
from redis.crc import key_slot

from everwork.core.leasing import Verdict
from everwork.core.outcome import Complete
from everwork.engines.redis.engine import RedisEngine
from everwork.exceptions import EngineUnavailable
from tests.app.waiting import until_sync
from tests.conformance.observe import assert_counts_add_up, every_job
from tests.factories import a_new_job, a_pending_job, asked, the_job
from tests.redis.conftest import opened
from tests.servers import LOOPBACK, RedisCluster, RedisServer, redis_cluster

TAG = "{everwork}"
SLOT = str(key_slot(TAG.encode()))


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisCluster]:
    """A cluster whose slots the tests of this file may move."""
    with redis_cluster() as started:
        yield started


@pytest.fixture
def cluster_url(cluster: RedisCluster) -> str:
    """The default namespace, empty."""
    for node in cluster.nodes:
        node.ask("FLUSHALL")
    return cluster.url


def id_of(node: RedisServer) -> str:
    return node.ask("CLUSTER", "MYID")


def owner_and_other(cluster: RedisCluster) -> tuple[RedisServer, RedisServer]:
    """The node that has the store, and one that has not."""
    client: Any = redis.RedisCluster(LOOPBACK, cluster.nodes[0].port)
    port = client.get_node_from_key(TAG).port
    client.close()
    [owner] = [node for node in cluster.nodes if node.port == port]
    return owner, next(node for node in cluster.nodes if node.port != port)


def begin_move(owner: RedisServer, other: RedisServer) -> None:
    other.ask("CLUSTER", "SETSLOT", SLOT, "IMPORTING", id_of(owner))
    owner.ask("CLUSTER", "SETSLOT", SLOT, "MIGRATING", id_of(other))


def move_keys(owner: RedisServer, other: RedisServer) -> None:
    with redis.Redis(port=owner.port) as client:
        while keys := client.execute_command("CLUSTER", "GETKEYSINSLOT", SLOT, 1_000):
            client.execute_command("MIGRATE", LOOPBACK, other.port, "", 0, 5_000, "KEYS", *keys)


def end_move(cluster: RedisCluster, other: RedisServer) -> None:
    """The new owner is told first, as Redis asks for: otherwise gossip may give the slot back to the old one."""
    for node in sorted(cluster.nodes, key=lambda node: node is not other):
        node.ask("CLUSTER", "SETSLOT", SLOT, "NODE", id_of(other))
    until_sync(lambda: [owner_port(node) for node in cluster.nodes] == [other.port] * len(cluster.nodes))


def owner_port(node: RedisServer) -> int | None:
    """The port of the node that has the store, as this node sees it."""
    with redis.Redis(port=node.port) as client:
        ranges = client.execute_command("CLUSTER", "SLOTS")
    return next((master[1] for first, last, master, *_ in ranges if first <= int(SLOT) <= last), None)


async def test_every_key_of_a_store_is_in_one_slot(cluster: RedisCluster, cluster_url: str) -> None:
    async with opened(cluster_url) as engine:
        await engine.add_group("x", "audit")
        await engine.create([a_new_job(type="x", tenant="acme", limit_key="c", dedupe_key="d"), a_new_job()])
        await asked(engine)
    owner, _ = owner_and_other(cluster)
    assert [int(node.ask("DBSIZE")) > 0 for node in cluster.nodes] == [node is owner for node in cluster.nodes]


async def test_an_engine_finds_a_store_that_has_moved_to_another_node(cluster: RedisCluster, cluster_url: str) -> None:
    async with opened(cluster_url) as engine:
        job = await a_pending_job(engine)
        owner, other = owner_and_other(cluster)
        begin_move(owner, other)
        move_keys(owner, other)
        end_move(cluster, other)
        [leased] = (await asked(engine)).jobs
        assert leased.key == job.key
        assert (await engine.settle([Complete(job.key, 1)])).judged[0].verdict is Verdict.ACCEPTED


async def test_while_a_store_is_being_moved_nothing_is_written_to_either_half(
    cluster: RedisCluster, cluster_url: str
) -> None:
    async with opened(cluster_url) as engine:
        job = await a_pending_job(engine)
        owner, other = owner_and_other(cluster)
        begin_move(owner, other)
        for _ in range(3):
            await assert_unavailable(engine)
        move_keys(owner, other)
        await assert_unavailable(engine)
        end_move(cluster, other)
        assert await every_job(engine) == [job]
        assert await the_job(engine, job.key) == job
        await assert_counts_add_up(engine)


async def assert_unavailable(engine: RedisEngine) -> None:
    with pytest.raises(EngineUnavailable, match="moving the store"):
        await engine.create([a_new_job()])


async def test_any_node_leads_to_the_store(cluster: RedisCluster, cluster_url: str) -> None:
    async with opened(cluster_url) as engine:
        job = await a_pending_job(engine)
    for node in cluster.nodes:
        async with opened(f"redis+cluster://{LOOPBACK}:{node.port}") as engine:
            assert await the_job(engine, job.key) == job


async def test_a_node_that_is_down_does_not_matter_if_another_is_named(cluster: RedisCluster, cluster_url: str) -> None:
    ports = ",".join(f"{LOOPBACK}:{port}" for port in (1, *(node.port for node in cluster.nodes)))
    async with opened(f"redis+cluster://{ports}") as engine:
        assert (await a_pending_job(engine)).key == 1
    assert cluster_url
