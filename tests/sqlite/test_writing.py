"""The writer: other programs' transactions, spoiled calls, a full disk, a log that must not grow."""

# ruff: noqa: ASYNC240 - nobody else waits for the event loop of a test.

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from everwork.core.queries import JobFilter
from everwork.core.states import State
from everwork.engines.sqlite import engine as engine_module
from everwork.engines.sqlite import store_url as store_url_module
from everwork.engines.sqlite.create import create
from everwork.engines.sqlite.engine import SqliteEngine
from everwork.engines.sqlite.store.opened import COMMITS_PER_CHECKPOINT
from everwork.engines.sqlite.store.writer import WAL_BYTES_MAX
from everwork.engines.sqlite.store_url import CHECKPOINT_PAGES_MAX, StoreUrl
from everwork.engines.sqlite.transaction import Transaction
from everwork.exceptions import EngineUnavailable
from tests.app.waiting import DEADLINE_S, until
from tests.conformance.observe import assert_counts_add_up, every_job
from tests.factories import TYPE, a_completed_job, a_new_job, a_pending_job, asked, the_job


@contextmanager
def foreign_transaction(file: Path) -> Iterator[sqlite3.Connection]:
    """A write transaction of a program that knows nothing of ours."""
    connection = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield connection
    finally:
        connection.close()


async def be_impatient(engine: SqliteEngine) -> None:
    """Let the writer meet a lock as busy at once, not only after five seconds."""
    await engine._store.writer.query(lambda cursor, _: cursor.execute("PRAGMA busy_timeout = 5").fetchone())


