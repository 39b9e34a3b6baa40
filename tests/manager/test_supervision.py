"""Managers lose sight of nobody, wait for nobody for ever, and leave nothing behind."""

from __future__ import annotations

import asyncio
import fcntl
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from everwork import Process, ProcessManager, State
from everwork.exceptions import BadConfiguration
from tests.app.waiting import until
from tests.manager.conftest import Start
from tests.manager.program import sides_of
from tests.manager.running import LATE_S, ROOT, Outside, Said
from tests.manager.spawning import a_process
from tests.manager.workers import LOG, Echo

WORDS = 5_000
PROGRAM = """
import asyncio
from everwork import Process, ProcessManager, SqliteBackend, SqliteBroker
from tests.manager.workers import Echo
url = "sqlite:///{folder}/jobs.db"
manager = ProcessManager(
    uuid="m", processes=[Process(workers=[Echo])], backend=SqliteBackend(url), broker=SqliteBroker(url)
)
asyncio.run(manager.run())
"""

on_sqlite = pytest.mark.parametrize("engine_name", ["sqlite"])


@on_sqlite
async def test_a_process_that_has_forked_is_seen_to_die(start: Start, outside: Outside, said: Said) -> None:
    await start("restless.Forking")
    end = await outside.ends(await outside.push("fork"))
    assert (end.kind, end.error) == ("fail", "its process was killed by SIGKILL")
    await said.times(2, "startup", "forking")


async def test_a_process_that_does_not_listen_does_not_hold_up_its_manager(tmp_path: Path) -> None:
    process = a_process(tmp_path)
    os.kill(process.pid, signal.SIGSTOP)

    def talk() -> None:
        for _ in range(WORDS):
            process.notify()

    talking = threading.Thread(target=talk, daemon=True)
    talking.start()
    await asyncio.to_thread(talking.join, LATE_S)
    assert not talking.is_alive()
    process.kill("was killed")
    await process.ended.wait()
    process.close()


@on_sqlite
async def test_a_process_that_is_told_to_stop_by_somebody_else_finishes_and_is_replaced(
    start: Start, outside: Outside, said: Said, tmp_path: Path
) -> None:
    manager = await start("Holder")
    key = await outside.push("hold", gate=str(tmp_path / "gate"))
    await said.times(1, "begin")
    os.kill(said.pids("begin")[0], signal.SIGTERM)
    await manager.logged("process received a stop signal that its manager did not send")
    (tmp_path / "gate").touch()
    await outside.all_are(State.COMPLETED, [key])
    await said.times(2, "startup", "holder")
    assert not said.lines("cancelled")
    assert "process died" not in manager.log()


@on_sqlite
async def test_a_process_stays_until_its_successor_serves(start: Start, outside: Outside, said: Said) -> None:
    await start("restless.Moody", recycle=1)
    said.path.with_name("trouble").touch()
    await outside.all_are(State.COMPLETED, [await outside.push("moody")])
    await said.times(2, "troubled")
    await outside.all_are(State.COMPLETED, [await outside.push("moody")])
    assert len(set(said.pids("moody"))) == 1
    assert not said.lines("shutdown")
    said.path.with_name("trouble").unlink()
    await said.times(1, "shutdown", "moody")
    assert said.pids("shutdown")[0] == said.pids("moody")[0]


@on_sqlite
async def test_a_stop_does_not_wait_for_a_store_that_somebody_holds(start: Start, url: str) -> None:
    manager = await start("Echo", shutdown=1)
    lock = os.open(url.removeprefix("sqlite:///") + ".lock", os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    manager.send(signal.SIGTERM)
    assert await manager.exit_code() == 0
    await until(lambda: not manager.members())
    os.close(lock)


def a_manager(url: str) -> ProcessManager:
    """One in this very process."""
    backend, broker = sides_of(url)
    return ProcessManager(
        uuid="here", processes=[Process(workers=[Echo])], backend=backend, broker=broker, log_format=None
    )


@on_sqlite
async def test_a_signal_stops_every_manager_of_a_program_and_then_means_what_it_meant_before(
    url: str, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LOG, str(said.path))
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    running = [asyncio.ensure_future(a_manager(url).run()) for _ in range(2)]
    await said.times(2, "startup")
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(asyncio.gather(*running), LATE_S)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


@on_sqlite
async def test_a_run_that_is_cancelled_again_and_again_leaves_nothing_and_a_late_stop_is_not_for_the_next(
    url: str, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LOG, str(said.path))
    manager, others = a_manager(url), asyncio.all_tasks()
    running = asyncio.ensure_future(manager.run())
    await said.times(1, "startup")
    while not running.done():
        running.cancel()
        await asyncio.wait([running], timeout=0.01)
    assert running.cancelled()
    assert not multiprocessing.active_children()
    await until(lambda: asyncio.all_tasks() == others)
    manager.stop()
    running = asyncio.ensure_future(manager.run())
    await said.times(2, "startup")
    manager.stop()
    await asyncio.wait_for(running, LATE_S)


@pytest.mark.parametrize("way", ["file", "stdin"])
def test_a_program_that_its_processes_cannot_import_is_told_so_once(way: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(PROGRAM.format(folder=tmp_path))
    arguments = [str(tmp_path / "shop.py")] if way == "file" else []
    ended = subprocess.run(
        [sys.executable, *arguments], check=False, capture_output=True, text=True, cwd=tmp_path, timeout=LATE_S,
        stdin=(tmp_path / "shop.py").open(), env={**os.environ, "PYTHONPATH": str(ROOT), LOG: str(tmp_path / "said")},
    )  # fmt: skip
    says = "new processes import the program" if way == "file" else "new processes can import, but <stdin>"
    assert f"{BadConfiguration.__name__}: " in ended.stderr
    assert ended.stderr.count(says) == 1
    assert ended.stderr.count("Traceback") == 1
