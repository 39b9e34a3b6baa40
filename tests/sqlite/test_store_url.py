"""Where the file may be: URLs, folders, other people's files, network disks, durability."""

# ruff: noqa: ASYNC240 - nobody else waits for the event loop of a test.

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from everwork.codec.local_file import NETWORK_FILE_SYSTEMS, refuse_network_file_system
from everwork.engines.open import open_engine
from everwork.engines.sqlite.engine import SqliteEngine
from everwork.engines.sqlite.store_url import StoreUrl, check_file
from everwork.engines.values import Durability
from everwork.exceptions import BadConfiguration, EngineError, EngineUnavailable, SchemaMismatch
from tests.factories import a_new_job, a_pending_job, the_job


@pytest.mark.parametrize(
    ("url", "path", "synchronous"),
    [
        ("sqlite:////data/jobs.db", "/data/jobs.db", "FULL"),
        ("sqlite:////data/jobs.db?synchronous=full", "/data/jobs.db", "FULL"),
        ("sqlite:////data/jobs.db?synchronous=NORMAL", "/data/jobs.db", "NORMAL"),
        ("sqlite:////data/with%20space%3F.db", "/data/with space?.db", "FULL"),
        ("sqlite:////data/%C3%BC.db", "/data/ü.db", "FULL"),
        ("sqlite:////data/../data/./jobs.db", "/data/jobs.db", "FULL"),
        ("sqlite:///:memory:", ":memory:", "FULL"),
    ],
)
def test_a_url_names_a_file(url: str, path: str, synchronous: str) -> None:
    assert StoreUrl.from_url(url) == StoreUrl(path, synchronous)


def test_three_slashes_begin_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert StoreUrl.from_url("sqlite:///jobs.db").path == str(tmp_path / "jobs.db")


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("sqlite:", "must be sqlite:///relative"),
        ("sqlite://", "must be sqlite:///relative"),
        ("sqlite:///", "must be sqlite:///relative"),
        ("sqlite://jobs.db", "must be sqlite:///relative"),
        ("sqlite://host/jobs.db", "must be sqlite:///relative"),
        ("sqlite:jobs.db", "must be sqlite:///relative"),
        ("sqlite:/jobs.db", "must be sqlite:///relative"),
        ("sqlite:///jobs.db#1", "#"),
        ("sqlite:///a%00b.db", "NUL"),
        ("sqlite:///jobs.db?synchronous=off", "synchronous must be full or normal, not 'off'"),
        ("sqlite:///jobs.db?synchronous=", "synchronous must be full or normal, not ''"),
        ("sqlite:///jobs.db?mode=ro", "unknown option 'mode'; allowed: synchronous"),
    ],
)
def test_a_url_that_names_no_file_is_refused(url: str, told: str) -> None:
    with pytest.raises(BadConfiguration) as error:
        open_engine(url)
    assert str(error.value).startswith("engine URL: ")
    assert told in str(error.value)


@pytest.mark.parametrize("url", ["", "jobs.db", "/data/jobs.db", "oracle://host/db", "SQLITE_FILE"])
def test_an_unknown_scheme_is_told_with_the_known_ones(url: str) -> None:
    with pytest.raises(BadConfiguration, match=r"(unknown|has no) scheme .* must start with one of sqlite://"):
        open_engine(url)


async def refusal(file: Path) -> str:
    """The one line that tells why a file cannot be opened."""
    with pytest.raises(EngineUnavailable) as error:
        await SqliteEngine(StoreUrl(str(file))).open()
    assert "\n" not in str(error.value)
    assert str(file) in str(error.value)
    return str(error.value)


async def test_a_missing_directory_is_told(tmp_path: Path) -> None:
    assert "does not exist; create it first" in await refusal(tmp_path / "missing" / "jobs.db")


async def test_a_directory_is_no_file(tmp_path: Path) -> None:
    assert "it is a directory; name a file" in await refusal(tmp_path)


