"""The connection pool: a few connections, kept busy and replaced after the server was unavailable."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, TypeVar

import asyncpg

from everwork.engines.postgres.errors import DRIVER_ERRORS, ends_connection, is_repeatable, translated
from everwork.engines.postgres.statements import LOCK_TIMEOUT, PLAN
from everwork.engines.postgres.store_url import StoreUrl
from everwork.exceptions import EngineError, EngineUnavailable

CONNECT_SECONDS: Final = 10.0
ANSWER_SECONDS: Final = 60.0
"""After this time the server counts as unavailable or locked."""
REPEATS_MAX: Final = 20
FINISH_SECONDS: Final = 8.0
CLOSE_SECONDS: Final = 1.0

# Overrides the database's defaults: each statement must see what was committed before it.
SESSION: Final = {"default_transaction_isolation": "read committed", "lock_timeout": LOCK_TIMEOUT}

T = TypeVar("T")
Rows = list[Any]


class Connections:
    """A bounded pool. Each call acquires a connection, and releases or terminates it."""

    def __init__(self, url: StoreUrl) -> None:
        self._url = url
        self._idle: list[asyncpg.Connection] = []
        self._capacity = asyncio.Semaphore(url.connections)
        self._is_closed = False
        self._is_drained = False

    async def fetch(self, sql: str, *parameters: object) -> Rows:
        """The rows of one statement, which is one transaction."""
        return await self.run(lambda connection: connection.fetch(sql, *parameters))

    async def read(self, sql: str, *parameters: object) -> Rows:
        """The rows of a statement that changes nothing: repeated once if the connection was lost."""
        try:
            return await self.fetch(sql, *parameters)
        except EngineError as error:
            lost = (OSError, asyncpg.PostgresConnectionError, asyncpg.InterfaceError)
            if not isinstance(error.__cause__, lost) or isinstance(error.__cause__, TimeoutError):
                raise
        return await self.fetch(sql, *parameters)

    async def run(self, act: Callable[[asyncpg.Connection], Awaitable[T]], *, in_transaction: bool = False) -> T:
        """Run one transaction; repeat it if the server rolled it back, for example after a deadlock."""
        for repeat in range(REPEATS_MAX):
            try:
                async with self.acquired() as connection:
                    if self._url.notify and not in_transaction:
                        return await act(connection)
                    return await _in_transaction(connection, act)
            except DRIVER_ERRORS as error:
                if not is_repeatable(error) or repeat == REPEATS_MAX - 1:
                    raise translated(self._url, error) from error
            # Lets the conflicting transaction finish first.
            await asyncio.sleep(random.uniform(0, 0.001 * 2 ** min(repeat, 6)))  # noqa: S311 - keeps no secret
        raise AssertionError("unreachable")

    async def fetch_unsynced(self, sql: str, *parameters: object) -> Rows:
        """The rows of a maintenance statement, which a crash may undo: the commit does not wait for the disk."""

        async def act(connection: asyncpg.Connection) -> Rows:
            await connection.execute("SET LOCAL synchronous_commit = off")
            rows: Rows = await connection.fetch(sql, *parameters)
            return rows

        return await self.run(act, in_transaction=True)

    async def vacuum(self, sql: str) -> None:
        """Run a statement that must not be in a transaction."""
        try:
            async with self.acquired() as connection:
                await connection.execute(sql)
        except DRIVER_ERRORS as error:
            raise translated(self._url, error) from error

    @asynccontextmanager
    async def acquired(self) -> AsyncIterator[asyncpg.Connection]:
        """A connection for as long as it is needed."""
        if self._is_closed:
            raise EngineUnavailable(f"cannot use {self._url.shown}: the engine is closed")
        async with self._capacity:
            connection = await self._idle_or_new()
            try:
                yield connection
            except asyncpg.PostgresError as error:
                if ends_connection(error):
                    connection.terminate()
                else:
                    self._release(connection)
                raise
            except BaseException:
                # Cancelled or lost: a reply may be only partly read.
                connection.terminate()
                raise
            self._release(connection)

    async def close(self) -> None:
        """Wait for the calls that are running, then close."""
        self._is_closed = True
        with suppress(TimeoutError):
            async with asyncio.timeout(FINISH_SECONDS):
                for _ in range(self._url.connections):
                    await self._capacity.acquire()
        idle, self._idle = self._idle, []
        self._is_drained = True
        await asyncio.gather(*(close(connection) for connection in idle))

    async def _idle_or_new(self) -> asyncpg.Connection:
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed():
                return connection
        return await connect(self._url)

    def _release(self, connection: asyncpg.Connection) -> None:
        if self._is_drained:
            connection.terminate()
        elif not connection.is_closed():
            self._idle.append(connection)


BEGIN: Final = "; ".join(
    ("BEGIN ISOLATION LEVEL READ COMMITTED", *(f"SET LOCAL {name} = {value}" for name, value in PLAN.items()))
)


async def _in_transaction(connection: asyncpg.Connection, act: Callable[[asyncpg.Connection], Awaitable[T]]) -> T:
    """With a transaction-mode pooler, a server connection and its settings are ours for one transaction only."""
    await connection.execute(BEGIN)
    try:
        result = await act(connection)
    except asyncpg.PostgresError as error:
        if not ends_connection(error):
            await connection.execute("ROLLBACK")
        raise
    await connection.execute("COMMIT")
    return result


async def connect(url: StoreUrl) -> asyncpg.Connection:
    """A new connection, with the settings that our statements need."""
    settings = {"application_name": "everwork", **SESSION, **PLAN} if url.notify else {}
    connection = await asyncpg.connect(
        url.dsn,
        server_settings=settings,
        timeout=CONNECT_SECONDS,
        command_timeout=ANSWER_SECONDS,
        statement_cache_size=200 if url.notify else 0,
    )
    try:
        await connection.set_type_codec("jsonb", encoder=_jsonb, decoder=_bare, schema="pg_catalog", format="binary")
        if not url.notify:
            # asyncpg introspects each array type once and changes session settings while it does. Done now, in one
            # transaction, this leaves no trace on a server connection shared with other clients.
            async with connection.transaction():
                await connection.fetch("SELECT NULL::bigint[], NULL::int[], NULL::smallint[], NULL::text[]")
    except BaseException:
        connection.terminate()
        raise
    return connection


async def close(connection: asyncpg.Connection) -> None:
    """Close gracefully, but do not wait long."""
    try:
        await connection.close(timeout=CLOSE_SECONDS)
    except DRIVER_ERRORS:
        connection.terminate()


def first(rows: Sequence[Any]) -> Any:
    """The only column of the only row, or None if there is no row."""
    return rows[0][0] if rows else None


def _jsonb(document: bytes) -> bytes:
    return b"\x01" + document


def _bare(wire: bytes) -> bytes:
    return wire[1:]
