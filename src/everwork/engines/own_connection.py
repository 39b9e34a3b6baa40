"""The caller's own connection, `tx`: detects its library and driver."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from everwork.core.checks import shown
from everwork.exceptions import InvalidInput

NO_TRANSACTION: Final = "must be in a transaction"
NOT_OPEN: Final = "must be an open connection"
OPEN_FIRST: Final = "call `await app.open()` or `app.sync.open()` at startup"
ELSEWHERE: Final = "; to enqueue jobs when a transaction of another database commits, use app.after_commit(session)"


class OtherStore(InvalidInput):
    """The database behind a `tx` does not hold the jobs of this store."""

    def __init__(self, problem: str) -> None:
        super().__init__("tx", problem)


class Library(Enum):
    """The library that a connection or session belongs to."""

    SQLITE3 = "sqlite3"
    AIOSQLITE = "aiosqlite"
    PSYCOPG = "psycopg"
    ASYNC_PSYCOPG = "psycopg (async)"
    PSYCOPG2 = "psycopg2"
    ASYNCPG = "asyncpg"
    SQLALCHEMY = "SQLAlchemy"
    ASYNC_SQLALCHEMY = "SQLAlchemy (async)"


_CLASSES: Final = (
    (Library.SQLITE3, {"sqlite3.Connection"}),
    (Library.AIOSQLITE, {"aiosqlite.Connection"}),
    (Library.ASYNC_PSYCOPG, {"psycopg.AsyncConnection"}),
    (Library.PSYCOPG, {"psycopg.Connection"}),
    (Library.PSYCOPG2, {"psycopg2.connection"}),
    (Library.ASYNCPG, {"asyncpg.Connection", "asyncpg.PoolConnectionProxy"}),
    (Library.ASYNC_SQLALCHEMY, {"sqlalchemy.AsyncConnection", "sqlalchemy.AsyncSession"}),
    (Library.SQLALCHEMY, {"sqlalchemy.Connection", "sqlalchemy.Session"}),
)
"""Classes are listed by name, so that no library is imported unless the caller uses it."""
_TRANSACTIONS: Final = {
    "sqlalchemy.SessionTransaction",
    "sqlalchemy.AsyncSessionTransaction",
    "sqlalchemy.Transaction",
    "sqlalchemy.AsyncTransaction",
    "psycopg.BaseTransaction",
}
"""The object that `with connection.begin() as tx` returns."""
_SCOPED_SESSIONS: Final = {"sqlalchemy.scoped_session", "sqlalchemy.async_scoped_session"}
_ASYNCHRONOUS: Final = {Library.AIOSQLITE, Library.ASYNC_PSYCOPG, Library.ASYNCPG, Library.ASYNC_SQLALCHEMY}
_POSTGRES: Final = {Library.PSYCOPG, Library.ASYNC_PSYCOPG, Library.PSYCOPG2, Library.ASYNCPG}


@dataclass(frozen=True, slots=True)
class OwnConnection:
    """The caller's connection or session; `django`: the Django connection that wraps it, if any."""

    library: Library
    connection: Any
    django: Any = None

    @property
    def is_asynchronous(self) -> bool:
        """Whether statements on this connection must be awaited."""
        return self.library in _ASYNCHRONOUS

    @property
    def is_sqlalchemy(self) -> bool:
        """Whether the connection belongs to SQLAlchemy, with any driver."""
        return self.library in (Library.SQLALCHEMY, Library.ASYNC_SQLALCHEMY)

    @property
    def dialect(self) -> str:
        """The database behind the connection, by SQLAlchemy's name: `postgresql`, `sqlite`, ..."""
        if self.is_sqlalchemy:
            return str(sqlalchemy_bind(self.connection).engine.dialect.name)
        return "postgresql" if self.library in _POSTGRES else "sqlite"

    async def sqlalchemy_connection(self) -> Any:
        """SQLAlchemy's synchronous connection, in a transaction; unwraps sessions and asynchronous connections."""
        given = self.connection
        if is_session(given):
            connection = given.connection()
            connection = (await connection).sync_connection if self.is_asynchronous else connection
        else:
            connection = given.sync_connection if self.is_asynchronous else given
            if connection is None or connection.closed:
                raise InvalidInput("tx", f"{NOT_OPEN}: use `with engine.connect()`")
            await self._begin(connection)
        if is_autocommit(connection):
            raise InvalidInput("tx", f"{NO_TRANSACTION}: its isolation level is AUTOCOMMIT")
        return connection

    async def _begin(self, connection: Any) -> None:
        """Begin a transaction, as SQLAlchemy does with the first statement."""
        if connection.in_transaction():
            return
        if self.is_asynchronous:
            await self.connection.run_sync(lambda sync: sync.begin())
        else:
            connection.begin()


