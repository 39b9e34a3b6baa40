"""The drivers on which a user's transaction may be: how each runs a statement whose only parameter is a document.

None of them is imported here: an object that comes from one says so itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from everwork.core.checks import shown
from everwork.exceptions import InvalidInput

Fetch = Callable[[str, str], Awaitable[Sequence[Any]]]
"""Runs one statement with one document ($1) on the user's connection."""

DOCUMENT: Final = "$1::jsonb"
NO_TRANSACTION: Final = "must be in a transaction"


def driver_of(transaction: object) -> Fetch:
    """How to run statements on what the user gave us; refused if it is in no transaction, nor would begin one."""
    kinds = _kinds(transaction)
    for names, make in _DRIVERS:
        if kinds & names:
            return make(transaction)
    raise InvalidInput(
        "tx", f"must be an asyncpg, psycopg 3 or SQLAlchemy connection or session, not {shown(transaction)}"
    )


def is_asynchronous(transaction: object) -> bool:
    """Whether statements on what the user gave us must be awaited."""
    return any(
        make in (_asyncpg, _async_psycopg, _async_sqlalchemy) for names, make in _DRIVERS if names & _kinds(transaction)
    )


def _kinds(transaction: object) -> set[str]:
    return {f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(transaction).__mro__}


def _asyncpg(connection: Any) -> Fetch:
    if connection.is_closed():
        raise InvalidInput("tx", "must be an open connection")
    if not connection.is_in_transaction():
        raise InvalidInput("tx", f"{NO_TRANSACTION}: use `async with connection.transaction()`")

    async def fetch(sql: str, document: str) -> Sequence[Any]:
        # As text, because a user may have taught the connection another way to write jsonb.
        rows: Sequence[Any] = await connection.fetch(sql.replace(DOCUMENT, "$1::text::jsonb"), document)
        return rows

    return fetch


def _psycopg(connection: Any) -> Fetch:
    _require_psycopg_transaction(connection)

    async def fetch(sql: str, document: str) -> Sequence[Any]:
        with connection.cursor(row_factory=_tuples) as cursor:
            rows: Sequence[Any] = cursor.execute(_psycopg_sql(sql), {"document": document}).fetchall()
            return rows

    return fetch


def _async_psycopg(connection: Any) -> Fetch:
    _require_psycopg_transaction(connection)

    async def fetch(sql: str, document: str) -> Sequence[Any]:
        async with connection.cursor(row_factory=_tuples) as cursor:
            await cursor.execute(_psycopg_sql(sql), {"document": document})
            rows: Sequence[Any] = await cursor.fetchall()
            return rows

    return fetch


def _sqlalchemy(connection: Any) -> Fetch:
    async def fetch(sql: str, document: str) -> Sequence[Any]:
        rows: Sequence[Any] = connection.execute(_text(sql), {"document": document}).fetchall()
        return rows

    _require_sqlalchemy_transaction(connection)
    return fetch


def _async_sqlalchemy(connection: Any) -> Fetch:
    is_session = hasattr(connection, "sync_session")

    async def fetch(sql: str, document: str) -> Sequence[Any]:
        if is_session:  # It may have to connect first, which only it can do itself.
            _require_sqlalchemy_transaction((await connection.connection()).sync_connection)
        rows: Sequence[Any] = (await connection.execute(_text(sql), {"document": document})).fetchall()
        return rows

    if not is_session:
        if connection.sync_connection is None:
            raise InvalidInput("tx", "must be an open connection: use `async with engine.connect()`")
        _require_sqlalchemy_transaction(connection.sync_connection)
    return fetch


_DRIVERS: Final[Sequence[tuple[set[str], Callable[[Any], Fetch]]]] = (
    ({"asyncpg.Connection", "asyncpg.PoolConnectionProxy"}, _asyncpg),
    ({"psycopg.AsyncConnection"}, _async_psycopg),
    ({"psycopg.Connection"}, _psycopg),
    ({"sqlalchemy.AsyncConnection", "sqlalchemy.AsyncSession"}, _async_sqlalchemy),
    ({"sqlalchemy.Connection", "sqlalchemy.Session"}, _sqlalchemy),
)


def _require_psycopg_transaction(connection: Any) -> None:
    if connection.closed:
        raise InvalidInput("tx", "must be an open connection")
    is_idle = connection.info.transaction_status.name == "IDLE"
    if connection.autocommit and is_idle:
        raise InvalidInput("tx", f"{NO_TRANSACTION}: use `with connection.transaction()`, or turn autocommit off")


def _require_sqlalchemy_transaction(connection: Any) -> None:
    """SQLAlchemy begins a transaction by itself, unless it was told to commit every statement."""
    if hasattr(connection, "get_bind"):  # A session.
        bind = connection.get_bind()
        connection = connection.connection() if connection.in_transaction() else bind
    dialect = connection.dialect.name
    if dialect != "postgresql":
        raise InvalidInput("tx", f"must be a connection to PostgreSQL, not to {dialect}")
    level = connection.get_execution_options().get("isolation_level")
    if level == "AUTOCOMMIT" or getattr(connection.dialect, "_on_connect_isolation_level", None) == "AUTOCOMMIT":
        raise InvalidInput("tx", f"{NO_TRANSACTION}: its isolation level is AUTOCOMMIT")


def _psycopg_sql(sql: str) -> str:
    return sql.replace(DOCUMENT, "%(document)s::text::jsonb")


def _text(sql: str) -> Any:
    from sqlalchemy import text  # noqa: PLC0415 - its object is here, so it is installed

    return text(
        sql.replace(DOCUMENT, "CAST(CAST(:document AS text) AS jsonb)")
        .replace(":", "\\:")
        .replace("\\:document", ":document")
    )


def _tuples(cursor: Any) -> Callable[[Sequence[Any]], tuple[Any, ...]]:  # noqa: ARG001 - psycopg's shape
    return tuple