async def test_a_file_that_is_not_sqlite_is_refused_and_left_alone(file: Path) -> None:
    file.write_text("Dear diary, " * 1_000)
    assert "it is not a SQLite file" in await refusal(file)
    assert file.read_text() == "Dear diary, " * 1_000


async def test_a_damaged_file_is_told(file: Path) -> None:
    await _make(file)
    damaged = bytearray(file.read_bytes())
    damaged[100:4096] = b"\xff" * 3996
    file.write_bytes(damaged)
    assert "restore it from a backup" in await refusal(file)


async def test_a_file_in_an_impossible_folder_is_told() -> None:
    """Not even root can create files there."""
    assert await refusal(Path("/proc/jobs.db"))


async def test_refusals_leave_no_open_files_behind(file: Path) -> None:
    file.write_text("Dear diary, " * 1_000)
    await refusal(file)
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - only their number matters
    for _ in range(5):
        await refusal(file)
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


async def test_a_newer_schema_is_refused_and_left_alone(file: Path) -> None:
    await _make(file)
    with sqlite3.connect(file) as connection:
        connection.execute("INSERT INTO ew_schema VALUES (999)")
    connection.close()
    with pytest.raises(
        SchemaMismatch, match=r"has schema version 999, but this program supports up to \d+; upgrade Everwork"
    ):
        await SqliteEngine(StoreUrl(str(file))).open()


async def test_a_file_with_tables_of_the_users_can_be_shared(file: Path) -> None:
    with sqlite3.connect(file) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
        connection.execute("INSERT INTO orders VALUES (1)")
    connection.close()
    await _make(file)
    connection = sqlite3.connect(file)
    assert connection.execute("SELECT id FROM orders").fetchall() == [(1,)]
    connection.close()


@pytest.mark.parametrize("exists", [False, True])
async def test_without_create_a_file_that_holds_no_jobs_is_left_as_it_is(file: Path, exists: bool) -> None:
    if exists:
        sqlite3.connect(file).execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
    before = {path: path.read_bytes() for path in file.parent.iterdir()}
    with pytest.raises(EngineUnavailable):
        await SqliteEngine(StoreUrl(str(file))).open(create=False)
    assert {path: path.read_bytes() for path in file.parent.iterdir()} == before


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """A folder that every user may enter, as temporary folders of tests are not."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


def refused_to_nobody(file: Path) -> str:
    """What a user without any rights is told who opens the file; in a child, because root may write anything."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            if os.geteuid() == 0:
                os.setuid(65_534)
            SqliteEngine(StoreUrl(str(file)))._connect(True)
        except EngineError as error:
            os.write(writing, f"{type(error).__name__}: {error}".encode())
        except BaseException as error:  # noqa: BLE001 - the parent tells it
            os.write(writing, repr(error).encode())
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(pid, 0)
    with os.fdopen(reading) as answer:
        return answer.read()


async def test_a_read_only_file_is_told(open_to_all: Path) -> None:
    file = open_to_all / "jobs.db"
    await _make(file)
    file.chmod(0o444)
    assert refused_to_nobody(file).startswith(f"EngineUnavailable: cannot write {file}: permission denied")


async def test_a_new_file_in_a_read_only_folder_is_told(open_to_all: Path) -> None:
    open_to_all.chmod(0o555)
    file = open_to_all / "jobs.db"
    assert refused_to_nobody(file).startswith(f"EngineUnavailable: cannot write {file}: permission denied")


async def test_a_writable_file_in_a_read_only_folder_is_told(open_to_all: Path) -> None:
    file = open_to_all / "jobs.db"
    file.touch()
    file.chmod(0o666)
    open_to_all.chmod(0o555)
    assert refused_to_nobody(file).startswith(f"EngineUnavailable: cannot use {file}")


async def _make(file: Path) -> None:
    """A file with a job in it, closed."""
    engine = SqliteEngine(StoreUrl(str(file)))
    await engine.open()
    await engine.create([a_new_job()])
    await engine.close()


