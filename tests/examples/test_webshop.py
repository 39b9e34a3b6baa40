"""examples/webshop: what a shop asks of a job queue, on a file and on PostgreSQL."""

from __future__ import annotations

import asyncio
import importlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import httpx
import pytest

from everwork import Everwork, State
from everwork.exceptions import JobCancelled
from everwork.testing import Stage, rehearse
from tests.app.waiting import until, working
from tests.outages import a_later_engine, own_server

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
DEADLINE_S = 60.0


class Shop:
    """The modules of the program, on the store that SHOP_URL names."""

    def __init__(self, url: str) -> None:
        for name in [name for name in sys.modules if name.split(".")[0] == "webshop"]:
            del sys.modules[name]
        self.url = url
        self.database: Any = importlib.import_module("webshop.database")
        self.jobs: Any = importlib.import_module("webshop.jobs")
        self.web: Any = importlib.import_module("webshop.web")
        self.app: Everwork = self.jobs.app

    @asynccontextmanager
    async def served(self) -> AsyncIterator[httpx.AsyncClient]:
        """A client of the web application."""
        api = self.web.api
        await self.database.create_tables()
        transport = httpx.ASGITransport(app=api)
        async with (
            api.router.lifespan_context(api),
            httpx.AsyncClient(transport=transport, base_url="http://shop") as web,
        ):
            yield web

    async def order(self, number: int) -> Any:
        """An order as the database has it; None if it has none."""
        async with self.database.sessions() as db:
            return await db.get(self.database.Order, number)

    async def close(self) -> None:
        """Close what it has opened."""
        await self.app.close()
        await self.database.engine.dispose()


@pytest.fixture
async def shop(url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Shop]:
    """The program, on a fresh store."""
    monkeypatch.setenv("SHOP_URL", url)
    made = Shop(url)
    yield made
    await made.close()


ORDER = {"customer": "ada", "total": "9.90"}

# Rehearsed: milliseconds, with the application's own database -----------------------------------------


async def test_an_order_is_paid_and_followed_by_further_jobs(shop: Shop) -> None:
    stage: Stage
    async with rehearse(shop.app) as stage, shop.served() as web:
        placed = (await web.post("/orders", json=ORDER)).json()
        stage.assert_enqueued("order-pay", order=placed["order"])
        await stage.drain(raise_errors=True)
        assert (await shop.order(placed["order"])).status == "paid"
        assert stage.assert_completed(placed["job"]).result == {"order": 1, "amount": "9.9", "fee": "0.198"}
        [printed] = stage.jobs("invoice-print")
        assert (printed.priority, printed.result) == (10, str(Path(gettempdir(), "invoice-1.txt")))
        [review] = stage.jobs("review-ask")
        assert review.state is State.PENDING
        await stage.advance(days=7)
        await stage.drain()
        stage.assert_completed(review.key)


async def test_a_declined_card_is_tried_again_and_a_failed_attempt_leaves_nothing(shop: Shop) -> None:
    bank = shop.jobs.Bank()
    bank.declines = 2
    stage: Stage
    async with rehearse(shop.app) as stage, shop.served() as web:
        with shop.app.overrides({shop.jobs.get_bank: lambda: bank}):
            placed = (await web.post("/orders", json=ORDER)).json()
            await stage.run_one()
            assert ((await shop.order(placed["order"])).status, stage.jobs("invoice-print")) == ("placed", [])
            for _ in range(2):
                await stage.advance(minutes=1)
                await stage.drain()
            stage.assert_retried(placed["job"], after=[2, 4])
            stage.assert_completed(placed["job"])
            traceback = str(stage.history(placed["job"])[0].traceback)
            assert traceback.endswith("CardDeclined: declined by the bank, try again later")
            stage.assert_enqueued("invoice-print", count=1)


async def test_a_refused_or_repeated_order_leaves_no_job(shop: Shop) -> None:
    stage: Stage
    async with rehearse(shop.app) as stage, shop.served() as web:
        assert (await web.post("/orders", json={**ORDER, "total": "0"})).status_code == 422
        assert (stage.jobs(), await shop.order(1)) == ([], None)
        twice = [await web.post("/orders", json=ORDER, headers={"Idempotency-Key": "a"}) for _ in range(2)]
        assert [one.status_code for one in twice] == [201, 409]
        stage.assert_enqueued("order-pay", count=1)


