"""everwork worker --processes, --types and --reload, in real processes; and a module with several programs."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from everwork import Everwork, State
from everwork.cli.file_watch import FileWatch, program_folders
from everwork.cli.supervisor import Supervisor
from everwork.service.fleet.fleet import Fleet
from tests.app.waiting import until
from tests.children import kill_group
from tests.cli.conftest import DEADLINE_SECONDS

if TYPE_CHECKING:
    from everwork.engines.contract import Engine
    from tests.cli.conftest import Cli

PATH_BYTES_MAX = 4096
APP = """
import asyncio, time
from pathlib import Path
from everwork import Everwork

app = Everwork("sqlite:///everwork.db")

@app.job("mail-send")
async def send(to: str) -> str:
    return f"VERSION {to}"

@app.job("wait")
async def wait() -> str:
    if "VERSION" == "old":
        await asyncio.sleep(3600)
    return "VERSION"

@app.job("thread")
def thread() -> str:
    if "VERSION" == "old":
        time.sleep(3600)
    return "VERSION"

@app.job("block")
async def block() -> str:
    if "VERSION" == "old":
        time.sleep(3600)
    return "VERSION"

@app.job("gate")
async def gate() -> str:
    while not Path("open").exists():
        await asyncio.sleep(0.01)
    return "finished"
"""
LINGERS = """
import logging, os, signal, time
from pathlib import Path

class Lingers(logging.Handler):
    def emit(self, record):
        if "worker stopped" in record.getMessage():
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            Path(f"stopped-{os.getpid()}").touch()
            time.sleep(3600)

logging.getLogger("everwork").addHandler(Lingers())
"""
"""At its very end, an interpreter resets its signal handlers; these processes stay there."""
MANAGER = """
from everwork import AbstractWorker, Process, ProcessManager, SqliteBackend, SqliteBroker, WorkerSettings

class Greeter(AbstractWorker):
    @classmethod
    def _get_settings(cls):
        return WorkerSettings(title="greeter", sources={"greet"})

    async def __call__(self, name: str) -> str:
        return name

