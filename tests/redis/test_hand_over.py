"""Attacks on hand-over: users with few rights, connections that are lost, a store that moves, a server that is full."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import redis

from everwork import Everwork
from everwork.core.states import State
from everwork.engines.redis import connection
from everwork.engines.redis.engine import RedisEngine
from everwork.engines.redis.records import create_args
from everwork.engines.redis.scripts import script
from everwork.exceptions import EngineUnavailable
from tests.app.waiting import stubbornly, until
from tests.conformance.observe import assert_counts_add_up, every_job
from tests.conformance.test_hand_over import Taker, parked
from tests.factories import TYPE, WORKER, a_new_job, a_pending_job, asked, the_job
from tests.redis.conftest import opened
from tests.redis.test_cluster import begin_move, end_move, move_keys, owner_and_other
from tests.redis.test_start import LIMITED
from tests.servers import RedisServer, redis_cluster, redis_server

TAG = "{everwork}"


def user(server: RedisServer, *rules: str) -> str:
    """The URL of a user with these rules beside the rights on the store's keys."""
    server.ask("ACL", "SETUSER", "ann", *LIMITED, *rules)
    return f"redis://ann:pw@127.0.0.1:{server.port}"


# Users with few rights --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rules",
    [["resetchannels"], ["-publish", "&*"], ["-pubsub", "&*"], ["resetchannels", "-pubsub", "-publish"]],
    ids=["no channel", "no PUBLISH", "no PUBSUB", "none of these"],
)
async def test_a_creator_that_may_not_send_to_the_worker_creates_a_pending_job(
    server: RedisServer, rules: list[str]
) -> None:
    async with opened(server.url) as engine, opened(user(server, *rules)) as creator:
        taker = await parked(engine)
        job = await a_pending_job(creator)
        assert job.state is State.PENDING
        await assert_counts_add_up(engine)
        [leased] = (await asked(engine, 1)).jobs
        assert (leased.key, leased.attempt) == (job.key, 1)
        assert not taker.jobs


@pytest.mark.parametrize(
    "rules",
    [["resetchannels"], ["-subscribe", "&*"], ["resetchannels", f"&{TAG}:work", f"&{TAG}:done"]],
    ids=["no channel", "no SUBSCRIBE", "only the channels of wake-ups"],
)
async def test_the_demand_of_a_worker_that_may_not_listen_is_not_parked(server: RedisServer, rules: list[str]) -> None:
    async with opened(user(server, *rules)) as engine, opened(server.url) as creator:
        for _ in range(2):
            await parked(engine)
            assert server.ask("HEXISTS", f"{TAG}:t:{TYPE}", "parked") == "0"
        waiter = asyncio.ensure_future(engine.wait([TYPE], 60_000, engine.mark()))
        assert (await a_pending_job(creator)).state is State.PENDING
        assert await asyncio.wait_for(waiter, 30)


async def test_a_worker_that_may_hear_only_wake_ups_still_hears_them(server: RedisServer) -> None:
    url = user(server, "resetchannels", f"&{TAG}:work", f"&{TAG}:done")
    async with opened(url) as engine:
        await parked(engine)
        assert engine._store.wakeups._is_listening


# Connections ------------------------------------------------------------------------------------------


def create_and(server: RedisServer, *others: tuple[str, ...]) -> int:
    """Create a job and run other commands in one transaction, while this process reads nothing; the job's key."""
    text = script("create").text
    with redis.Redis(port=server.port) as client, client.pipeline(transaction=True) as pipe:
        for command in others[:-1]:
            pipe.execute_command(*command)
        pipe.execute_command("EVAL", text, 1, TAG, "", *create_args([a_new_job()]))
        for command in others[-1:]:
            pipe.execute_command(*command)
        return int(pipe.execute()[len(others[:-1])])


LOSSES: dict[str, tuple[tuple[str, ...], ...]] = {
    "its connection is cut": (("CLIENT", "KILL", "TYPE", "pubsub"),),
    "it reads too slowly": (
        ("CONFIG", "SET", "client-output-buffer-limit", "pubsub 100000 0 0"),
        ("PUBLISH", f"{TAG}:work", "x" * 1_000_000),
        ("PING",),
    ),
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=list(LOSSES))
async def test_a_worker_learns_that_a_job_may_have_been_lost_on_the_way(
    server: RedisServer, loss: tuple[tuple[str, ...], ...]
) -> None:
    async with opened(server.url) as engine:
        taker = await parked(engine)
        key = create_and(server, *loss)
        await taker.came()
        assert (taker.jobs, taker.losses) == ([], 1)
        assert (await the_job(engine, key)).worker == WORKER
        assert (await the_job(engine, key)).attempt == 1


