"""The open store that every call works on, and how it is opened: check the server, migrate, connect."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from uuid import UUID

import asyncpg

from everwork.core.job import NewJob
from everwork.engines.contract import Clock
from everwork.engines.postgres.claims import Marks
from everwork.engines.postgres.connections import Connections, close, connect
from everwork.engines.postgres.create import create_document, packed, plain_values
from everwork.engines.postgres.errors import DRIVER_ERRORS, translated
from everwork.engines.postgres.migrate import check_server, migrate, migrations, stored_version
from everwork.engines.postgres.receivers import Receivers
from everwork.engines.postgres.statements import statements
from everwork.engines.postgres.store_url import StoreUrl
from everwork.engines.postgres.wake import Listener, Notifier, Wakeup
from everwork.engines.take_back import TakeBack
from everwork.engines.values import Schema
from everwork.exceptions import EngineError, EngineUnavailable

SETTINGS = ("server_version", "fsync", "synchronous_commit", "full_page_writes", "max_connections")
START = (0, 0, 0)
WARM_AFTER_SECONDS = 0.2
"""Commands and short programs end earlier, and the first calls of others find their connection free."""


@dataclass(slots=True)
class SweepState:
    """The progress of the sweep: the last finished job it read, when it last tidied up, and what is still to vacuum."""

    after: tuple[int, int, int] = START
    is_thorough: bool = True
    """Whether this pass reads every finished job, not only the oldest of each queue and state."""
    tidied_at_ms: int = 0
    unvacuumed: int = 0
    vacuuming: asyncio.Task[None] | None = None


@dataclass(slots=True)
class OpenStore:
    """An open store: its connections, its wake-ups, and what this process remembers about it."""

    url: StoreUrl
    clock: Clock | None
    store_id: UUID
    schema_version: int
    server_version: str
    settings: dict[str, str]
    connections: Connections
    work: Wakeup
    finished: Wakeup
    notifier: Notifier
    listener: Listener
    marks: Marks
    take_back: TakeBack
    sweep_state: SweepState = field(default_factory=SweepState)
    waits_until: dict[str, float] = field(default_factory=dict)
    """Until when, on the loop's clock, this process is registered as waiting, by the kind of its entry."""
    general_until: dict[str, float] = field(default_factory=dict)
    """Until when, on the loop's clock, `create_jobs` creates the single jobs of a type."""
    warming: asyncio.Task[None] | None = None
    pid: int = field(default_factory=os.getpid)

    def warm_up(self) -> None:
        """Compile functions and make plans in advance, which would delay the first calls by milliseconds."""
        if self.url.notify:  # Behind a pooler, another server connection may serve the first calls.
            self.warming = asyncio.get_running_loop().create_task(self._warm_up())

    async def _warm_up(self) -> None:
        await asyncio.sleep(WARM_AFTER_SECONDS)
        now_ms, create, step = self.now_ms(), self.sql("create"), self.sql("activate")["step"]

        async def call_all(connection: asyncpg.Connection) -> None:
            await connection.fetch(create["create_one"], now_ms, *(plain_values(NewJob("")) or ()), None)
            await connection.fetch(create["create"], create_document([], now_ms))
            await connection.fetch(step, packed({"done": {}, "now": now_ms}))

        with suppress(EngineError):
            await self.connections.run(call_all)

    def sql(self, operation: str) -> dict[str, str]:
        """The statements of an operation."""
        return statements(operation, self.url.schema)

    def now_ms(self) -> int | None:
        """The time of a test's clock; None: use the server's time."""
        return self.clock() if self.clock is not None else None

    async def close(self) -> None:
        """Wake up every waiting call and close every connection."""
        self.work.wake()
        self.finished.wake()
        if self.warming is not None:
            self.warming.cancel()
            await asyncio.wait([self.warming])
        if self.sweep_state.vacuuming is not None:
            self.sweep_state.vacuuming.cancel()
            await asyncio.wait([self.sweep_state.vacuuming])
        await self.notifier.close()
        await self.listener.close()
        await self.take_back.close()
        await self.connections.close()


class PostgresBase:
    """What the topics of the engine share: the store's URL, and the store while it is open."""

    def __init__(self, url: StoreUrl, clock: Clock | None = None) -> None:
        self._url = url
        self._clock = clock
        self._opened: OpenStore | None = None
        self._waiter_id = uuid.uuid4().hex

    @property
    def _store(self) -> OpenStore:
        if self._opened is None or self._opened.pid != os.getpid():
            raise EngineUnavailable(f"cannot use {self._url.shown}: it is not connected yet, or is closed")
        return self._opened


async def open_store(url: StoreUrl, clock: Clock | None, take_back: TakeBack, *, create: bool) -> OpenStore:
    """Open a store whose server can hold jobs, with its schema brought up to date."""
    connections = Connections(url)
    try:
        async with connections.acquired() as connection:  # The first calls use it, too.
            await check_server(connection, url)
            version = await migrate(connection, url, create=create)
            store_id, settings = await _identity(connection, url.schema)
    except BaseException as error:
        await connections.close()
        if isinstance(error, (*DRIVER_ERRORS, ValueError)):
            raise translated(url, error) from error
        raise
    work, finished, marks = Wakeup(), Wakeup(), Marks()
    store = OpenStore(
        url=url,
        clock=clock,
        store_id=store_id,
        schema_version=version,
        server_version=settings.pop("server_version"),
        settings=settings,
        connections=connections,
        work=work,
        finished=finished,
        notifier=Notifier(url, connections, work, finished),
        listener=Listener(url, work, finished, Receivers(marks, take_back)),
        marks=marks,
        take_back=take_back,
    )
    store.warm_up()
    return store


async def stored_schema(url: StoreUrl) -> Schema:
    """The current version of the schema; nothing is changed."""
    async with connected(url) as connection:
        return Schema(await stored_version(connection, url.schema), len(migrations()))


@asynccontextmanager
async def connected(url: StoreUrl) -> AsyncIterator[asyncpg.Connection]:
    """A short-lived connection; driver errors are translated."""
    try:
        connection = await connect(url)
        try:
            yield connection
        finally:
            await close(connection)
    except (*DRIVER_ERRORS, ValueError) as error:
        raise translated(url, error) from error


async def _identity(connection: asyncpg.Connection, schema: str) -> tuple[UUID, dict[str, str]]:
    """The id of the store, and the server's settings."""
    store_id = await connection.fetchval(f"SELECT id FROM {schema}.store")  # noqa: S608 - the name was checked
    rows = await connection.fetch("SELECT name, current_setting(name) FROM unnest($1::text[]) name", list(SETTINGS))
    return store_id, dict(rows)
