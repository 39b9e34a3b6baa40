"""Files that cannot be a spool, or are one no more: a clear error, and nothing is half-written or changed."""

from __future__ import annotations

import asyncio
import os
import re
import sqlite3
import stat
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from everwork.codec.local_file import refuse_network_file_system
from everwork.core.job import NewJob
from everwork.core.outcome import Complete
from everwork.exceptions import BadConfiguration, EngineUnavailable, InvalidInput, SchemaMismatch, SpoolFull
from everwork.spool.courier import Courier, SpoolThread, Turn
from everwork.spool.file import SpoolFile
from everwork.spool.settings import Offline, Spool
from tests.spool.kit import (
    counts,
    deliver,
    kept,
    line,
    numbered,
    offline_in,
    program,
    texts,
    the_store,
    variables,
)


@pytest.fixture
def offline(tmp_path: Path) -> Offline:
    return offline_in(tmp_path)


def refused(offline: Offline) -> str:
    """Why a spool cannot be opened."""
    with pytest.raises((BadConfiguration, SchemaMismatch)) as error:
        SpoolFile(*offline)
    return str(error.value)


def change(offline: Offline, sql: str) -> None:
    """Change the file as another version, or another hand, would."""
    with closing(sqlite3.connect(offline.spool.path)) as db, db:
        db.execute(sql)


@pytest.mark.parametrize("path", ["", "a\0b", None, 7])
def test_what_is_no_path_is_refused(path: str) -> None:
    with pytest.raises(InvalidInput, match="offline: must be the path of a file"):
        Spool(path)


@pytest.mark.parametrize("name", ["a" * 300, "a" * 1_000_000, "a/" * 5000])
def test_a_path_that_is_too_long_is_refused_in_one_short_line(tmp_path: Path, name: str) -> None:
    problem = refused(Offline(Spool(str(tmp_path / name)), "redis://127.0.0.1"))
    assert "File name too long" in problem
    assert len(problem) < 300


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm", "-journal", ".lock", ".wake"])
def test_the_files_of_the_store_are_refused_as_its_spool_and_the_other_way_round(tmp_path: Path, suffix: str) -> None:
    store, other = f"sqlite:///{tmp_path}/jobs.db", f"{tmp_path}/jobs.db{suffix}"
    with pytest.raises(InvalidInput, match="offline: must be a file other than the engine's"):
        Offline.of(other, store)
    if suffix != ".wake":  # A spool has none.
        with pytest.raises(InvalidInput, match="offline: must be a file other than the engine's"):
            Offline.of(f"{tmp_path}/jobs.db", f"sqlite:///{other}")


def take_away(tmp_path: Path, how: str) -> None:
    spool = tmp_path / "spool.db"
    if how == "moved":
        spool.rename(tmp_path / "moved.db")
    elif how == "removed":
        spool.unlink()
    else:
        kept(offline_in(tmp_path / "other"), numbered(7, 7))
        (tmp_path / "other" / "spool.db").replace(spool)


@pytest.mark.parametrize("how", ["moved", "removed", "replaced"])
async def test_nothing_is_acknowledged_in_a_file_that_was_taken_away_and_what_it_holds_is_delivered(
    offline: Offline, tmp_path: Path, how: str
) -> None:
    (tmp_path / "other").mkdir()
    thread = SpoolThread(offline)
    await thread.open()
    async with the_store(offline) as store:
        await thread.do(lambda file: file.keep_jobs(numbered(1, 2)))
        take_away(tmp_path, how)
        with pytest.raises(EngineUnavailable, match="the file was deleted or replaced while open; restart the program"):
            await thread.do(lambda file: file.keep_jobs(numbered(3, 3)))
        with pytest.raises(EngineUnavailable, match="the file was deleted or replaced while open; restart the program"):
            await thread.do(lambda file: file.keep_outcomes([Complete(1, 1)]))
        await Courier(offline, thread, store).deliver()
    await thread.close()
    assert await variables(offline) == texts(numbered(1, 2))


def test_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "spool.db").mkdir()
    assert refused(offline_in(tmp_path)).endswith("spool.db: it is a directory; name a file")


def test_a_directory_that_does_not_exist_is_named(tmp_path: Path) -> None:
    assert "the directory" in refused(offline_in(tmp_path / "gone"))


def test_a_file_that_is_no_database_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "spool.db").write_text("These are my notes. " * 100)
    assert "it is not a SQLite file; choose another path" in refused(offline_in(tmp_path))
    assert (tmp_path / "spool.db").read_text() == "These are my notes. " * 100


def test_the_database_of_another_program_is_refused_and_stays_as_it_is(offline: Offline, tmp_path: Path) -> None:
    change(offline, "CREATE TABLE job (name TEXT)")
    before = (tmp_path / "spool.db").read_bytes()
    assert "is not a spool; choose another path" in refused(offline)
    assert (tmp_path / "spool.db").read_bytes() == before


def test_the_file_of_a_newer_version_is_refused(offline: Offline) -> None:
    kept(offline, numbered(1, 1))
    change(offline, "UPDATE spool SET version = 2")
    assert "has version 2, but this Everwork reads up to 1; upgrade it" in refused(offline)


def test_a_spool_for_another_store_is_refused_while_it_holds_entries(offline: Offline) -> None:
    kept(offline, numbered(1, 1))
    other = offline._replace(store="redis://elsewhere/0")
    assert re.search("holds entries for another engine, sqlite:///.*jobs.db; deliver them with", refused(other))


