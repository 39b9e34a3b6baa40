"""An application used with ill will: files that go away, locks that are held, wrong values, a close under load."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from everwork import Everwork, State
from everwork.exceptions import BadConfiguration, EngineUnavailable, InvalidInput
from everwork.runtime import runtime
from everwork.service import service as service_module
from tests.app.waiting import DEADLINE_S, until, working

ROOT = Path(__file__).resolve().parents[2]
Start = Callable[[str], subprocess.Popen[str]]


@pytest.fixture
def file_app(tmp_path: Path) -> Iterator[Everwork]:
    """An application on a file that the test may spoil."""
    app = Everwork(f"sqlite:///{tmp_path}/jobs.db", worker="w1")
    yield app
    app.sync.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts programs whose workers run on that file with little patience, and ends what is left of them."""
    started: list[subprocess.Popen[str]] = []

    def start_one(handlers: str) -> subprocess.Popen[str]:
        program = "\n".join([f"URL = 'sqlite:///{tmp_path}/jobs.db'", BEGIN, handlers, "app.run(shutdown_timeout=0.2)"])
        process = subprocess.Popen(
            [sys.executable, "-c", program],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        started.append(process)
        return process

    yield start_one
    for process in started:
        process.kill()
        process.communicate()


BEGIN = """
import asyncio, sys, threading
from everwork import Everwork, RetryPolicy
from everwork.engines.sqlite.store import connections
from tests.app.waiting import until_sync
from everwork.runtime import portal, runtime
connections.CLOSE_SECONDS = portal.CLOSE_SECONDS = runtime.CANCEL_SECONDS = 1.0
app = Everwork(URL, worker="program")
def say(text):
    print(text, flush=True)
"""
STUBBORN = """
@app.job("work")
async def stubborn():
    say("begun")
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass
"""
GATE = """
@app.job("work")
def gate():
    say("begun")
    return sys.stdin.readline()
"""
POLICY = """
@app.job("work", retry=RetryPolicy(max_attempts=3))
def work():
    pass
def watch():
    until_sync(lambda: app._host._portal is not None)
    say("opening")
threading.Thread(target=watch).start()
"""


def next_line(process: subprocess.Popen[str]) -> str:
    """The next line that the program prints."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def foreign_transaction(file: Path) -> closing[sqlite3.Connection]:
    """A write transaction of a program that knows nothing of ours."""
    connection = sqlite3.connect(file, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    return closing(connection)


# Stops --------------------------------------------------------------------------------------------


def test_a_handler_that_swallows_every_cancellation_is_left_behind_by_name(start: Start, file_app: Everwork) -> None:
    key = file_app.sync.enqueue("work")
    process = start(STUBBORN)
    assert next_line(process) == "begun"
    process.send_signal(signal.SIGTERM)
    _, log = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, log
    assert "task ignored cancellation, abandoning it" in log
    assert file_app.sync.get(key).state is State.PROCESSING  # Its lease lapses.


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_program_while_another_one_holds_the_write_lock(
    start: Start, file_app: Everwork, tmp_path: Path, number: signal.Signals
) -> None:
    key = file_app.sync.enqueue("work")
    process = start(GATE)
    assert next_line(process) == "begun"
    with foreign_transaction(tmp_path / "jobs.db"):
        process.send_signal(number)
        process.communicate("finished\n", timeout=2 * DEADLINE_S)  # Its outcome cannot be stored now.
    assert process.returncode is not None
    assert file_app.sync.get(key).state is State.PROCESSING  # Its lease lapses.


def test_a_signal_ends_a_program_that_cannot_begin_for_the_write_lock(
    start: Start, file_app: Everwork, tmp_path: Path
) -> None:
    file_app.sync.open()
    with foreign_transaction(tmp_path / "jobs.db"):
        process = start(POLICY)  # It must write its policy first.
        assert next_line(process) == "opening"
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=2 * DEADLINE_S)
    assert process.returncode is not None


# Files --------------------------------------------------------------------------------------------


async def test_an_application_whose_file_is_removed_accepts_nothing_until_it_is_opened_again(tmp_path: Path) -> None:
    app = Everwork(f"sqlite:///{tmp_path}/jobs.db")
    await app.enqueue("work")
    (tmp_path / "jobs.db").unlink()
    with pytest.raises(EngineUnavailable, match="deleted or replaced"):
        await app.enqueue("work")
    await app.close()
    assert await app.enqueue("work") == 1
    await app.close()


async def test_workers_whose_file_is_removed_can_be_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(runtime, "CANCEL_SECONDS", 0.5)
    app = Everwork(f"sqlite:///{tmp_path}/jobs.db")
    begun, release = asyncio.Event(), asyncio.Event()

    @app.job("work")
    async def work() -> None:
        begun.set()
        await release.wait()

    async with working(app, shutdown_timeout=0):
        await work.enqueue()
        await begun.wait()
        (tmp_path / "jobs.db").unlink()
        release.set()
        await until(lambda: "deleted or replaced" in caplog.text)
    await app.close()


async def test_upkeep_without_its_engine_says_so_in_one_line_a_turn(
    app: Everwork, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(service_module, "SWEEP_SECONDS", 0.01)
    await app.open()
    await app._host.call(lambda service: service._engine.close())
    await until(lambda: len(caplog.records) >= 3)
    await app.close()
    assert {record.exc_info for record in caplog.records} <= {None, False}
    assert all("the engine is unavailable, retrying" in line for line in caplog.messages)
    assert not any("\n" in line for line in caplog.messages)


# Wrong values -------------------------------------------------------------------------------------


class Odd(Enum):
    """A member that JSON cannot hold."""

    NOTHING = float("nan")


@pytest.mark.parametrize("jobs", [None, 5, object()])
async def test_what_cannot_be_many_jobs_is_refused_by_name(app: Everwork, jobs: Any) -> None:
    with pytest.raises(InvalidInput, match=r"^jobs: must be calls, or pairs of a type and arguments, not "):
        await app.enqueue_many(jobs)
    with pytest.raises(InvalidInput, match=r"^jobs: "):
        app.sync.enqueue_many(jobs)


@pytest.mark.parametrize("value", [Odd.NOTHING, [Odd.NOTHING], {"deep": (None, Odd.NOTHING)}])
async def test_an_enumeration_member_that_is_no_number_is_refused(app: Everwork, value: Any) -> None:
    with pytest.raises(InvalidInput, match=r"^value: must not contain nan"):
        await app.enqueue("work", value=value)


@pytest.mark.parametrize("handler", [int, str, dict, type, print, range])
async def test_a_builtin_whose_parameters_nobody_can_give_is_refused(app: Everwork, handler: Any) -> None:
    with pytest.raises(BadConfiguration):
        app.job("work")(handler)
    assert app.functions == {}


@pytest.mark.parametrize(
    "url", [10**5000, None, b"sqlite:///jobs.db", "sqlite://[x/y"], ids=["a huge number", "None", "bytes", "a bracket"]
)
def test_a_url_that_cannot_be_read_is_told(url: Any) -> None:
    with pytest.raises(BadConfiguration, match=r"^engine URL: "):
        Everwork(url)


async def test_a_connection_that_reads_texts_as_bytes_is_refused(tmp_path: Path) -> None:
    async with Everwork(f"sqlite:///{tmp_path}/jobs.db") as app:
        with closing(sqlite3.connect(tmp_path / "jobs.db")) as own:
            own.text_factory = bytes
            with pytest.raises(InvalidInput, match=r"^tx: must have text_factory str"):
                await app.using(tx=own).enqueue("work")
            assert not own.in_transaction


# Close --------------------------------------------------------------------------------------------


RACE = """
import asyncio, sys, threading
from concurrent.futures import ThreadPoolExecutor
from everwork import Everwork
from everwork.exceptions import BadConfiguration, EngineUnavailable

app, stop = Everwork(sys.argv[1]), threading.Event()

def enqueue():
    made = []
    while not stop.is_set():
        try:
            made.append(app.sync.enqueue("work") if sys.argv[2] == "sync" else asyncio.run(app.enqueue("work")))
        except (BadConfiguration, EngineUnavailable):
            pass
    return made

threads = ThreadPoolExecutor(4)
calls = [threads.submit(enqueue) for _ in range(4)]
try:
    for _ in range(100):
        app.sync.close()
        app.sync.open()
finally:
    stop.set()
keys = [key for call in calls for key in call.result(5)]
assert len(set(keys)) == len(keys) > 0, keys
print(*keys)
app.sync.close()
"""


@pytest.mark.parametrize("way", ["sync", "async"])
def test_whoever_enqueues_while_the_application_is_closed_gets_a_key_or_is_told(
    file_app: Everwork, tmp_path: Path, way: str
) -> None:
    """In a program of its own: two threads on one connection would end this one."""
    done = subprocess.run(
        [sys.executable, "-c", RACE, f"sqlite:///{tmp_path}/jobs.db", way],
        cwd=ROOT, capture_output=True, text=True, timeout=3 * DEADLINE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    keys = [int(key) for key in done.stdout.split()]
    assert {file_app.sync.get(key).state for key in keys[::20]} == {State.PENDING}
