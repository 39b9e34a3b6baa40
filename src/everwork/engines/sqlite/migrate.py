"""Numbered, forward-only migrations of the file."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Final

from everwork.codec.local_file import unavailable
from everwork.engines.sqlite.store_url import StoreUrl
from everwork.exceptions import EngineBusy, SchemaMismatch

PUBLIC_NAMES: Final = {"jobs": "ew_jobs", "dead_letters": "ew_dead_letters"}
"""Alternative names of views; each is used if the file has no other object with that name."""


@cache
def migrations() -> dict[int, str]:
    """The known migrations, by number."""
    folder = files(__package__) / "migrations"
    found = {int(entry.name[:4]): entry.read_text("utf-8") for entry in folder.iterdir() if entry.name.endswith(".sql")}
    return dict(sorted(found.items()))


def migrate(connection: sqlite3.Connection, path: str) -> int:
    """Bring the file up to date in one transaction; the caller holds the file's lock.

    A file that is up to date is only read, without waiting for other transactions.
    """
    try:
        if _version(connection) != max(migrations()):
            _apply(connection, path)
    except sqlite3.Error as error:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise unavailable(path, error) from error
    return max(migrations())


def stored_version(url: StoreUrl) -> int | None:
    """The schema version of a file, read without changing it; None if it holds no jobs or does not exist."""
    if url.in_memory or not Path(url.path).exists():
        return None
    try:
        with closing(sqlite3.connect(f"{Path(url.path).as_uri()}?mode=ro", uri=True, timeout=5.0)) as connection:
            return _version(connection) or None
    except sqlite3.Error as error:
        raise unavailable(url.path, error) from None


def _apply(connection: sqlite3.Connection, path: str) -> None:
    try:
        connection.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError as error:
        raise EngineBusy(f"cannot migrate {path}: {error}; another program is writing to it") from None
    connection.execute("CREATE TABLE IF NOT EXISTS ew_schema (version INTEGER PRIMARY KEY)")
    version, newest = _version(connection), max(migrations())
    if version > newest:
        connection.execute("ROLLBACK")
        raise SchemaMismatch(
            f"{path} has schema version {version}, but this program supports up to {newest};"
            " upgrade Everwork to use this file"
        )
    for number, script in migrations().items():
        if number > version:
            for statement in _split(script):
                connection.execute(statement)
            connection.execute("INSERT INTO ew_schema VALUES (?)", (number,))
    _give_public_names(connection)
    connection.execute("COMMIT")


def _give_public_names(connection: sqlite3.Connection) -> None:
    """Name the views as the documentation does, unless the user has a table, view or index with that name."""
    taken = {str(name).lower() for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    for name, view in PUBLIC_NAMES.items():
        if view in taken and name not in taken:
            connection.execute(f"CREATE VIEW {name} AS SELECT * FROM {view}")  # noqa: S608 - our own names


def _version(connection: sqlite3.Connection) -> int:
    if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'ew_schema'").fetchone() is None:
        return 0
    (version,) = connection.execute("SELECT COALESCE(max(version), 0) FROM ew_schema").fetchone()
    if not isinstance(version, int):
        raise SchemaMismatch(f"the table ew_schema is damaged: {version!r} is not a version; restore a backup")
    return version


def _split(script: str) -> list[str]:
    """The statements of a script; `executescript` would commit between them."""
    statements, pending = [], ""
    for line in script.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            statements.append(pending)
            pending = ""
    return statements
