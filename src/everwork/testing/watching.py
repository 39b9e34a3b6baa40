"""Detects the end of the caller's transactions for a stage, with drivers that do not report it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator
from inspect import iscoroutinefunction
from threading import get_ident
from typing import Any, Generic, TypeVar

from everwork.app.commits import OnCommit

T = TypeVar("T")


class StatementCommits(Generic[T]):
    """Items that wait for the end of a transaction, detected by the statements on its connection.

    A subclass passes each statement to `note`, and undoes its changes to the connection in `stop`.
    """

    def __init__(self, on_commit: OnCommit[T]) -> None:
        self._on_commit = on_commit
        self._items: list[T] = []
        self._savepoints: list[tuple[str, int]] = []
        """The savepoints set since the first item, each with the number of items before it."""

    @property
    def items(self) -> list[T]:
        """The items that would be committed now."""
        return list(self._items)

    def add(self, item: T) -> None:
        """Add an item."""
        self._items.append(item)

    def note(self, statement: str, status: str = "") -> None:
        """Record a statement. `status` is the server's reply: `ROLLBACK` to a COMMIT after an error."""
        words = statement.partition(";")[0].replace('"', "").split()
        match [word.upper() for word in words[:2]]:
            case ["SAVEPOINT", name]:
                self._savepoints.append((name, len(self._items)))
            case ["RELEASE", _]:
                self._release(words[-1].upper())
            case ["ROLLBACK", "TO" | "TRANSACTION" | "WORK"] if len(words) > 2:
                self._roll_back_to(words[-1].upper())
            case ["COMMIT" | "END", *_]:
                self._end(is_committed=status != "ROLLBACK")
            case ["ROLLBACK" | "ABORT" | "BEGIN" | "START", *_]:  # Items left at a BEGIN: the COMMIT failed.
                self._end(is_committed=False)
            case _:
                pass

    def stop(self) -> None:
        """Stop following the connection."""

    def _release(self, name: str) -> None:
        at = self._index(name)
        if at is not None:
            del self._savepoints[at:]

    def _roll_back_to(self, name: str) -> None:
        """Drop the items after a savepoint; an unknown savepoint was set before the first item."""
        at = self._index(name)
        del self._items[0 if at is None else self._savepoints[at][1] :]
        del self._savepoints[0 if at is None else at + 1 :]

    def _index(self, name: str) -> int | None:
        return next((at for at in reversed(range(len(self._savepoints))) if self._savepoints[at][0] == name), None)

    def _end(self, *, is_committed: bool) -> None:
        items, self._items, self._savepoints = self._items, [], []
        if is_committed and items:
            self._on_commit(items)


class AsyncpgCommits(StatementCommits[T]):
    """For an asyncpg connection, which passes every statement that ends a transaction to its own `execute`."""

    def __init__(self, connection: Any, on_commit: OnCommit[T]) -> None:
        super().__init__(on_commit)
        watch = self.note
        self._connection, self._class = connection, type(connection)

        class Watched(self._class):  # type: ignore[name-defined,misc]
            """The class of a followed connection: asyncpg connections cannot be given new attributes."""

            __slots__ = ()

            async def execute(self, query: str, *arguments: Any, timeout: float | None = None) -> str:
                status: str = await super().execute(query, *arguments, timeout=timeout)
                watch(query, status)
                return status

        connection.__class__ = Watched

    def stop(self) -> None:
        """Stop following the connection."""
        self._connection.__class__ = self._class


class PsycopgCommits(StatementCommits[T]):
    """For a psycopg connection, async or not: follows its own statements and the statements of its cursors."""

    def __init__(self, connection: Any, on_commit: OnCommit[T]) -> None:
        super().__init__(on_commit)
        self._connection = connection
        self._cursor_factory = connection.cursor_factory
        self._before = vars(connection).get("_exec_command")
        execute = connection._exec_command  # noqa: SLF001 - psycopg has no public place to follow `commit()`

        def watched(command: bytes | str, *arguments: Any) -> Generator[Any, Any, Any]:
            result = yield from execute(command, *arguments)
            status = getattr(result, "command_status", None) or b""
            self.note(_text(command), status.decode())
            return result

        connection._exec_command = watched  # noqa: SLF001
        connection.cursor_factory = self._watched_cursor()

    def stop(self) -> None:
        """Stop following the connection."""
        _restore(self._connection, "_exec_command", self._before)
        self._connection.cursor_factory = self._cursor_factory

    def _watched_cursor(self) -> type:
        note, factory = self.note, self._cursor_factory

        class Watched(factory):  # type: ignore[misc,valid-type]
            """A cursor whose statements are recorded."""

            def execute(self, query: Any, *arguments: Any, **options: Any) -> Any:
                cursor = super().execute(query, *arguments, **options)
                note(_text(query), self.statusmessage or "")
                return cursor

        class AsyncWatched(factory):  # type: ignore[misc,valid-type]
            """An async cursor whose statements are recorded."""

            async def execute(self, query: Any, *arguments: Any, **options: Any) -> Any:
                cursor = await super().execute(query, *arguments, **options)
                note(_text(query), self.statusmessage or "")
                return cursor

        return AsyncWatched if iscoroutinefunction(factory.execute) else Watched


