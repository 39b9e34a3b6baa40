"""The open inbox: whoever can XADD can create jobs, once each, for every group."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis
import uvloop

from everwork.core.job import NewJob, StoredJob
from everwork.core.leasing import Demand
from everwork.core.limits import DEFAULT_TENANT, PAYLOAD_BYTES_MAX
from everwork.core.queries import JobFilter
from everwork.engines.redis import connection
from everwork.engines.redis.connection import Connection
from everwork.engines.redis.engine import RedisEngine
from everwork.engines.redis.inbox import BATCH_BYTES_MAX, GROUP, Inbox, batches, job_of_entry
from everwork.engines.redis.store_url import StoreUrl
from everwork.exceptions import InvalidInput
from everwork.service.access.principal import Permission, Principal
from everwork.service.jobs import Jobs
from everwork.service.service import JobService
from everwork.service.verb import Caller
from tests.app.waiting import until
from tests.conformance.observe import every_job
from tests.factories import WORKER
from tests.redis.conftest import opened
from tests.servers import RedisServer
from tests.stores import url_of, word_of

DEADLINE_S = 20.0


@pytest.fixture(params=["redis", "redis-cluster"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A fresh namespace, on a server and on a cluster."""
    return url_of(str(request.param), tmp_path)


@pytest.fixture
async def engine(url: str) -> AsyncIterator[RedisEngine]:
    """An engine on the server's own clock."""
    async with opened(url) as one:
        yield one


@pytest.fixture
def source(tmp_path: Path) -> str:
    """A type of the test's own: the stream's key is outside of the namespace."""
    return f"orders-{word_of(tmp_path)}"


@pytest.fixture
def client(url: str, source: str) -> Iterator[Any]:
    """Any program that knows Redis and nothing of Everwork."""
    place = url.partition("?")[0]
    if place.startswith("redis+cluster"):
        client: Any = redis.RedisCluster.from_url(place.replace("+cluster", ""))
    else:
        client = redis.Redis.from_url(place)
    yield client
    client.delete(source)
    client.delete(f"{source}:aside")
    client.close()


def said(**kwargs: Any) -> dict[str, str]:
    return {"payload": json.dumps({"kwargs": kwargs})}


async def jobs_of(engine: RedisEngine, source: str, jobs: int) -> list[StoredJob]:
    """The jobs of a type, oldest first, once there are as many."""

    async def are_there() -> bool:
        return len(await every_job(engine, JobFilter(type=source))) >= jobs

    await until(are_there)
    return (await every_job(engine, JobFilter(type=source)))[::-1]


async def ask_for(engine: RedisEngine, source: str) -> None:
    """Let the engine know that a worker wants this type, and take nothing."""
    await engine.pause(source, True)
    await engine.activate([Demand(source, WORKER, 1)])


async def test_entries_become_jobs_in_their_order(engine: RedisEngine, client: Any, source: str) -> None:
    for n in range(5):
        client.xadd(source, said(n=n))
    await ask_for(engine, source)
    jobs = await jobs_of(engine, source, 5)
    assert [json.loads(job.variables) for job in jobs] == [{"n": n} for n in range(5)]


async def test_entries_are_gone_once_they_are_jobs(engine: RedisEngine, client: Any, source: str) -> None:
    client.xadd(source, said(n=1))
    await ask_for(engine, source)
    await jobs_of(engine, source, 1)

    async def is_empty() -> bool:
        return bool(client.xlen(source) == 0 and client.xpending(source, GROUP)["pending"] == 0)

    await until(is_empty)


async def test_a_stream_may_come_later_than_its_workers(engine: RedisEngine, client: Any, source: str) -> None:
    await ask_for(engine, source)
    client.xadd(source, said(n=1))
    assert len(await jobs_of(engine, source, 1)) == 1
    client.xadd(source, said(n=2))
    assert len(await jobs_of(engine, source, 2)) == 2


async def test_headers_expiry_and_time_come_along(engine: RedisEngine, client: Any, source: str) -> None:
    told = {
        "kwargs": {"n": 1}, "headers": {"trace": "00-1"}, "expires": "2999-01-01T00:00:00Z", "run_at": 4_000_000_000
    }  # fmt: skip
    client.xadd(source, {"payload": json.dumps(told)})
    await ask_for(engine, source)
    [job] = await jobs_of(engine, source, 1)
    assert (job.headers, job.expires_at_ms) == ('{"trace":"00-1"}', 32_472_144_000_000)
    assert job.run_at_ms == 4_000_000_000_000


async def test_every_group_of_the_type_gets_a_copy(engine: RedisEngine, client: Any, source: str) -> None:
    await engine.add_group(source, "audit")
    client.xadd(source, said(n=1))
    await ask_for(engine, source)
    job, copy = await jobs_of(engine, source, 2)
    assert (job.group, copy.group, copy.copy_of) == ("", "audit", job.key)


