"""Files of ill will: gone, swapped, damaged, or none at all. What cannot be kept is refused, at once, in one line."""

# ruff: noqa: ASYNC240 - nobody else waits for the event loop of a test.

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from everwork.core.outcome import Complete
from everwork.engines.sqlite.engine import SqliteEngine
from everwork.engines.sqlite.store_url import StoreUrl
from everwork.exceptions import EngineError, EngineUnavailable, SchemaMismatch
from tests.app.waiting import DEADLINE_S, SOON_S, until
from tests.factories import a_new_job, a_pending_job, a_policy, a_processing_job, leased_keys
from tests.stores import VirtualClock

LONG_MS = 60_000


@pytest.fixture(params=[False, True], ids=["thread", "own-loop"])
async def engine(file: Path, clock: VirtualClock, request: pytest.FixtureRequest) -> AsyncIterator[SqliteEngine]:
    """An open engine on a file that the test will spoil, with either writer."""
    opened = SqliteEngine(StoreUrl(str(file)), clock, own_loop=request.param)
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
def witness(engine: SqliteEngine, file: Path) -> Iterator[sqlite3.Connection]:
    """A connection to the file as it was: it sees what is written there, wherever the name leads later."""
    with closing(sqlite3.connect(file, check_same_thread=False)) as connection:
        connection.execute("SELECT count(*) FROM ew_job").fetchone()
        yield connection


def remove(file: Path) -> None:
    file.unlink()


def remove_all(file: Path) -> None:
    for path in file.parent.glob(file.name + "*"):
        if path.is_file():
            path.unlink()


def move_away(file: Path) -> None:
    file.rename(file.with_name("moved.db"))


def replace(file: Path) -> None:
    shutil.copy(file, file.with_name("copy.db"))
    file.with_name("copy.db").replace(file)


def replace_by_directory(file: Path) -> None:
    file.unlink()
    file.mkdir()


SPOILT = pytest.mark.parametrize("spoil", [remove, remove_all, move_away, replace, replace_by_directory])
Spoil = Callable[[Path], None]


@SPOILT
async def test_nothing_is_accepted_into_a_file_that_is_not_there_any_more(
    engine: SqliteEngine, witness: sqlite3.Connection, file: Path, spoil: Spoil
) -> None:
    await a_pending_job(engine)
    spoil(file)
    for _ in range(2):
        with pytest.raises(EngineUnavailable, match="the file was deleted or replaced while open; restart the program"):
            await engine.create([a_new_job()])
    assert witness.execute("SELECT count(*) FROM ew_job").fetchone() == (1,)


@SPOILT
async def test_no_outcome_is_accepted_into_a_file_that_is_not_there_any_more(
    engine: SqliteEngine, witness: sqlite3.Connection, file: Path, spoil: Spoil
) -> None:
    job = await a_processing_job(engine)
    spoil(file)
    with pytest.raises(EngineUnavailable, match="deleted or replaced"):
        await engine.settle([Complete(job.key, job.attempt)])
    assert witness.execute("SELECT count(*) FROM ew_leased").fetchone() == (1,)


async def test_a_spoilt_engine_can_be_closed_and_a_new_one_begins_anew(engine: SqliteEngine, file: Path) -> None:
    await a_pending_job(engine)
    remove_all(file)
    await asyncio.wait_for(engine.close(), DEADLINE_S)
    await engine.open()
    assert (await a_pending_job(engine)).key == 1


async def test_a_folder_of_sockets_that_becomes_a_file_disturbs_nobody(engine: SqliteEngine, file: Path) -> None:
    """A file that is in the way from the beginning is in test_wake."""
    folder = Path(f"{file}.wake")
    waiting = asyncio.ensure_future(engine.wait(["work"], LONG_MS))
    await until(lambda: list(folder.glob("*")))
    shutil.rmtree(folder)
    folder.write_text("in the way")
    assert len(await engine.create([a_new_job()])) == 1
    assert await asyncio.wait_for(waiting, DEADLINE_S)
    await asyncio.wait_for(engine.close(), DEADLINE_S)


async def refusal(path: Path, kind: type[EngineError], *, create: bool) -> str:
    """The line that tells why a path cannot be opened; it comes soon."""
    with pytest.raises(kind) as error:
        await asyncio.wait_for(SqliteEngine(StoreUrl(str(path))).open(create=create), SOON_S)
    assert "\n" not in str(error.value)
    return str(error.value)


CREATE = pytest.mark.parametrize("create", [True, False])


@CREATE
@pytest.mark.parametrize("kind", ["a directory", "/dev/null", "/dev/zero"])
async def test_what_is_no_regular_file_is_refused_at_once(file: Path, kind: str, create: bool) -> None:
    """A pipe, for which one could wait for ever, is among the tests of the command line: a process can be ended."""
    path = Path(kind) if kind.startswith("/") else file
    if kind == "a directory":
        path.mkdir()
    told = await refusal(path, EngineUnavailable, create=create)
    assert told.startswith(f"cannot open {path}: it is ")


