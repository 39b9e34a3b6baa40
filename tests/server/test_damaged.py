"""A job that was damaged in the store becomes a dead letter with the reason and blocks no others, on every API."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from everwork import Everwork
from everwork.client import Client
from everwork.core.states import FINISHED_STATES, State
from everwork.proto import gateway_pb2
from tests.app.waiting import until
from tests.damage import NO_OBJECT, NOT_JSON, NOT_UTF8, StoreDamage
from tests.server.grpc.running import KEY, SECONDS, TYPE, RunningServer, running_server
from tests.server.http.serving import JOBS, Rest, serving
from tests.stores import url_of

REASON = "damaged in the store"
HITS = [("variables", NOT_JSON), ("variables", NO_OBJECT), ("variables", NOT_UTF8), ("headers", NOT_JSON)]


@pytest.mark.parametrize(("column", "raw"), HITS)
async def test_over_rest(tmp_path: Path, column: str, raw: bytes) -> None:
    async with serving(url_of("sqlite", tmp_path)) as rest:
        keys = await spoilt(rest, tmp_path, column, raw)
        leased = await rest.ok("POST", f"{JOBS}/activate", {"type": TYPE, "worker": "w1", "max_jobs": 5})
        assert [int(job["key"]) for job in leased["jobs"]] == [keys[0], keys[2]]
        dead = await rest.ok("GET", f"{JOBS}/{keys[1]}")
        assert (dead["state"], dead["attempts"], REASON in dead["last_error"]) == ("failed", 1, True)
        listed = await rest.ok("GET", JOBS)
        assert {int(job["key"]) for job in listed["jobs"]} == set(keys)


async def spoilt(rest: Rest, folder: Path, column: str, raw: bytes) -> list[int]:
    """Three jobs, the second of which is damaged."""
    keys = [int((await rest.job(type=TYPE, headers={"h": "1"}))["key"]) for _ in range(3)]
    StoreDamage(url_of("sqlite", folder)).spoil_job(keys[1], column, raw)
    return keys


async def by_jobs_api(server: RunningServer) -> list[int]:
    return [int(job.job_key) for job in await server.activate(max_jobs_to_activate=5)]


async def by_zeebe(server: RunningServer) -> list[int]:
    request = gateway_pb2.ActivateJobsRequest(type=TYPE, worker="w1", timeout=30_000, maxJobsToActivate=5)
    found = server.zeebe.ActivateJobs(request, metadata=server.metadata, timeout=SECONDS)
    return [job.key async for message in found for job in message.jobs]


async def by_client(server: RunningServer) -> list[int]:
    async with Client(f"grpc://127.0.0.1:{server.port}", key=KEY) as client:
        return [job.key for job in await client.activate(TYPE, worker="w1", limit=5)]


async def by_stream(server: RunningServer) -> list[int]:
    """A Python worker on a stream reads the variables of each job."""
    done: list[int] = []
    async with Client(f"grpc://127.0.0.1:{server.port}", key=KEY) as client:
        working = asyncio.create_task(client.work({TYPE: lambda job: done.append(job.key * bool(job.variables))}))
        await until(lambda: all_ended(server))
        working.cancel()
    return sorted(done)


async def all_ended(server: RunningServer) -> bool:
    jobs = await server.service.get_many([1, 2, 3])
    return all(job is not None and job.state in FINISHED_STATES for job in jobs)


@pytest.mark.parametrize(("column", "raw"), HITS[:3])
@pytest.mark.parametrize("activate", [by_jobs_api, by_zeebe, by_client, by_stream])
async def test_over_grpc(
    tmp_path: Path, activate: Callable[[RunningServer], Awaitable[list[int]]], column: str, raw: bytes
) -> None:
    url = url_of("sqlite", tmp_path)
    async with running_server(url) as server:
        keys = [int(await server.create(variables={"a": "1"})) for _ in range(3)]
        StoreDamage(url).spoil_job(keys[1], column, raw)
        assert await activate(server) == [keys[0], keys[2]]
        dead = await server.job(str(keys[1]))
        assert (dead.state, dead.attempts, REASON in (dead.last_error or "")) == (State.FAILED, 1, True)
        assert (await server.call("GetJob", job_key=str(keys[1]))).job.state == "FAILED"


@pytest.mark.every_engine
async def test_in_a_python_worker(engine_name: str, tmp_path: Path) -> None:
    url = url_of(engine_name, tmp_path)
    async with Everwork(url) as app:

        @app.job(TYPE)
        async def work() -> None: ...

        keys = [await work.enqueue() for _ in range(3)]
        StoreDamage(url).spoil_job(keys[1], "variables", NOT_JSON)
        await app.run_once(10)
        jobs = [await app.get(key) for key in keys]
        assert [job.state for job in jobs] == [State.COMPLETED, State.FAILED, State.COMPLETED]
        assert REASON in (jobs[1].last_error or "")
