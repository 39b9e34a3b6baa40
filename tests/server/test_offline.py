"""Offline mode of a server: while its store is away, new jobs are kept in its own spool, and nothing else is served."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from everwork import Spool
from everwork.cli.serving import open_server
from everwork.client import Client
from everwork.core.states import State
from everwork.engines.open import open_engine
from everwork.exceptions import EngineUnavailable, InvalidInput, NotFound, ResultTimeout, Unauthenticated
from everwork.proto import jobs_pb2, jobs_pb2_grpc
from everwork.proto import work_pb2 as pb
from everwork.proto.work_pb2_grpc import WorkServiceAsyncStub
from everwork.server import server as server_module
from everwork.server.settings import Settings
from everwork.service.access import keys as access
from everwork.service.access.keys import KeyRing
from everwork.spool.file import SpoolFile
from tests.app.waiting import RESTART_S, until
from tests.client.server import KEY, ServerProcess
from tests.outages import Outage, Store, own_server, store_on

JOBS = "/api/v1/jobs"


@pytest.fixture(params=["sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A file that cannot be written while it is away, or a server that is killed: then it cannot be read, either."""
    with own_server(request.param) as started:
        yield store_on(started, tmp_path)


killed = pytest.mark.parametrize("store", ["redis"], indirect=True)


@pytest.fixture
def server(store: Store, tmp_path: Path) -> Iterator[ServerProcess]:
    process = ServerProcess(store.url, tmp_path, "--offline", str(tmp_path / "server-spool.db")).start()
    yield process
    process.stop()


@pytest.fixture
async def http(server: ServerProcess) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"X-API-Key": KEY}
    async with httpx.AsyncClient(base_url=server.http_url, headers=headers, timeout=RESTART_S) as made:
        yield made


@pytest.fixture
async def client(server: ServerProcess) -> AsyncIterator[Client]:
    async with Client(server.grpc_url, key=KEY) as made:
        yield made


async def report(http: httpx.AsyncClient, spool_id: str, state: str) -> dict[str, Any]:
    """The report of a spooled job, once it has this state."""
    found: dict[str, Any] = {}

    async def has_come() -> bool:
        found.update((await http.get(f"/api/v1/spool/{spool_id}")).json())
        return bool(found["state"] == state)

    await until(has_come, RESTART_S)
    return found


async def test_rest_accepts_a_job_while_the_store_is_away_and_tells_its_key_later(
    http: httpx.AsyncClient, store: Store
) -> None:
    assert (await http.post(JOBS, json={"type": "work"})).status_code == 201
    store.leave()
    answer = await http.post(JOBS, json={"type": "work", "variables": {"number": 1}})
    assert answer.status_code == 202
    spooled = answer.json()
    assert spooled == {"key": None, "deduplicated": False, "is_spooled": True, "spool_id": spooled["spool_id"]}
    waiting = await report(http, spooled["spool_id"], "waiting")
    assert (waiting["key"], waiting["reason"]) == (None, None)
    store.come_back()
    delivered = await report(http, spooled["spool_id"], "delivered")
    job = (await http.get(f"{JOBS}/{delivered['key']}")).json()
    assert (job["type"], job["variables"], job["state"]) == ("work", {"number": 1}, "pending")


async def test_rest_accepts_a_list_of_jobs_while_the_store_is_away(http: httpx.AsyncClient, store: Store) -> None:
    store.leave()
    answer = await http.post(JOBS, json=[{"type": "work"}, {"type": "work"}])
    assert (answer.status_code, [one["is_spooled"] for one in answer.json()]) == (202, [True, True])
    refused = await http.post(JOBS, json={"type": ""})
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid_input")
    store.come_back()
    for one in answer.json():
        await report(http, one["spool_id"], "delivered")


@killed
async def test_everything_else_is_unavailable_and_readiness_says_so(http: httpx.AsyncClient, store: Store) -> None:
    store.leave()
    assert (await http.get(JOBS)).status_code == 503
    ready = await http.get("/readyz")
    assert (ready.status_code, ready.json()["code"]) == (503, "engine_unavailable")
    assert ready.json()["detail"].endswith("; new jobs go to the spool")
    assert (await http.get("/healthz")).status_code == 200
    store.come_back()