async def test_the_report_is_mailed_every_monday(shop: Shop) -> None:
    stage: Stage
    async with rehearse(shop.app) as stage, shop.served():
        await stage.advance(days=15)
        await stage.drain()
        reports = [(job.state, job.result) for job in stage.jobs("report-mail")]
        assert reports == [(State.COMPLETED, {"days": 7, "orders": 0})] * 3


# With workers ------------------------------------------------------------------------------------------


async def test_a_result_within_its_time_and_one_job_per_customer(shop: Shop) -> None:
    async with shop.served() as web:
        assert (await web.post("/customers/ada/refresh?wait=0")).status_code == 504
        await web.post("/orders", json=ORDER)
        async with working(shop.app):
            answers = await asyncio.gather(*(web.post("/customers/ada/refresh?wait=60") for _ in range(5)))
            assert [answer.json() for answer in answers] == ["9.9"] * 5
        spans = [
            (job.activated_at_ms or 0, job.finished_at_ms or 0)
            async for job in shop.app.list(type="customer-refresh", order="newest")
        ]
        for one, next_ in zip(sorted(spans), sorted(spans)[1:], strict=False):
            assert one[1] <= next_[0]


async def test_ten_thousand_letters_are_created_in_one_call(shop: Shop) -> None:
    async with shop.served() as web:
        assert (await web.post("/letters?customers=10000&issue=3")).json() == 10_000
        urgent = await shop.jobs.send_letter.enqueue("eve", 3)
        assert (await shop.app.run_once(max_jobs=1)).completed == 1
        assert (await urgent.get()).state is State.COMPLETED  # The others have a lower priority.
        [count] = [one for one in (await shop.app._host.call(lambda service: service.stats(1))).counts if one.jobs > 1]
        assert (count.type, count.jobs) == ("letter-send", 10_000)


async def test_a_running_export_is_cancelled(shop: Shop) -> None:
    async with shop.served() as web, working(shop.app):
        key = (await web.post("/exports?rows=1000000000000")).json()

        async def is_running() -> bool:
            return str((await web.get(f"/jobs/{key}")).json()["state"]) == "processing"

        await until(is_running)
        assert (await web.delete(f"/jobs/{key}")).status_code == 204
        with pytest.raises(JobCancelled, match="cancelled by its owner"):
            await shop.app.result(key)
        assert (await web.get("/jobs/77")).status_code == 404


def program(shop: Shop, *arguments: str) -> subprocess.Popen[bytes]:
    """A command of Everwork in a process of its own."""
    environ = os.environ | {"SHOP_URL": shop.url}
    return subprocess.Popen([sys.executable, "-m", "everwork", *arguments, "--app-dir", str(EXAMPLES)], env=environ)


async def test_a_worker_class_in_its_own_process(shop: Shop) -> None:
    async with shop.served():
        handle = await shop.app.enqueue("stock-take", article="tea", pieces=3)
        with program(shop, "worker", "webshop.stock") as manager:
            assert await handle.result(timeout=DEADLINE_S) == 3
            manager.terminate()
        assert manager.returncode == 0


async def test_a_killed_worker_costs_no_job(shop: Shop) -> None:
    async with shop.served():
        handle = await shop.jobs.write_export.enqueue(rows=10**12)
        with program(shop, "worker", "webshop.jobs", "--types", "export-write") as worker:

            async def is_running() -> bool:
                return (await handle.get()).state is State.PROCESSING

            await until(is_running, DEADLINE_S)
            worker.kill()
        async with a_later_engine(shop.url) as engine:  # Its lease has expired.
            await engine.sweep("later")
        assert [(one.attempt, one.kind) for one in await handle.history()] == [(1, "lapse")]
        assert (await handle.explain()).text


async def test_a_restarted_database_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with own_server("postgres") as server:
        assert server is not None
        monkeypatch.setenv("SHOP_URL", server.url)
        shop = Shop(server.url)
        async with shop.served() as web, working(shop.app):
            first = (await web.post("/orders", json=ORDER)).json()
            await shop.app.result(first["job"], timeout=DEADLINE_S)
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.restart)
            await shop.database.engine.dispose()
            second = (await web.post("/orders", json=ORDER)).json()
            assert (await shop.app.result(second["job"], timeout=DEADLINE_S))["amount"] == str(Decimal("9.9"))
        await shop.close()