async def test_one_malformed_entry_is_set_aside_and_the_others_go_on(
    engine: RedisEngine, client: Any, source: str
) -> None:
    client.xadd(source, said(n=1))
    bad = client.xadd(source, {"payload": "{not json"})
    client.xadd(source, {"other": "field"})
    client.xadd(source, {"payload": b"\xff\xfe\x00"})
    client.xadd(source, said(n=2))
    await ask_for(engine, source)
    assert len(await jobs_of(engine, source, 2)) == 2
    aside = client.xrange(f"{source}:aside")
    assert aside[0][1][b"entry"] == bad
    assert len(aside) == 3
    assert b"must be a JSON object" in aside[0][1][b"error"]
    assert aside[0][1][b"payload"] == b"{not json"


async def test_several_processes_share_a_stream_and_make_each_job_once(
    engine: RedisEngine, url: str, client: Any, source: str
) -> None:
    async with opened(url) as other:
        await ask_for(engine, source)
        await ask_for(other, source)
        for n in range(300):
            client.xadd(source, said(n=n))
        await jobs_of(engine, source, 300)
    jobs = await every_job(engine, JobFilter(type=source))
    assert sorted(json.loads(job.variables)["n"] for job in jobs) == list(range(300))


async def test_who_dies_between_job_and_acknowledgement_makes_no_second_job(
    engine: RedisEngine, url: str, client: Any, source: str
) -> None:
    for n in range(3):
        client.xadd(source, said(n=n))
    dying, heir = an_inbox(url, source), an_inbox(url, source)
    await dying.find_streams()
    assert await dying.claim_abandoned(source) == []
    entries = await dying.read_new(source)
    await dying.create(source, [job_of_entry(source, id.decode(), fields or {}) for id, fields in entries])
    await dying.close()
    await heir.find_streams()
    claimed = await heir.claim_abandoned(source)
    await heir.take(source, claimed)
    await heir.close()
    assert [len(entries), len(claimed), client.xlen(source)] == [3, 3, 0]
    assert len(await every_job(engine, JobFilter(type=source))) == 3


async def test_a_key_of_another_kind_is_left_alone(engine: RedisEngine, client: Any, source: str) -> None:
    client.set(source, "mine")
    inbox = an_inbox(str(url_text(engine)), source)
    await inbox.find_streams()
    await inbox.find_streams()
    await inbox.close()
    assert client.get(source) == b"mine"


@pytest.mark.parametrize("tenants", [("acme",), (DEFAULT_TENANT,)])
async def test_a_poll_by_a_bound_key_makes_no_process_read_a_stream(
    engine: RedisEngine, client: Any, source: str, tenants: tuple[str, ...]
) -> None:
    service = JobService(engine, "test")
    bound = Principal("bound", "bound", frozenset([Permission.JOBS]), tenants)
    foreign = f"a-{source}"  # Searched for before the other one.
    for name in (foreign, source):
        client.xadd(name, said(n=1))
    await Jobs(service, Caller(bound, "")).activate(Demand(foreign, WORKER, 1))
    unbound = Caller(replace(bound, tenants=()), "")
    await Jobs(service, unbound).activate(Demand(source, WORKER, 1, tenants=(DEFAULT_TENANT,)))
    await engine._store.inbox.find_streams()
    await jobs_of(engine, source, 1)
    assert (client.xinfo_groups(foreign), client.xlen(foreign)) == ([], 1)
    client.delete(foreign)


async def test_who_leaves_in_order_takes_his_name_away(engine: RedisEngine, client: Any, source: str) -> None:
    client.xadd(source, said(n=1))
    await ask_for(engine, source)
    await jobs_of(engine, source, 1)

    async def is_acknowledged() -> bool:
        return bool(client.xlen(source) == 0)

    await until(is_acknowledged)
    await engine.close()
    assert client.xinfo_consumers(source, GROUP) == []


async def test_without_streams_there_is_nothing_in_the_way_of_a_close(engine: RedisEngine, source: str) -> None:
    await ask_for(engine, source)
    await asyncio.wait_for(engine.close(), DEADLINE_S)


