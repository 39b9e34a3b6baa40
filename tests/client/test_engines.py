"""The same life of jobs on every engine, in process and by a server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from everwork.client import ActiveJob, Client
from everwork.core.states import State
from everwork.exceptions import JobNotFound, LeaseLost, WrongState
from everwork.proto import work_pb2 as pb
from tests.client.server import KEY, ServerProcess
from tests.client.test_worker import working
from tests.stores import url_of


@pytest.fixture(params=["in process", "remote"])
async def any_client(request: pytest.FixtureRequest, engine_name: str, tmp_path: Path) -> AsyncIterator[Client]:
    """A client on a fresh store of each engine."""
    url = url_of(engine_name, tmp_path)
    if request.param == "in process":
        async with Client(url) as client:
            yield client
        return
    server = ServerProcess(url, tmp_path).start()
    try:
        async with Client(server.grpc_url, key=KEY) as client:
            yield client
    finally:
        server.stop()


async def test_a_life_from_creation_to_deletion(any_client: Client) -> None:
    client = any_client
    created = await client.create("a", {"n": 1, "text": "ß"}, headers={"h": 1}, dedupe_key="d", max_attempts=3)
    assert (await client.create("a", {}, dedupe_key="d"))[:2] == (created.key, True)
    [job] = await client.activate("a", worker="w1", wait=5)
    assert (job.key, job.attempt, job.retries, job.variables, job.headers) == (
        created.key, 1, 3, {"n": 1, "text": "ß"}, {"h": 1},
    )  # fmt: skip
    await client.fail(job, "boom", retries=2, backoff=3600, variables={"n": 2})
    with pytest.raises(WrongState):
        await client.complete(job)
    [entry] = await client.history(created.key)
    assert (entry.kind, entry.error, (entry.retry_at_ms or 0) - entry.at_ms) == ("fail", "boom", 3_600_000)
    await client.run_now(created.key)
    [again] = await client.activate("a", worker="w2", wait=5)
    assert (again.attempt, again.retries, again.variables["n"]) == (2, 2, 2)
    with pytest.raises(LeaseLost):
        await client.complete(job)
    await client.complete(again, {"ok": True}, events=[("b", {})])
    assert await client.result(created.key) == {"ok": True}
    assert {one.type async for one in client.list()} == {"a", "b"}
    assert (await client.explain(created.key)).state is State.COMPLETED
    assert await client.delete(created.key) is State.COMPLETED
    with pytest.raises(JobNotFound):
        await client.get(created.key)


@pytest.mark.parametrize("any_client", ["remote"], indirect=True)
async def test_a_number_that_no_attempt_can_have_is_refused_by_name(any_client: Client) -> None:
    transport: Any = any_client.transport
    number = 2**32 - 1
    outcome = pb.Outcome(key=1, attempt=number, complete=pb.Complete())
    hello = pb.Hello(worker="w", resumed=[pb.Lease(key=1, attempt=number)])
    calls = [
        transport.calls.Settle(pb.SettleRequest(outcomes=[outcome]), metadata=transport.metadata),
        transport.calls.Extend(pb.ExtendRequest(key=1, attempt=number, lease_ms=1_000), metadata=transport.metadata),
        transport.work.Work(iter([pb.FromWorker(hello=hello)]), metadata=transport.metadata).read(),
    ]
    for call in calls:
        with pytest.raises(grpc.aio.AioRpcError, match="attempt: must be a whole number from 0 to 2147") as raised:
            await call
        assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_worker_works_off_a_queue(any_client: Client) -> None:
    async def handle(job: ActiveJob) -> Any:
        if job.variables["n"] % 3 == 0:
            await asyncio.sleep(0)
        return job.variables["n"]

    created = await any_client.create_many([("a", {"n": n}) for n in range(300)])
    async with working(any_client, {"a": handle}, concurrency=20):
        assert [await any_client.result(one.key) for one in created] == list(range(300))
    counts = {count.state: count.jobs for count in (await any_client.stats(1)).counts if count.jobs}
    assert counts == {State.COMPLETED: 300}
