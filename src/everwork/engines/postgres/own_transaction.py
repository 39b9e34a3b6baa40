"""Jobs created and completed inside the user's own transaction, on the user's own connection and driver."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from everwork.core.job import NewJob
from everwork.core.leasing import Created, Judged
from everwork.core.outcome import Complete
from everwork.engines.contract.jobs import JobFlow
from everwork.engines.own_connection import (
    ELSEWHERE,
    NO_TRANSACTION,
    NOT_OPEN,
    OPEN_FIRST,
    Library,
    OtherStore,
    OwnConnection,
    own_connection,
)
from everwork.engines.postgres.create import create_document, created_of, packed
from everwork.engines.postgres.opened import PostgresBase
from everwork.engines.postgres.read import JobStatus
from everwork.engines.postgres.settle import ACCEPTED, completed_document, refusals, rounds_of
from everwork.engines.postgres.statements import statements
from everwork.engines.postgres.wake import FINISHED, channel, payload
from everwork.exceptions import InvalidInput


class PostgresTransactions(PostgresBase, JobFlow):
    """The calls that join a user's transaction. They need the store's URL, but no open store."""

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
        """How to run statements in the transaction, after checking that it is on this store."""
        own = own_connection(transaction, ACCEPTED_CONNECTIONS)
        if own.is_asynchronous:
            # A caller that cannot wait cancels the call here, before anything is sent on the user's connection.
            await asyncio.sleep(0)
        fetch = await fetch_of(own)
        schema = self._url.schema
        document = packed([f"{schema}.store"]).decode()
        [[has_store]] = await fetch("SELECT to_regclass($1::jsonb->>0) IS NOT NULL", document)
        if not has_store:
            problem = f"its database has no tables for jobs in schema {schema!r}"
            raise OtherStore(f"{problem}: it must be a connection to {self._url.shown}; {OPEN_FIRST}")
        if self._opened is not None:
            sql = f"SELECT id::text FROM {schema}.store WHERE $1::jsonb IS NOT NULL"  # noqa: S608 - the name was checked
            [[store_id]] = await fetch(sql, "null")
            if store_id != str(self._opened.store_id):
                raise OtherStore(f"must be a connection to {self._url.shown}, not to another store{ELSEWHERE}")
        return fetch

    def _sql(self, operation: str) -> dict[str, str]:
        return statements(operation, self._url.schema)

    def _now_ms(self) -> int | None:
        return self._clock() if self._clock is not None else None


def _by_document(sql: str) -> str:
    """Make a statement that takes keys take one document instead: drivers disagree on arrays."""
    return sql.replace("ANY($1::bigint[])", "ANY(ARRAY(SELECT k::bigint FROM jsonb_array_elements_text($1::jsonb) k))")


Fetch = Callable[[str, str], Awaitable[Sequence[Any]]]
"""Runs one statement with one document ($1) on the user's connection."""

ACCEPTED_CONNECTIONS: Final = "an asyncpg, psycopg, SQLAlchemy or Django connection or session"
DOCUMENT: Final = "$1::jsonb"


async def fetch_of(own: OwnConnection) -> Fetch:
    """How to run statements on the user's connection; refused if it is not in a transaction and would not begin one."""
    if own.dialect != "postgresql":
        raise OtherStore(f"must be a connection to PostgreSQL, not to {own.dialect}{ELSEWHERE}")
    if own.is_sqlalchemy:
        await own.sqlalchemy_connection()
    return _DRIVERS[own.library](own.connection)


def _asyncpg(connection: Any) -> Fetch:
    if connection.is_closed():
        raise InvalidInput("tx", NOT_OPEN)
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
            rows: Sequence[Any] = cursor.execute(*_psycopg_query(cursor, sql, document)).fetchall()
            return rows

    return fetch


def _async_psycopg(connection: Any) -> Fetch:
    _require_psycopg_transaction(connection)

    async def fetch(sql: str, document: str) -> Sequence[Any]:
        async with connection.cursor(row_factory=_tuples) as cursor:
            await cursor.execute(*_psycopg_query(cursor, sql, document))
            rows: Sequence[Any] = await cursor.fetchall()
            return rows

    return fetch


def _psycopg2(connection: Any) -> Fetch:
    from psycopg2.extensions import TRANSACTION_STATUS_IDLE, cursor  # noqa: PLC0415 - its object is here

    if connection.closed:
        raise InvalidInput("tx", NOT_OPEN)
    if connection.autocommit and connection.get_transaction_status() == TRANSACTION_STATUS_IDLE:
        raise InvalidInput("tx", f"{NO_TRANSACTION}: turn autocommit off")

    async def fetch(sql: str, document: str) -> Sequence[Any]:
        with connection.cursor(cursor_factory=cursor) as opened:
            opened.execute(*_psycopg_query(opened, sql, document))
            rows: Sequence[Any] = opened.fetchall()
            return rows

    return fetch


def _sqlalchemy(connection: Any) -> Fetch:
    async def fetch(sql: str, document: str) -> Sequence[Any]:
        rows: Sequence[Any] = connection.execute(_text(sql), {"document": document}).fetchall()
        return rows

    return fetch


def _async_sqlalchemy(connection: Any) -> Fetch:
    async def fetch(sql: str, document: str) -> Sequence[Any]:
        rows: Sequence[Any] = (await connection.execute(_text(sql), {"document": document})).fetchall()
        return rows

    return fetch


_DRIVERS: Final[Mapping[Library, Callable[[Any], Fetch]]] = {
    Library.ASYNCPG: _asyncpg,
    Library.ASYNC_PSYCOPG: _async_psycopg,
    Library.PSYCOPG: _psycopg,
    Library.PSYCOPG2: _psycopg2,
    Library.ASYNC_SQLALCHEMY: _async_sqlalchemy,
    Library.SQLALCHEMY: _sqlalchemy,
}


def _require_psycopg_transaction(connection: Any) -> None:
    if connection.closed:
        raise InvalidInput("tx", NOT_OPEN)
    is_idle = connection.info.transaction_status.name == "IDLE"
    if connection.autocommit and is_idle:
        raise InvalidInput("tx", f"{NO_TRANSACTION}: use `with connection.transaction()`, or turn autocommit off")


def _psycopg_query(cursor: Any, sql: str, document: str) -> tuple[str, Any]:
    """A statement and its parameters; if the connection uses a raw cursor, parameters are numbered."""
    if any(one.__name__ == "RawCursorMixin" for one in type(cursor).__mro__):
        return sql.replace(DOCUMENT, "$1::text::jsonb"), [document]
    return sql.replace(DOCUMENT, "%(document)s::text::jsonb"), {"document": document}


def _text(sql: str) -> Any:
    from sqlalchemy import text  # noqa: PLC0415 - its object is here, so it is installed

    return text(
        sql.replace(DOCUMENT, "CAST(CAST(:document AS text) AS jsonb)")
        .replace(":", "\\:")
        .replace("\\:document", ":document")
    )


def _tuples(cursor: Any) -> Callable[[Sequence[Any]], tuple[Any, ...]]:  # noqa: ARG001 - psycopg's shape
    return tuple
