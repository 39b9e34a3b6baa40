"""If another process does not release the lock, every wait for it ends with an error that names the process."""

# ruff: noqa: ASYNC240 - blocking calls delay nothing else in a test's event loop.

from __future__ import annotations

import asyncio
import fcntl
import os
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from queue import SimpleQueue

import pytest

from everwork.engines.sqlite import file_lock
from everwork.engines.sqlite.engine import SqliteEngine
from everwork.engines.sqlite.file_lock import LockWait
from everwork.engines.sqlite.store import thread_writer, writer
from everwork.engines.sqlite.store_url import StoreUrl
from everwork.exceptions import EngineBusy
from tests.app.forks import exit_code, fork
from tests.app.waiting import DEADLINE_S, until
from tests.conformance.observe import every_job
from tests.factories import a_new_job
from tests.sqlite.test_writing import be_impatient, foreign_transaction

HOLDS_IT = """
import fcntl, sys
file = open(sys.argv[1])
fcntl.flock(file, fcntl.LOCK_EX)
print(flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the waits."""
    monkeypatch.setattr(file_lock, "WAIT_SECONDS", 0.2)
    monkeypatch.setattr(thread_writer, "WATCH_SECONDS", 0.05)
    monkeypatch.setattr(writer, "BUSY_SECONDS", 0.2)
    monkeypatch.setattr(writer, "BUSY_MS", 5)


@pytest.fixture(params=[False, True], ids=["thread", "own-loop"])
async def engine(file: Path, request: pytest.FixtureRequest) -> AsyncIterator[SqliteEngine]:
    """An open engine, with either writer."""
    opened = SqliteEngine(StoreUrl(str(file)), own_loop=request.param)
    await opened.open()
    yield opened
    await opened.close()


@asynccontextmanager
async def a_stranger(file: Path) -> AsyncIterator[int]:
    """Another process, which can only read the lock file, holds the lock; its pid."""
    pipe = asyncio.subprocess.PIPE
    command = (sys.executable, "-c", HOLDS_IT, f"{file}.lock")
    stranger = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    assert stranger.stdin is not None
    assert stranger.stdout is not None
    await asyncio.wait_for(stranger.stdout.readline(), DEADLINE_S)
    try:
        yield stranger.pid
    finally:
        stranger.stdin.close()
        await stranger.wait()


async def test_writes_fail_with_the_holders_pid_and_nothing_is_written(engine: SqliteEngine, file: Path) -> None:
    async with a_stranger(file) as pid:
        writes = [engine.create([a_new_job()]) for _ in range(3)]
        errors = await asyncio.wait_for(asyncio.gather(*writes, return_exceptions=True), DEADLINE_S)
        assert {type(error) for error in errors} == {EngineBusy}
        assert f"process {pid} (" in str(errors[0])
        with pytest.raises(EngineBusy, match=f"process {pid}"):
            await asyncio.wait_for(engine.create([a_new_job()]), DEADLINE_S)
    assert len(await asyncio.wait_for(engine.create([a_new_job()]), DEADLINE_S)) == 1
    assert len(await every_job(engine)) == 1


