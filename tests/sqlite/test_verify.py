"""What the check of a file finds: pages that were overwritten, rows without a job, files that strangers can read."""

# ruff: noqa: ASYNC240 - nobody else waits for the event loop of a test.

from __future__ import annotations

import sqlite3
import stat
import subprocess
from contextlib import closing
from pathlib import Path

from everwork.aio.clocks import host_clock_ms
from everwork.engines.sqlite.engine import SqliteEngine
from everwork.engines.sqlite.store_url import StoreUrl
from everwork.service.doctor import examine
from tests.factories import TYPE, a_new_job, leased_keys


async def texts(file: Path) -> list[str]:
    """What is wrong with a file."""
    engine = SqliteEngine(StoreUrl(str(file)))
    await engine.open()
    try:
        return [defect.text for defect in await engine.verify()]
    finally:
        await engine.close()


async def filled(file: Path) -> None:
    """A closed store with jobs on many pages."""
    engine = SqliteEngine(StoreUrl(str(file)))
    await engine.open()
    await engine.create([a_new_job(variables=f'{{"n":{number},"x":"{"y" * 500}"}}') for number in range(500)])
    await engine.close()


def overwrite(file: Path, page: int, size: int = 4_096) -> None:
    """Overwrite a page, counted from zero."""
    with file.open("r+b") as raw:
        raw.seek(page * size)
        raw.write(bytes(range(256)) * (size // 256))


async def test_a_sound_file_has_no_defects(file: Path) -> None:
    await filled(file)
    assert await texts(file) == []


async def test_overwritten_pages_are_found_and_stop_no_jobs_on_others(file: Path) -> None:
    await filled(file)
    with closing(sqlite3.connect(file)) as connection:
        [(page,)] = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'ew_history'").fetchall()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    overwrite(file, page - 1, size)
    found = await texts(file)
    assert any("the file is damaged" in text for text in found)
    engine = SqliteEngine(StoreUrl(str(file)))
    await engine.open()
    assert len(await leased_keys(engine, 5)) == 5
    await engine.close()


async def test_jobs_on_damaged_pages_do_not_hide_the_other_findings(file: Path) -> None:
    await filled(file)
    overwrite(file, file.read_bytes().index(b'"n":250,') // 4_096)
    engine = SqliteEngine(StoreUrl(str(file)))
    await engine.open()
    diagnosis = await examine(engine, host_clock_ms, integrity=True)
    problems = [one.text for one in diagnosis.findings if one.is_problem]
    assert any("the file is damaged: " in text for text in problems)
    assert any("not every job could be read: " in text for text in problems)
    await engine.close()


async def test_rows_without_a_job_are_counted(file: Path) -> None:
    await filled(file)
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("DELETE FROM ew_job WHERE key <= 2")
    assert await texts(file) == ["2 rows belong to pending or running jobs that do not exist"]


async def test_files_that_every_user_can_read_are_named(file: Path) -> None:
    await filled(file)
    file.chmod(0o644)
    found = await texts(file)
    assert f"any user of this machine can access {file} (mode 644)" in found


async def test_the_advice_closes_the_files_to_others_and_not_the_folder_of_wake_ups_to_their_owner(file: Path) -> None:
    await filled(file)
    file.chmod(0o644)
    engine = SqliteEngine(StoreUrl(str(file)))
    await engine.open()
    await engine.wait([TYPE], 1)  # This makes the folder.
    [problem] = {one.advice for one in await engine.verify()}
    subprocess.run(["sh", "-c", problem.removeprefix("run: ")], check=True)  # noqa: ASYNC221 - nobody else waits
    assert await engine.verify() == []
    folder = Path(f"{file}.wake")
    assert stat.S_IMODE(folder.stat().st_mode) & stat.S_IRWXU == stat.S_IRWXU
    await engine.close()