@asynccontextmanager
async def a_worker(url: str, ran: list[int]) -> AsyncIterator[Everwork]:
    """A worker in an engine of its own, which waits for jobs."""
    async with Everwork(url) as app:

        @app.job(TYPE)
        async def run() -> None:
            ran.append(1)

        working = asyncio.ensure_future(app.work())
        try:
            yield app
        finally:
            app.stop()
            await working


def is_parked(server: RedisServer) -> bool:
    return server.ask("HEXISTS", f"{TAG}:t:{TYPE}", "parked") == "1"


@pytest.mark.parametrize("loss", LOSSES.values(), ids=list(LOSSES))
async def test_a_job_that_was_lost_on_the_way_runs_long_before_its_lease_expires(
    server: RedisServer, loss: tuple[tuple[str, ...], ...]
) -> None:
    ran: list[int] = []
    async with opened(server.url) as engine, a_worker(server.url, ran):
        await until(lambda: is_parked(server))
        key = create_and(server, *loss)
        await until(lambda: _is_completed(engine, key))
        job = await the_job(engine, key)
        assert (job.attempt, job.attempts, len(ran)) == (2, 1, 1)
        assert [(entry.attempt, entry.kind) for entry in await engine.history(key)] == [(1, "release"), (2, "complete")]
        await until(lambda: is_parked(server))
        key = (await engine.create([a_new_job()]))[0].key
        await until(lambda: _is_completed(engine, key))
        assert (await the_job(engine, key)).attempt == 1


async def _is_completed(engine: RedisEngine, key: int) -> bool:
    return (await the_job(engine, key)).state is State.COMPLETED


async def test_after_a_loss_the_next_demand_is_parked_on_a_new_connection(server: RedisServer) -> None:
    async with opened(server.url) as engine:
        taker = await parked(engine)
        server.ask("CLIENT", "KILL", "TYPE", "pubsub")
        await taker.came()
        assert (await a_pending_job(engine)).state is State.PENDING
        await asked(engine, 1)
        await parked(engine, taker=taker)
        job = await a_pending_job(engine)
        assert [one.key for one in await _jobs_of(taker)] == [job.key]
        assert taker.losses == 1


async def _jobs_of(taker: Taker) -> list[Any]:
    await until(lambda: taker.jobs)
    return taker.jobs


