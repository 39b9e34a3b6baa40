"""Workers written with pyzeebe run unchanged, by polls and by streams."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from everwork.client import Client
from everwork.core.states import State
from tests.app.waiting import until
from tests.client.server import KEY, ServerProcess, tls_files
from tests.foreign.program import Program, python
from tests.stores import url_of

DEADLINE_S = 60.0


@pytest.fixture(params=["polling", "streaming"])
def prefix(request: pytest.FixtureRequest) -> str:
    """The first word of the test's job types: how its worker gets jobs."""
    return f"{request.param}-{request.node.originalname}"


@pytest.fixture
async def worker(prefix: str, server: ServerProcess, stubs: Path) -> AsyncIterator[Program]:
    """A worker that is stopped in order."""
    program = python("zeebe_worker.py", server.address, prefix, prefix.partition("-")[0], stubs=stubs)
    try:
        yield program
        program.stop()
    finally:
        program.kill()


async def test_jobs_are_completed(client: Client, worker: Program, prefix: str) -> None:
    created = await client.create_many([(f"{prefix}-pay", {"amount": n}) for n in range(20)])
    assert [await client.result(one.key, DEADLINE_S) for one in created] == [{"paid": n} for n in range(20)]
    assert {seen["worker"] for one in created for seen in worker.said("activated", one.key)} == {"zeebe-worker"}


async def test_a_job_that_comes_while_the_worker_waits_is_completed(
    client: Client, worker: Program, prefix: str
) -> None:
    await until(lambda: worker.said("ready"), DEADLINE_S)
    created = await client.create(f"{prefix}-pay", {"amount": 7}, headers={"trace": "t1"}, max_attempts=4)
    assert await client.result(created.key, DEADLINE_S) == {"paid": 7}
    [seen] = await activations(worker, created.key, 1)
    assert (seen["retries"], seen["headers"]) == (4, {"trace": "t1"})


async def test_a_failure_is_tried_again_after_its_backoff_with_its_variables(
    client: Client, worker: Program, prefix: str
) -> None:
    created = await client.create(f"{prefix}-flaky", {"bank": "b"}, max_attempts=3)
    await until(lambda: worker.said("failed", created.key), DEADLINE_S)
    [entry] = await client.history(created.key)
    assert (entry.kind, entry.error) == ("fail", "the bank does not answer")
    assert (entry.retry_at_ms or 0) - entry.at_ms == 45_000
    await client.run_now(created.key)
    assert await client.result(created.key, DEADLINE_S) == {"tries": 1}
    seen = await activations(worker, created.key, 2)
    assert [one["retries"] for one in seen] == [3, 2]
    # pyzeebe asks only for what the task's function takes; the job has kept the rest.
    assert seen[1]["variables"] == {"tries": 1}
    assert (await client.get(created.key)).variables == {"bank": "b", "tries": 1}


async def test_a_business_error_is_a_dead_letter_with_its_code(client: Client, worker: Program, prefix: str) -> None:
    created = await client.create(f"{prefix}-poor")

    async def is_failed() -> bool:
        return (await client.get(created.key)).state is State.FAILED

    await until(is_failed, DEADLINE_S)
    job = await client.get(created.key)
    assert (job.error_code, job.retries) == ("NO_MONEY", 0)
    assert "the account is empty" in (job.last_error or "")


async def test_pyzeebes_own_secure_channel_with_call_credentials_works(tmp_path: Path, stubs: Path) -> None:
    authority, flags = tls_files(tmp_path)
    server = ServerProcess(url_of("sqlite", tmp_path), tmp_path, *flags).start()
    program = python("zeebe_worker.py", server.address, "tls", "polling", stubs=stubs, WORKER_CA=str(authority))
    try:
        async with Client(server.grpc_url, key=KEY, tls=authority) as client:
            created = await client.create("tls-pay", {"amount": 3})
            assert await client.result(created.key, DEADLINE_S) == {"paid": 3}
        program.stop()
    finally:
        program.kill()
        server.stop()


async def activations(worker: Program, key: int, number: int) -> list[dict[str, Any]]:
    """What the worker says of its attempts at a job; a line of it may come a moment after the job has ended."""
    await until(lambda: len(worker.said("activated", key)) >= number, DEADLINE_S)
    return worker.said("activated", key)
