"""ActivateJobs and the caller's deadline: the call ends with DEADLINE_EXCEEDED, and no lease is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from grpc import StatusCode

from everwork.core.states import State
from everwork.proto import gateway_pb2, jobs_pb2, work_pb2
from everwork.proto.work_pb2_grpc import DeskServiceAsyncStub
from tests.app.waiting import until
from tests.server.grpc.running import SECONDS, TYPE, RunningServer, running_server
from tests.server.whole import EOF
from tests.stores import url_of

LONG_MS = 60_000
SHORT_S = 0.4
APIS = ("jobs", "zeebe", "everwork.v1")


@pytest.fixture
async def server(tmp_path: Path, engine_name: str) -> AsyncIterator[RunningServer]:
    """A server with long polls that no test waits for."""
    async with running_server(url_of(engine_name, tmp_path), long_poll_seconds=60) as opened:
        yield opened


def polled(server: RunningServer, api: str = "jobs", seconds: float = SHORT_S, type: str = TYPE) -> Any:
    """A poll of one API, with a deadline."""
    if api == "zeebe":
        request = gateway_pb2.ActivateJobsRequest(
            type=type, worker="w1", timeout=LONG_MS, maxJobsToActivate=10, requestTimeout=LONG_MS
        )
        return server.zeebe.ActivateJobs(request, metadata=server.metadata, timeout=seconds)
    if api == "jobs":
        wanted = jobs_pb2.ActivateJobsRequest(type=type, worker="w1", timeout=LONG_MS)
        return server.jobs.ActivateJobs(wanted, metadata=server.metadata, timeout=seconds)
    asked = work_pb2.ActivateRequest(type=type, worker="w1", lease_ms=LONG_MS, limit=10, wait_ms=LONG_MS)
    return DeskServiceAsyncStub(server.channel).Activate(asked, metadata=server.metadata, timeout=seconds)


async def keys_until_the_end(call: Any) -> list[int]:
    """The keys of the jobs that a caller read before its call ended, well or with its deadline."""
    keys: list[int] = []
    with suppress(grpc.aio.AioRpcError):
        async for message in call:
            keys += [int(job.job_key) for job in message.jobs]
    assert await call.code() in (StatusCode.OK, StatusCode.DEADLINE_EXCEEDED)
    return keys


@pytest.mark.parametrize("api", APIS)
async def test_a_deadline_before_the_end_of_the_long_poll_ends_the_call_with_deadline_exceeded(
    server: RunningServer, api: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as ended:
        await polled(server, api).read()
    assert ended.value.code() is StatusCode.DEADLINE_EXCEEDED
    assert ended.value.details() == "no job became due before the caller's deadline"
    await until(lambda: not server.service.waiting(TYPE))


async def test_the_long_polls_own_end_is_ok_and_empty(tmp_path: Path) -> None:
    async with running_server(url_of("sqlite", tmp_path), long_poll_seconds=0.2) as server:
        call = polled(server, seconds=SECONDS)
        assert await call.read() is EOF
        assert await call.code() is StatusCode.OK


@pytest.mark.every_engine
@pytest.mark.parametrize("api", APIS)
async def test_jobs_leased_at_that_moment_go_back_uncounted(server: RunningServer, api: str) -> None:
    key = int(await server.create())
    engine, begun, over = server.service._engine, asyncio.Event(), asyncio.Event()
    lease = engine.activate

    async def slow(demands: Any) -> Any:
        begun.set()
        await over.wait()
        return await lease(demands)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "activate", slow)
        call = polled(server, api)
        assert await call.code() is StatusCode.DEADLINE_EXCEEDED
        await begun.wait()
        over.set()
        await until(lambda: _is_back(server, key, attempt=1))


async def _is_back(server: RunningServer, key: int, attempt: int) -> bool:
    """Whether a job was leased and is free again, and no attempt was counted."""
    job = await server.service.get(key)
    return (job.state, job.attempt, job.attempts) == (State.PENDING, attempt, 0)


@pytest.mark.every_engine
async def test_no_lease_leaks_when_jobs_become_due_around_the_deadline(server: RunningServer) -> None:
    polls = {}
    for number in range(20):
        type = f"type-{number}"
        key = int(await server.create(job_type=type, delay_ms=150 + 10 * number))
        polls[key] = asyncio.ensure_future(keys_until_the_end(polled(server, type=type)))
    read = {key for poll in polls.values() for key in await poll}

    async def only_what_was_read_is_leased() -> bool:
        jobs = [await server.service.get(key) for key in polls]
        leased = {job.key for job in jobs if job.state is State.PROCESSING}
        return leased == read and all(job.attempts == (job.key in read) for job in jobs)

    await until(only_what_was_read_is_leased)
