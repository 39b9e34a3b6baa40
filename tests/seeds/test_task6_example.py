"""examples/task6: the state machine behind REST, with failures that are counted and never random."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from everwork.client import Client
from everwork.exceptions import EverworkError, LeaseLost, WrongState
from tests.app.waiting import until
from tests.cli.conftest import DEADLINE_SECONDS
from tests.servers import free_port

EXAMPLES = Path(__file__).parents[2] / "examples"


@contextmanager
def program(folder: Path, *flags: str) -> Iterator[str]:
    """The address of `python -m task6`."""
    port = free_port()
    command = [sys.executable, "-m", "task6", "--port", str(port), *flags]
    env = {**os.environ, "PYTHONPATH": str(EXAMPLES)}
    with subprocess.Popen(command, cwd=folder, env=env, stderr=subprocess.DEVNULL) as process:
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


@asynccontextmanager
async def served(folder: Path, *flags: str) -> AsyncIterator[httpx.AsyncClient]:
    with program(folder, *flags) as place:
        async with httpx.AsyncClient(base_url=place, timeout=DEADLINE_SECONDS) as client:

            async def answers() -> bool:
                with suppress(httpx.TransportError):
                    return (await client.get("/jobs")).is_success
                return False

            await until(answers, DEADLINE_SECONDS)
            yield client


async def finished(client: httpx.AsyncClient, job: dict[str, Any]) -> dict[str, Any]:
    """The job when it is completed or failed."""
    seen: list[dict[str, Any]] = []

    async def is_over() -> bool:
        seen.append((await client.get(f"/jobs/{job['id']}")).json())
        return seen[-1]["state"] in ("completed", "failed")

    await until(is_over, DEADLINE_SECONDS)
    assert {one["state"] for one in seen} <= {"pending", "processing", "completed", "failed"}
    return seen[-1]


async def created(client: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    answer = await client.post("/jobs", json=fields)
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


async def test_jobs_are_retried_up_to_their_limit_by_type_and_then_failed_for_good(tmp_path: Path) -> None:
    async with served(tmp_path) as client:
        new = await created(client, type="email", payload={"to": "ada"})
        assert (new["id"], new["type"], new["max_retries"], new["payload"]) == ("1", "email", 3, {"to": "ada"})
        done = await finished(client, new)
        assert (done["state"], done["attempts"], done["result"]) == ("completed", 1, {"processed": {"to": "ada"}})
        for most in (1, 2, 5):
            broken = await finished(client, await created(client, type="broken", max_retries=most))
            assert (broken["state"], broken["attempts"], broken["max_retries"]) == ("failed", most, most)
            assert broken["last_error"] == "SimulatedFailure: injected failure: every call of 'broken' fails"
        failed = (await client.get("/jobs", params={"state": "failed"})).json()["jobs"]
        assert [job["attempts"] for job in failed] == [5, 2, 1]


async def test_every_third_call_fails_in_each_run_alike(tmp_path: Path) -> None:
    async def attempts(folder: Path) -> list[int]:
        async with served(folder, "--fail-every", "3") as client:
            jobs = [await finished(client, await created(client, type="report")) for _ in range(6)]
        assert {job["state"] for job in jobs} == {"completed"}
        return [job["attempts"] for job in jobs]

    for folder in (tmp_path / "first", tmp_path / "second"):
        await asyncio.to_thread(folder.mkdir)
        assert await attempts(folder) == [1, 1, 2, 1, 2, 1]


async def test_transitions_that_the_table_does_not_have_are_refused_and_change_nothing(tmp_path: Path) -> None:
    async with served(tmp_path) as client:
        done = await finished(client, await created(client, type="email"))
        again = await client.post(f"/jobs/{done['id']}/retry")
        assert (again.status_code, "completed" in again.json()["error"]) == (409, True)
        assert (await client.get(f"/jobs/{done['id']}")).json() == done
        dead = await finished(client, await created(client, type="broken"))
        answers = await asyncio.gather(*(client.post(f"/jobs/{dead['id']}/retry") for _ in range(5)))
        assert sorted(answer.status_code for answer in answers).count(200) >= 1
        assert (await finished(client, dead))["attempts"] == 3
        async with Client(f"sqlite:///{tmp_path / 'task6.db'}") as store:
            for refused in (store.complete(int(done["id"])), store.fail(int(done["id"]), "late", attempt=1)):
                with pytest.raises((WrongState, LeaseLost)):
                    await refused
            with pytest.raises(EverworkError):
                await store.complete(int(dead["id"]))


@pytest.mark.parametrize("id", ["4711", "atom-jobkey12345", "-1", "9" * 40])
async def test_a_job_that_does_not_exist_is_not_found_whatever_its_id_looks_like(tmp_path: Path, id: str) -> None:
    async with served(tmp_path) as client:
        assert (await client.get(f"/jobs/{id}")).status_code == 404
        assert (await client.post(f"/jobs/{id}/retry")).json() == {"error": f"Job '{id}' not found"}


async def test_bad_requests_are_refused_by_field(tmp_path: Path) -> None:
    async with served(tmp_path) as client:
        for body, field in (
            ({}, "type"),
            ({"type": "party"}, "type"),
            ({"type": "email", "payload": []}, "payload"),
            ({"type": "email", "max_retries": 0}, "max_retries"),
            ({"type": "email", "max_retries": 101}, "max_retries"),
            ({"type": "email", "state": "completed"}, "state"),
            ([], "body"),
        ):
            answer = await client.post("/jobs", json=body)
            assert (answer.status_code, answer.json()["error"].split(":")[0]) == (422, field)
        assert (await client.get("/jobs", params={"state": "lost"})).status_code == 422
        assert (await client.get("/jobs/99")).status_code == 404
        assert (await client.get("/jobs")).json() == {"jobs": []}


def test_a_bad_flag_is_refused_in_one_line(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(EXAMPLES)}
    command = [sys.executable, "-m", "task6", "--fail-every", "0"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (1, "task6: n: must be a whole number from 1 to 1000000000, not 0\n")
