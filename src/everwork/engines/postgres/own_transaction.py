"""Jobs created and completed inside the user's own transaction, on the user's own connection and driver."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

from everwork.core.checks import shown
from everwork.core.job import NewJob
from everwork.core.leasing import Created, Judged
from everwork.core.outcome import Complete
from everwork.engines.contract import Clock
from everwork.engines.postgres.create import create_document, created_of, events_of, packed
from everwork.engines.postgres.settle import ACCEPTED, refusals, rounds_of
from everwork.engines.postgres.statements import statements
from everwork.engines.postgres.store_url import StoreUrl
from everwork.engines.postgres.wake import DONE, channel, payload
from everwork.exceptions import InvalidInput


class TransactionContext(NamedTuple):
    """Which store the transaction must be on; the id is known once the engine was open."""

    address: StoreUrl
    store_id: UUID | None
    clock: Clock | None

    def now_ms(self) -> int | None:
        """The instant that a test dictates."""
        return self.clock() if self.clock is not None else None


async def create_in(place: TransactionContext, transaction: object, jobs: Sequence[NewJob]) -> list[Created]:
    """Create jobs that exist, and wake workers, only if the user commits."""
    if not jobs:
        return []
    fetch = await _checked(place, transaction)
    document = create_document(jobs, place.now_ms()).decode()
    [row] = await fetch(statements("create", place.address.schema)["create"], document)
    await _notify(place, fetch, {job.type for job in jobs})
    return created_of(row[0], row[1])


async def complete_in(place: TransactionContext, transaction: object, completions: Sequence[Complete]) -> list[Judged]:
    """Complete attempts if, and only if, the user commits."""
    fetch = await _checked(place, transaction)
    judged: dict[int, Judged] = {}
    for places in rounds_of(completions):
        answers = await _complete(place, fetch, [completions[number] for number in places])
        judged.update((number, answers[completions[number].key]) for number in places)
    await _notify(place, fetch, {DONE, *(event.type for outcome in completions for event in outcome.events)})
    return [judged[number] for number in range(len(completions))]


async def _complete(place: TransactionContext, fetch: Fetch, batch: Sequence[Complete]) -> dict[int, Judged]:
    now_ms, schema = place.now_ms(), place.address.schema
    document: dict[str, Any] = {"done": {str(o.key): [o.attempt, o.result] for o in batch}}
    if now_ms is not None:
        document["now"] = now_ms
    events = events_of(batch, now_ms)
    if events:
        document["events"] = events
    [[accepted]] = await fetch(statements("complete", schema)["complete"], packed(document).decode())
    refused = [outcome for outcome in batch if outcome.key not in accepted]
    judged = dict.fromkeys(accepted, ACCEPTED)
    if refused:
        keys = packed(sorted(outcome.key for outcome in refused)).decode()
        rows = await fetch(_by_document(statements("get", schema)["where"]), keys)
        ends = await fetch(_by_document(statements("settle", schema)["past_ends"]), keys)
        judged |= refusals(refused, rows, ends)
    return judged


def _by_document(sql: str) -> str:
    """A statement that takes keys, taking them as one document instead: drivers disagree on arrays."""
    return sql.replace("ANY($1::bigint[])", "ANY(ARRAY(SELECT k::bigint FROM jsonb_array_elements_text($1::jsonb) k))")


async def _notify(place: TransactionContext, fetch: Fetch, words: set[str]) -> None:
    """NOTIFY is part of the transaction: nobody hears it before the commit, nor after a rollback."""
    if place.address.notify:
        document = packed([channel(place.address), payload(words)]).decode()
        await fetch("SELECT pg_notify($1::jsonb->>0, $1::jsonb->>1)", document)


async def _checked(place: TransactionContext, transaction: object) -> Fetch:
    """How to run statements in the transaction, once it is known to be one on this store."""
    fetch = driver_of(transaction)
    if is_asynchronous(transaction):
        # Whoever cannot wait takes the call back here, before anything is under way on the user's connection.
        await asyncio.sleep(0)
    schema = place.address.schema
    [row] = await fetch("SELECT to_regclass($1::jsonb->>0) IS NOT NULL", packed([f"{schema}.store"]).decode())
    if not row[0]:
        raise InvalidInput(
            "tx",
            f"its database holds no jobs in schema {schema!r}: it must be a connection to {place.address.shown},"
            " on which the application was opened before",
        )
    if place.store_id is not None:
        [row] = await fetch(f"SELECT id::text FROM {schema}.store WHERE $1::jsonb IS NOT NULL", "null")  # noqa: S608
        if row[0] != str(place.store_id):
            raise InvalidInput("tx", f"must be a connection to {place.address.shown}, not to another store")
    return fetch


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