def damage(file: Path, *statements: str) -> None:
    """Change a closed file by hand."""
    with closing(sqlite3.connect(file)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


@pytest.fixture
async def made(file: Path) -> Path:
    """A file with a job in it, closed."""
    engine = SqliteEngine(StoreUrl(str(file)))
    await engine.open()
    await engine.create([a_new_job()])
    await engine.close()
    return file


@CREATE
@pytest.mark.parametrize("value", ["'two'", "x'02'", "2.5"])
async def test_a_version_that_is_no_number_is_told(made: Path, value: str, create: bool) -> None:
    damage(made, "DROP TABLE ew_schema", "CREATE TABLE ew_schema (version)", f"INSERT INTO ew_schema VALUES ({value})")
    assert "ew_schema is damaged" in await refusal(made, SchemaMismatch, create=create)


@CREATE
@pytest.mark.parametrize(
    "statements",
    [
        ["DROP TABLE ew_schema"],
        ["DELETE FROM ew_schema"],
        ["DROP TABLE ew_schema", "CREATE TABLE ew_schema (other INTEGER)"],
    ],
    ids=["no table", "no row", "another column"],
)
async def test_a_file_without_its_version_is_refused_and_keeps_its_jobs(
    made: Path, statements: list[str], create: bool
) -> None:
    damage(made, *statements)
    assert await refusal(made, EngineUnavailable, create=create)
    with closing(sqlite3.connect(made)) as connection:
        assert connection.execute("SELECT count(*) FROM ew_job").fetchone() == (1,)


@pytest.mark.parametrize(
    "spoilt",
    [{"variables": object()}, {"headers": object()}, {"expires_at_ms": object()}, {"dedupe_key": object()}],
    ids=["variables", "headers", "expires_at_ms", "dedupe_key"],
)
async def test_a_create_that_fails_in_the_middle_leaves_nothing_in_the_callers_transaction(
    engine: SqliteEngine, witness: sqlite3.Connection, file: Path, spoilt: dict[str, Any]
) -> None:
    before = dump(witness)
    with closing(sqlite3.connect(file)) as own:
        own.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
        own.execute("INSERT INTO orders VALUES (1)")
        with pytest.raises(sqlite3.Error):
            await engine.create_in(own, [a_new_job(), a_new_job(headers="{}"), a_new_job(**spoilt)])
        own.execute("INSERT INTO orders VALUES (2)")
        own.commit()
    assert dump(witness) == before
    assert witness.execute("SELECT id FROM orders").fetchall() == [(1,), (2,)]
    assert await engine.count() == []


def dump(connection: sqlite3.Connection) -> dict[str, list[tuple[Any, ...]]]:
    """Everything in the engine's tables."""
    names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'ew_%'").fetchall()
    return {name: connection.execute(f"SELECT * FROM {name}").fetchall() for (name,) in names}


@pytest.mark.parametrize("limit_key", [None, "ada"])
async def test_a_row_without_a_job_does_not_hide_the_jobs_behind_it(
    file: Path, clock: VirtualClock, limit_key: str | None
) -> None:
    engine = SqliteEngine(StoreUrl(str(file)), clock)
    await engine.open()
    if limit_key:
        await a_policy(engine, max_running_per_key=5)
    jobs = [a_new_job(tenant=tenant, limit_key=limit_key) for tenant in ("a", "a", "a", "b", "b")]
    lost, *rest, other, last = [one.key for one in await engine.create(jobs)]
    await engine.close()
    damage(file, f"DELETE FROM ew_job WHERE key = {lost}")
    await engine.open()
    assert sorted(await leased_keys(engine, 2)) == [rest[0], other]
    assert sorted(await leased_keys(engine, 2)) == [rest[1], last]
    assert await leased_keys(engine, 2) == []
    await engine.close()


@pytest.mark.parametrize("limit_key", [None, "ada"])
async def test_a_lane_in_which_every_row_lacks_its_job_does_not_hold_up_a_claim(
    file: Path, clock: VirtualClock, limit_key: str | None
) -> None:
    engine = SqliteEngine(StoreUrl(str(file)), clock)
    await engine.open()
    if limit_key:
        await a_policy(engine, max_running_per_key=5)
    jobs = [a_new_job(tenant=tenant, limit_key=limit_key) for tenant in ("a", "a", "b")]
    *lost, kept = [one.key for one in await engine.create(jobs)]
    await engine.close()
    damage(file, f"DELETE FROM ew_job WHERE key IN ({lost[0]}, {lost[1]})")
    await engine.open()
    assert await leased_keys(engine, 2) == [kept]
    assert await leased_keys(engine, 2) == []
    await engine.close()
