"""Only its owner may read a store, regardless of the umask; a store that is shared with a group stays shared."""

# ruff: noqa: ASYNC240 - blocking calls delay nothing else in a test's event loop.

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from everwork.codec.local_file import create_private
from everwork.core.job import NewJob
from everwork.engines.sqlite.engine import SqliteEngine
from everwork.engines.sqlite.store_url import StoreUrl
from everwork.spool.file import SpoolFile
from everwork.spool.settings import Spool
from tests.app.waiting import until
from tests.factories import a_new_job


@pytest.fixture(params=[0o000, 0o022, 0o777], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    """The process has a different umask during the test."""
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def modes(file: Path) -> dict[str, int]:
    """The modes of a store's files, by the suffix of their names."""
    return {path.name.removeprefix(file.name): mode(path) for path in file.parent.glob(f"{file.name}*")}


async def files_in_use(file: Path) -> dict[str, int]:
    """The modes of a store's files while one caller writes and another waits."""
    engine = SqliteEngine(StoreUrl(str(file)))
    await engine.open()
    await engine.create([a_new_job()])
    waiting = asyncio.ensure_future(engine.wait(["work"], 60_000))
    await until(lambda: list(Path(f"{file}.wake").glob("*")))
    found = modes(file)
    await engine.close()
    await waiting
    return found


@pytest.mark.parametrize("umask", [0o000, 0o022], indirect=True, ids=oct)
async def test_every_file_of_a_new_store_is_its_owners_only_whatever_the_umask(file: Path, umask: int) -> None:
    private = {"": 0o600, "-wal": 0o600, "-shm": 0o600, ".lock": 0o600, ".wake": 0o700}
    assert await files_in_use(file) == private
    assert [path.name for path in file.parent.iterdir() if path.name.startswith(".")] == []


def test_every_file_of_a_spool_is_its_owners_only_whatever_the_umask(file: Path, umask: int) -> None:
    spool = SpoolFile(Spool(str(file)), "store")
    spool.keep_jobs([NewJob("work", variables="{}")])
    assert modes(file) == {"": 0o600, "-wal": 0o600, "-shm": 0o600}
    spool.close()


async def test_a_store_that_is_shared_with_a_group_stays_shared(file: Path) -> None:
    file.touch()
    file.chmod(0o660)
    shared = await files_in_use(file)
    assert {shared[name] for name in ("", "-wal", "-shm", ".lock")} == {0o660}
    assert shared[".wake"] & 0o007 == 0


async def test_a_store_can_be_shared_with_a_group_after_it_was_used_and_closed_to_it_again(
    file: Path, umask: int
) -> None:
    await files_in_use(file)
    for shared in (0o660, 0o600):
        file.chmod(shared)
        enterable = shared | (shared & 0o440) >> 2
        assert await files_in_use(file) == {**dict.fromkeys(("", "-wal", "-shm", ".lock"), shared), ".wake": enterable}


async def test_what_a_link_beside_the_store_points_to_keeps_its_mode(file: Path) -> None:
    await files_in_use(file)
    file.chmod(0o660)
    private = file.parent / "private"
    private.mkdir(0o700)
    for name in (".lock", ".wake"):
        link = Path(f"{file}{name}")
        link.rename(private / name)
        link.symlink_to(private / name)
    await files_in_use(file)
    assert {name: mode(private / name) for name in (".lock", ".wake")} == {".lock": 0o600, ".wake": 0o700}


async def test_a_lock_file_that_strangers_could_hold_is_closed_to_them(file: Path) -> None:
    await files_in_use(file)
    Path(f"{file}.lock").chmod(0o644)
    assert (await files_in_use(file))[".lock"] == 0o600


@pytest.mark.parametrize("is_there_first", [True, False])
def test_without_hard_links_a_store_that_another_process_has_just_created_is_not_replaced(
    file: Path, monkeypatch: pytest.MonkeyPatch, is_there_first: bool
) -> None:
    def no_hard_links(*_: object) -> None:
        if is_there_first:
            file.write_text("of another process")
        raise PermissionError

    monkeypatch.setattr(Path, "hardlink_to", no_hard_links)
    create_private(str(file))
    assert file.read_text() == ("of another process" if is_there_first else "")
    assert list(file.parent.iterdir()) == [file]