async def test_a_fork_does_not_wait_for_ever_and_its_child_and_parent_go_on(
    engine: SqliteEngine, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with a_stranger(file) as pid:
        write = asyncio.create_task(engine.create([a_new_job()]))
        await until(lambda: engine._store.writer._lock_wait is not None)
        connection = engine._store.writer._connection
        for end in (lambda: None, connection.close):  # A child that exits normally also closes its copy.
            assert exit_code(await asyncio.wait_for(asyncio.to_thread(fork, end), DEADLINE_S)) == 0
        assert f"process {pid} (" in caplog.text
        with pytest.raises(EngineBusy, match=f"process {pid}"):
            await asyncio.wait_for(write, DEADLINE_S)
        assert await every_job(engine) == []
    await asyncio.wait_for(engine.create([a_new_job()]), DEADLINE_S)
    assert exit_code(fork(lambda: asyncio.run(writes_elsewhere(file)))) == 0
    assert len(await every_job(engine)) == 2
    assert await engine.verify() == []


async def writes_elsewhere(file: Path) -> None:
    """Create a job with a separate engine."""
    own = SqliteEngine(StoreUrl(str(file)))
    await own.open()
    await own.create([a_new_job()])
    await own.close()


def test_a_writer_that_gets_the_lock_during_a_fork_does_not_use_its_connection() -> None:
    wait, is_over, steps = LockWait(), threading.Event(), SimpleQueue[str]()
    assert wait.give_up_for(is_over)

    def get_the_lock() -> None:
        steps.put("refused" if not wait.end() else "taken")
        wait.wait_for_fork()
        steps.put("goes on")

    writing = threading.Thread(target=get_the_lock)
    writing.start()
    assert steps.get(timeout=DEADLINE_S) == "refused"
    assert not wait.give_up_for(threading.Event())  # This fork has to wait for the writer.
    assert steps.empty()
    is_over.set()
    writing.join(DEADLINE_S)
    assert steps.get_nowait() == "goes on"


def test_a_fork_waits_for_a_writer_that_has_taken_the_lock() -> None:
    wait = LockWait()
    assert wait.end()
    assert not wait.give_up_for(threading.Event())
    assert not wait.is_given_up


async def test_an_engine_is_not_opened_for_ever(file: Path) -> None:
    Path(f"{file}.lock").touch()
    async with a_stranger(file) as pid:
        late = SqliteEngine(StoreUrl(str(file)))
        with pytest.raises(EngineBusy, match=f"process {pid} .* holds the lock"):
            await asyncio.wait_for(late.open(), DEADLINE_S)
    await asyncio.wait_for(late.open(), DEADLINE_S)
    await late.close()


async def test_a_wait_that_was_given_up_keeps_the_lock_from_no_one(file: Path) -> None:
    Path(f"{file}.lock").touch()
    async with a_stranger(file):
        with pytest.raises(EngineBusy):
            await SqliteEngine(StoreUrl(str(file))).open()
    descriptor = os.open(f"{file}.lock", os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)  # Waits forever if the lock was kept.
    os.close(descriptor)


async def test_a_create_beside_ones_own_open_transaction_ends_with_advice(engine: SqliteEngine, file: Path) -> None:
    await be_impatient(engine)
    with foreign_transaction(file) as own:
        writes = [engine.create([a_new_job()]) for _ in range(3)]
        errors = await asyncio.wait_for(asyncio.gather(*writes, return_exceptions=True), DEADLINE_S)
        assert {type(error) for error in errors} == {EngineBusy}
        assert "nothing was written; to enqueue inside your own transaction, use within(session)" in str(errors[0])
        own.execute("COMMIT")
    await asyncio.wait_for(engine.create([a_new_job()]), DEADLINE_S)
    assert len(await every_job(engine)) == 1


async def test_a_log_that_has_grown_blocks_no_event_loop_while_the_lock_is_held(
    engine: SqliteEngine, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await engine.sweep("holder")  # The next one has nothing to do but this.
    await engine.create([a_new_job()])
    monkeypatch.setattr(writer, "WAL_BYTES_MAX", 0)
    is_served = threading.Event()
    descriptor = os.open(f"{file}.lock", os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    releasing = asyncio.create_task(asyncio.to_thread(released_after, is_served, descriptor))
    with suppress(EngineBusy):  # Whoever waits for the lock may give up.
        sweeping = asyncio.create_task(engine.sweep("holder"))
        for _ in range(10):
            await engine.get([1])
        is_served.set()
        await asyncio.wait_for(sweeping, DEADLINE_S)
    assert await releasing
    await asyncio.wait_for(engine.sweep("holder"), DEADLINE_S)
    assert Path(f"{file}-wal").stat().st_size == 0


def released_after(is_served: threading.Event, descriptor: int) -> bool:
    """Release the lock when the event loop has gone on, or at the latest when it should have."""
    was_served = is_served.wait(DEADLINE_S)
    os.close(descriptor)
    return was_served