async def test_readiness_says_so_while_the_store_can_be_read_but_takes_no_jobs(
    http: httpx.AsyncClient, store: Store
) -> None:
    store.leave()
    assert (await http.post(JOBS, json={"type": "work"})).status_code == 202

    async def is_unready() -> bool:
        ready = await http.get("/readyz")
        return ready.status_code == 503 and "but accepts no jobs; new jobs go to the spool" in ready.text

    await until(is_unready, RESTART_S)
    store.come_back()
    await until(is_ready(http), RESTART_S)


@killed
async def test_what_cannot_be_done_says_that_the_store_is_not_reached_and_no_more(
    server: ServerProcess, http: httpx.AsyncClient, store: Store
) -> None:
    server.stop()
    store.leave()
    server.start()
    answer = await http.get(JOBS)
    detail = "the engine is unavailable; see the server log"
    assert (answer.status_code, answer.json()["detail"]) == (503, detail)
    store.come_back()


async def test_an_unknown_spool_id_is_not_found(http: httpx.AsyncClient) -> None:
    assert (await http.get("/api/v1/spool/0123-1")).status_code == 404


async def test_grpc_accepts_jobs_while_the_store_is_away(client: Client, store: Store) -> None:
    store.leave()
    spooled = await client.create("work", {"number": 1})
    assert (spooled.is_spooled, spooled.key < 0) == (True, True)
    with pytest.raises(ResultTimeout):
        await client.delivered(spooled, timeout=0.01)
    store.come_back()
    created = await client.delivered(spooled, timeout=RESTART_S)
    assert (await client.get(created.key)).state is State.PENDING
    with pytest.raises(NotFound):
        await client.delivered("0123-1")


async def test_the_jobs_api_says_in_its_message_that_a_job_is_spooled(server: ServerProcess, store: Store) -> None:
    store.leave()
    async with grpc.aio.insecure_channel(server.address) as channel:
        stub = jobs_pb2_grpc.JobsServiceAsyncStub(channel)
        request = jobs_pb2.CreateJobRequest(job_type="work")
        answer = await stub.CreateJob(request, metadata=(("x-api-key", KEY),), timeout=RESTART_S)
    assert (answer.success, answer.job_key) == (True, "")
    assert answer.message.startswith("the engine is unavailable: the job is spooled as '")
    store.come_back()


async def test_a_client_with_a_spool_of_its_own_keeps_its_jobs_itself(
    server: ServerProcess, store: Store, tmp_path: Path
) -> None:
    """A stamped create is never spooled by the server, so that it can be repeated elsewhere."""
    spool = Spool(str(tmp_path / "client-spool.db"), patience=2)
    async with Client(server.grpc_url, key=KEY, offline=spool) as client:
        await client.create("work", {"number": 0})
        store.leave()
        kept = [await client.create("work", {"number": number}) for number in (1, 2)]
        mine, of_server = opened(spool, server), SpoolFile(Spool(str(tmp_path / "server-spool.db")), None)
        assert (mine.counts().jobs, of_server.counts().jobs) == (2, 0)
        mine.close()
        of_server.close()
        store.come_back()
        for one in kept:
            await client.delivered(one, RESTART_S)
        assert len([job async for job in client.list()]) == 3


def opened(spool: Spool, server: ServerProcess) -> SpoolFile:
    return SpoolFile(spool, f"grpc://{server.address}")


async def test_a_server_starts_while_its_store_is_away(
    server: ServerProcess, http: httpx.AsyncClient, store: Store
) -> None:
    server.stop()
    store.leave()
    server.start()
    assert server.facts["durability"] is None
    spooled = (await http.post(JOBS, json={"type": "work"})).json()
    assert spooled["is_spooled"]
    store.come_back()
    delivered = await report(http, spooled["spool_id"], "delivered")
    assert (await http.get(f"{JOBS}/{delivered['key']}")).status_code == 200
    await until(is_ready(http), RESTART_S)


def is_ready(http: httpx.AsyncClient) -> Callable[[], Any]:
    async def ready() -> bool:
        return (await http.get("/readyz")).status_code == 200

    return ready


async def test_jobs_that_a_killed_server_has_kept_are_delivered_by_the_next_one(
    server: ServerProcess, http: httpx.AsyncClient, store: Store
) -> None:
    store.leave()
    spooled = (await http.post(JOBS, json={"type": "work"})).json()
    server.kill()
    store.come_back()
    server.start()
    await report(http, spooled["spool_id"], "delivered")


