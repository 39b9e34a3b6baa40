"""The application's own tables, in the same SQLite file or PostgreSQL database as the jobs.

Both accept the same statements: `$1` is a numbered parameter in PostgreSQL and a named one in SQLite.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from typing import Any, Final, Protocol
from urllib.parse import parse_qs, unquote, urlsplit, urlunsplit

from everwork.exceptions import BadConfiguration

TABLES: Final = (
    """CREATE TABLE IF NOT EXISTS giftcards (
        correlation_id TEXT PRIMARY KEY, customer TEXT NOT NULL, email TEXT NOT NULL,
        personal_code TEXT, card_number TEXT UNIQUE, sent_at TEXT)""",
    "CREATE TABLE IF NOT EXISTS personal_codes (code TEXT PRIMARY KEY, correlation_id TEXT NOT NULL UNIQUE)",
)
VIEW: Final = """{create} giftcard_jobs AS
    SELECT key AS id, correlation_id, substr(type, 10) AS stage, attempts, max_attempts,
        CASE state WHEN 'pending' THEN 'queued' WHEN 'failed' THEN 'error' ELSE state END AS status,
        run_at AS scheduled_at, last_error, updated_at
    FROM {schema}ew_jobs WHERE type LIKE 'giftcard.%'"""
"""The jobs in this application's terms; `substr` removes the prefix "giftcard."."""
SETUP_LOCK: Final = 1520

Row = tuple[Any, ...]


class Transaction(Protocol):
    """A transaction; pass its `connection` to `app.using(tx=...)`."""

    @property
    def connection(self) -> Any:
        """The driver's own connection."""
        ...

    async def execute(self, statement: str, *values: object) -> int:
        """Run a statement; returns how many rows it changed."""
        ...

    async def fetch(self, statement: str, *values: object) -> list[Row]:
        """The rows of a query."""
        ...


class Database(Protocol):
    """The database at a store's URL."""

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        """`async with database.transaction() as tx`: commits at the end, rolls back after an error."""
        ...

    async def set_up(self) -> None:
        """Create the tables and the view if they do not exist; the store must have been opened before."""
        ...


def database_of(url: str) -> Database:
    """The database of a store."""
    if url.startswith("sqlite:"):
        return SqliteDatabase(url)
    if url.startswith(("postgresql:", "postgres:")):
        return PostgresDatabase(url)
    raise BadConfiguration(
        "EVERWORK_ENGINE: must be a SQLite or PostgreSQL URL, because this example has its own tables"
    )


class SqliteDatabase:
    """The SQLite file that also holds the jobs."""

    def __init__(self, url: str) -> None:
        self._path = unquote(urlsplit(url).path)[1:]

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """A transaction that takes the write lock when it begins."""
        with closing(sqlite3.connect(self._path, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield _SqliteTransaction(connection)
            connection.execute("COMMIT")

    async def set_up(self) -> None:
        """Create missing tables and views."""
        async with self.transaction() as tx:
            for statement in (*TABLES, VIEW.format(create="CREATE VIEW IF NOT EXISTS", schema="")):
                await tx.execute(statement)


class _SqliteTransaction:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection

    async def execute(self, statement: str, *values: object) -> int:
        return self.connection.execute(statement, _named(values)).rowcount

    async def fetch(self, statement: str, *values: object) -> list[Row]:
        return self.connection.execute(statement, _named(values)).fetchall()


def _named(values: tuple[object, ...]) -> dict[str, object]:
    return {str(at): value for at, value in enumerate(values, 1)}


class PostgresDatabase:
    """The PostgreSQL database that also holds the jobs, in their own schema."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._schema = parse_qs(parts.query).get("schema", ["everwork"])[0]
        self._address = urlunsplit(parts._replace(query=""))

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """A transaction on its own connection."""
        import asyncpg  # noqa: PLC0415 - needed only for PostgreSQL

        connection = await asyncpg.connect(self._address)
        try:
            async with connection.transaction():
                yield _PostgresTransaction(connection)
        finally:
            await connection.close()

    async def set_up(self) -> None:
        """Create missing tables and views, one process at a time."""
        async with self.transaction() as tx:
            await tx.execute("SELECT pg_advisory_xact_lock($1)", SETUP_LOCK)
            view = VIEW.format(create="CREATE OR REPLACE VIEW", schema=f'"{self._schema}".')
            for statement in (*TABLES, view):
                await tx.execute(statement)


class _PostgresTransaction:
    def __init__(self, connection: Any) -> None:
        self.connection = connection

    async def execute(self, statement: str, *values: object) -> int:
        status: str = await self.connection.execute(statement, *values)
        count = status.rpartition(" ")[2]
        return int(count) if count.isdigit() else 0

    async def fetch(self, statement: str, *values: object) -> list[Row]:
        return [tuple(row) for row in await self.connection.fetch(statement, *values)]