url = "sqlite:///everwork.db"
manager = ProcessManager(
    uuid="m1", processes=[Process(workers=[Greeter])], backend=SqliteBackend(url), broker=SqliteBroker(url)
)
"""


class Running:
    """A supervised command, and what it logs."""

    def __init__(self, process: subprocess.Popen[str], fleet: Fleet) -> None:
        self.process = process
        self._fleet = fleet
        self.logged: list[Any] = []

    async def pids(self, number: int, unlike: int = 0) -> list[int]:
        """The process ids of the registered workers, once there are that many, and not this one."""
        found: list[int] = []

        async def are_there() -> bool:
            found[:] = [one.pid for one in await self._fleet.processes() if one.pid != unlike]
            return len(found) == number

        await until(are_there, DEADLINE_SECONDS)
        return found

    def until_logged(self, event: str) -> dict[str, Any]:
        """The next line with this event; lines that are not JSON are errors for people."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.logged.append(json.loads(line) if line.startswith("{") else line)
            if line.startswith("{") and self.logged[-1]["event"] == event:
                return dict(self.logged[-1])
        raise AssertionError(f"'{event}' was not logged: {self.logged}")

    def end(self, *signals: signal.Signals) -> int:
        """The exit code after these signals."""
        for number in signals:
            self.process.send_signal(number)
        self.process.communicate(timeout=DEADLINE_SECONDS)
        return self.process.returncode


@pytest.fixture
def start(cli: Cli, engine: Engine) -> Callable[..., Any]:
    """Starts the command; whatever is left of it is killed."""

    @contextmanager
    def started(*arguments: str) -> Iterator[Running]:
        process = cli.start("worker", *arguments, "--log-format", "json")
        running = Running(process, Fleet(engine))
        try:
            yield running
        finally:
            kill_group(process)  # The workers notice that their parent is gone.
            process.communicate()

    return started


def write(cli: Cli, version: str) -> None:
    """The application, of a version."""
    (cli.folder / "shop.py").write_text(APP.replace("VERSION", version))


def app_of(cli: Cli) -> Everwork:
    """An application in the test's process that runs no workers."""
    return Everwork(f"sqlite:///{cli.file}")


async def test_processes_share_the_work_one_that_dies_is_restarted_and_a_signal_drains_all(
    cli: Cli, start: Any
) -> None:
    write(cli, "old")
    async with app_of(cli) as app:
        with start("shop", "--processes", "2", "--types", "mail-*,gate") as running:
            pids = await running.pids(2)
            os.kill(pids[0], signal.SIGKILL)
            dead = running.until_logged("worker process exited, restarting")
            assert (dead["code"], dead["seconds"]) == (-signal.SIGKILL, 0.5)
            again = await running.pids(2, unlike=pids[0])
            assert pids[1] in again
            key = await app.enqueue("gate")
            await until(lambda: are_processing(app, [key]))
            running.process.send_signal(signal.SIGTERM)
            (cli.folder / "open").touch()
            assert running.end() == 0
            assert await app.result(key, timeout=0) == "finished"
            assert not any(map(is_alive, again))


async def test_a_second_signal_cancels_what_runs_in_all_processes(cli: Cli, start: Any) -> None:
    write(cli, "old")
    async with app_of(cli) as app:
        with start("shop", "--processes", "2", "--types", "wait") as running:
            key = await app.enqueue("wait")
            await until(lambda: are_processing(app, [key]), DEADLINE_SECONDS)
            await running.pids(2)
            assert running.end(signal.SIGINT, signal.SIGTERM) == 0
        job = await app.get(key)
        assert (job.state, job.attempts) == (State.PENDING, 0)


async def test_a_third_signal_hands_back_what_cannot_be_cancelled(cli: Cli, start: Any) -> None:
    write(cli, "old")
    async with app_of(cli) as app:
        with start("shop", "--processes", "2", "--types", "thread") as running:
            key = await app.enqueue("thread")
            await until(lambda: are_processing(app, [key]), DEADLINE_SECONDS)
            await running.pids(2)
            for number, said in (
                (signal.SIGINT, "stopping, waiting for running jobs"),
                (signal.SIGINT, "cancelling running jobs"),
            ):
                running.process.send_signal(number)
                assert running.until_logged(said)["running"] == 1
            assert running.end(signal.SIGINT) == 0
        job = await app.get(key)
        assert (job.state, job.attempts) == (State.PENDING, 0)


async def test_a_signal_that_reaches_processes_that_have_just_finished_is_no_failure(cli: Cli, start: Any) -> None:
    (cli.folder / "shop.py").write_text(APP + LINGERS)
    with start("shop", "--processes", "2") as running:
        pids = await running.pids(2)
        running.process.send_signal(signal.SIGTERM)
        await until(lambda: len(list(cli.folder.glob("stopped-*"))) == len(pids))
        assert running.end(signal.SIGTERM) == 0


async def test_a_process_that_still_loads_its_program_does_not_outlive_its_parent(cli: Cli, start: Any) -> None:
    loading = "import os, time\nopen('pid', 'w').write(f'{os.getpid()} ')\ntime.sleep(3600)\n"
    (cli.folder / "shop.py").write_text(loading)
    with start("shop", "--processes", "2") as running:
        file = cli.folder / "pid"
        await until(lambda: file.exists() and file.read_text().endswith(" "), DEADLINE_SECONDS)
        running.process.kill()
        await until(lambda: not is_alive(int(file.read_text())), DEADLINE_SECONDS)


async def test_a_process_that_cannot_be_started_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    program = tmp_path / "python"
    monkeypatch.setattr(sys, "executable", str(program))
    supervisor = Supervisor(["worker", "shop"], 1, None)
    running = asyncio.create_task(supervisor.run())
    await until(lambda: "worker process could not be started, trying again" in caplog.text)
    program.write_text("#!/bin/sh\nexit 0")  # Any other code would count as a failure if the stop came meanwhile.
    program.chmod(0o700)
    await until(lambda: "worker process exited, restarting" in caplog.text)
    os.kill(os.getpid(), signal.SIGTERM)
    assert await asyncio.wait_for(running, DEADLINE_SECONDS) == 0


async def test_a_reload_in_the_middle_of_jobs_counts_and_loses_nothing(cli: Cli, start: Any) -> None:
    write(cli, "old")
    async with app_of(cli) as app:
        with start("shop", "--reload") as running:
            [old] = await running.pids(1)
            keys = [await app.enqueue(type) for type in ("wait", "thread")]
            await until(lambda: are_processing(app, keys), DEADLINE_SECONDS)
            keys.append(await app.enqueue("block"))  # From now on its process notices no signal.
            await until(lambda: are_processing(app, keys), DEADLINE_SECONDS)
            (cli.folder / "shop.py").write_text("def broken(:\n")
            assert running.until_logged("files changed, restarting workers")["files"] == ["shop.py"]
            running.until_logged("waiting for file changes")
            assert "everwork: shop.py, line 1: SyntaxError: invalid syntax\n" in running.logged
            for key in keys:
                job = await app.get(key)
                assert (job.state, job.attempt, job.attempts) == (State.PENDING, 1, 0), job.type
            write(cli, "new")
            assert [await app.result(key, timeout=DEADLINE_SECONDS) for key in keys] == ["new"] * 3
            assert [(await app.get(key)).attempts for key in keys] == [1] * 3
            [new] = await running.pids(1, unlike=old)
            running.process.kill()  # Workers do not outlive their parent.
            await until(lambda: not is_alive(new), DEADLINE_SECONDS)


def is_alive(pid: int) -> bool:
    """Whether a process has not ended."""
    return Path(f"/proc/{pid}").exists()


async def are_processing(app: Everwork, keys: Sequence[int]) -> bool:
    """Whether jobs run."""
    return all([(await app.get(key)).state is State.PROCESSING for key in keys])


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["shop", "--processes", "0"], "processes: must be a whole number from 1 to 1000, not 0"),
        (["shop", "--types", "mail-send,,x"], "types: must be names separated by commas, not 'mail-send,,x'"),
        (
            ["shop", "--types", "mail"],
            "types: no function matches 'mail'; known types: block, gate, mail-send, thread, wait",
        ),
        (
            ["managed", "--processes", "1"],
            (
                "processes: managed:manager is a ProcessManager, which declares its own processes; declare them in "
                "ProcessManager(processes=[ProcessGroup(process=..., replicas=...)])"
            ),
        ),
        (
            ["managed", "--types", "greet"],
            (
                "types: managed:manager is a ProcessManager, which runs worker classes; set the types of each "
                "worker in WorkerSettings(sources=...)"
            ),
        ),
    ],
)
def test_what_cannot_be_run_is_refused_in_one_line(cli: Cli, arguments: list[str], complaint: str) -> None:
    write(cli, "old")
    (cli.folder / "managed.py").write_text(MANAGER)
    answer = cli("worker", *arguments)
    assert (answer.code, answer.complaint) == (2, complaint)