async def test_an_outcome_that_reaches_the_server_while_its_store_is_away_is_settled_late(
    client: Client, store: Store
) -> None:
    """The lease lapses meanwhile; the job does not run again."""
    begun, may_end, stop, runs = asyncio.Event(), asyncio.Event(), asyncio.Event(), []

    async def handle(job: Any) -> str:
        runs.append(job.key)
        begun.set()
        await may_end.wait()
        return "done"

    working = asyncio.create_task(client.work({"work": handle}, stop=stop, lease=1))
    created = await client.create("work")
    await begun.wait()
    store.leave()
    may_end.set()
    await until(lambda: not any(stream.held for stream in client.streams))
    lapses_at = time.monotonic() + 1.0
    await until(lambda: time.monotonic() > lapses_at)
    store.come_back()
    engine = open_engine(store.url)
    await engine.open()
    while (await client.get(created.key)).state is State.PROCESSING:
        await engine.sweep("sweeper")  # Most likely before the server tries again.
    await engine.close()
    assert await client.result(created.key, RESTART_S) == "done"
    stop.set()
    await working
    assert runs == [created.key]


async def test_outcomes_that_the_server_cannot_settle_are_kept_by_the_worker(
    server: ServerProcess, store: Store, tmp_path: Path
) -> None:
    """The stream stands, but the store behind it is away: the worker may be killed before that ends."""
    begun, may_end, stop = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def handle(job: Any) -> str:
        begun.set()
        await may_end.wait()
        return "done"

    spool = Spool(str(tmp_path / "worker-spool.db"), patience=0.5)
    async with Client(server.grpc_url, key=KEY, offline=spool) as client:
        working = asyncio.create_task(client.work({"work": handle}, stop=stop))
        created = await client.create("work")
        await begun.wait()
        store.leave()
        may_end.set()
        file = opened(spool, server)
        await until(file.has_outcomes, RESTART_S)
        store.come_back()
        assert await client.result(created.key, RESTART_S) == "done"
        await until(lambda: not file.has_outcomes(), RESTART_S)
        file.close()
        stop.set()
        await working


# Keys -----------------------------------------------------------------------------------------------


async def a_key(store: Store, *tenants: str) -> str:
    engine = open_engine(store.url)
    await engine.open()
    try:
        return (await KeyRing(engine).create("shop", ["jobs"], tenants=tenants)).text
    finally:
        await engine.close()


async def test_a_key_that_the_server_knows_creates_jobs_while_the_store_is_away(
    server: ServerProcess, http: httpx.AsyncClient, store: Store
) -> None:
    headers = {"X-API-Key": await a_key(store, "shop")}

    async def is_known() -> bool:
        return (await http.get(JOBS, headers=headers)).status_code == 200

    await until(is_known)
    store.leave()
    answer = await http.post(JOBS, json={"type": "work"}, headers=headers)
    assert answer.status_code == 202
    foreign = await http.post(JOBS, json={"type": "work", "tenant": "another"}, headers=headers)
    assert foreign.status_code == 403
    spool_id = (await http.post(JOBS, json={"type": "work", "tenant": "another"})).json()["spool_id"]
    assert (await http.get(f"/api/v1/spool/{spool_id}", headers=headers)).status_code == 404
    store.come_back()
    await report(http, spool_id, "delivered")
    theirs = await http.get(f"/api/v1/spool/{spool_id}", headers=headers)
    missing = await http.get("/api/v1/spool/0123-1", headers=headers)
    assert (theirs.status_code, theirs.text) == (404, missing.text.replace("0123-1", spool_id))
    mine = answer.json()["spool_id"]
    await report(http, mine, "delivered")
    assert (await http.get(f"/api/v1/spool/{mine}", headers=headers)).status_code == 200


async def test_a_key_that_cannot_be_checked_is_answered_with_unavailable(
    server: ServerProcess, http: httpx.AsyncClient, store: Store
) -> None:
    text = await a_key(store)
    server.stop()
    store.leave()
    server.start()
    answer = await http.post(JOBS, json={"type": "work"}, headers={"X-API-Key": text})
    assert (answer.status_code, answer.json()["detail"]) == (503, access.UNCHECKED)
    store.come_back()


