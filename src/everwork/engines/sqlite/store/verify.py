"""verify: SQLite's own integrity check, rows that belong to no job, and the permissions of the files."""

from __future__ import annotations

import sqlite3
import stat
from contextlib import closing
from pathlib import Path
from typing import Final

from everwork.engines.sqlite.statements import statements
from everwork.engines.sqlite.store_url import StoreUrl, connect
from everwork.engines.values import StoreProblem
from everwork.exceptions import EngineError

SQL = statements("verify")
PROBLEMS_MAX: Final = 10
SUFFIXES: Final = ("", "-wal", "-shm", ".lock")
RESTORE: Final = "stop every process that uses the file, keep a copy of it, and restore a backup"
_OTHERS: Final = 0o007


def verify(url: StoreUrl) -> list[StoreProblem]:
    """The problems of a file, found on a separate connection, so that no reader waits."""
    return [*_of_files(url.path), *_of_pages(url)]


def _of_files(path: str) -> list[StoreProblem]:
    files = [Path(path + suffix) for suffix in SUFFIXES]
    modes = [(file, stat.S_IMODE(file.stat().st_mode)) for file in files if file.exists()]
    advice = f"run: chmod o-rwx {path}*"  # Also the folder for wake-ups, which its owner must be able to enter.
    return [
        StoreProblem(f"any user of this machine can access {file} (mode {mode:o})", advice)
        for file, mode in modes
        if mode & _OTHERS
    ]


def _of_pages(url: StoreUrl) -> list[StoreProblem]:
    try:
        with closing(connect(url, read_only=True)) as connection:
            found = [str(text) for (text,) in connection.execute(f"PRAGMA quick_check({PROBLEMS_MAX})")]
            damaged = [StoreProblem(f"the file is damaged: {text}", RESTORE) for text in found if text != "ok"]
            return damaged or _of_rows(connection)
    except (sqlite3.DatabaseError, EngineError) as error:
        return [StoreProblem(f"the file is damaged: {error}", RESTORE)]


def _of_rows(connection: sqlite3.Connection) -> list[StoreProblem]:
    (orphans,) = connection.execute(SQL["orphans"]).fetchone()
    text = f"{orphans:,} row{' belongs' if orphans == 1 else 's belong'} to pending or running jobs that do not exist"
    return [StoreProblem(text, RESTORE)] if orphans else []
