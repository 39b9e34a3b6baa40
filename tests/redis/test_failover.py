"""Failovers: an engine follows them, and with `?replicas=`, no acknowledged write is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from everwork.core.outcome import Complete
from everwork.engines.redis import wire as wires
from everwork.engines.redis.engine import RedisEngine
from everwork.exceptions import EngineUnavailable
from tests.app.waiting import RESTART_S, until
from tests.conformance.observe import every_job
from tests.conformance.test_hand_over import parked
from tests.factories import a_new_job, a_pending_job, settled
from tests.redis.conftest import opened
from tests.servers import RedisServer, free_port, redis_cluster, redis_server
from tests.stores import HOUR_MS
from tests.torture.places import ClusterNode

ANSWERED_BEFORE = 20
PATIENT_MS = 25_000
BLOCKED = " flags=b "


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replicas on a busy machine are waited for."""
    monkeypatch.setattr(wires, "REPLICATION_MS", PATIENT_MS)


@contextmanager
def impatience() -> Iterator[None]:
    """Replicas that do not acknowledge within a moment are not waited for."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(wires, "REPLICATION_MS", 50)
        yield


@pytest.fixture
def replica(server: RedisServer) -> Iterator[RedisServer]:
    """A replica that follows the server."""
    with redis_server("--replicaof", "127.0.0.1", str(server.port)) as started:
        yield started


@pytest.fixture
def replicated_url(server: RedisServer) -> str:
    """The server's URL for an engine whose writes one replica must acknowledge."""
    return f"{server.url}?replicas=1"


@pytest.fixture
def node(request: pytest.FixtureRequest) -> Iterator[ClusterNode]:
    """The node of a cluster that has the store, and that has a replica; its timeout is the parameter."""
    options = ("--appendfsync", "always", "--cluster-node-timeout", str(request.param))
    with redis_cluster(*options, replicas=1) as cluster:
        yield ClusterNode(cluster)


def waits_at(server: RedisServer) -> int:
    _, found, rest = server.ask("INFO", "commandstats").partition("cmdstat_wait:calls=")
    return int(rest.split(",")[0]) if found else 0


async def follows(replica: RedisServer) -> None:
    await until(lambda: "master_link_status:up" in replica.ask("INFO", "replication"))


# What a write waits for ---------------------------------------------------------------------------


async def test_a_write_is_answered_when_its_replica_has_it(
    server: RedisServer, replica: RedisServer, replicated_url: str
) -> None:
    await follows(replica)
    async with opened(replicated_url) as engine:
        [made] = await engine.create([a_new_job()])
    server.kill()
    replica.ask("REPLICAOF", "NO", "ONE")
    async with opened(replica.url) as engine:
        assert [job.key for job in await every_job(engine)] == [made.key]


async def test_a_write_that_no_replica_acknowledges_has_an_unknown_outcome(
    server: RedisServer, replicated_url: str
) -> None:
    async with opened(server.url):
        pass
    with impatience(), pytest.raises(EngineUnavailable, match="0 of 1 replicas"):
        await RedisEngine.from_url(replicated_url).open()


async def test_reads_are_answered_while_no_replica_is_there_and_writes_once_one_is(
    server: RedisServer, replica: RedisServer, replicated_url: str
) -> None:
    await follows(replica)
    async with opened(replicated_url) as engine:
        await engine.create([a_new_job()])
        replica.kill()
        with impatience(), pytest.raises(EngineUnavailable, match="0 of 1 replicas"):
            await engine.create([a_new_job()])
        assert len(await every_job(engine)) == 2
        replica.start()
        await follows(replica)
        await engine.create([a_new_job()])


async def test_concurrent_writes_share_their_waits(
    server: RedisServer, replica: RedisServer, replicated_url: str
) -> None:
    await follows(replica)
    async with opened(replicated_url) as engine:
        await engine.create([a_new_job()])
        before = waits_at(server)
        await asyncio.gather(*(engine.create([a_new_job()]) for _ in range(50)))
        # The calls whose replies arrive together with that of the first WAIT share a second one.
        assert waits_at(server) - before in (1, 2)


async def test_a_caller_that_gives_up_leaves_the_wait_to_the_others(
    server: RedisServer, replica: RedisServer, replicated_url: str
) -> None:
    await follows(replica)
    async with opened(replicated_url) as engine:
        replica.kill()
        first, second = [asyncio.ensure_future(engine.create([a_new_job()])) for _ in range(2)]
        await until(lambda: BLOCKED in server.ask("CLIENT", "LIST"))
        first.cancel()
        replica.start()
        assert await second
        assert first.cancelled()


async def test_without_the_option_nothing_is_waited_for(server: RedisServer) -> None:
    async with opened(server.url) as engine:
        await engine.create([a_new_job()])
    assert waits_at(server) == 0


async def test_a_server_that_is_demoted_before_a_replica_has_the_write_is_unavailable(
    server: RedisServer, replica: RedisServer, replicated_url: str
) -> None:
    await follows(replica)
    async with opened(replicated_url) as engine:
        replica.kill()
        call = asyncio.ensure_future(engine.create([a_new_job()]))
        await until(lambda: BLOCKED in server.ask("CLIENT", "LIST"))
        server.ask("REPLICAOF", "127.0.0.1", str(free_port()))
        with pytest.raises(EngineUnavailable, match="lost Redis"):
            await call


# A cluster ----------------------------------------------------------------------------------------


# On a busy machine, a node may be silent for seconds: that must not be the failover.
@pytest.mark.parametrize("node", [15_000], indirect=True)
async def test_nothing_acknowledged_is_lost_in_a_planned_failover(node: ClusterNode) -> None:
    async with opened(node.url) as engine:
        taker = await parked(engine, type="lone", lease_ms=HOUR_MS)
        await a_pending_job(engine, type="lone")
        [handed] = await taker.came()
        await assert_nothing_is_lost(engine, node, node.fail_over)
        await settled(engine, Complete(handed.key, handed.attempt))


@pytest.mark.parametrize("node", [1_000], indirect=True)
async def test_nothing_that_a_replica_acknowledged_is_lost_with_its_master(node: ClusterNode) -> None:
    async with opened(f"{node.url}?replicas=1") as engine:
        await assert_nothing_is_lost(engine, node, node.kill)
        node.start()
        await assert_nothing_is_lost(engine, node, node.kill)


async def assert_nothing_is_lost(engine: RedisEngine, node: ClusterNode, strike: Callable[[], None]) -> None:
    """Create jobs, inject the fault in between, and find all jobs once the replica has taken over."""
    acknowledged: list[int] = []
    creating = [asyncio.ensure_future(create_until_unavailable(engine, acknowledged)) for _ in range(8)]
    await until(lambda: len(acknowledged) >= ANSWERED_BEFORE)
    strike()
    await until(node.has_failed_over, RESTART_S)
    for one in creating:
        one.cancel()
    await asyncio.wait(creating)
    await until_available(engine)
    assert set(acknowledged) <= {job.key for job in await every_job(engine)}


async def create_until_unavailable(engine: RedisEngine, acknowledged: list[int]) -> None:
    """Record the keys of acknowledged jobs; the only allowed error is unavailability."""
    while True:
        try:
            acknowledged += [made.key for made in await engine.create([a_new_job()])]
        except EngineUnavailable:
            return


async def until_available(engine: RedisEngine) -> None:
    async with asyncio.timeout(RESTART_S):
        while True:
            try:
                await engine.count()
            except EngineUnavailable:
                await asyncio.sleep(0)
            else:
                return
