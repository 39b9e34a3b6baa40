"""An error that no rule matches is permanent: `strict`, for a type by its policy, or for one call."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path

import httpx
import pytest

from everwork.client import Client
from everwork.core.states import State
from everwork.proto import jobs_pb2
from everwork.proto.jobs_pb2_grpc import JobsServiceAsyncStub
from tests.server.whole import KEY, TYPE, Whole, running
from tests.stores import url_of

ENDS = {
    "Connection refused": (State.PENDING, 2_000),
    "Rate limit exceeded": (State.PENDING, 60_000),
    "Service unavailable": (State.PENDING, 10_000),
    "Invalid configuration": (State.FAILED, None),
}
"""Errors, and what follows them: retried after a delay, or failed for good."""


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Whole]:
    async with running(url_of("sqlite", tmp_path)) as whole:
        yield whole


async def over_the_jobs_api(server: Whole, key: int, error: str) -> None:
    request = jobs_pb2.FailJobRequest(job_key=str(key), error_message=error, strict=True)
    async with server.channel() as channel:
        assert (await JobsServiceAsyncStub(channel).FailJob(request, metadata=(("x-api-key", KEY),))).success


async def over_rest(server: Whole, key: int, error: str) -> None:
    address = f"http://127.0.0.1:{server.ports.http}/api/v1/jobs/{key}/fail"
    async with httpx.AsyncClient(headers={"X-API-Key": KEY}) as client:
        (await client.put(address, json={"error_message": error, "strict": True})).raise_for_status()


async def over_the_client(server: Whole, key: int, error: str) -> None:
    async with Client(f"grpc://127.0.0.1:{server.ports.grpc}", key=KEY) as client:
        await client.fail(key, error, strict=True)


DOORS: Mapping[str, Callable[[Whole, int, str], Awaitable[None]]] = {
    "FailJob": over_the_jobs_api,
    "REST": over_rest,
    "everwork.v1": over_the_client,
}


async def assert_ended(server: Whole, key: int, error: str) -> None:
    state, delay_ms = ENDS[error]
    job, [entry] = await server.job(key), await server.service._engine.history(key)
    assert job.state is state
    assert (entry.retry_at_ms and entry.retry_at_ms - entry.at_ms) == delay_ms


@pytest.mark.parametrize("door", DOORS)
async def test_a_strict_failure_is_final_unless_a_rule_matches(server: Whole, door: str) -> None:
    for error in ENDS:
        [key] = await server.create()
        async with Client(f"grpc://127.0.0.1:{server.ports.grpc}", key=KEY) as client:
            [job] = await client.activate(TYPE)
        await DOORS[door](server, job.key, error)
        await assert_ended(server, key, error)


async def test_so_is_one_that_a_workers_stream_reports(server: Whole) -> None:
    errors = dict(zip(await server.create(len(ENDS)), ENDS, strict=True))
    async with Client(f"grpc://127.0.0.1:{server.ports.grpc}", key=KEY) as client:
        jobs = await client.activate(TYPE)
        async with client.stream() as stream:
            for job in jobs:
                stream.fail(job, errors[job.key], strict=True)
    assert list(stream.refusals) == []
    for key, error in errors.items():
        await assert_ended(server, key, error)