@killed
async def test_known_keys_are_trusted_for_an_hour_and_never_beyond_their_expiry(store: Store) -> None:
    seconds, now_ms = [0.0], [1_000_000]
    engine = open_engine(store.url)
    await engine.open()
    ring = KeyRing(engine, clock=lambda: now_ms[0], rate_clock=lambda: seconds[0])
    expiring = (await ring.create("short", ["jobs"], expires_at_ms=now_ms[0] + 60_000)).text
    lasting = (await ring.create("long", ["jobs"])).text
    await ring.open()
    store.leave()
    try:
        seconds[0] = access.STALE_SECONDS - 1
        with pytest.raises(Unauthenticated, match="unknown"):
            ring.authenticate("ew_0123_unknown")
        seconds[0], now_ms[0] = access.TRUSTED_SECONDS - 1, now_ms[0] + 61_000
        assert ring.authenticate(lasting).name == "long"
        with pytest.raises(Unauthenticated, match="expired"):
            ring.authenticate(expiring)
        with pytest.raises(EngineUnavailable, match="cannot be checked"):
            ring.authenticate("ew_0123_unknown")
        seconds[0] += 2
        with pytest.raises(EngineUnavailable, match="cannot be checked"):
            ring.authenticate(lasting)
    finally:
        await ring.close()
        store.come_back()
        await engine.close()


# Stamps ---------------------------------------------------------------------------------------------


async def stamped(server: ServerProcess, key: str, producer: str, number: int, type: str = "work") -> list[int]:
    """The keys that a stamped create is answered with."""
    async with grpc.aio.insecure_channel(server.address) as channel:
        request = pb.CreateJobsRequest(jobs=[pb.NewJob(type=type)], stamp=pb.Stamp(producer=producer, number=number))
        stub = WorkServiceAsyncStub(channel)
        answer = await stub.CreateJobs(request, metadata=(("x-api-key", key),), timeout=RESTART_S)
    return [one.key for one in answer.jobs]


async def test_a_stamped_create_is_repeated_without_creating_anything(server: ServerProcess) -> None:
    first = await stamped(server, KEY, "p", 1)
    assert await stamped(server, KEY, "p", 1) == first
    assert await stamped(server, KEY, "p", 2) != first
    with pytest.raises(grpc.aio.AioRpcError, match="stamp: number 1 of producer"):
        await stamped(server, KEY, "p", 1)


async def test_the_producers_of_other_tenants_are_out_of_reach(server: ServerProcess, store: Store) -> None:
    server.stop()
    shop, other = await a_key(store, "shop"), await a_key(store, "other")
    replaced = await a_key(store, "shop")
    server.start()
    keys = [await stamped(server, key, "p", 1) for key in (shop, other, KEY)]
    assert len({*map(tuple, keys)}) == 3
    await stamped(server, other, "p", 9)
    assert await stamped(server, shop, "p", 1) == keys[0]
    assert await stamped(server, replaced, "p", 1) == keys[0]


async def test_a_stamp_is_bounded(server: ServerProcess) -> None:
    for producer in ("", "p" * 65, "p\n", "ж"):
        with pytest.raises(
            grpc.aio.AioRpcError, match=r"stamp\.producer: must have 1 to 64 printable ASCII characters"
        ):
            await stamped(server, KEY, producer, 1)
    for number in (0, 2**53):
        with pytest.raises(grpc.aio.AioRpcError, match=r"stamp\.number: must be a whole number from 1 to"):
            await stamped(server, KEY, "p", number)


@pytest.mark.parametrize("others", [0, 1])
async def test_a_late_outcome_must_name_its_attempt(client: Client, others: int) -> None:
    named = [pb.Outcome(key=1, attempt=1, complete=pb.Complete())] * others
    request = pb.SettleRequest(outcomes=[*named, pb.Outcome(key=1, complete=pb.Complete())])
    transport: Any = await client.open()
    with pytest.raises(grpc.aio.AioRpcError, match=rf"outcomes\[{others}\].attempt: is required"):
        await transport.calls.SettleLate(request, metadata=transport.metadata)


async def test_a_wrong_setting_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="offline"):
        Client("grpc://127.0.0.1:1", offline=7)  # type: ignore[arg-type]


@pytest.mark.parametrize("call", ["registered", "health"])
async def test_a_server_starts_although_its_store_goes_away_just_after_it_was_opened(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {"grpc_port": 0, "http_port": 0, "api_key": KEY, "offline": tmp_path / "spool.db"}
    settings = Settings(engine=f"sqlite:///{tmp_path}/jobs.db", **given)

    engine = open_engine(settings.engine)
    outage = Outage(engine, monkeypatch)
    outage.fail(call)
    monkeypatch.setattr(server_module, "open_engine", lambda _: engine)
    running = await open_server(settings, makes_key=False)
    assert (running.ports.http > 0, call in outage.failed) == (True, True)
    await running.server.stop(0)
