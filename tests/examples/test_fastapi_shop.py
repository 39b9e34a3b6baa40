"""examples/fastapi_shop: an order and its job in one transaction, workers in the web process, the dashboard mounted."""

from __future__ import annotations

import importlib
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import ModuleType

import httpx
import pytest
from fastapi import FastAPI

from everwork.testing import Stage, rehearse

PASSWORD = "the password of the operators"


@pytest.fixture
def shop(url: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The program, on a store of its own."""
    monkeypatch.setenv("SHOP_URL", url)
    monkeypatch.setenv("SHOP_PASSWORD", PASSWORD)
    sys.modules.pop("fastapi_shop.main", None)
    return importlib.import_module("fastapi_shop.main")


@asynccontextmanager
async def running(api: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the web application while it runs."""
    transport = httpx.ASGITransport(app=api)
    async with api.router.lifespan_context(api), httpx.AsyncClient(transport=transport, base_url="http://shop") as web:
        yield web


async def test_an_order_is_confirmed_by_its_job(shop: ModuleType) -> None:
    async with running(shop.api) as web:
        placed = (await web.post("/orders", json={"email": "ada@example.org"})).json()
        assert await shop.jobs.result(int(placed["job"]), timeout=30) == "confirmed to ada@example.org"
        assert (await web.get("/orders")).json() == {str(placed["order"]): True}


async def test_a_refused_order_leaves_neither_order_nor_job(shop: ModuleType) -> None:
    async with running(shop.api) as web:
        refused = await web.post("/orders", json={"email": "ada@example.org", "is_refused": True})
        assert refused.status_code == 409
        assert (await web.get("/orders")).json() == {}
        assert [job async for job in shop.jobs.list()] == []


async def test_the_dashboard_asks_for_the_password(shop: ModuleType) -> None:
    async with running(shop.api) as web:
        asked = await web.get("/jobs/")
        assert (asked.status_code, asked.headers["www-authenticate"]) == (401, 'Basic realm="shop"')
        assert (await web.get("/jobs/", auth=("ada", "guessed"))).status_code == 401
        assert "Overview" in (await web.get("/jobs/", auth=("ada", PASSWORD))).text


async def test_on_a_stage_the_test_decides_when_jobs_run(shop: ModuleType) -> None:
    stage: Stage
    async with rehearse(shop.jobs) as stage, running(shop.api) as web:
        await web.post("/orders", json={"email": "ada@example.org"})
        assert (await web.get("/orders")).json() == {"1": False}
        await stage.drain(raise_errors=True)
        assert (await web.get("/orders")).json() == {"1": True}
