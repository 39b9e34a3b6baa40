"""everwork worker: runs what a module names, in real processes, until it is told to stop."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pytest

from everwork import Everwork, RetryPolicy
from tests.cli.conftest import COMMAND, DEADLINE_SECONDS

if TYPE_CHECKING:
    from tests.cli.conftest import Cli

LOADED = """
import sys

HEAVY = ("grpc", "starlette", "google.protobuf", "prometheus_client", "typer")

def loaded():
    return [name for name in HEAVY if name in sys.modules]
"""
APP = f"""{LOADED}
from everwork import Everwork

app = Everwork("sqlite:///everwork.db")

@app.job("greet")
async def greet(name: str) -> dict:
    return {{"hello": name, "loaded": loaded()}}
"""
MANAGER = f"""{LOADED}
from everwork import AbstractWorker, Process, ProcessManager, SqliteBackend, SqliteBroker, WorkerSettings
from shop_parts import greeting

class Greeter(AbstractWorker):
    @classmethod
    def _get_settings(cls):
        return WorkerSettings(title="greeter", sources={{"greet"}})

    async def __call__(self, name: str) -> dict:
        return {{greeting: name, "loaded": loaded(), "module": type(self).__module__}}

async def make():
    url = "sqlite:///everwork.db"
    processes = [Process(workers=[Greeter])]
    return ProcessManager(uuid="m1", processes=processes, backend=SqliteBackend(url), broker=SqliteBroker(url))
"""


@contextmanager
def running(cli: Cli, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The command, until the end of the block: an interpreter of its own, which loads what it needs and no more."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [COMMAND, "worker", *arguments], cwd=cli.folder, env=cli.environment(), stdout=pipe, stderr=pipe, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


async def done(cli: Cli, type: str, **arguments: Any) -> Any:
    """The result of a job that somebody must do."""
    async with Everwork(f"sqlite:///{cli.file}") as app:
        return await app.result(await app.enqueue(type, **arguments), timeout=DEADLINE_SECONDS)


async def test_what_the_file_and_the_environment_say_of_types_holds_over_what_the_program_says(
    cli: Cli,
) -> None:
    (cli.folder / "shop.py").write_text(
        APP.replace('"greet"', '"greet", retry=RetryPolicy(7), policy=TypePolicy(max_running=9)').replace(
            "import Everwork", "import Everwork, RetryPolicy, TypePolicy"
        )
    )
    (cli.folder / "everwork.toml").write_text(
        "failed_job_retry_hours = 12\n[types.greet]\nmax_running = 3\n[types.later]\npaused = true\n"
    )
    with running(cli, "shop"):
        await done(cli, "greet", name="ann")
        said = {one["type"]: one for one in cli("types", "list", "--json").json["types"]}
    assert cli("types", "policy", "greet", "--json").json["set"] == {
        **asdict(RetryPolicy(7)),
        "max_running": 3,
        "failed_job_retry_hours": 12,
    }
    assert said["later"]["paused"] is True
    (cli.folder / "everwork.toml").write_text("[types.greet]\nmax_running = 0\n")
    answer = cli("worker", "shop")
    assert (answer.code, answer.complaint[:47]) == (2, "types.'greet'.max_running (file everwork.toml):")


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
async def test_an_application_works_until_a_signal_without_the_server_s_packages(
    cli: Cli, stop: signal.Signals
) -> None:
    (cli.folder / "shop.py").write_text(APP)
    with running(cli, "shop", "--log-format", "json") as process:
        assert await done(cli, "greet", name="ann") == {"hello": "ann", "loaded": ["typer"]}
        process.send_signal(stop)
        out, err = process.communicate(timeout=DEADLINE_SECONDS)
    assert (process.returncode, out) == (0, "")
    assert [json.loads(line)["event"] for line in err.splitlines()] == [
        "worker started",
        "worker stopped",
    ]


BLOCKED = """
import threading
from everwork import Everwork

app = Everwork("sqlite:///everwork.db")

@app.job("block")
def block() -> None:
    print("started", flush=True)
    threading.Event().wait()
"""


def test_a_thread_that_outlives_a_stop_leaves_no_traceback_in_the_log(cli: Cli) -> None:
    (cli.folder / "shop.py").write_text(BLOCKED)
    cli("jobs", "create", "block")
    with running(cli, "shop", "--log-format", "json") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "started\n"
        events = []
        for _ in range(2):
            events.append(json.loads(process.stderr.readline())["event"])
            process.send_signal(signal.SIGTERM)
        events += [json.loads(line)["event"] for line in process.communicate(timeout=DEADLINE_SECONDS)[1].splitlines()]
    assert events == [
        "worker started",
        "stopping, waiting for running jobs",
        "cancelling running jobs",
        "worker stopped",
    ]


async def test_a_manager_s_processes_find_the_user_s_modules_and_load_no_command_line(cli: Cli) -> None:
    source = cli.folder / "src"
    source.mkdir()
    (source / "shop.py").write_text(MANAGER)
    (source / "shop_parts.py").write_text("greeting = 'hello'")
    with running(cli, "shop:make", "--app-dir", "src", "--log-format", "json", "--log-level", "warning") as process:
        assert await done(cli, "greet", name="ann") == {"hello": "ann", "loaded": [], "module": "shop"}
        [worker] = cli("workers", "list", "--json").json["workers"]
        assert (worker["title"], worker["on"], worker["processes"]) == ("greeter", True, 1)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=DEADLINE_SECONDS)
    assert (process.returncode, out, err) == (0, "", "")


def test_a_mistake_is_one_line_and_its_traceback_is_for_who_asks(cli: Cli) -> None:
    (cli.folder / "src").mkdir()
    (cli.folder / "src" / "shop.py").write_text("import nowhere\n")
    arguments = ["worker", "shop:app", "--app-dir", "src"]
    answer = cli(*arguments)
    assert answer.complaint == "shop.py, line 1: ModuleNotFoundError: No module named 'nowhere'"
    assert answer.code == 2
    asked = cli(*arguments, EVERWORK_DEBUG="1")
    assert 'src/shop.py", line 1, in <module>\n    import nowhere\n' in asked.err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["shop"], "no module 'shop' in "),
        (["shop", "--app-dir", "none"], "app_dir: must be a directory, not 'none'"),
        (
            ["shop", "--log-level", "loud"],
            "log_level: must be one of debug, info, warning, error, critical, not 'loud'",
        ),
        (["shop", "--log-format", "xml"], "log_format: must be one of console, json, not 'xml'"),
    ],
)
def test_a_wrong_word_to_the_command(cli: Cli, arguments: list[str], complaint: str) -> None:
    answer = cli("worker", *arguments)
    assert answer.complaint.startswith(complaint)
    assert answer.code == 2
