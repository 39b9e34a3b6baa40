"""everwork tick: a few jobs of an application, then it is over."""

from __future__ import annotations

import signal
import socket
import time
from typing import TYPE_CHECKING

import pytest

from everwork import Everwork, State
from everwork.runtime.portal import CLOSE_SECONDS
from tests.cli.conftest import DEADLINE_SECONDS

if TYPE_CHECKING:
    from tests.cli.conftest import Cli

SHOP = """
from everwork import Everwork, RetryPolicy

app = Everwork("sqlite:///everwork.db")

@app.job("greet", retry=RetryPolicy(base=300.0, cap=300.0, jitter=0.0))
async def greet(name: str) -> dict:
    if name == "nobody":
        raise KeyError(name)
    return {"hello": name}
"""
MANAGED = """
from shop_worker import Greeter
from everwork import Process, ProcessManager, SqliteBackend, SqliteBroker

def app():
    store = "sqlite:///everwork.db"
    return ProcessManager(
        uuid="m", processes=[Process(workers=[Greeter])], backend=SqliteBackend(store), broker=SqliteBroker(store)
    )
"""
WORKER = """
from everwork import AbstractWorker, WorkerSettings

def step(name):
    with open("steps", "a") as steps:
        print(name, file=steps)

class Greeter(AbstractWorker):
    @classmethod
    def _get_settings(cls):
        return WorkerSettings(title="greeter", sources={"greet"})

    async def startup(self) -> None:
        step("startup")

    async def shutdown(self) -> None:
        step("shutdown")

    async def __call__(self, name: str) -> str:
        step("call")
        return f"hello {name}"
"""


async def test_a_tick_runs_what_is_due_says_how_it_ended_and_is_content_with_nothing(cli: Cli) -> None:
    (cli.folder / "shop.py").write_text(SHOP)
    async with Everwork(f"sqlite:///{cli.file}") as app:
        keys = [
            await app.using(priority=at).enqueue("greet", name=name) for at, name in enumerate(["ann", "nobody", "bob"])
        ]
        answer = cli("tick", "shop", "--max-jobs", "2", "--log-level", "error")
        assert (answer.code, answer.out, answer.err) == (0, "2 ran: 1 completed, 1 retried\n", "")
        rest = cli("tick", "shop:app", "--json", EVERWORK_JOBS_PER_TICK="7").json
        assert rest == {"ran": 1, "completed": 1, "failed": 0, "retried": 0, "lost": 0, "released": 0}
        states = [(await app.get(key)).state for key in keys]
    assert states == [State.COMPLETED, State.PENDING, State.COMPLETED]
    idle = cli("tick", "shop")
    assert (idle.code, idle.out, idle.err) == (0, "nothing was due\n", "")


@pytest.mark.parametrize("program", ["functions", "worker classes"])
def test_a_signal_ends_a_tick_also_while_its_store_does_not_answer(cli: Cli, program: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql://nobody@127.0.0.1:{silent.getsockname()[1]}/nowhere"
        text = SHOP if program == "functions" else MANAGED.replace("Sqlite", "Postgres")
        (cli.folder / "shop.py").write_text(text.replace("sqlite:///everwork.db", url))
        (cli.folder / "shop_worker.py").write_text(WORKER)
        silent.settimeout(DEADLINE_SECONDS)
        with cli.start("tick", "shop") as tick:
            connection, _ = silent.accept()
            with connection:
                began = time.monotonic()
                tick.send_signal(signal.SIGTERM)
                out, err = tick.communicate(timeout=DEADLINE_SECONDS)
                took = time.monotonic() - began
    assert (tick.returncode, out, err) == (0, "nothing was due\n", "")
    assert took < CLOSE_SECONDS


async def test_a_tick_runs_the_worker_classes_of_a_manager_in_its_own_process(cli: Cli) -> None:
    (cli.folder / "managed.py").write_text(MANAGED)
    (cli.folder / "shop_worker.py").write_text(WORKER)
    assert cli("tick", "managed").out == "nothing was due\n"
    async with Everwork(f"sqlite:///{cli.file}") as app:
        key = await app.enqueue("greet", name="ann")
        answer = cli("tick", "managed:app", "--json").json
        assert (answer["ran"], answer["completed"]) == (1, 1)
        assert await app.result(key) == "hello ann"
    assert (cli.folder / "steps").read_text().splitlines()[-3:] == ["startup", "call", "shutdown"]


def test_a_worker_that_cannot_start_and_a_bad_number_are_refused_in_one_line(cli: Cli) -> None:
    (cli.folder / "managed.py").write_text(MANAGED)
    (cli.folder / "shop_worker.py").write_text(WORKER.replace('step("startup")', 'raise OSError("no mailbox")'))
    answer = cli("tick", "managed", "--log-level", "error")
    assert answer.code == 2
    assert answer.err.splitlines()[-1] == "everwork: no worker could start: Greeter: OSError: no mailbox"
    none = cli("tick", "managed", "--max-jobs", "none")
    assert none.code == 2
    assert none.complaint == "max_jobs: must be a whole number from 1 to 1000000, not 'none'"
