"""Jobs created and completed inside the user's own transaction, on the user's own connection."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Sequence
from typing import TypeVar

from everwork.codec.local_file import unavailable
from everwork.core.job import NewJob
from everwork.core.leasing import Created, Judged
from everwork.core.outcome import Complete
from everwork.engines.contract.jobs import JobFlow
from everwork.engines.sqlite.connections import BUSY
from everwork.engines.sqlite.create import create
from everwork.engines.sqlite.opened import SqliteBase
from everwork.engines.sqlite.settle import settle
from everwork.engines.sqlite.store_url import StoreUrl
from everwork.engines.sqlite.transaction import Transaction
from everwork.exceptions import EngineBusy, InvalidInput

T = TypeVar("T")


class SqliteTransactions(SqliteBase, JobFlow):
    """Creating and completing jobs in the caller's transaction."""

    async def create_in(self, transaction: object, jobs: Sequence[NewJob]) -> list[Created]:
        return _act_in(self._url, transaction, self._clock(), lambda tx: create(tx, jobs))

    async def complete_in(self, transaction: object, completions: Sequence[Complete]) -> list[Judged]:
        return _act_in(self._url, transaction, self._clock(), lambda tx: settle(tx, completions))


def _act_in(url: StoreUrl, transaction: object, now_ms: int, act: Callable[[Transaction], T]) -> T:
    connection = _checked(url, transaction)
    cursor = connection.cursor()
    cursor.row_factory = None
    try:
        if not connection.in_transaction:
            cursor.execute("BEGIN IMMEDIATE")  # Python would begin a deferred one.
        return _all_or_none(Transaction(cursor, now_ms), act)
    except sqlite3.OperationalError as error:
        if "no such table" in str(error):
            raise InvalidInput(
                "tx", f"{url.path} has no tables for jobs yet: open the application before the transaction"
            ) from None
        if error.sqlite_errorcode & 0xFF not in BUSY:
            raise unavailable(url.path, error) from error
        raise EngineBusy(
            f"tx: {error}; begin the transaction with BEGIN IMMEDIATE, so that it waits for its turn to write"
        ) from error


def _checked(url: StoreUrl, transaction: object) -> sqlite3.Connection:
    if not isinstance(transaction, sqlite3.Connection):
        raise InvalidInput("tx", f"must be a sqlite3.Connection on {url.path}, not {type(transaction).__name__}")
    if transaction.text_factory is not str:
        raise InvalidInput("tx", "must have text_factory str")
    try:
        cursor = transaction.cursor()
        cursor.row_factory = None
        files = cursor.execute("PRAGMA database_list").fetchall()
    except sqlite3.ProgrammingError as error:
        raise InvalidInput("tx", f"must be an open connection of this thread: {error}") from None
    path = next((path for _, name, path in files if name == "main"), "")
    if not path or os.path.realpath(path) != url.path:
        raise InvalidInput("tx", f"must be a connection to {url.path}, not to {path or 'memory'}")
    # Python begins a transaction before a write, unless it is configured not to.
    begins_none = transaction.isolation_level is None or getattr(transaction, "autocommit", None) is True
    if not transaction.in_transaction and begins_none:
        raise InvalidInput("tx", "must be in a transaction: execute BEGIN IMMEDIATE first")
    return transaction


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