def own_connection(tx: object, accepted: str, field: str = "tx") -> OwnConnection:
    """The connection that `tx` stands for; an unsupported object is refused with a list of what is accepted."""
    given: Any = tx
    kinds = _kinds(given)
    if kinds & _SCOPED_SESSIONS:
        return own_connection(given.registry(), accepted, field)
    if kinds & _TRANSACTIONS:
        if getattr(given, "is_active", True) is False:
            raise InvalidInput(field, "must be an open transaction; this one has ended, or must be rolled back")
        return own_connection(getattr(given, "session", None) or given.connection, accepted, field)
    django = django_connection(given)
    if django is not None:
        found = own_connection(_under_django(django), accepted, field)
        return OwnConnection(found.library, found.connection, django)
    for library, classes in _CLASSES:
        if kinds & classes:
            return OwnConnection(library, given)
    raise InvalidInput(field, f"must be {accepted}, not {shown(tx)}")


def django_connection(given: Any) -> Any:
    """A Django connection of this thread; None for anything else."""
    kinds = _kinds(given)
    if "django.ConnectionProxy" in kinds:
        from django.db import connections  # noqa: PLC0415 - its object is here, so it is installed

        return connections[given.alias]
    return given if "django.BaseDatabaseWrapper" in kinds else None


def is_scoped(given: object) -> bool:
    """Whether the object stands for a different session or connection in each thread or task."""
    return bool(_kinds(given) & {*_SCOPED_SESSIONS, "django.ConnectionProxy"})


def is_session(given: Any) -> bool:
    """Whether the object is a SQLAlchemy session, not a connection."""
    return hasattr(given, "get_bind")


def sqlalchemy_bind(given: Any) -> Any:
    """The engine or connection that a session is bound to; a connection is returned unchanged."""
    if not is_session(given):
        return given
    from sqlalchemy.exc import UnboundExecutionError  # noqa: PLC0415 - its object is here, so it is installed

    try:
        return given.get_bind()
    except UnboundExecutionError:
        raise InvalidInput(
            "tx", "must be a session with one database: pass `session.connection(...)` instead"
        ) from None


def is_autocommit(connection: Any) -> bool:
    """Whether this connection or engine is in autocommit mode, so that SQLAlchemy begins no transaction."""
    level = connection.get_execution_options().get("isolation_level")
    return (level or getattr(connection.dialect, "_on_connect_isolation_level", None)) == "AUTOCOMMIT"


def _under_django(wrapper: Any) -> object:
    """The driver's connection, read without a call: Django refuses calls where an event loop runs."""
    is_begun = wrapper.in_atomic_block or not wrapper.autocommit
    if wrapper.connection is None or not is_begun:
        raise InvalidInput("tx", f"{NO_TRANSACTION}: use `with transaction.atomic()`")
    connection: object = wrapper.connection
    return connection


def _kinds(given: object) -> set[str]:
    """The names of the object's classes, each with its top-level package.

    Uses `__class__`, because tracing tools wrap connections in proxies.
    """
    classes: Iterable[type] = given.__class__.__mro__
    return {f"{one.__module__.partition('.')[0]}.{one.__name__}" for one in classes}
