"""Transactions of the code under test: jobs created and completed in them appear on the stage at their commit."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from everwork.app.commits import Commits, DjangoCommits, SessionCommits
from everwork.core.job import NewJob
from everwork.core.leasing import Created, Judged
from everwork.core.outcome import Complete
from everwork.engines.own_connection import (
    NO_TRANSACTION,
    NOT_OPEN,
    Library,
    OwnConnection,
    is_autocommit,
    is_session,
    own_connection,
)
from everwork.engines.sqlite.create import create
from everwork.engines.sqlite.settle import settle
from everwork.engines.sqlite.transaction import Transaction
from everwork.exceptions import InvalidInput
from everwork.runtime.portal import Use
from everwork.service.service import JobService
from everwork.testing.store import ACCEPTED, RehearsalEngine
from everwork.testing.watching import AsyncpgCommits, ConnectionCommits, PsycopgCommits, SqliteCommits

T = TypeVar("T")


class Step(Protocol):
    """One repeatable call inside a transaction: tried when the caller makes it, and applied at the commit."""

    def __call__(self, cursor: sqlite3.Cursor) -> Any:
        """Apply the step to the stage's store, inside the stage's own transaction."""
        ...


class RecordedTransactions:
    """The open transactions of the code under test, with the steps that wait for their commit.

    Each call is tried on the stage's store, after the transaction's earlier steps, to get its result, and undone.
    """

    def __init__(self, store: RehearsalEngine, run: Callable[[Use[JobService, Any]], Any]) -> None:
        self._store = store
        self._run = run
        self._watched: dict[int, tuple[object, Commits[Step]]] = {}
        """By the id of the connection or session. The object is kept, too, so that no other object can get its id."""
        self._in_confirm = threading.local()
        self._is_closed = False

    async def create(self, tx: object, jobs: Sequence[NewJob]) -> list[Created]:
        """Create jobs at the commit; returns their keys now."""
        created: list[Created] = await self._act(tx, CreateStep(list(jobs), self._store.now_ms))
        return created

    async def complete(self, tx: object, completions: Sequence[Complete]) -> list[Judged]:
        """Complete attempts at the commit; returns the verdicts now."""
        judged: list[Judged] = await self._act(tx, CompleteStep(list(completions), self._store.now_ms))
        return judged

    def confirm(self) -> None:
        """Detect commits that a driver announces but does not confirm; called before a query."""
        if getattr(self._in_confirm, "is_set", False):
            return
        self._in_confirm.is_set = True
        try:
            for _, commits in list(self._watched.values()):
                if isinstance(commits, SqliteCommits):
                    commits.confirm()
        finally:
            self._in_confirm.is_set = False

    def close(self) -> None:
        """Stop following connections: commits after the test do not matter."""
        self._is_closed = True
        for _, commits in self._watched.values():
            commits.stop()
        self._watched.clear()

    async def _act(self, tx: object, step: Step) -> Any:
        own = own_connection(tx, ACCEPTED)
        if own.is_asynchronous:
            # A caller that cannot wait cancels the call here, before anything happens on the user's connection.
            await asyncio.sleep(0)
        commits = await self._commits(own)
        answer = self._do([*commits.items, step], is_trial=True)
        commits.add(step)
        return answer

    async def _commits(self, own: OwnConnection) -> Commits[Step]:
        await _begin(own)
        followed = await _followed(own)
        _, commits = self._watched.get(id(followed), (None, None))
        if commits is None:
            commits = await _watch(own, followed, self._commit)
            self._watched[id(followed)] = followed, commits
        return commits

    def _commit(self, steps: Sequence[Step]) -> None:
        if not self._is_closed:
            self._do(steps, is_trial=False)

    def _do(self, steps: Sequence[Step], *, is_trial: bool) -> Any:
        """Apply the steps in order; returns the result of the last one."""

        def act(tx: Transaction) -> Any:
            tx.cursor.execute("SAVEPOINT trial")
            answers = [step(tx.cursor) for step in steps]
            if is_trial:
                (last,) = tx.cursor.execute("SELECT last FROM ew_seq").fetchone()
                tx.cursor.execute("ROLLBACK TO trial")
                tx.cursor.execute("UPDATE ew_seq SET last = max(last, ?)", (last,))  # The keys stay reserved.
            tx.cursor.execute("RELEASE trial")
            tx.woken = tx.finished = not is_trial
            return answers[-1]

        return self._run(lambda _: self._store.service_engine.write(act))


@dataclass
class CreateStep:
    """Creates jobs with the same keys each time."""

    jobs: list[NewJob]
    now_ms: int
    before_first: int | None = None

    def __call__(self, cursor: sqlite3.Cursor) -> list[Created]:
        """Create the jobs, with the keys that the first call reserved."""
        (last,) = cursor.execute("SELECT last FROM ew_seq").fetchone()
        if self.before_first is None:
            self.before_first = last
        cursor.execute("UPDATE ew_seq SET last = ?", (self.before_first,))
        tx = Transaction(cursor, self.now_ms)
        created = create(tx, self.jobs)
        tx.flush()
        cursor.execute("UPDATE ew_seq SET last = max(last, ?)", (last,))
        return created


@dataclass
class CompleteStep:
    """Completes attempts."""

    completions: list[Complete]
    now_ms: int

    def __call__(self, cursor: sqlite3.Cursor) -> list[Judged]:
        """Complete the attempts."""
        tx = Transaction(cursor, self.now_ms)
        judged = settle(tx, self.completions)
        tx.flush()
        return judged


# Connections ------------------------------------------------------------------------------------------


async def _begin(own: OwnConnection) -> None:
    """Begin a transaction if the first statement would begin one; refuse a connection without transactions."""
    connection = own.connection
    match own.library:
        case Library.SQLITE3:
            _begin_sqlite(connection)
        case Library.AIOSQLITE:
            await connection._execute(lambda: _begin_sqlite(connection._conn))  # noqa: SLF001 - see the engine
        case Library.PSYCOPG | Library.ASYNC_PSYCOPG if own.django is None:
            _require_psycopg(connection)
            if connection.info.transaction_status.name == "IDLE":
                begun = connection.execute("SELECT 1")
                await begun if own.is_asynchronous else begun
        case Library.ASYNCPG:
            if connection.is_closed() or not connection.is_in_transaction():
                raise InvalidInput("tx", f"{NO_TRANSACTION}: use `async with connection.transaction()`")
        case Library.SQLALCHEMY | Library.ASYNC_SQLALCHEMY if is_session(connection):
            bind = connection.bind
            if bind is not None and is_autocommit(bind):
                raise InvalidInput("tx", f"{NO_TRANSACTION}: its isolation level is AUTOCOMMIT")


def _begin_sqlite(connection: sqlite3.Connection) -> None:
    try:
        if connection.in_transaction:
            return
        if connection.isolation_level is None or getattr(connection, "autocommit", None) is True:
            raise InvalidInput("tx", f"{NO_TRANSACTION}: execute BEGIN IMMEDIATE first")
        connection.execute("BEGIN IMMEDIATE")
    except sqlite3.ProgrammingError as error:
        raise InvalidInput("tx", f"{NOT_OPEN} of this thread: {error}") from None


def _require_psycopg(connection: Any) -> None:
    if connection.closed:
        raise InvalidInput("tx", NOT_OPEN)
    if connection.autocommit and connection.info.transaction_status.name == "IDLE":
        raise InvalidInput("tx", f"{NO_TRANSACTION}: use `with connection.transaction()`, or turn autocommit off")


async def _followed(own: OwnConnection) -> Any:
    """The object whose commits are followed: the one behind async wrappers and pools."""
    if own.django is not None:
        return own.django
    if own.is_sqlalchemy:
        if is_session(own.connection):
            return own.connection.sync_session if own.is_asynchronous else own.connection
        return await own.sqlalchemy_connection()
    return getattr(own.connection, "_con", own.connection)  # asyncpg pools return a proxy of the connection.


async def _watch(own: OwnConnection, followed: Any, on_commit: Callable[[Sequence[Step]], None]) -> Commits[Step]:
    if own.django is not None:
        return DjangoCommits(followed, on_commit)
    if own.is_sqlalchemy:
        return _watch_sqlalchemy(followed, on_commit)
    match own.library:
        case Library.SQLITE3:
            return SqliteCommits(followed, on_commit)
        case Library.AIOSQLITE:
            watched: Commits[Step] = await followed._execute(  # noqa: SLF001
                lambda: SqliteCommits(followed._conn, on_commit)  # noqa: SLF001
            )
            return watched
        case Library.PSYCOPG | Library.ASYNC_PSYCOPG:
            return PsycopgCommits(followed, on_commit)
        case Library.ASYNCPG:
            return AsyncpgCommits(followed, on_commit)
        case _:
            raise InvalidInput("tx", PSYCOPG2)


def _watch_sqlalchemy(followed: Any, on_commit: Callable[[Sequence[Step]], None]) -> Commits[Step]:
    if is_session(followed):
        return SessionCommits(followed, lambda steps: partial(on_commit, steps))
    return ConnectionCommits(followed, on_commit)


PSYCOPG2: Final = (
    "commits of psycopg2 cannot be detected: rehearse with psycopg, or with SQLAlchemy or Django on psycopg2"
)
