"""Jobs created and completed inside the user's own transaction, on the user's own connection and driver."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from everwork.core.checks import shown
from everwork.core.job import NewJob
from everwork.core.leasing import Created, Judged
from everwork.core.outcome import Complete
from everwork.engines.contract.jobs import JobFlow
from everwork.engines.postgres.create import create_document, created_of, packed
from everwork.engines.postgres.opened import PostgresBase
from everwork.engines.postgres.read import JobStatus
from everwork.engines.postgres.settle import ACCEPTED, completed_document, refusals, rounds_of
from everwork.engines.postgres.statements import statements
from everwork.engines.postgres.wake import FINISHED, channel, payload
from everwork.exceptions import InvalidInput


class PostgresTransactions(PostgresBase, JobFlow):
    """The calls that join a transaction of the user's. They need the store's URL, but no open store."""

    async def create_in(self, transaction: object, jobs: Sequence[NewJob]) -> list[Created]:
        if not jobs:
            return []
        fetch = await self._checked(transaction)
        document = create_document(jobs, self._now_ms()).decode()
        [(new_keys, keys, _)] = await fetch(self._sql("create")["create"], document)
        await self._notify(fetch, {job.type for job in jobs})
        return created_of(new_keys, keys)

    async def complete_in(self, transaction: object, completions: Sequence[Complete]) -> list[Judged]:
        fetch = await self._checked(transaction)
        judged: dict[int, Judged] = {}
        for indexes in rounds_of(completions):
            answers = await self._complete(fetch, [completions[index] for index in indexes])
            judged.update((index, answers[completions[index].key]) for index in indexes)
        await self._notify(fetch, {FINISHED, *(event.type for outcome in completions for event in outcome.events)})
        return [judged[index] for index in range(len(completions))]

    async def _complete(self, fetch: Fetch, completions: Sequence[Complete]) -> dict[int, Judged]:
        now_ms = self._now_ms()
        document = completed_document(completions, now_ms)
        if now_ms is not None:
            document["now"] = now_ms
        [[accepted]] = await fetch(self._sql("complete")["complete"], packed(document).decode())
        refused = [outcome for outcome in completions if outcome.key not in accepted]
        judged = dict.fromkeys(accepted, ACCEPTED)
        if refused:
            keys = packed(sorted(outcome.key for outcome in refused)).decode()
            rows = await fetch(_by_document(self._sql("get")["where"]), keys)
            ends = await fetch(_by_document(self._sql("settle")["past_ends"]), keys)
            judged |= refusals(refused, [JobStatus(*row) for row in rows], ends)
        return judged

    async def _notify(self, fetch: Fetch, words: set[str]) -> None:
        """NOTIFY is part of the transaction: it is sent at the commit, and not after a rollback."""
        if self._url.notify:
            document = packed([channel(self._url), payload(words)]).decode()
            await fetch("SELECT pg_notify($1::jsonb->>0, $1::jsonb->>1)", document)

    async def _checked(self, transaction: object) -> Fetch:
        """How to run statements in the transaction, once it is known to be one on this store."""
        fetch = driver_of(transaction)
        if is_asynchronous(transaction):
            # A caller that cannot wait cancels the call here, before anything is under way on the user's connection.
            await asyncio.sleep(0)
        schema = self._url.schema
        document = packed([f"{schema}.store"]).decode()
        [[has_store]] = await fetch("SELECT to_regclass($1::jsonb->>0) IS NOT NULL", document)
        if not has_store:
            raise InvalidInput(
                "tx",
                f"its database holds no jobs in schema {schema!r}: it must be a connection to {self._url.shown},"
                " on which the application was opened before",
            )
        if self._opened is not None:
            sql = f"SELECT id::text FROM {schema}.store WHERE $1::jsonb IS NOT NULL"  # noqa: S608 - the name was checked
            [[store_id]] = await fetch(sql, "null")
            if store_id != str(self._opened.store_id):
                raise InvalidInput("tx", f"must be a connection to {self._url.shown}, not to another store")
        return fetch

    def _sql(self, operation: str) -> dict[str, str]:
        return statements(operation, self._url.schema)

    def _now_ms(self) -> int | None:
        return self._clock() if self._clock is not None else None


def _by_document(sql: str) -> str:
    """A statement that takes keys, taking them as one document instead: drivers disagree on arrays."""
    return sql.replace("ANY($1::bigint[])", "ANY(ARRAY(SELECT k::bigint FROM jsonb_array_elements_text($1::jsonb) k))")


Fetch = Callable[[str, str], Awaitable[Sequence[Any]]]
"""Runs one statement with one document ($1) on the user's connection."""

DOCUMENT: Final = "$1::jsonb"
NO_TRANSACTION: Final = "must be in a transaction"


def driver_of(transaction: object) -> Fetch:
    """How to run statements on the user's connection; refused if it is in no transaction and would begin none."""
    kinds = _kinds(transaction)
    for names, make in _DRIVERS:
        if kinds & names:
            return make(transaction)
    raise InvalidInput(
        "tx", f"must be an asyncpg, psycopg 3 or SQLAlchemy connection or session, not {shown(transaction)}"
    )


def is_asynchronous(transaction: object) -> bool:
    """Whether statements on the user's connection must be awaited."""
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
        # As text, because the user may have set another codec for jsonb.
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
        if is_session:  # It may have to connect first, which only the session can do.
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
    """SQLAlchemy begins a transaction automatically, unless its isolation level is AUTOCOMMIT."""
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
