"""An application within a web application: opened and closed with it, and worked if that is wanted."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request

from everwork import Everwork, JobContext
from everwork.core.states import State
from everwork.exceptions import BadConfiguration, InvalidInput
from everwork.runtime.runtime import Runtime
from everwork.testing import rehearse
from tests.app.waiting import until

with warnings.catch_warnings(action="ignore"):  # Which of two clients for HTTP it prefers.
    from starlette.testclient import TestClient


@pytest.fixture
def app(tmp_path: Path) -> Everwork:
    return Everwork(f"sqlite:///{tmp_path}/jobs.db")


def web_of(app: Everwork, **more: Any) -> FastAPI:
    """A web application with one address, which creates a job."""
    api = FastAPI(lifespan=app.lifespan(**more))

    @api.post("/mails")
    async def create(to: str) -> dict[str, int]:
        return {"job": await app.enqueue("mail-send", to=to)}

    return api


async def test_it_is_open_while_the_web_application_runs(app: Everwork) -> None:
    async with app.lifespan()(FastAPI()):
        assert app.service.is_connected
    with pytest.raises(BadConfiguration, match="not open"):
        _ = app.service


def test_workers_run_in_the_web_process_and_finish_what_they_have_begun(app: Everwork) -> None:
    sent: list[str] = []
    begun = asyncio.Event()

    @app.job("mail-send")
    async def send(to: str) -> None:
        begun.set()
        await until(is_stopping)
        sent.append(to)

    def is_stopping() -> bool:
        stopped = app._workers._stopped
        return stopped is not None and stopped.soft.is_set()

    web = web_of(app, work=True)

    @web.get("/begun")
    async def wait() -> None:
        await begun.wait()

    with TestClient(web) as client:
        key = client.post("/mails", params={"to": "ada"}).json()["job"]
        client.get("/begun")
    assert sent == ["ada"]
    assert app.sync.get(key).state is State.COMPLETED
    app.sync.close()


async def test_without_workers_jobs_wait(app: Everwork) -> None:
    @app.job("mail-send")
    async def send(to: str) -> None:
        raise AssertionError(to)

    web = web_of(app)
    async with web.router.lifespan_context(web), _client(web) as client:
        key = (await client.post("/mails", params={"to": "ada"})).json()["job"]
        assert (await app.get(key)).state is State.PENDING


async def test_the_lifespan_of_the_web_application_is_inside_and_its_state_is_kept(app: Everwork) -> None:
    order: list[str] = []

    @app.job("mail-send")
    async def send(ctx: JobContext) -> None: ...

    @asynccontextmanager
    async def inner(_web: FastAPI) -> AsyncIterator[Mapping[str, Any]]:
        order.append(f"entered, open: {app.service.is_connected}, working: {app._workers.is_working}")
        yield {"pool": "a pool"}
        order.append(f"left, open: {app.service.is_connected}, working: {app._workers.is_working}")

    api = FastAPI(lifespan=app.lifespan(work=True, inner=inner))

    @api.get("/pool")
    async def pool(request: Request) -> str:
        return str(request.state.pool)

    with TestClient(api) as client:
        assert client.get("/pool").json() == "a pool"
    assert order == ["entered, open: True, working: False", "left, open: True, working: False"]


async def test_a_dashboard_begins_with_the_web_application_to_read_figures(app: Everwork) -> None:
    dashboard = app.dashboard(public=True)
    async with app.lifespan()(FastAPI()):
        assert dashboard._opened is not None


async def test_there_must_be_something_to_work_on(app: Everwork) -> None:
    with pytest.raises(BadConfiguration, match="nothing to run"):
        async with app.lifespan(work=True)(FastAPI()):
            raise AssertionError


async def test_a_wrong_shutdown_timeout_is_refused_at_startup_and_not_as_a_crash(app: Everwork) -> None:
    @app.job("mail-send")
    async def send() -> None: ...

    with pytest.raises(InvalidInput, match=r"^shutdown_timeout: must be a number from 0 to 86400, not '30'$"):
        async with app.lifespan(work=True, shutdown_timeout="30")(FastAPI()):  # type: ignore[arg-type]
            raise AssertionError


async def test_workers_that_crash_are_started_again_while_the_web_application_goes_on(
    app: Everwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.job("mail-send")
    async def send(to: str) -> str:
        return to

    monkeypatch.setattr("everwork.app.web_lifespan.RESTART_SECONDS", 0.001)
    run, crashes = Runtime.run, iter([RuntimeError("a defect")])

    async def crashing(self: Runtime, shutdown_timeout: float) -> None:
        for crash in crashes:
            raise crash
        await run(self, shutdown_timeout)

    monkeypatch.setattr(Runtime, "run", crashing)
    web = web_of(app, work=True)
    async with web.router.lifespan_context(web), _client(web) as client:
        key = (await client.post("/mails", params={"to": "ada"})).json()["job"]
        assert await app.result(key, timeout=30) == "ada"


async def test_on_a_stage_the_test_runs_the_jobs(app: Everwork) -> None:
    sent: list[str] = []

    @app.job("mail-send")
    async def send(to: str) -> None:
        sent.append(to)

    web = web_of(app, work=True)
    web.mount("/jobs", app.dashboard(public=True))
    async with rehearse(app) as stage, web.router.lifespan_context(web), _client(web) as client:
        await client.post("/mails", params={"to": "ada"})
        assert sent == []
        await stage.drain()
        assert sent == ["ada"]
        assert "mail-send" in (await client.get("/jobs/types")).text


def test_a_blocking_stage_goes_with_the_blocking_client(app: Everwork) -> None:
    sent: list[str] = []

    @app.job("mail-send")
    async def send(to: str) -> None:
        sent.append(to)

    with rehearse(app) as stage, TestClient(web_of(app, work=True)) as client:
        client.post("/mails", params={"to": "ada"})
        stage.drain()
    assert sent == ["ada"]


def _client(web: FastAPI) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=web), base_url="http://web")
