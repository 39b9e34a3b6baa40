"""ActivateJobs with too many workers: RESOURCE_EXHAUSTED for the API key that has them, and for no other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio
import httpx
import pytest
from grpc import StatusCode

from everwork.proto import jobs_pb2
from everwork.proto.jobs_pb2_grpc import JobsServiceAsyncStub
from tests.app.waiting import until
from tests.server.whole import TYPE, Whole, running
from tests.stores import url_of

LIMIT = 3
REFUSED = f"too many workers: {LIMIT} polls of this API key are waiting for jobs of type '{TYPE}'; retry later"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Whole]:
    """A server on which three polls of a key may wait for a type."""
    async with running(url_of("sqlite", tmp_path), pollers_per_type=LIMIT, long_poll_seconds=60) as whole:
        yield whole


async def a_key(server: Whole, name: str) -> str:
    return (await server.server.keys.create(name, ["jobs"])).text


def polled(channel: grpc.aio.Channel, key: str) -> Any:
    """A poll of ActivateJobs."""
    request = jobs_pb2.ActivateJobsRequest(type=TYPE, worker="w1")
    return JobsServiceAsyncStub(channel).ActivateJobs(request, metadata=(("x-api-key", key),))


async def rest_poll(server: Whole, key: str) -> httpx.Response:
    """A poll over REST."""
    address = f"http://127.0.0.1:{server.ports.http}/api/v1/jobs/activate"
    async with httpx.AsyncClient(headers={"X-API-Key": key}, timeout=60) as client:
        return await client.post(address, json={"type": TYPE, "worker": "w2", "max_jobs": 1, "wait": 60})


async def test_a_noisy_key_is_refused_and_another_key_is_served(server: Whole) -> None:
    noisy, quiet = await a_key(server, "noisy"), await a_key(server, "quiet")
    async with server.channel() as channel:
        waiting = [polled(channel, noisy) for _ in range(LIMIT)]
        await until(lambda: server.service.waiting(TYPE) == LIMIT)
        refused = polled(channel, noisy)
        assert (await refused.code(), await refused.details()) == (StatusCode.RESOURCE_EXHAUSTED, REFUSED)
        assert ("retry-after-ms", "1000") in list(await refused.trailing_metadata())
        served = polled(channel, quiet)
        await until(lambda: server.service.waiting(TYPE) == LIMIT + 1)
        [call.cancel() for call in waiting]
        await until(lambda: server.service.waiting(TYPE) == 1)
        [key] = await server.create()
        assert [job.job_key for job in (await served.read()).jobs] == [str(key)]


async def test_rest_answers_429_to_the_noisy_key_and_jobs_to_another(server: Whole) -> None:
    noisy, quiet = await a_key(server, "noisy"), await a_key(server, "quiet")
    waiting = [asyncio.ensure_future(rest_poll(server, noisy)) for _ in range(LIMIT)]
    await until(lambda: server.service.waiting(TYPE) == LIMIT)
    refused = await rest_poll(server, noisy)
    assert (refused.status_code, refused.json()["code"]) == (429, "too_many_requests")
    assert (refused.json()["detail"], refused.headers["Retry-After"]) == (REFUSED, "1")
    served = asyncio.ensure_future(rest_poll(server, quiet))
    await until(lambda: server.service.waiting(TYPE) == LIMIT + 1)
    await server.create(LIMIT + 1)
    answers = [await poll for poll in (*waiting, served)]
    assert [len(answer.json()["jobs"]) for answer in answers] == [1] * (LIMIT + 1)