MOUNTS = [("/", "ext4"), ("/data", "ext4"), ("/data/far", "nfs4"), ("/data/far/near", "xfs"), ("/far", "fuse.sshfs")]


@pytest.mark.parametrize("file", ["/data/far/jobs.db", "/data/far/deep/jobs.db", "/far/jobs.db"])
def test_network_file_systems_are_refused_by_name(file: str) -> None:
    with pytest.raises(EngineUnavailable, match=r"is a network file system \((nfs4|fuse\.sshfs)\).*use a local disk"):
        refuse_network_file_system(Path(file), MOUNTS)


@pytest.mark.parametrize("file", ["/jobs.db", "/data/jobs.db", "/data/farther/jobs.db", "/data/far/near/jobs.db"])
def test_local_file_systems_are_accepted(file: str) -> None:
    refuse_network_file_system(Path(file), MOUNTS)


def test_without_a_mount_table_every_place_is_accepted() -> None:
    refuse_network_file_system(Path("/jobs.db"), [])


def test_of_two_mounts_on_one_point_the_later_counts() -> None:
    """So an automounted share looks: first autofs, then what was mounted on it."""
    with pytest.raises(EngineUnavailable, match="nfs4"):
        refuse_network_file_system(
            Path("/home/ann/jobs.db"), [("/", "ext4"), ("/home/ann", "autofs"), ("/home/ann", "nfs4")]
        )
    refuse_network_file_system(Path("/home/ann/jobs.db"), [("/home/ann", "nfs4"), ("/home/ann", "tmpfs")])


@pytest.mark.parametrize("kind", sorted(NETWORK_FILE_SYSTEMS))
def test_every_known_network_file_system_is_refused(kind: str) -> None:
    with pytest.raises(EngineUnavailable):
        refuse_network_file_system(Path("/far/jobs.db"), [("/", "ext4"), ("/far", kind)])


@pytest.mark.parametrize(
    ("query", "durability", "pragma"),
    [("", Durability.POWER_LOSS, 2), ("?synchronous=normal", Durability.PROCESS_CRASH, 1)],
)
async def test_the_durability_class_is_what_the_writer_is_set_to(
    file: Path, query: str, durability: Durability, pragma: int
) -> None:
    engine = SqliteEngine.from_url(f"sqlite:///{file}{query}")
    await engine.open()
    store = engine._store
    set_to = await store.writer.query(lambda cursor, _: cursor.execute("PRAGMA synchronous").fetchone()[0])
    health = await engine.health()
    await engine.close()
    assert (engine.durability, health.durability, set_to) == (durability, durability, pragma)
    assert health.details["journal_mode"] == "wal"


async def test_a_store_in_memory_works_and_promises_nothing() -> None:
    engine = SqliteEngine.from_url("sqlite:///:memory:")
    await engine.open()
    job = await a_pending_job(engine)
    assert (await the_job(engine, job.key)).key == job.key
    assert engine.durability is Durability.NONE
    await engine.close()


def test_an_acceptable_place_is_not_touched_by_the_check(file: Path) -> None:
    check_file(StoreUrl(str(file)))
    assert list(file.parent.iterdir()) == []


async def test_a_second_engine_in_the_same_process_leaves_the_locks_of_the_first(file: Path) -> None:
    # A process that closes its file by any other way than SQLite's loses every lock on it: the next one to leave
    # would take itself for the last, and take the journal of those who work away.
    first = SqliteEngine.from_url(f"sqlite:///{file}")
    await first.open()
    await first.create([a_new_job()])
    before = _locks_on(file)
    assert before
    second = SqliteEngine.from_url(f"sqlite:///{file}")
    await second.open()
    held = _locks_on(file)
    await second.close()
    await first.close()
    assert held >= before


def _locks_on(file: Path) -> set[str]:
    """The locks that this process holds on a file, as the system knows them."""
    inode = f":{file.stat().st_ino} "
    lines = Path("/proc/locks").read_text().splitlines()
    return {" ".join(line.split()[1:]) for line in lines if inode in line and f" {os.getpid()} " in line}