def _text(query: Any) -> str:
    """A statement as text; empty for a composed one, which never ends a transaction."""
    return query.decode() if isinstance(query, bytes) else query if isinstance(query, str) else ""


class SqliteCommits(StatementCommits[T]):
    """For a sqlite3 connection. Its trace callback runs before each statement, so a COMMIT is confirmed later.

    If a COMMIT fails and the connection is then closed without a rollback, the transaction counts as committed.
    """

    def __init__(self, connection: sqlite3.Connection, on_commit: OnCommit[T]) -> None:
        super().__init__(on_commit)
        self._connection = connection
        self._is_committing = False
        self._thread = get_ident()
        connection.set_trace_callback(self._trace)

    def confirm(self) -> None:
        """Check whether the transaction has ended; called before the stage is queried."""
        if not self._items:
            return
        if not self._is_open:
            self._end(is_committed=self._is_committing)
        elif self._thread == get_ident():  # In another thread, the COMMIT may still be in progress.
            self._is_committing = False

    def _trace(self, statement: str) -> None:
        verb = statement.split(maxsplit=1)[0].upper() if statement.strip() else ""
        if verb == "BEGIN":  # The previous transaction has ended.
            self._end(is_committed=self._is_committing)
        self._thread = get_ident()
        self._is_committing = verb in ("COMMIT", "END")
        if not self._is_committing:  # A COMMIT that fails leaves the transaction open.
            self.note(statement)

    @property
    def _is_open(self) -> bool:
        try:
            return self._connection.in_transaction
        except sqlite3.ProgrammingError:  # The connection is closed.
            return False


class ConnectionCommits(Generic[T]):
    """For a SQLAlchemy connection. Its `commit` event comes before the commit, which can still fail."""

    def __init__(self, connection: Any, on_commit: OnCommit[T]) -> None:
        from sqlalchemy import event  # noqa: PLC0415 - the connection shows that it is installed

        self._connection = connection
        self._on_commit = on_commit
        self._entries: list[tuple[object, T]] = []
        self._before = vars(connection).get("_commit_impl")
        commit = connection._commit_impl  # noqa: SLF001 - SQLAlchemy has no event after the commit of a connection

        def watched() -> None:
            items, self._entries = self.items, []
            commit()
            if items:
                self._on_commit(items)

        connection._commit_impl = watched  # noqa: SLF001
        self._listeners: dict[str, Callable[..., None]] = {
            "rollback": lambda _: self._entries.clear(),
            "savepoint": lambda *_: self._adopt(),
            "release_savepoint": lambda *_: self._release(),
            "rollback_savepoint": lambda *_: self._roll_back(),
        }
        for name, listener in self._listeners.items():
            event.listen(connection, name, listener)

    @property
    def items(self) -> list[T]:
        """The items that would be committed now."""
        return [item for _, item in self._entries]

    def add(self, item: T) -> None:
        """Add an item."""
        self._entries.append((self._connection.get_nested_transaction(), item))

    def stop(self) -> None:
        """Stop following the connection."""
        from sqlalchemy import event  # noqa: PLC0415 - the connection shows that it is installed

        self._entries = []
        for name, listener in self._listeners.items():
            event.remove(self._connection, name, listener)
        _restore(self._connection, "_commit_impl", self._before)

    def _adopt(self) -> None:
        """Assign the items of a released savepoint to the enclosing savepoint, which is now the current one."""
        current = self._connection.get_nested_transaction()
        self._entries = [(current if owner is _RELEASED else owner, item) for owner, item in self._entries]

    def _release(self) -> None:
        self._adopt()
        current = self._connection.get_nested_transaction()
        self._entries = [(_RELEASED if owner is current else owner, item) for owner, item in self._entries]

    def _roll_back(self) -> None:
        self._adopt()
        current = self._connection.get_nested_transaction()
        self._entries = [entry for entry in self._entries if entry[0] is not current]


_RELEASED = object()


def _restore(connection: Any, name: str, before: object) -> None:
    """Restore the connection's own method, or the replacement by another stage that also follows the connection."""
    if before is None:
        vars(connection).pop(name, None)
    else:
        setattr(connection, name, before)