async def test_a_stream_that_may_not_be_read_is_told_a_few_times_and_stops_no_other(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.ask("ACL", "SETUSER", "ann", "on", ">pw", "~{everwork}*", "~mine*", "&*", "+@all")
    inbox = an_inbox(f"redis://ann:pw@127.0.0.1:{server.port}", "mine")
    inbox.types.add("foreign")
    server.ask("SET", "mine", "no stream")
    for _ in range(20):
        await inbox.find_streams()
    await inbox.close()
    told = [record.message for record in caplog.records]
    assert sum("source='foreign'" in one for one in told) == 5
    assert sum("type='mine'" in one for one in told) == 1


async def test_while_the_server_is_away_little_is_said(server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    inbox = an_inbox(server.url, "mine")
    server.kill()
    for _ in range(20):
        await inbox.find_streams()
    server.start()
    await inbox.find_streams()
    await inbox.close()
    told = [record.message for record in caplog.records]
    assert ["read again" in one for one in told] == [False] * 5 + [True]


async def test_a_heap_of_large_entries_becomes_jobs_in_portions(
    engine: RedisEngine, client: Any, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "PACKED_BYTES_MAX", BATCH_BYTES_MAX + 2_000_000)
    for n in range(12):
        client.xadd(source, said(n=n, text="x" * 1_000_000))
    await ask_for(engine, source)
    jobs = await jobs_of(engine, source, 12)
    assert [json.loads(job.variables)["n"] for job in jobs] == list(range(12))


async def test_a_key_of_another_kind_under_the_name_of_what_is_set_aside_stops_nothing(
    engine: RedisEngine, client: Any, source: str
) -> None:
    client.lpush(f"{source}:aside", "something else")
    client.xadd(source, {"payload": "{not json"})
    client.xadd(source, said(n=1))
    await engine.activate([Demand(source, WORKER, 1)])
    assert len(await jobs_of(engine, source, 1)) == 1
    assert client.xlen(f"{source}:aside:everwork") == 1
    client.delete(f"{source}:aside:everwork")


async def test_an_entry_that_is_too_large_is_set_aside_and_the_others_go_on(
    engine: RedisEngine, client: Any, source: str
) -> None:
    client.xadd(source, said(text="x" * PAYLOAD_BYTES_MAX))
    client.xadd(source, {"payload": "x" * 3_000_000})
    client.xadd(source, said(n=1))
    await ask_for(engine, source)
    assert len(await jobs_of(engine, source, 1)) == 1
    assert [b"at most" in fields[b"error"] for _, fields in client.xrange(f"{source}:aside")] == [True, True]


def test_portions_keep_the_order_and_a_limit_of_bytes() -> None:
    jobs = [NewJob("t", "x" * size) for size in (10, BATCH_BYTES_MAX, 10, 10, BATCH_BYTES_MAX - 20, 1)]
    assert [[len(job.variables) for job in portion] for portion in batches(jobs)] == [
        [10],
        [BATCH_BYTES_MAX],
        [10, 10, BATCH_BYTES_MAX - 20],
        [1],
    ]
    assert list(batches([])) == []


@pytest.mark.parametrize(
    ("payload", "field"),
    [
        ("[]", "payload"),
        ("{}", "kwargs"),
        ('{"kwargs": []}', "kwargs"),
        ('{"kwargs": {}, "headers": 1}', "headers"),
        ('{"kwargs": {}, "expires": "soon"}', "expires"),
        ('{"kwargs": {}, "expires": "2030-01-01T00:00:00"}', "expires"),
        ('{"kwargs": {}, "expires": true}', "expires"),
        ('{"kwargs": {}, "delay": -1}', "delay"),
        ('{"kwargs": {}, "run_at": "tomorrow"}', "run_at"),
        ('{"kwargs": {}, "delay": 1, "run_at": 1}', "delay"),
        ('{"kwargs": {"n": 123456789012345678901234567890}}', "payload"),
    ],
)
def test_what_is_wrong_with_an_entry_is_named(payload: str, field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        job_of_entry("orders", "1-0", {b"payload": payload.encode()})
    assert caught.value.field == field


class OwnInbox(Inbox):
    """The inbox of another process, with a connection of its own."""

    async def close(self) -> None:
        """Close the connection, too."""
        await super().close()
        await self._connection.close()


def an_inbox(url: str, source: str) -> Inbox:
    """The inbox of another process, which takes over at once and reads only when it is told to."""
    inbox = OwnInbox(Connection(StoreUrl.from_url(url), None), idle_ms=0, reads=False)
    inbox.types.add(source)
    return inbox


async def test_looking_for_streams_takes_no_connection_of_its_own(server: RedisServer) -> None:
    async with opened(server.url) as engine:
        inbox = engine._store.inbox
        inbox.types.update(["a", "b"])
        before = server.ask("INFO", "clients").split()[2]
        server.ask("CONFIG", "RESETSTAT")
        await inbox.find_streams()
        assert server.ask("INFO", "clients").split()[2] == before
        assert "cmdstat_type:calls=2," in server.ask("INFO", "commandstats")


def url_text(engine: RedisEngine) -> str:
    place = engine._url
    return f"{place.text}?namespace={place.namespace}"


def test_a_connection_that_is_closed_under_the_drivers_hands_does_not_end_the_looking(tmp_path: Path) -> None:
    async def look_twice() -> None:
        async with opened(url_of("redis", tmp_path)) as engine:
            inbox = engine._store.inbox
            inbox.types.add("orders")
            await inbox.find_streams()
            assert await inbox._try("orders", inbox.claim_abandoned("orders")) is None
            for connection in inbox._client.connection_pool._available_connections:
                connection._writer.transport.abort()
            assert engine._connection._wire is not None
            engine._connection._wire.close()
            await inbox.find_streams()
            assert await inbox._try("orders", inbox.claim_abandoned("orders")) is None

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(look_twice())
