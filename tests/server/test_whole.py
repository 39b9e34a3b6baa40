"""The whole server: both doors on one store, bursts of callers, and a stop that loses nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from everwork.core.states import State
from everwork.exceptions import BadConfiguration
from everwork.proto import jobs_pb2
from everwork.service.policies import types_from
from tests.app.waiting import DEADLINE_S, until
from tests.server.whole import KEY, TYPE, Whole, running
from tests.stores import url_of

pytestmark = pytest.mark.every_engine

ACTIVATE = "/atom.jobs.v1.JobsService/ActivateJobs"
BURST = 1_500
"""More than gRPC lets wait by default before it drops calls."""


async def test_what_came_in_by_one_door_is_seen_through_the_other(whole: Whole) -> None:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{whole.ports.http}", headers={"X-API-Key": KEY}) as rest:
        created = (await rest.post("/api/v1/jobs", json={"type": TYPE, "variables": {"n": 1}})).json()
        async with whole.worker() as worker:
            await worker.grant(1)
            [job] = await worker.got(1)
            assert (str(job.key), job.variables) == (created["key"], b'{"n":1}')
            await worker.complete(job)
            await worker.until(lambda: worker.settled == 1)
        assert (await rest.get(f"/api/v1/jobs/{created['key']}")).json()["state"] == "completed"


async def test_a_server_lets_the_store_know_what_its_settings_say_of_types(tmp_path: Path) -> None:
    types = types_from({TYPE: {"max_running": 3, "paused": True}, "off": {"failed_job_retry_hours": "off"}})
    async with running(url_of("sqlite", tmp_path), types=types, failed_job_retry_hours=6) as whole:
        said = {info.type: (info.paused, info.policy) for info in await whole.service._engine.types()}
    assert said == {TYPE: (True, '{"failed_job_retry_hours":6,"max_running":3}')}


async def test_a_burst_of_polls_is_taken_as_a_whole_and_ended_cleanly_by_a_stop(tmp_path: Path) -> None:
    async with (
        running(url_of("sqlite", tmp_path), pollers_per_type=BURST) as whole,
        whole.channel() as channel,
        whole.channel() as another,
    ):
        polls = [asyncio.create_task(_poll(one)) for one in (channel, another) for _ in range(BURST // 2)]
        await until(lambda: whole.service.waiting(TYPE) == BURST, 3 * DEADLINE_S)
        await whole.server.stop()
        assert await asyncio.gather(*polls) == [[]] * BURST


async def test_a_stop_in_the_middle_of_creates_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    url = url_of("sqlite", tmp_path)
    acknowledged: list[str] = []

    async def create_on_and_on(port: int) -> None:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers={"X-API-Key": KEY}) as rest:
            while True:
                try:
                    answer = await rest.post("/api/v1/jobs", json={"type": TYPE, "variables": {}})
                except httpx.TransportError:
                    return
                if answer.status_code == 201:
                    acknowledged.append(answer.json()["key"])

    async with running(url) as whole:
        callers = [asyncio.create_task(create_on_and_on(whole.ports.http)) for _ in range(8)]
        await until(lambda: len(acknowledged) >= 50)
        await whole.server.stop()
        await asyncio.wait_for(asyncio.gather(*callers), DEADLINE_S)
    async with running(url) as again:
        states = {(await again.job(int(key))).state for key in acknowledged}
        assert states == {State.PENDING}
        assert sum(count.jobs for count in await again.service._engine.count()) == len(acknowledged)


@pytest.mark.parametrize("port", ["grpc_port", "http_port"])
async def test_a_port_that_is_taken_is_a_clear_error(tmp_path: Path, port: str) -> None:
    async with running(url_of("sqlite", tmp_path)) as whole:
        taken = whole.ports.grpc if port == "grpc_port" else whole.ports.http
        with pytest.raises(BadConfiguration, match=f"{port}: cannot listen on 127.0.0.1:{taken}"):
            async with running(f"sqlite:///{tmp_path / 'other.db'}", **{port: taken}):
                pass


async def test_without_authentication_everybody_may_call(tmp_path: Path) -> None:
    async with running(url_of("sqlite", tmp_path), auth="off") as whole, whole.channel() as channel:
        await whole.create()
        call: Any = channel.unary_stream
        request = jobs_pb2.ActivateJobsRequest(type=TYPE, worker="w").SerializeToString()
        answers = [one async for one in call(ACTIVATE)(request, timeout=DEADLINE_S)]
        assert len(answers) == 1


async def _poll(channel: grpc.aio.Channel) -> list[bytes]:
    unary_stream: Any = channel.unary_stream
    request = jobs_pb2.ActivateJobsRequest(type=TYPE, worker="w", max_jobs_to_activate=1).SerializeToString()
    call = unary_stream(ACTIVATE)(request, metadata=(("x-api-key", KEY),))
    return [one async for one in call]
