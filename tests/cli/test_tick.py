"""everwork tick: a few jobs of an application, then it is over."""

from __future__ import annotations

import signal
import socket
import time
from typing import TYPE_CHECKING

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

class Greeter(AbstractWorker):
    @classmethod
    def _get_settings(cls):
        return WorkerSettings(title="greeter", sources={"greet"})

    async def __call__(self) -> None: ...
"""


async def test_a_tick_runs_what_is_due_says_how_it_ended_and_is_content_with_nothing(cli: Cli) -> None:
    (cli.folder / "shop.py").write_text(SHOP)
    async with Everwork(f"sqlite:///{cli.file}") as app:
        keys = [await app.enqueue("greet", name=name, priority=at) for at, name in enumerate(["ann", "nobody", "bob"])]
        answer = cli("tick", "shop", "--max-jobs", "2", "--log-level", "error")
        assert (answer.code, answer.out, answer.err) == (0, "2 ran: 1 completed, 1 retried\n", "")
        rest = cli("tick", "shop:app", "--json", EVERWORK_JOBS_PER_TICK="7").json
        assert rest == {"ran": 1, "completed": 1, "failed": 0, "retried": 0, "lost": 0, "released": 0}
        states = [(await app.get(key)).state for key in keys]
    assert states == [State.COMPLETED, State.PENDING, State.COMPLETED]
    idle = cli("tick", "shop")
    assert (idle.code, idle.out, idle.err) == (0, "nothing was due\n", "")


def test_a_signal_ends_a_tick_also_while_its_store_does_not_answer(cli: Cli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql://nobody@127.0.0.1:{silent.getsockname()[1]}/nowhere"
        (cli.folder / "shop.py").write_text(SHOP.replace("sqlite:///everwork.db", url))
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


def test_a_tick_of_a_manager_and_a_bad_number_are_refused_in_one_line(cli: Cli) -> None:
    (cli.folder / "managed.py").write_text(MANAGED)
    (cli.folder / "shop_worker.py").write_text(WORKER)
    answer = cli("tick", "managed")
    assert answer.code == 2
    assert answer.complaint.startswith("managed is a ProcessManager, whose workers have processes that stay")
    none = cli("tick", "managed", "--max-jobs", "none")
    assert none.code == 2
    assert none.complaint == "max_jobs: must be a whole number from 1 to 1000000, not 'none'"
