"""Jobs created and completed inside the user's own transaction, on the user's own connection."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from everwork.codec.local_file import unavailable
from everwork.core.job import NewJob
from everwork.core.leasing import Created, Judged
from everwork.core.outcome import Complete
from everwork.engines.contract.jobs import JobFlow
from everwork.engines.own_connection import (
    ELSEWHERE,
    NO_TRANSACTION,
    NOT_OPEN,
    OPEN_FIRST,
    OtherStore,
    OwnConnection,
    own_connection,
)
from everwork.engines.sqlite.create import create
from everwork.engines.sqlite.settle import settle
from everwork.engines.sqlite.statements import statements
from everwork.engines.sqlite.store.connections import BUSY
from everwork.engines.sqlite.store.opened import SqliteBase
from everwork.engines.sqlite.store_url import StoreUrl
from everwork.engines.sqlite.transaction import Transaction
from everwork.exceptions import EngineBusy, InvalidInput

T = TypeVar("T")

SQL = statements("shared")


class SqliteTransactions(SqliteBase, JobFlow):
    """Creating and completing jobs in the caller's transaction."""

    async def create_in(self, transaction: object, jobs: Sequence[NewJob]) -> list[Created]:
        return await self._act_in(transaction, lambda tx: create(tx, jobs))

    async def complete_in(self, transaction: object, completions: Sequence[Complete]) -> list[Judged]:
        return await self._act_in(transaction, lambda tx: settle(tx, completions))

    async def _act_in(self, transaction: object, act: Callable[[Transaction], T]) -> T:
        if self._url.in_memory:
            raise OtherStore(f"cannot be joined: the jobs are in memory{ELSEWHERE}")
        own = own_connection(transaction, f"a sqlite3, aiosqlite, SQLAlchemy or Django connection to {self._url.path}")
        if own.is_asynchronous:
            # A caller that cannot wait cancels the call here, before anything is sent on the user's connection.
            await asyncio.sleep(0)
        connection = await _driver_connection(self._url, own)
        now_ms = self._clock()
        if isinstance(connection, sqlite3.Connection):
            return _act_in(self._url, connection, now_ms, act)
        return await _in_its_thread(connection, lambda driver: _act_in(self._url, driver, now_ms, act))


async def _driver_connection(url: StoreUrl, own: OwnConnection) -> Any:
    """The sqlite3 or aiosqlite connection under the user's connection or session; getting it from a session begins a
    transaction.
    """
    if own.dialect != "sqlite":
        raise OtherStore(f"must be a connection to {url.path}, not to {own.dialect}{ELSEWHERE}")
    if not own.is_sqlalchemy:
        return own.connection
    driver = (await own.sqlalchemy_connection()).connection.driver_connection
    if not isinstance(driver, sqlite3.Connection) and not own.is_asynchronous:
        raise InvalidInput("tx", f"must use the driver sqlite3 or aiosqlite, not {type(driver).__module__}")
    return driver


async def _in_its_thread(connection: Any, act: Callable[[sqlite3.Connection], T]) -> T:
    """Run an action where aiosqlite runs its statements: a sqlite3 connection belongs to one thread."""
    try:
        # Not public: aiosqlite only offers single statements, and no other statement may run in between.
        result: T = await connection._execute(lambda: act(connection._conn))  # noqa: SLF001
    except InvalidInput:
        raise  # Also a ValueError, but raised by the action.
    except ValueError as error:
        raise InvalidInput("tx", f"{NOT_OPEN}: {error}") from None
    return result


def _act_in(url: StoreUrl, connection: sqlite3.Connection, now_ms: int, act: Callable[[Transaction], T]) -> T:
    _require_transaction(url, connection)
    cursor = connection.cursor()
    cursor.row_factory = None
    try:
        with _write_lock(connection, cursor):
            return _all_or_none(Transaction(cursor, now_ms), act)
    except sqlite3.OperationalError as error:
        if "no such table" in str(error):
            raise OtherStore(f"{url.path} has no tables for jobs yet: {OPEN_FIRST}") from None
        if error.sqlite_errorcode & 0xFF not in BUSY:
            raise unavailable(url.path, error) from error
        raise EngineBusy(
            f"tx: {error}; begin the transaction with BEGIN IMMEDIATE, so that it waits for its turn to write"
        ) from error


def _require_transaction(url: StoreUrl, connection: sqlite3.Connection) -> None:
    if connection.text_factory is not str:
        raise InvalidInput("tx", "must have text_factory str")
    try:
        cursor = connection.cursor()
        cursor.row_factory = None
        files = cursor.execute("PRAGMA database_list").fetchall()
    except sqlite3.ProgrammingError as error:
        raise InvalidInput("tx", f"must be an open connection of this thread: {error}") from None
    path = next((path for _, name, path in files if name == "main"), "")
    if not path or os.path.realpath(path) != url.path:
        raise OtherStore(f"must be a connection to {url.path}, not to {path or 'memory'}{ELSEWHERE}")
    # Python begins a transaction before a write, unless it is configured not to.
    begins_none = connection.isolation_level is None or getattr(connection, "autocommit", None) is True
    if not connection.in_transaction and begins_none:
        raise InvalidInput("tx", f"{NO_TRANSACTION}: execute BEGIN IMMEDIATE first")


@contextmanager
def _write_lock(connection: sqlite3.Connection, cursor: sqlite3.Cursor) -> Iterator[None]:
    """Take the lock first: a transaction that reads before it writes fails if another connection commits in between.

    If the action fails, a transaction that was started here is rolled back: the caller would not know that it holds the
    lock.
    """
    was_begun = connection.in_transaction
    cursor.execute(SQL["take_write_lock"] if was_begun else "BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        if not was_begun:
            connection.rollback()
        raise


def _all_or_none(tx: Transaction, act: Callable[[Transaction], T]) -> T:
    """Run an action in a savepoint: a failure must not leave half a job in the caller's transaction."""
    tx.cursor.execute("SAVEPOINT everwork_step")
    try:
        answer = act(tx)
        tx.flush()
    except BaseException:
        tx.cursor.execute("ROLLBACK TO everwork_step")
        raise
    finally:
        tx.cursor.execute("RELEASE everwork_step")
    return answer