async def test_another_programs_transaction_delays_a_create_and_never_breaks_it(
    sqlite: SqliteEngine, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    await be_impatient(sqlite)
    with foreign_transaction(file) as foreign:
        creating = asyncio.ensure_future(sqlite.create([a_new_job()]))
        await until(lambda: caplog.text.count("waiting for the write lock, which another transaction holds") >= 3)
        assert not creating.done()
        foreign.execute("COMMIT")
        [created] = await asyncio.wait_for(creating, DEADLINE_S)
    assert (await the_job(sqlite, created.key)).state is State.PENDING


async def test_while_another_program_writes_questions_are_answered(sqlite: SqliteEngine, file: Path) -> None:
    job = await a_pending_job(sqlite)
    begun = await sqlite.trigger_marks(["nightly"])
    with foreign_transaction(file):
        assert (await asyncio.wait_for(the_job(sqlite, job.key), DEADLINE_S)).key == job.key
        assert await asyncio.wait_for(sqlite.trigger_marks(["nightly"]), DEADLINE_S) == begun


async def test_an_engine_that_is_opened_while_another_program_writes_waits_for_it(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = SqliteEngine(StoreUrl(str(file)))
    await first.open()
    await first.close()

    def connect(place: StoreUrl, *, read_only: bool = False) -> sqlite3.Connection:
        connection = store_url_module.connect(place, read_only=read_only)
        connection.execute("PRAGMA busy_timeout = 5")
        return connection

    monkeypatch.setattr(engine_module, "connect", connect)
    second = SqliteEngine(StoreUrl(str(file)))
    with foreign_transaction(file) as foreign:
        opening = asyncio.ensure_future(second.open())
        await asyncio.wait({opening}, timeout=0.5)
        foreign.execute("COMMIT")
        await asyncio.wait_for(opening, DEADLINE_S)
    await second.close()


async def test_a_spoiled_call_does_not_disturb_those_that_share_its_transaction(sqlite: SqliteEngine) -> None:
    def spoil(tx: Transaction) -> None:
        create(tx, [a_new_job()])
        raise ValueError("spoiled")

    writer = sqlite._store.writer
    good = [a_new_job(variables='{"good":true}')]
    calls: list[asyncio.Future[Any]] = [
        writer.submit(lambda tx: create(tx, good)),
        writer.submit(spoil),
        writer.submit(lambda tx: create(tx, good)),
    ]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(answer) for answer in answers] == [list, ValueError, list]
    assert [job.variables for job in await every_job(sqlite)] == ['{"good":true}'] * 2
    await assert_counts_add_up(sqlite)


async def test_a_spoiled_statement_is_told_to_its_caller_only(sqlite: SqliteEngine) -> None:
    writer = sqlite._store.writer
    calls: list[asyncio.Future[Any]] = [
        writer.submit(lambda tx: tx.cursor.execute("INSERT INTO nowhere VALUES (1)")),
        writer.submit(lambda tx: create(tx, [a_new_job()])),
    ]
    spoiled, good = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(spoiled, EngineUnavailable)
    assert isinstance(good, list)


async def test_a_spoiled_question_is_told_to_its_caller_and_the_next_is_answered(sqlite: SqliteEngine) -> None:
    reader = sqlite._store._reader
    assert reader is not None
    with pytest.raises(EngineUnavailable, match="no such table"):
        await reader.query(lambda cursor, _: cursor.execute("SELECT * FROM nowhere"))
    reader.query(lambda cursor, _: cursor.execute("ROLLBACK"))  # What SQLite does by itself after grave errors.
    assert await asyncio.wait_for(sqlite.get([1]), DEADLINE_S) == [None]


async def test_a_caller_that_has_gone_does_not_disturb_the_writer(sqlite: SqliteEngine) -> None:
    gone = asyncio.ensure_future(sqlite.create([a_new_job()]))
    await asyncio.sleep(0)
    gone.cancel()
    assert len(await asyncio.wait_for(sqlite.create([a_new_job()]), DEADLINE_S)) == 1


async def test_a_full_disk_is_told_leaves_nothing_half_written_and_heals(sqlite: SqliteEngine) -> None:
    await a_completed_job(sqlite)
    before = await every_job(sqlite)
    large = [a_new_job(variables=f'{{"x":"{"y" * 100_000}"}}')] * 20
    await set_page_limit(sqlite, 0)
    for _ in range(2):
        with pytest.raises(EngineUnavailable, match="the disk is full; free some space"):
            await sqlite.create(large)
    assert await every_job(sqlite) == before
    await set_page_limit(sqlite, 1_000_000)
    assert len(await sqlite.create(large)) == 20
    await assert_counts_add_up(sqlite)


async def test_on_a_full_disk_small_work_that_fits_goes_on(sqlite: SqliteEngine) -> None:
    await a_pending_job(sqlite)
    await set_page_limit(sqlite, 0)
    large = asyncio.ensure_future(sqlite.create([a_new_job(variables=f'{{"x":"{"y" * 1_000_000}"}}')]))
    small = asyncio.ensure_future(asked(sqlite))
    answers = await asyncio.gather(large, small, return_exceptions=True)
    assert isinstance(answers[0], EngineUnavailable)
    assert not isinstance(answers[1], BaseException)
    assert [job.type for job in answers[1].jobs] == [TYPE]


async def set_page_limit(engine: SqliteEngine, more: int) -> None:
    """Let the file grow by so many pages and no more, as a full disk would."""

    def limit(cursor: sqlite3.Cursor, _: int) -> int:
        (pages,) = cursor.execute("PRAGMA page_count").fetchone()
        return int(cursor.execute(f"PRAGMA max_page_count = {pages + more}").fetchone()[0])

    await engine._store.writer.query(limit)


async def test_the_log_grows_under_a_long_reader_and_is_cut_when_it_lets_go(sqlite: SqliteEngine, file: Path) -> None:
    wal = Path(f"{file}-wal")
    reader = sqlite3.connect(file, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM ew_job").fetchone()
    for _ in range(12):
        await sqlite.create([a_new_job(variables=f'{{"x":"{"y" * 1_000_000}"}}')])
    await asyncio.wait_for(sqlite.sweep("holder"), DEADLINE_S)
    grown = wal.stat().st_size
    reader.execute("COMMIT")
    await asyncio.wait_for(sqlite.sweep("holder"), DEADLINE_S)
    reader.close()
    assert grown > WAL_BYTES_MAX
    assert wal.stat().st_size < WAL_BYTES_MAX


async def test_without_long_readers_the_log_stays_small(sqlite: SqliteEngine, file: Path) -> None:
    for _ in range(30):
        await sqlite.create([a_new_job(variables=f'{{"x":"{"y" * 1_000_000}"}}')])
    assert Path(f"{file}-wal").stat().st_size < 2 * WAL_BYTES_MAX


async def test_the_sweep_writes_the_log_into_the_file_before_a_commit_has_to(sqlite: SqliteEngine, file: Path) -> None:
    for _ in range(COMMITS_PER_CHECKPOINT):
        await sqlite.create([a_new_job()])
    before = file.stat().st_mtime_ns
    await sqlite.sweep("holder")
    assert file.stat().st_mtime_ns > before
    with closing(sqlite3.connect(file)) as connection:
        busy, in_log, written = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    assert (busy, in_log) == (0, written)
    after = file.stat().st_mtime_ns
    await sqlite.create([a_new_job()])
    await sqlite.sweep("holder")
    assert file.stat().st_mtime_ns == after


async def test_the_log_is_written_into_the_file_without_any_sweep(sqlite: SqliteEngine, file: Path) -> None:
    for _ in range(2 * CHECKPOINT_PAGES_MAX // 25):
        await sqlite.create([a_new_job(variables=f'{{"x":"{"y" * 100_000}"}}')])
    assert Path(f"{file}-wal").stat().st_size < 2 * WAL_BYTES_MAX


async def test_questions_that_read_much_do_not_delay_those_about_one_job(sqlite: SqliteEngine) -> None:
    job = await a_pending_job(sqlite)
    may_end = threading.Event()
    scanning = asyncio.ensure_future(sqlite._store.scan(lambda *_: may_end.wait(DEADLINE_S)))
    questions = [sqlite.count(), sqlite.stats(1), sqlite.measures(1), sqlite.hour_totals(1), sqlite.oldest()]
    much = [asyncio.ensure_future(one) for one in (*questions, sqlite.find(JobFilter(), 10), sqlite.dump(0, 10))]
    for _ in range(10):
        assert await sqlite.get([job.key]) == [job]
    assert [one.done() for one in much] == [False] * len(much)
    may_end.set()
    assert await scanning
    await asyncio.gather(*much)


async def test_close_finishes_what_was_accepted(file: Path) -> None:
    engine = SqliteEngine(StoreUrl(str(file)))
    await engine.open()
    creating = [asyncio.ensure_future(engine.create([a_new_job()])) for _ in range(20)]
    await asyncio.sleep(0)
    await engine.close()
    assert [one.key for made in await asyncio.gather(*creating) for one in made] == list(range(1, 21))


async def test_a_closed_engine_says_so(file: Path) -> None:
    engine = SqliteEngine(StoreUrl(str(file)))
    await engine.open()
    await engine.close()
    for call in (engine.create([a_new_job()]), engine.get([1]), engine.wait([TYPE], 1)):
        with pytest.raises(EngineUnavailable, match="it is not connected yet, or is closed"):
            await call
