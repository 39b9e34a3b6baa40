"""Workers in Python and JavaScript, written against the published jobs API, work a queue to its end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from everwork.client import Client
from everwork.core.job import HistoryEntry, StoredJob
from everwork.core.states import State
from tests.app.waiting import until
from tests.client.server import ServerProcess
from tests.foreign.program import PROTO, Program, node, python
from tools.node import find_packages

DEADLINE_S = 60.0

Start = Callable[[str], Program]


LANGUAGES: Final = ["python", "node"] if find_packages() else ["python"]


@pytest.fixture(params=LANGUAGES)
def start(request: pytest.FixtureRequest, server: ServerProcess, stubs: Path) -> Iterator[Start]:
    """Starts the worker of one language on a type."""
    started: list[Program] = []

    def begin(job_type: str) -> Program:
        if request.param == "python":
            started.append(python("jobs_worker.py", server.address, job_type, stubs=stubs))
        else:
            started.append(node("worker.js", str(PROTO), server.address, job_type))
        return started[-1]

    yield begin
    for program in started:
        program.kill()


@pytest.fixture
def job_type(request: pytest.FixtureRequest) -> str:
    """A type of the test's own."""
    return f"http-request-{request.node.name}"


async def test_a_queue_of_good_jobs_is_completed(client: Client, start: Start, job_type: str) -> None:
    created = await client.create_many([(job_type, {"url": f"https://example.org/{n}"}) for n in range(25)])
    async with running(start, job_type) as worker:
        results = [await client.result(one.key, DEADLINE_S) for one in created]
    assert results == [{"httpStatus": "200", "url": f"https://example.org/{n}", "method": "GET"} for n in range(25)]
    assert all(worker.said("completed", one.key)[0]["success"] for one in created)


async def test_only_the_variables_asked_for_are_sent(client: Client, start: Start, job_type: str) -> None:
    created = await client.create(job_type, {"url": "u", "method": "PUT", "secret": "s", "deep": {"url": 1}})
    async with running(start, job_type) as worker:
        await client.result(created.key, DEADLINE_S)
    [seen] = worker.said("activated", created.key)
    assert seen["variables"] == {"url": "u", "method": "PUT"}
    assert (
        seen["deadline"] == activated_at_ms(await client.get(created.key), await client.history(created.key)) + 30_000
    )


async def test_a_retryable_error_is_tried_again_with_a_doubled_backoff(
    client: Client, start: Start, job_type: str
) -> None:
    key = await failing(client, job_type, "connection refused", times=2)
    async with running(start, job_type) as worker:
        assert await backoffs_until_the_end(client, key) == [2_000, 4_000]
    assert [seen["retries"] for seen in worker.said("activated", key)] == [3, 2, 1]
    assert await errors(client, key) == ["Attempt 1: connection refused", "Attempt 2: connection refused"]
    assert (await client.get(key)).state is State.COMPLETED


async def test_a_retryable_error_without_retries_left_is_a_dead_letter(
    client: Client, start: Start, job_type: str
) -> None:
    key = await failing(client, job_type, "Network unreachable", times=9)
    async with running(start, job_type) as worker:
        assert await backoffs_until_the_end(client, key) == [2_000, 4_000]
    job = await client.get(key)
    assert (job.state, job.retries, job.last_error) == (State.FAILED, 0, "Attempt 3: Network unreachable")
    assert [seen["retries"] for seen in worker.said("activated", key)] == [3, 2, 1]


async def test_the_backoff_never_passes_five_minutes(client: Client, start: Start, job_type: str) -> None:
    key = await failing(client, job_type, "timeout", times=9, retries=10)
    async with running(start, job_type):
        expected = [min(1_000 * 2**attempt, 300_000) for attempt in range(1, 10)]
        assert await backoffs_until_the_end(client, key) == expected


@pytest.mark.parametrize(
    ("error", "backoff_ms"),
    [("Rate limit: 429 Too Many Requests", 60_000), ("Temporary: 503 Service Unavailable", 10_000)],
)
async def test_limits_and_outages_are_waited_for(
    client: Client, start: Start, job_type: str, error: str, backoff_ms: int
) -> None:
    key = await failing(client, job_type, error.partition(": ")[2], times=1)
    async with running(start, job_type) as worker:
        assert await backoffs_until_the_end(client, key) == [backoff_ms]
    assert [seen["retries"] for seen in worker.said("activated", key)] == [3, 2]
    assert await errors(client, key) == [error]
    assert (await client.get(key)).state is State.COMPLETED


async def test_a_permanent_error_is_a_dead_letter_at_once(client: Client, start: Start, job_type: str) -> None:
    key = await failing(client, job_type, "invalid configuration", times=1)
    async with running(start, job_type) as worker:
        assert await backoffs_until_the_end(client, key) == []
    job = await client.get(key)
    assert (job.state, job.retries, job.attempts) == (State.FAILED, 0, 1)
    assert job.last_error == "Permanent error: invalid configuration"
    assert worker.said("failed", key)[0]["kind"] == "permanent"
    assert [one.key async for one in client.list(type=job_type, state="failed")] == [key]


@asynccontextmanager
async def running(start: Start, job_type: str) -> AsyncIterator[Program]:
    """A worker that is stopped in order."""
    program = start(job_type)
    yield program
    program.stop()
    assert program.said("error") == []


async def failing(client: Client, job_type: str, error: str, *, times: int, retries: int = 3) -> int:
    """A job whose request fails so often."""
    variables = {"url": "https://example.org", "error": error, "errors": str(times)}
    return (await client.create(job_type, variables, max_attempts=retries)).key


async def backoffs_until_the_end(client: Client, key: int) -> list[int]:
    """The backoffs as they were scheduled. Nobody waits for them: each scheduled job is told to run now."""
    backoffs: list[int] = []

    async def moves() -> bool:
        failures = [entry for entry in await client.history(key) if entry.kind == "fail"]
        job = await client.get(key)
        if job.state is State.PENDING and len(failures) > len(backoffs):
            backoffs.append((failures[-1].retry_at_ms or 0) - failures[-1].at_ms)
            assert job.run_at_ms == failures[-1].retry_at_ms
            await client.run_now(key)
        return job.state in (State.COMPLETED, State.FAILED)

    await until(moves, DEADLINE_S)
    return backoffs


async def errors(client: Client, key: int) -> list[str | None]:
    return [entry.error for entry in await client.history(key) if entry.kind == "fail"]


def activated_at_ms(job: StoredJob, history: list[HistoryEntry]) -> int:
    return history[-1].activated_at_ms or job.activated_at_ms or 0
