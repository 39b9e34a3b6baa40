"""Serverless hosts: a cron service calls, a few jobs run, and nothing stays."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from everwork import Everwork, State
from tests.cli.conftest import DEADLINE_SECONDS, Cli

SECRET = "the-cron-secret-of-the-tests"
WEB = """
import asyncio, socket
import uvicorn
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from everwork import Everwork

app = Everwork("sqlite:///everwork.db")

@app.job("card")
async def card(number: int) -> int:
    return number

async def home(request):
    return PlainTextResponse("the shop")

web = Starlette(routes=[Route("/", home), Route("/api/cron", app.tick_route())])

listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
server = uvicorn.Server(uvicorn.Config(web, log_level="warning"))
asyncio.run(server.serve(sockets=[listener]))
"""
MANAGED = """
from everwork import AbstractWorker, Process, ProcessManager, SqliteBackend, SqliteBroker, WorkerSettings

STORE = "sqlite:///everwork.db"

class Cards(AbstractWorker):
    @classmethod
    def _get_settings(cls):
        return WorkerSettings(title="cards", sources={"card"}, concurrency=5)

    async def __call__(self, number: int) -> int:
        return number

manager = ProcessManager(
    uuid="cards", processes=[Process(workers=[Cards])], backend=SqliteBackend(STORE), broker=SqliteBroker(STORE)
)
"""


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """The command, in an empty directory."""
    return Cli(tmp_path)


@contextmanager
def web_application(cli: Cli) -> Iterator[str]:
    """The address of the user's own web application, in a process of its own."""
    (cli.folder / "web.py").write_text(WEB)
    environment = cli.environment(CRON_SECRET=SECRET)
    with subprocess.Popen(
        [sys.executable, "web.py"], cwd=cli.folder, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.terminate()


async def test_a_route_in_the_users_own_web_application_runs_ten_jobs_per_call_and_only_for_who_has_the_secret(
    cli: Cli,
) -> None:
    with web_application(cli) as place:
        async with Everwork(f"sqlite:///{cli.file}") as app, httpx.AsyncClient(base_url=place) as client:
            keys = await app.enqueue_many([("card", {"number": number}) for number in range(35)])
            assert (await client.get("/api/cron")).status_code == 401
            assert (await client.get("/")).text == "the shop"
            bearer = {"Authorization": f"Bearer {SECRET}"}
            first = (await client.get("/api/cron", headers=bearer)).json()
            assert first == {"ran": 10, "completed": 10, "failed": 0, "retried": 0, "lost": 0, "released": 0}
            both = await asyncio.gather(*(client.post("/api/cron", headers=bearer) for _ in range(2)))
            assert [answer.json()["completed"] for answer in both] == [10, 10]
            assert (await client.get("/api/cron", headers=bearer)).json()["completed"] == 5
            assert [await app.result(key) for key in keys] == list(range(35))
            assert {entry.kind for key in keys for entry in await app.history(key)} == {"complete"}


async def test_everwork_tick_runs_worker_classes_too(cli: Cli) -> None:
    (cli.folder / "cards.py").write_text(MANAGED)
    async with Everwork(f"sqlite:///{cli.file}") as app:
        keys = await app.enqueue_many([("card", {"number": number}) for number in range(12)])
        ticked = cli("tick", "cards:manager", "--json").json
        assert (ticked["ran"], ticked["completed"]) == (10, 10)
        assert cli("tick", "cards").out == "2 ran: 2 completed\n"
        assert {(await app.get(key)).state for key in keys} == {State.COMPLETED}


async def test_a_server_does_upkeep_when_a_key_for_ticks_asks(cli: Cli) -> None:
    key = cli("keys", "create", "--name", "cron", "--permission", "tick", "--json").json["key"]
    with cli.start("serve", "--grpc-port", "0", "--http-port", "0", "--json") as server:
        try:
            assert server.stdout is not None
            facts = json.loads(await asyncio.to_thread(server.stdout.readline))
            place = f"http://127.0.0.1:{facts['http_port']}"
            async with httpx.AsyncClient(base_url=place, timeout=DEADLINE_SECONDS) as client:
                assert (await client.post("/api/v1/tick")).status_code == 401
                answer = await client.post("/api/v1/tick", headers={"Authorization": f"Bearer {key}"})
                assert answer.json() == {"lapsed": 0, "expired": 0, "requeued": 0, "deleted": 0, "fired": 0}
                assert (await client.get("/api/v1/jobs", headers={"X-API-Key": key})).status_code == 403
        finally:
            server.terminate()
