"""Manual requeue without waiting: attempts at 0, no last error, due now; by key, through every interface."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import pytest

from everwork import Everwork
from everwork.client import Client
from everwork.core.job import StoredJob
from everwork.core.outcome import Failed
from everwork.core.states import State
from everwork.engines.open import open_engine
from tests.cli.conftest import Cli
from tests.client.server import KEY, ServerProcess
from tests.factories import a_dead_letter, a_processing_job, a_scheduled_job, settled, the_job
from tests.server.http.serving import JOBS, serving
from tests.stores import HOUR_MS, url_of

Door = Callable[[str, Path, int, bool], Awaitable[None]]
"""Requeues a job, or runs it now with `reset`."""


async def by_command(url: str, folder: Path, key: int, resets: bool) -> None:
    words = ("run-now", str(key), "--reset") if resets else ("requeue", str(key))
    assert Cli(folder)("jobs", *words, EVERWORK_ENGINE=url).code == 0


async def by_rest(url: str, _: Path, key: int, resets: bool) -> None:
    async with serving(url) as rest:
        path = f"{JOBS}/{key}/{'run-now' if resets else 'requeue'}"
        await rest.ok("PUT", path, {"reset": True} if resets else None)


async def by_app(url: str, _: Path, key: int, resets: bool) -> None:
    app = Everwork(url)
    await (app.run_now(key, reset=True) if resets else app.requeue(key))
    await app.close()


async def by_client(url: str, _: Path, key: int, resets: bool) -> None:
    async with Client(url) as client:
        await (client.run_now(key, reset=True) if resets else client.requeue(key))


async def by_grpc(url: str, folder: Path, key: int, resets: bool) -> None:
    server = ServerProcess(url, folder).start()
    try:
        async with Client(server.grpc_url, key=KEY) as client:
            await (client.run_now(key, reset=True) if resets else client.requeue(key))
    finally:
        server.stop()


DOORS: Final = [by_command, by_rest, by_app, by_client, by_grpc]


async def through(door: Door, folder: Path, *, resets: bool, is_dead: bool = False) -> tuple[StoredJob, StoredJob]:
    """A job that waits an hour for its retry, or is dead, before and after it went through a door."""
    url = url_of("sqlite", folder)
    engine = open_engine(url)
    await engine.open()
    if is_dead:
        job = await a_dead_letter(engine, max_attempts=3)
    else:
        job = await a_processing_job(engine, max_attempts=3)
        job = await settled(engine, Failed(job.key, 1, "boom", backoff_ms=HOUR_MS))
    await door(url, folder, job.key, resets)
    back = await the_job(engine, job.key)
    await engine.close()
    return job, back


@pytest.mark.parametrize("resets", [False, True], ids=["requeue", "run-now --reset"])
@pytest.mark.parametrize("door", DOORS)
async def test_a_job_that_waits_for_its_backoff_starts_afresh_now(door: Door, tmp_path: Path, resets: bool) -> None:
    job, back = await through(door, tmp_path, resets=resets)
    assert (job.attempts, job.last_error) == (1, "boom")
    assert (back.state, back.attempts, back.max_attempts, back.last_error) == (State.PENDING, 0, 3, None)
    assert back.run_at_ms < job.run_at_ms - HOUR_MS // 2
    assert back.attempt == job.attempt


@pytest.mark.parametrize("resets", [False, True], ids=["requeue", "run-now --reset"])
async def test_a_dead_letter_starts_afresh_now(tmp_path: Path, resets: bool) -> None:
    job, back = await through(by_rest, tmp_path, resets=resets, is_dead=True)
    assert (job.state, back.state, back.attempts, back.last_error) == (State.FAILED, State.PENDING, 0, None)


async def test_run_now_without_reset_keeps_attempts_and_error(tmp_path: Path) -> None:
    cli, url = Cli(tmp_path), url_of("sqlite", tmp_path)
    engine = open_engine(url)
    await engine.open()
    job = await a_processing_job(engine)
    await settled(engine, Failed(job.key, 1, "boom", backoff_ms=HOUR_MS))
    assert cli("jobs", "run-now", str(job.key), EVERWORK_ENGINE=url).code == 0
    back = await the_job(engine, job.key)
    assert (back.attempts, back.last_error) == (1, "boom")
    await engine.close()


async def test_a_scheduled_job_that_was_never_tried_runs_now_but_cannot_be_requeued(tmp_path: Path) -> None:
    cli, url = Cli(tmp_path), url_of("sqlite", tmp_path)
    engine = open_engine(url)
    await engine.open()
    job = await a_scheduled_job(engine, delay_ms=HOUR_MS)
    refused = cli("jobs", "requeue", str(job.key), EVERWORK_ENGINE=url)
    assert (refused.code, refused.complaint.endswith("it has used no attempts; run it now instead")) == (1, True)
    assert cli("jobs", "run-now", str(job.key), "--reset", EVERWORK_ENGINE=url).code == 0
    assert (await the_job(engine, job.key)).run_at_ms < job.run_at_ms
    await engine.close()


async def test_a_bulk_requeue_takes_dead_letters_only(tmp_path: Path) -> None:
    async with serving(url_of("sqlite", tmp_path)) as rest:
        job = await rest.leased()
        await rest.ok(
            "PUT", f"{JOBS}/{job['key']}/fail", {"retries": 3, "error_message": "boom", "backoff_ms": HOUR_MS}
        )
        assert await rest.ok("POST", f"{JOBS}/requeue", {"all": True}) == {"matched": 0, "changed": 0}
