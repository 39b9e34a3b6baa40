"""The guide for SQLAlchemy: its shop, its tests, and the same shop with real stores."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest

from everwork.testing import rehearse
from tests.app.waiting import run_one
from tests.stores import ENGINES, url_of

GUIDE = Path(__file__).parents[2] / "docs" / "how-to" / "sqlalchemy.md"
FILES = re.findall(r"^```python\n# (\w+)\.py\n(.*?)^```", GUIDE.read_text(), re.DOTALL | re.MULTILINE)


@pytest.fixture(params=[name for name in ("sqlite", "postgres") if name in ENGINES])
async def shop(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Any]:
    """The guide's programs, with their URLs replaced by those of a fresh store."""
    url = url_of(request.param, tmp_path)
    bare, driver = url.partition("?")[0], {"sqlite": "aiosqlite", "postgres": "asyncpg"}[request.param]
    monkeypatch.syspath_prepend(tmp_path)
    for name, program in FILES:
        text = program.replace("sqlite+aiosqlite:///shop.db", bare.replace("://", f"+{driver}://", 1))
        text = text.replace("sqlite:///shop.db", url).replace('"orders"', f'"orders_{tmp_path.name.lower()[-20:]}"')
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)  # Other tests have modules of this name, too.
    try:
        made = importlib.import_module("shop")
        yield made
        async with made.engine.begin() as connection:
            await connection.run_sync(made.Base.metadata.drop_all)
        await made.engine.dispose()
    finally:
        for name, _ in FILES:
            sys.modules.pop(name, None)


def opened(shop: Any) -> AbstractAsyncContextManager[Any]:
    """The guide's web application between startup and shutdown."""
    context: AbstractAsyncContextManager[Any] = shop.api.router.lifespan_context(shop.api)
    return context


async def test_the_tests_of_the_guide_pass(shop: Any) -> None:
    tests = importlib.import_module("test_shop")
    for name in ("test_an_order_sends_its_receipt", "test_an_order_that_is_refused_sends_nothing"):
        shop.receipts.clear()
        await getattr(tests, name)()


async def test_the_shop_of_the_guide_stores_order_and_job_in_one_transaction(shop: Any) -> None:
    transport = httpx.ASGITransport(shop.api)
    async with opened(shop), httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
        refused = await client.post("/orders", params={"email": "ada@example.invalid"})
        placed = await client.post("/orders", params={"email": "ada@example.org"})
        jobs = [job async for job in shop.app.list()]
        assert (refused.status_code, placed.status_code) == (422, 201)
        assert [job.variables for job in jobs] == [{"order": placed.json(), "to": "ada@example.org"}]


async def test_a_handler_of_the_guide_ends_its_job_with_its_work(shop: Any) -> None:
    importlib.import_module("shipping")
    if shop.engine.dialect.name == "sqlite":
        importlib.import_module("immediate")
    async with opened(shop):
        async with shop.sessions() as session, session.begin():
            session.add(shop.Order(id=1, email="ada@example.org"))
        job = await run_one(shop.app, "order-ship", order=1)
        async with shop.sessions() as session:
            assert (job.result, (await session.get_one(shop.Order, 1)).shipped) == ({"shipped": 1}, True)


async def test_jobs_of_the_guide_in_another_store_are_created_after_the_commit(shop: Any) -> None:
    elsewhere = importlib.import_module("elsewhere")
    async with opened(shop), rehearse(elsewhere.elsewhere) as stage:
        await elsewhere.place("ada@example.org")
        stage.assert_enqueued("receipt-send", to="ada@example.org", count=1)
