"""Offline mode of clients: while the server or its store is away, jobs and outcomes wait in a local spool."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from everwork import Spool
from everwork.client import ActiveJob, Client, SyncClient
from everwork.client.remote import RemoteTransport
from everwork.core.outcome import Complete
from everwork.core.states import State
from everwork.engines.open import open_engine
from everwork.exceptions import EngineUnavailable, NotDelivered, ResultTimeout, SpoolFull, Unauthenticated
from everwork.service.access.keys import KeyRing
from everwork.spool.courier import CALL_SECONDS_MIN, Turn
from everwork.spool.file import SpoolFile
from tests.app.waiting import until
from tests.client.server import KEY, ServerProcess
from tests.outages import FileStore

AGAIN_S = 60.0
"""Far more than a server takes to come back and be found again; reached only by a defect."""


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(str(tmp_path / "spool.db"), patience=2)


@pytest.fixture
async def client(server: ServerProcess, spool: Spool) -> AsyncIterator[Client]:
    async with Client(server.grpc_url, key=KEY, offline=spool) as made:
        yield made


async def killed(server: ServerProcess) -> None:
    await asyncio.to_thread(server.kill)


async def restarted(server: ServerProcess) -> None:
    await asyncio.to_thread(server.start)


def opened(spool: Spool, server: ServerProcess) -> SpoolFile:
    """The file of a spool, as another process opens it."""
    return SpoolFile(spool, f"grpc://{server.address}")


async def lapsed(server: ServerProcess) -> None:
    """Wait until a lease has lapsed in the store of a server that is away."""
    engine = open_engine(server.url)
    await engine.open()
    async with asyncio.timeout(AGAIN_S):
        while (await engine.sweep("sweeper")).lapsed == 0:
            pass
    await engine.close()


async def numbers(server: ServerProcess) -> list[int]:
    """The numbers in the variables of all jobs, in the order of their keys."""
    async with Client(server.grpc_url, key=KEY) as client:
        return [job.variables["number"] async for job in client.list()][::-1]


async def test_jobs_go_straight_to_a_server_that_is_there(client: Client) -> None:
    created = await client.create("work", {"number": 1})
    assert (created.is_spooled, created.spool_id) == (False, "")
    assert await client.delivered(created) == created
    assert (await client.get(created.key)).state is State.PENDING


async def test_jobs_are_kept_while_the_server_is_away_and_delivered_in_their_order(
    client: Client, server: ServerProcess
) -> None:
    await client.create("work", {"number": 0})
    await killed(server)
    kept = [await client.create("work", {"number": number}) for number in range(1, 20)]
    assert all(one.is_spooled and one.spool_id and one.key < 0 for one in kept)
    with pytest.raises(ResultTimeout):
        await client.delivered(kept[0], timeout=0.01)
    await restarted(server)
    delivered = [await client.delivered(one, AGAIN_S) for one in kept]
    assert not any(one.is_spooled for one in delivered)
    assert [one.key for one in delivered] == sorted(one.key for one in delivered)
    assert await client.delivered(kept[0].spool_id) == delivered[0]
    assert await numbers(server) == list(range(20))


async def test_after_an_outage_jobs_go_straight_to_the_server_again(client: Client, server: ServerProcess) -> None:
    await killed(server)
    kept = await client.create("work", {"number": 1})
    await restarted(server)
    await client.delivered(kept)
    async with asyncio.timeout(AGAIN_S):
        while (created := await client.create("work", {"number": 2})).is_spooled:
            pass
    assert (await client.get(created.key)).state is State.PENDING


async def test_a_create_whose_answer_is_lost_is_repeated_and_creates_nothing_twice(
    client: Client, server: ServerProcess
) -> None:
    """The server is killed in the middle of many calls: some have been committed, but not answered."""
    await client.create("work", {"number": -1})
    calls = [asyncio.create_task(client.create("work", {"number": number})) for number in range(200)]
    await calls[0]
    await killed(server)
    created = await asyncio.gather(*calls)
    await restarted(server)
    for one in created:
        await client.delivered(one, AGAIN_S)
    assert sorted(await numbers(server)) == list(range(-1, 200))


async def test_a_client_starts_while_its_server_is_away(server: ServerProcess, spool: Spool) -> None:
    await killed(server)
    async with Client(server.grpc_url, key=KEY, offline=spool, timeout=5) as client:
        kept = await client.create("work", {"number": 1})
        assert kept.is_spooled
        with pytest.raises(EngineUnavailable):
            await client.get(4711)
    await restarted(server)
    async with Client(server.grpc_url, key=KEY, offline=spool) as client:
        await client.delivered(kept, AGAIN_S)
    assert await numbers(server) == [1]


async def test_a_refused_key_is_an_error_and_spools_nothing(server: ServerProcess, spool: Spool) -> None:
    async with Client(server.grpc_url, key="not-a-key-of-this-server", offline=spool) as client:
        with pytest.raises(Unauthenticated):
            await client.create("work", {"number": 1})
    file = opened(spool, server)
    assert not file.has_waiting()
    file.close()


async def test_jobs_wait_in_the_spool_until_the_key_is_accepted_again(server: ServerProcess, spool: Spool) -> None:
    await killed(server)
    async with Client(server.grpc_url, key="not-a-key-of-this-server", offline=spool) as client:
        kept = await client.create("work", {"number": 1})
        await restarted(server)
        with pytest.raises(ResultTimeout):
            await client.delivered(kept, timeout=1.5)
    async with Client(server.grpc_url, key=KEY, offline=spool) as client:
        await client.delivered(kept, AGAIN_S)


async def test_a_job_that_the_server_refuses_is_set_aside_and_the_others_go_on(
    server: ServerProcess, spool: Spool
) -> None:
    await killed(server)
    text = await a_key_for(server, "shop")
    async with Client(server.grpc_url, key=text, offline=spool) as client:
        tenants = ["shop", "shop", "another", "shop", "shop"]
        kept = [await client.create("work", {"number": at}, tenant=tenant) for at, tenant in enumerate(tenants)]
        await restarted(server)
        for at in (0, 1, 3, 4):
            await client.delivered(kept[at], AGAIN_S)
        with pytest.raises(NotDelivered, match="is not allowed to act for tenant 'another'"):
            await client.delivered(kept[2], AGAIN_S)
    assert await numbers(server) == [0, 1, 3, 4]


async def a_key_for(server: ServerProcess, *tenants: str) -> str:
    """A key that is bound to tenants, made while the server is away."""
    engine = open_engine(server.url)
    await engine.open()
    try:
        return (await KeyRing(engine).create("shop", ["jobs"], tenants=tenants)).text
    finally:
        await engine.close()


async def test_a_full_spool_is_a_clear_error(server: ServerProcess, tmp_path: Path) -> None:
    small = Spool(str(tmp_path / "small.db"), max_bytes=1_048_576, patience=2)
    async with Client(server.grpc_url, key=KEY, offline=small) as client:
        await killed(server)
        await client.create("work", {"text": "x" * 500_000})
        with pytest.raises(SpoolFull, match="max_bytes of 1,048,576"):
            await client.create("work", {"text": "x" * 600_000})
        await restarted(server)


async def test_the_blocking_client_spools_too(server: ServerProcess, spool: Spool) -> None:
    def produce() -> int:
        with SyncClient(server.grpc_url, key=KEY, offline=spool) as client:
            client.create("work", {"number": 1})
            server.kill()
            kept = client.create("work", {"number": 2})
            assert kept.is_spooled
            server.start()
            return client.delivered(kept, AGAIN_S).key

    assert await asyncio.to_thread(produce) > 0
    assert await numbers(server) == [1, 2]


async def test_a_client_of_a_store_spools_too(tmp_path: Path, spool: Spool) -> None:
    store = FileStore(tmp_path)
    async with Client(store.url, offline=spool) as client:
        await client.create("work", {"number": 1})
        store.leave()
        kept = await client.create("work", {"number": 2})
        assert kept.is_spooled
        store.come_back()
        assert (await client.delivered(kept, AGAIN_S)).key > 0


# Workers --------------------------------------------------------------------------------------------


class Handling:
    """A handler that ends when it may."""

    def __init__(self) -> None:
        self.runs = 0
        self.begun = asyncio.Event()
        self.may_end = asyncio.Event()

    async def __call__(self, job: ActiveJob) -> int:
        self.runs += 1
        self.begun.set()
        await self.may_end.wait()
        number: int = job.variables["number"]
        return number + 1


def has_outcomes(spool: Spool, server: ServerProcess, count: int = 1) -> Callable[[], bool]:
    def counted() -> bool:
        file = opened(spool, server)
        try:
            return file.counts().outcomes == count
        finally:
            file.close()

    return counted


async def test_a_job_that_ends_while_the_server_is_away_does_not_run_again(
    client: Client, server: ServerProcess, spool: Spool
) -> None:
    """Its lease lapses meanwhile: the completion is accepted late."""
    handling, stop = Handling(), asyncio.Event()
    working = asyncio.create_task(client.work({"work": handling}, stop=stop, lease=1))
    created = await client.create("work", {"number": 1})
    await handling.begun.wait()
    await killed(server)
    handling.may_end.set()
    await until(has_outcomes(spool, server), AGAIN_S)
    await lapsed(server)
    await restarted(server)
    async with asyncio.timeout(AGAIN_S):
        assert await client.result(created.key) == 2
        await until(has_outcomes(spool, server, 0), AGAIN_S)
        stop.set()
        await working
    assert handling.runs == 1
    assert [entry.kind for entry in await client.history(created.key)] == ["complete"]


async def test_a_job_that_runs_through_an_outage_longer_than_its_lease_runs_once(
    client: Client, server: ServerProcess
) -> None:
    handling, stop = Handling(), asyncio.Event()
    working = asyncio.create_task(client.work({"work": handling}, stop=stop, lease=1))
    created = await client.create("work", {"number": 1})
    await handling.begun.wait()
    await killed(server)
    await lapsed(server)
    await restarted(server)
    async with asyncio.timeout(AGAIN_S):
        while (await client.get(created.key)).state is not State.PROCESSING:
            pass
    handling.may_end.set()
    async with asyncio.timeout(AGAIN_S):
        assert await client.result(created.key) == 2
        stop.set()
        await working
    assert handling.runs == 1


async def test_a_worker_on_a_store_keeps_what_ends_while_the_store_is_away(tmp_path: Path, spool: Spool) -> None:
    store, handling, stop = FileStore(tmp_path), Handling(), asyncio.Event()
    async with Client(store.url, offline=spool) as client, asyncio.timeout(AGAIN_S):
        working = asyncio.create_task(client.work({"work": handling}, stop=stop))
        created = await client.create("work", {"number": 1})
        await handling.begun.wait()
        store.leave()
        handling.may_end.set()
        file = SpoolFile(spool, None)
        await until(lambda: file.counts().outcomes == 1, AGAIN_S)
        store.come_back()
        assert await client.result(created.key) == 2
        await until(lambda: file.counts().outcomes == 0, AGAIN_S)
        file.close()
        stop.set()
        await working
    assert handling.runs == 1


async def test_a_worker_stops_while_the_server_is_away_and_the_next_one_reports_what_it_did(
    server: ServerProcess, spool: Spool
) -> None:
    handling, stop = Handling(), asyncio.Event()
    async with Client(server.grpc_url, key=KEY, offline=spool) as client:
        working = asyncio.create_task(client.work({"work": handling}, stop=stop))
        created = await client.create("work", {"number": 1})
        await handling.begun.wait()
        await killed(server)
        handling.may_end.set()
        await until(has_outcomes(spool, server), AGAIN_S)
        stop.set()
        async with asyncio.timeout(AGAIN_S):
            await working
    await restarted(server)
    async with Client(server.grpc_url, key=KEY, offline=spool) as client, asyncio.timeout(AGAIN_S):
        assert await client.result(created.key) == 2


async def test_a_completion_in_the_spool_of_a_dead_worker_is_reported_before_anything_is_leased(
    server: ServerProcess, spool: Spool
) -> None:
    async with Client(server.grpc_url, key=KEY) as client:
        created = await client.create("work", {"number": 1})
        [job] = await client.activate("work", lease=0.05)
        async with asyncio.timeout(AGAIN_S):
            while (await client.get(created.key)).state is not State.PENDING:
                pass
    file = opened(spool, server)
    file.keep_outcomes([Complete(job.key, job.attempt, "42")])
    file.close()
    turn, handling, stop = Turn(spool.path), Handling(), asyncio.Event()
    assert turn.take()  # As another process does that is about to report it.
    async with Client(server.grpc_url, key=KEY, offline=spool) as client, asyncio.timeout(AGAIN_S):
        await client.create("other", {"number": 7})
        working = asyncio.create_task(client.work({"work": handling, "other": handling}, stop=stop))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(handling.begun.wait(), 1.0)
        turn.give_back()
        handling.may_end.set()
        await handling.begun.wait()
        assert await client.result(created.key) == 42
        stop.set()
        await working
    assert handling.runs == 1


async def test_a_late_completion_of_a_job_that_another_worker_has_is_refused_and_set_aside(
    server: ServerProcess, spool: Spool
) -> None:
    async with Client(server.grpc_url, key=KEY) as client:
        created = await client.create("work", {"number": 1})
        [job] = await client.activate("work", lease=0.05)
        async with asyncio.timeout(AGAIN_S):
            while not (again := await client.activate("work", lease=600)):
                pass
        file = opened(spool, server)
        file.keep_outcomes([Complete(job.key, job.attempt, "42")])
        async with Client(server.grpc_url, key=KEY, offline=spool):
            await until(lambda: file.counts().aside == 1, AGAIN_S)
        file.close()
        assert (await client.get(created.key)).state is State.PROCESSING
        await client.complete(again[0], 43)
        assert await client.result(created.key) == 43


async def test_a_batch_may_take_its_time_however_little_patience_there_is_for_one_job(
    server: ServerProcess, tmp_path: Path
) -> None:
    spool = Spool(str(tmp_path / "spool.db"), patience=0.1)
    async with Client(server.grpc_url, key=KEY, offline=spool) as client:
        assert isinstance(client.transport, RemoteTransport)
        assert client.transport.outbox is not None
        assert client.transport.outbox._jobs()._left() > CALL_SECONDS_MIN - 1