def test_a_mistake_of_several_processes_is_said_once(cli: Cli) -> None:
    write(cli, "old")
    answer = cli("worker", "shop", "--processes", "3", "--types", "x", "--log-level", "warning")
    assert (answer.code, answer.complaint[:32]) == (2, "types: no function matches 'x'; ")


def test_a_module_with_several_programs_says_which_is_not_run(cli: Cli) -> None:
    (cli.folder / "shop.py").write_text(f"{MANAGER}{APP}\nmails = Everwork('sqlite:///mails.db')\n")
    (cli.folder / "shop.py").open("a").write("mails.job('mail')(send.function)\nproducer = Everwork(url)\n")
    said = json.loads(cli("tick", "shop", "--log-format", "json").err)
    assert said["event"] == "the module has more than one program; only one is run"
    assert (said["runs"], said["not_run"]) == ("shop:manager", ["everwork tick shop:app", "everwork tick shop:mails"])
    assert cli("tick", "shop:app", "--log-format", "json").err == ""


async def test_files_of_the_program_are_watched_and_no_others(tmp_path: Path) -> None:
    for name in (".hidden", "__pycache__", "venv", "shop"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "one.py").touch()
    (tmp_path / "venv" / "pyvenv.cfg").touch()
    (tmp_path / "shop" / "gone.py").symlink_to("nowhere")
    watch = FileWatch(program_folders("shop", tmp_path))
    watch.look()
    for name in (".hidden", "__pycache__", "venv", "shop"):
        (tmp_path / name / "one.py").write_text("changed = 1")
    (tmp_path / "notes.txt").touch()
    (tmp_path / ".#new.py").symlink_to("an editor's lock")
    (tmp_path / "new.py").touch()
    assert await watch.changed() == ["new.py", "shop/one.py"]


async def test_a_directory_that_cannot_be_examined_hides_no_file_beside_it(tmp_path: Path) -> None:
    deep = tmp_path
    while len(str(deep)) < PATH_BYTES_MAX - 200:
        deep /= "d" * 100
        deep.mkdir()
    # No path below one of them can be named; those of other users cannot be looked up, either.
    for number in range(20):
        (deep / f"{number:02}".ljust(PATH_BYTES_MAX - 5 - len(str(deep)), "e")).mkdir()
        (deep / f"{number}.py").touch()
    watch = FileWatch([tmp_path])
    watch.look()
    for number in range(20):
        (deep / f"{number}.py").write_text("changed = 1")
    assert len(await watch.changed()) == 20
