"""run() in a process of its own: signals end it cleanly, and a killed one loses nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from everwork import Everwork, Job, State
from tests.app.waiting import DEADLINE_S, until_sync
from tests.forked import ForkedPopen
from tests.stores import SECOND_MS

pytestmark = pytest.mark.every_engine

ROOT = Path(__file__).resolve().parents[2]
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(url: str) -> Iterator[Start]:
    """Starts programs with workers on the test's store, and ends what is left of them."""
    started: list[subprocess.Popen[str]] = []

    def start_one() -> subprocess.Popen[str]:
        command = ["tests.app.program", url]
        process = ForkedPopen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert next_line(process) == "ready"
        return process

    yield start_one
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def sync_app(url: str) -> Iterator[Everwork]:
    """An application in the test's process that runs no workers."""
    app = Everwork(url)
    yield app
    app.sync.close()


def next_line(process: subprocess.Popen[str]) -> str:
    """The next line that the program prints."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def answer(process: subprocess.Popen[str], line: str) -> None:
    """Let the gate go."""
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def later(url: str, key: int) -> Job:
    """The job as another process finds it 31 seconds later, after one sweep."""
    app = Everwork(url, clock=lambda: time.time_ns() // 1_000_000 + 31 * SECOND_MS)
    with app.sync:
        until_sync(lambda: app.sync.get(key).state is not State.PROCESSING)  # The application sweeps by itself.
        return app.sync.get(key)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_running_jobs_finish_and_ends_the_process_with_0(
    start: Start, sync_app: Everwork, number: signal.Signals
) -> None:
    process = start()
    key = sync_app.sync.enqueue("gate")
    assert next_line(process) == "begun"
    process.send_signal(number)
    answer(process, "finished")
    assert process.wait(DEADLINE_S) == 0
    assert sync_app.sync.result(key, timeout=0) == "finished"


def test_a_second_signal_cancels_what_runs_and_hands_it_back(start: Start, sync_app: Everwork) -> None:
    process = start()
    key = sync_app.sync.enqueue("hold")
    assert next_line(process) == "begun"
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGINT)
    assert process.wait(DEADLINE_S) == 0
    job = sync_app.sync.get(key)
    assert (job.state, job.attempt, job.attempts) == (State.PENDING, 1, 0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_process_ends_at_once_with_0(start: Start, sync_app: Everwork, number: signal.Signals) -> None:
    process = start()
    assert sync_app.sync.result(sync_app.sync.enqueue("echo", text="hello"), timeout=DEADLINE_S) == "hello"
    process.send_signal(number)
    assert process.wait(DEADLINE_S) == 0
    assert next_line(process) == "ended"


def test_the_job_of_a_killed_process_is_back_after_its_lease(start: Start, sync_app: Everwork, url: str) -> None:
    process = start()
    key = sync_app.sync.enqueue("hold")
    assert next_line(process) == "begun"
    process.kill()
    process.wait(DEADLINE_S)
    assert sync_app.sync.get(key).state is State.PROCESSING
    job = later(url, key)
    assert (job.state, job.attempt, job.attempts) == (State.PENDING, 1, 1)
    assert job.last_error == "lease expired: worker 'program' did not report in time"


def test_the_job_that_kills_its_process_is_back_after_its_lease(start: Start, sync_app: Everwork, url: str) -> None:
    process = start()
    key = sync_app.sync.enqueue("crash")
    assert process.wait(DEADLINE_S) == 9
    assert later(url, key).attempts == 1


def test_an_enqueued_job_survives_the_death_of_its_producer(url: str, sync_app: Everwork) -> None:
    program = f"""if True:
        import os, signal
        from everwork import Everwork
        key = Everwork({url!r}).sync.enqueue("email-send", to="a")
        os.write(1, str(int(key)).encode())
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, check=False, cwd=ROOT)
    assert done.returncode == -signal.SIGKILL
    assert sync_app.sync.get(int(done.stdout)).variables == {"to": "a"}


@pytest.mark.parametrize("exits", [("exit", {"plain": False}), ("exit", {"plain": True}), ("plain-exit", {})])
def test_a_handler_that_asks_to_exit_fails_its_attempt_and_not_the_process(
    start: Start, sync_app: Everwork, exits: tuple[str, dict[str, bool]]
) -> None:
    process = start()
    [key] = sync_app.sync.enqueue_many([exits])
    until_sync(lambda: sync_app.sync.get(key).state is State.FAILED or process.poll() is not None)
    assert process.poll() is None
    assert sync_app.sync.result(sync_app.sync.enqueue("echo", text="alive"), timeout=DEADLINE_S) == "alive"


def test_two_processes_share_the_jobs(start: Start, sync_app: Everwork) -> None:
    first, second = start(), start()
    keys = sync_app.sync.enqueue_many([("hold", {})] * 2)
    assert (next_line(first), next_line(second)) == ("begun", "begun")
    assert [sync_app.sync.get(key).state for key in keys] == [State.PROCESSING] * 2
    assert first.pid != second.pid != os.getpid()