async def test_an_empty_spool_is_taken_for_another_store(offline: Offline) -> None:
    kept(offline, numbered(1, 1))
    await deliver(offline)
    SpoolFile(*offline._replace(store="redis://elsewhere/0")).close()
    assert "another store" not in str(SpoolFile(offline.spool, None).store)


def test_a_file_that_was_cut_off_is_reported_as_damaged(offline: Offline, tmp_path: Path) -> None:
    kept(offline, numbered(1, 2_000))
    file = tmp_path / "spool.db"
    os.truncate(file, file.stat().st_size // 2)
    assert "the file is damaged; move it away to start with an empty spool" in refused(offline)


async def test_a_page_that_was_overwritten_is_reported_as_damaged(offline: Offline, tmp_path: Path) -> None:
    kept(offline, numbered(1, 2_000))
    with (tmp_path / "spool.db").open("r+b") as file:
        file.seek(4096 * 4)
        file.write(b"\xff" * 4096 * 10)
    with pytest.raises((BadConfiguration, EngineUnavailable), match="the file is damaged"):
        await deliver(offline)


async def test_an_entry_with_broken_letters_is_set_aside_and_the_others_are_delivered(offline: Offline) -> None:
    kept(offline, numbered(1, 3))
    change(offline, "UPDATE job SET body = CAST(x'7b22ff227d' AS TEXT) WHERE id = 2")
    await deliver(offline)
    assert await variables(offline) == texts([numbered(1, 3)[0], numbered(1, 3)[2]])
    assert counts(offline) == (0, 0, 1)


def test_a_network_file_system_is_refused() -> None:
    with pytest.raises(EngineUnavailable, match=r"/mnt/share is a network file system \(nfs4\)"):
        refuse_network_file_system(Path("/mnt/share/spool.db"), [("/", "ext4"), ("/mnt/share", "nfs4")])


def test_the_advice_against_a_network_file_system_names_no_other_engine(
    offline: Offline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("everwork.codec.local_file._mounts", lambda: [("/", "nfs4")])
    assert refused(offline).endswith("where SQLite's locks do not work; use a local disk")


def test_a_read_only_file_system_is_named(offline: Offline, monkeypatch: pytest.MonkeyPatch) -> None:
    kept(offline, numbered(1, 1))
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=os.ST_RDONLY))
    assert refused(offline).endswith("spool.db: the file system is read-only; choose a path on another one")


def test_a_spool_has_one_lock_however_it_is_named(tmp_path: Path) -> None:
    (tmp_path / "link.db").symlink_to(tmp_path / "spool.db")
    one, two = (Turn(Spool(str(tmp_path / name)).path) for name in ("spool.db", "link.db"))
    assert one.take()
    assert not two.take()
    one.give_back()


def test_jobs_beyond_the_bound_in_bytes_are_refused_also_if_their_letters_are_large(tmp_path: Path) -> None:
    file = SpoolFile(*offline_in(tmp_path, max_bytes=1_048_576))
    with pytest.raises(SpoolFull, match="max_bytes of 1,048,576"):
        file.keep_jobs([NewJob("work", '{"text":"' + "語" * 400_000 + '"}')])
    assert file.counts().jobs == 0
    file.close()


# Full disks and other users -------------------------------------------------------------------------


async def test_on_a_full_disk_nothing_is_half_kept_and_what_was_kept_is_delivered(
    offline: Offline, tmp_path: Path
) -> None:
    with program("fill_disk", tmp_path) as filling:
        jobs, error = int(line(filling)), line(filling)
    assert jobs > 0
    assert re.search("spool: cannot use .*spool.db: (database or disk is full|disk I/O error)", error)
    assert counts(offline) == (jobs, 0, 0)
    await deliver(offline)
    assert await variables(offline) == texts(numbered(1, jobs))


def test_a_folder_of_another_user_is_a_clear_error(reachable: Path) -> None:
    reachable.chmod(0o555)
    with program("open_as_nobody", reachable) as other:
        assert re.search("cannot write .*spool.db: permission denied; choose a path", line(other))
    assert list(reachable.iterdir()) == []


def test_a_file_that_only_its_owner_may_write_is_a_clear_error(reachable: Path) -> None:
    reachable.chmod(0o777)
    kept(offline_in(reachable), numbered(1, 1))
    (reachable / "spool.db").chmod(0o444)
    with program("open_as_nobody", reachable) as other:
        assert "permission denied" in line(other)


def test_the_lock_that_an_administrator_creates_is_for_the_owner_of_the_spool(reachable: Path) -> None:
    reachable.chmod(0o777)
    with program("open_as_nobody", reachable) as owner:
        assert line(owner) == "kept"
    asyncio.run(deliver(offline_in(reachable)))
    lock = (reachable / "spool.db.lock").stat()
    assert lock.st_uid == (reachable / "spool.db").stat().st_uid
    assert stat.S_IMODE(lock.st_mode) & 0o600 == 0o600


def test_a_folder_that_may_not_be_entered_is_a_clear_error(reachable: Path) -> None:
    reachable.chmod(0o000)
    with program("open_as_nobody", reachable) as other:
        assert "permission denied; choose a path that this user can access" in line(other)


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A folder that other users can get to, unlike those of pytest."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)
        Path(folder).chmod(0o700)