PARKER = """
import asyncio, sys
from everwork.core.leasing import Demand
from everwork.engines.open import open_engine

class Receiver:
    def handed(self, job): pass
    def lost(self): pass

async def main():
    engine = open_engine(sys.argv[1])
    await engine.open()
    receiver = Receiver()
    await engine.activate([Demand(sys.argv[2], "child", 1, receiver=receiver)])
    print("parked", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def killed_worker(server: RedisServer) -> str:
    """The channel of a worker whose process was killed after it had parked a demand."""
    with subprocess.Popen([sys.executable, "-c", PARKER, server.url, TYPE], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"parked\n"
        child.kill()
    assert is_parked(server)
    return f"{TAG}:hand:{server.ask('HGET', f'{TAG}:t:{TYPE}', 'parked').split()[1]}"


async def test_a_job_is_not_handed_to_a_worker_that_was_killed(server: RedisServer) -> None:
    async with opened(server.url) as engine:
        channel = await asyncio.to_thread(killed_worker, server)
        with redis.Redis(port=server.port) as client:
            await until(lambda: client.pubsub_numsub(channel)[0][1] == 0)
        job = await a_pending_job(engine)
        assert job.state is State.PENDING


# A store that moves -----------------------------------------------------------------------------------


async def test_no_worker_gets_a_job_from_a_node_to_which_it_does_not_listen() -> None:
    """Messages reach the subscribers of every node of a cluster, but only the owner knows who is handed a job."""
    with redis_cluster() as cluster:
        async with opened(cluster.url) as engine, opened(cluster.url) as creator:
            taker = await parked(engine)
            owner, other = owner_and_other(cluster)
            begin_move(owner, other)
            move_keys(owner, other)
            end_move(cluster, other)
            job = await stubbornly(lambda: a_pending_job(creator))
            assert job.state is State.PENDING
            assert [one.attempt for one in (await asked(engine, 1)).jobs] == [1]
            assert not taker.jobs
            assert taker.losses == 0
            await parked(engine, taker=taker)
            assert taker.losses == 1
            job = await a_pending_job(creator)
            assert [one.key for one in await _jobs_of(taker)] == [job.key]


async def test_no_worker_gets_a_job_from_the_primary_of_the_server_to_which_it_listens(server: RedisServer) -> None:
    """Replicas pass messages on."""
    async with opened(server.url) as engine:
        taker = await parked(engine)
        with redis.Redis(port=server.port) as client:
            demand = client.hget(f"{TAG}:t:{TYPE}", "parked")
        assert isinstance(demand, bytes)
        with redis_server() as primary, redis.Redis(port=primary.port) as client:
            async with opened(primary.url) as creator:
                await asked(creator)
                client.hset(f"{TAG}:t:{TYPE}", "parked", demand)
                server.ask("REPLICAOF", "127.0.0.1", str(primary.port))
                await until(lambda: "master_link_status:up" in server.ask("INFO", "replication"))
                assert (await a_pending_job(creator)).state is State.PENDING
                client.publish(f"{TAG}:work", TYPE)
                mark = engine.mark()
                await until(lambda: engine.mark() > mark)
                assert not taker.jobs


# The server -------------------------------------------------------------------------------------------


async def test_a_full_server_hands_over_nothing_and_writes_no_half(server: RedisServer) -> None:
    async with opened(server.url) as engine:
        taker = await parked(engine)
        server.ask("CONFIG", "SET", "maxmemory", "1")
        with pytest.raises(EngineUnavailable, match="out of memory"):
            await engine.create([a_new_job()])
        assert await every_job(engine) == []
        assert server.ask("EXISTS", f"{TAG}:seq") == "0"
        assert is_parked(server)
        server.ask("CONFIG", "SET", "maxmemory", "0")
        job = await a_pending_job(engine)
        assert [one.key for one in await taker.came()] == [job.key]
        await assert_counts_add_up(engine)


@pytest.mark.parametrize("stored", ["", "x", "1 2 3", "999999999999999 zz 1 w", "1_000 ab 1 w"])
async def test_a_damaged_demand_does_not_stop_creates(server: RedisServer, stored: str) -> None:
    async with opened(server.url) as engine:
        await asked(engine)
        server.ask("HSET", f"{TAG}:t:{TYPE}", "parked", stored)
        assert (await a_pending_job(engine)).state is State.PENDING


async def test_with_required_replicas_nothing_is_parked(server: RedisServer) -> None:
    """A job must not start before the replicas have its lease."""
    with redis_server("--replicaof", "127.0.0.1", str(server.port)) as replica:
        await until(lambda: "master_link_status:up" in replica.ask("INFO", "replication"))
        async with opened(f"{server.url}?replicas=1") as engine:
            await parked(engine)
            assert not is_parked(server)


async def test_a_server_that_forgot_its_scripts_hands_over(server: RedisServer) -> None:
    async with opened(server.url) as engine:
        taker = await parked(engine)
        server.ask("SCRIPT", "FLUSH")
        job = await a_pending_job(engine)
        assert [one.key for one in await taker.came()] == [job.key]


# How much a lone job costs ------------------------------------------------------------------------------


def calls(server: RedisServer) -> int:
    """How many scripts have run since the last CONFIG RESETSTAT."""
    _, _, rest = server.ask("INFO", "commandstats").partition("cmdstat_evalsha:calls=")
    return int(rest.partition(",")[0])


async def test_a_lone_job_takes_two_scripts(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []
    names = recorded(monkeypatch)
    costs: list[tuple[list[str], int]] = []
    async with opened(server.url) as engine, a_worker(server.url, ran):
        for _ in range(5):
            await until(lambda: is_parked(server))
            names.clear()
            server.ask("CONFIG", "RESETSTAT")
            await engine.create([a_new_job()])
            await until(lambda: "settle" in names and is_parked(server))
            costs.append((names.copy(), calls(server)))
    assert len(ran) == 5
    # In some of them, maintenance or the look of every second may have come between.
    assert (["create", "settle"], 2) in costs
    assert all(names.count("create") == names.count("settle") == 1 for names, _ in costs)


UPKEEP = {"now", "sweep", "registry"}
"""The scripts of maintenance, which every process with workers runs."""


def recorded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of all scripts that are run."""
    names: list[str] = []
    sound = connection.Connection.run

    async def run(self: Any, name: str, args: Any, *, replicas: int | None = None) -> Any:
        names.append(name)
        return await sound(self, name, args, replicas=replicas)

    monkeypatch.setattr(connection.Connection, "run", run)
    return names


async def test_after_a_lone_job_an_idle_worker_looks_once_a_second(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However slow the machine is, there are never more looks than seconds."""
    names = recorded(monkeypatch)
    async with opened(server.url) as engine, a_worker(server.url, []):
        await until(lambda: is_parked(server))
        await engine.create([a_new_job()])
        await until(lambda: "settle" in names and is_parked(server))
        loop = asyncio.get_running_loop()
        names.clear()
        begun = loop.time()
        await until(lambda: names.count("activate") >= 3)
        seconds = loop.time() - begun
        assert set(names) - UPKEEP <= {"activate", "wait"}
        assert names.count("activate") <= seconds + 1
