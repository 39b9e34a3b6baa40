"""Wake-ups between processes: by sockets beside the file, and by polling when there are none."""

# ruff: noqa: ASYNC240 - nobody else waits for the event loop of a test.

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import subprocess
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing
from pathlib import Path

import pytest

from everwork.engines.sqlite.engine import SqliteEngine
from everwork.engines.sqlite.store import log_watch
from everwork.engines.sqlite.store import opened as opened_module
from everwork.engines.sqlite.store_url import StoreUrl
from tests.app.waiting import DEADLINE_S, until
from tests.factories import a_new_job, asked

ROOT = Path(__file__).resolve().parents[2]
LONG_MS = 60_000
Start = Callable[[str, Path], Awaitable[Process]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Starts other processes, and ends what is left of them."""
    started: list[Process] = []

    async def start_one(role: str, file: Path) -> Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.sqlite.actor", role, str(file), cwd=ROOT, stdin=PIPE, stdout=PIPE
        )
        started.append(process)
        assert await told(process) == "ready"
        return process

    yield start_one
    for process in started:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def told(process: Process) -> str:
    """The next line that the process says."""
    assert process.stdout is not None
    return (await asyncio.wait_for(process.stdout.readline(), DEADLINE_S)).decode().strip()


def go(process: Process) -> None:
    """Let the process act."""
    assert process.stdin is not None
    process.stdin.write(b"go\n")


@pytest.fixture
def without_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves the sockets as the only way to be woken."""
    monkeypatch.setattr(opened_module, "POLL_SECONDS", 3_600)


def sockets(file: Path) -> list[Path]:
    """The sockets beside the file."""
    return sorted(Path(f"{file}.wake").glob("*"))


@pytest.mark.usefixtures("without_polling")
async def test_a_create_of_another_process_wakes_by_socket(sqlite: SqliteEngine, file: Path, start: Start) -> None:
    other = await start("create", file)
    waiting = asyncio.ensure_future(sqlite.wait(["work"], LONG_MS))
    await until(lambda: sockets(file))
    go(other)
    assert await asyncio.wait_for(waiting, DEADLINE_S)


@pytest.mark.usefixtures("without_polling")
async def test_a_create_here_wakes_another_process_by_socket(sqlite: SqliteEngine, file: Path, start: Start) -> None:
    other = await start("wait", file)
    await until(lambda: sockets(file))
    await sqlite.create([a_new_job(type="work")])
    assert await told(other) == "woken"


@pytest.mark.usefixtures("without_polling")
async def test_a_plain_job_of_a_known_type_wakes(sqlite: SqliteEngine) -> None:
    await asked(sqlite)
    waiting = asyncio.ensure_future(sqlite.wait(["work"], LONG_MS))
    await asyncio.sleep(0)
    await sqlite.create([a_new_job()])
    assert await asyncio.wait_for(waiting, DEADLINE_S)


@pytest.mark.usefixtures("without_polling")
async def test_a_path_longer_than_a_socket_address_wakes_too(tmp_path: Path, start: Start) -> None:
    folder = tmp_path / ("long" * 20) / ("longer" * 20)
    folder.mkdir(parents=True)
    file = folder / "jobs.db"
    engine = SqliteEngine(StoreUrl(str(file)))
    await engine.open()
    other = await start("create", file)
    waiting = asyncio.ensure_future(engine.wait(["work"], LONG_MS))
    await until(lambda: sockets(file))
    go(other)
    assert await asyncio.wait_for(waiting, DEADLINE_S)
    await engine.close()


async def test_without_the_folder_of_sockets_polling_wakes(sqlite: SqliteEngine, file: Path, start: Start) -> None:
    other = await start("create", file)
    waiting = asyncio.ensure_future(sqlite.wait(["work"], LONG_MS))
    await until(lambda: sockets(file))
    shutil.rmtree(f"{file}.wake")
    go(other)
    assert await asyncio.wait_for(waiting, DEADLINE_S)


@pytest.mark.parametrize("name", ["jobs.db", "x" * 100 + ".db"])
async def test_where_the_folder_cannot_be_made_polling_wakes_and_creates_succeed(
    tmp_path: Path, start: Start, name: str
) -> None:
    file = tmp_path / name
    Path(f"{file}.wake").write_text("in the way")
    engine = SqliteEngine(StoreUrl(str(file)))
    await engine.open()
    assert len(await engine.create([a_new_job()])) == 1
    other = await start("create", file)
    waiting = asyncio.ensure_future(engine.wait(["work"], LONG_MS, engine.mark()))
    go(other)
    assert await asyncio.wait_for(waiting, DEADLINE_S)
    assert await asyncio.wait_for(other.wait(), DEADLINE_S) == 0
    await engine.close()


async def test_a_folder_that_goes_away_while_pokes_are_sent_breaks_no_create(tmp_path: Path, start: Start) -> None:
    file = tmp_path / ("x" * 100 + ".db")
    engine = SqliteEngine(StoreUrl(str(file)))
    await engine.open()
    await start("wait", file)
    await until(lambda: sockets(file))
    shutil.rmtree(f"{file}.wake")
    created = await asyncio.gather(*(engine.create([a_new_job()]) for _ in range(10)))
    await engine.close()
    assert [one.key for made in created for one in made] == list(range(1, 11))


async def test_the_socket_of_a_killed_process_is_taken_away(sqlite: SqliteEngine, file: Path, start: Start) -> None:
    killed = await start("leave", file)
    await asyncio.wait_for(killed.wait(), DEADLINE_S)
    assert len(sockets(file)) == 1
    await sqlite.create([a_new_job()])
    await until(lambda: sockets(file) == [])


async def test_polling_hears_of_the_writes_of_others_and_not_of_its_own(
    sqlite: SqliteEngine, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, asked = sqlite._store, asyncio.Queue[None]()
    notify_if_changed = store._notify_if_changed

    def answered(version: asyncio.Future[int]) -> None:
        notify_if_changed(version)
        asked.put_nowait(None)

    async def polled() -> int:
        before = sqlite.mark()
        store._check_data_version()
        await asyncio.wait_for(asked.get(), DEADLINE_S)
        return sqlite.mark() - before

    monkeypatch.setattr(store, "_notify_if_changed", answered)
    woken: list[int] = []
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        for connection in (other, None, None, other, None):
            if connection is None:
                await sqlite.register("kind", "name", str(len(woken)), 60_000)
            else:
                connection.execute(f"PRAGMA user_version = {connection.execute('PRAGMA user_version').fetchone()[0]}")
            woken.append(await polled())
    assert woken == [1, 0, 0, 1, 0]


# Without polls ------------------------------------------------------------------------------------------


async def waiting_idly(sqlite: SqliteEngine) -> asyncio.Future[bool]:
    """A call that waits for jobs, once the engine does not poll."""
    store = sqlite._store
    if store._writer_data_version is None:  # The first check wakes: a new engine cannot know what was written before.
        await asyncio.wait_for(sqlite.wait(["work"], LONG_MS), DEADLINE_S)
    waiting = asyncio.ensure_future(sqlite.wait(["work"], LONG_MS))
    await until(lambda: store.work.is_awaited and store._log_watch.is_armed and store._timer is None)
    return waiting


def write(connection: sqlite3.Connection) -> None:
    """Commit something, without waking other processes."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    connection.execute(f"PRAGMA user_version = {version}")


async def test_an_idle_process_does_not_poll_until_another_one_writes(sqlite: SqliteEngine, file: Path) -> None:
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        for _ in range(3):
            waiting = await waiting_idly(sqlite)
            assert not waiting.done()
            write(other)
            assert await asyncio.wait_for(waiting, DEADLINE_S)


async def test_an_idle_process_polls_during_a_transaction_and_not_after_it(sqlite: SqliteEngine, file: Path) -> None:
    """What a transaction wrote to the log before the log was watched would not be noticed at its commit."""
    waiting, store = await waiting_idly(sqlite), sqlite._store
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        store._check_data_version()
        await until(lambda: store._timer is not None)
        assert not store._log_watch.is_armed
        other.execute("COMMIT")
    await until(lambda: store._log_watch.is_armed and store._timer is None)
    assert not waiting.done()
    waiting.cancel()


async def test_a_commit_just_before_the_log_is_watched_wakes(
    sqlite: SqliteEngine, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting, store = await waiting_idly(sqlite), sqlite._store
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        write(other)
        await asyncio.wait_for(waiting, DEADLINE_S)
        assert store._timer is not None
        store._timer.cancel()
        arm = store._log_watch.arm

        def write_and_arm() -> bool:
            write(other)
            return arm()

        monkeypatch.setattr(store._log_watch, "arm", write_and_arm)
        waiting = asyncio.ensure_future(sqlite.wait(["work"], LONG_MS))
        await until(lambda: store.work.is_awaited)
        store._check_data_version()
        assert store._log_watch.is_armed
        assert await asyncio.wait_for(waiting, DEADLINE_S)


@pytest.mark.parametrize("why", ["the system has no inotify", "the user has too many"])
async def test_where_the_log_cannot_be_watched_polling_wakes(
    sqlite: SqliteEngine, file: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    functions = (lambda _: -1, None) if why == "the user has too many" else (None, None)
    monkeypatch.setattr(log_watch, "_inotify", lambda: functions)
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        write(other)
        await sqlite.wait(["work"], LONG_MS)
        waiting = asyncio.ensure_future(sqlite.wait(["work"], LONG_MS))
        sqlite._store._check_data_version()
        assert not sqlite._store._log_watch.is_armed
        write(other)
        assert await asyncio.wait_for(waiting, DEADLINE_S)


async def test_a_log_that_is_replaced_during_a_fork_is_watched_again(sqlite: SqliteEngine, file: Path) -> None:
    """While the connections are closed for a fork, the last one to be closed deletes the log."""
    waiting, store = await waiting_idly(sqlite), sqlite._store
    log = Path(f"{file}-wal")
    store.wait_until_paused(pauses := store.pause())
    assert not log.exists()
    store.resume()
    for pause in pauses:
        pause.is_over.set()
    assert await asyncio.wait_for(waiting, DEADLINE_S)
    waiting = await waiting_idly(sqlite)
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        write(other)
        assert await asyncio.wait_for(waiting, DEADLINE_S)


async def test_a_closed_engine_leaves_no_socket(file: Path) -> None:
    engine = SqliteEngine(StoreUrl(str(file)))
    await engine.open()
    waiting = [
        asyncio.ensure_future(engine.wait(["work"], LONG_MS)),
        asyncio.ensure_future(engine.wait_finished(LONG_MS)),
    ]
    await until(lambda: len(sockets(file)) == 2)
    await engine.close()
    await asyncio.wait_for(asyncio.gather(*waiting), DEADLINE_S)
    assert sockets(file) == []


def test_a_process_that_only_reads_is_over_in_its_own_time(tmp_path: Path) -> None:
    """An engine whose loop is gone must not keep its process alive."""
    program = f"""if True:
        import asyncio
        from everwork.engines.sqlite.engine import SqliteEngine
        from everwork.engines.sqlite.store_url import StoreUrl
        asyncio.run(SqliteEngine(StoreUrl({str(tmp_path / "jobs.db")!r})).open())
    """
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, timeout=DEADLINE_S, check=False).returncode == 0
