"""Opening: check the server, migrate, and put the parts together."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from uuid import UUID

import asyncpg

from everwork.core.leasing import Demand
from everwork.engines.contract import Clock
from everwork.engines.postgres.claims import Mark
from everwork.engines.postgres.connections import Connections, close, connect
from everwork.engines.postgres.errors import DRIVER_ERRORS, translated
from everwork.engines.postgres.migrate import check_server, migrate, migrations, stored_version
from everwork.engines.postgres.statements import statements
from everwork.engines.postgres.store_url import StoreUrl
from everwork.engines.postgres.wake import Listener, Notifier, Wakeup
from everwork.engines.values import Schema

SETTINGS = ("server_version", "fsync", "synchronous_commit", "full_page_writes", "max_connections")


async def opened(address: StoreUrl, clock: Clock | None, *, create: bool) -> OpenStore:
    """The parts of an engine whose server can hold jobs and whose schema is up to date."""
    async with connected(address) as connection:
        return await _checked(connection, address, clock, create)


async def stored_schema(address: StoreUrl) -> Schema:
    """The version of the schema, as it is."""
    async with connected(address) as connection:
        return Schema(await stored_version(connection, address.schema), len(migrations()))


@asynccontextmanager
async def connected(address: StoreUrl) -> AsyncIterator[asyncpg.Connection]:
    """A connection for a moment; whatever goes wrong is said in one line."""
    try:
        connection = await connect(address)
        try:
            yield connection
        finally:
            await close(connection)
    except (*DRIVER_ERRORS, ValueError) as error:
        raise translated(address, error) from error


async def _checked(connection: asyncpg.Connection, address: StoreUrl, clock: Clock | None, create: bool) -> OpenStore:
    await check_server(connection, address)
    version = await migrate(connection, address, create=create)
    store_id = await connection.fetchval(f"SELECT id FROM {address.schema}.store")  # noqa: S608 - the name was checked
    rows = await connection.fetch("SELECT name, current_setting(name) FROM unnest($1::text[]) name", list(SETTINGS))
    settings: dict[str, str] = dict(rows)
    server_version = settings.pop("server_version")
    connections = Connections(address)
    work, done = Wakeup(), Wakeup()
    return OpenStore(
        address=address,
        clock=clock,
        store_id=store_id,
        schema_version=version,
        server_version=server_version,
        settings=settings,
        connections=connections,
        work=work,
        done=done,
        notifier=Notifier(address, connections, work, done),
        listener=Listener(address, work, done),
    )


START = (0, 0, 0)


@dataclass(slots=True)
class SweepState:
    """Where the sweep stands: the last finished job it looked at, when it tidied last, what it has not vacuumed yet."""

    after: tuple[int, int, int] = START
    is_thorough: bool = True
    """Whether this pass looks at every finished job, and not only at the oldest of each queue and state."""
    tidied_at_ms: int = 0
    unvacuumed: int = 0
    vacuuming: asyncio.Task[None] | None = None


@dataclass(slots=True)
class OpenStore:
    """An open engine."""

    address: StoreUrl
    clock: Clock | None
    store_id: UUID
    schema_version: int
    server_version: str
    settings: dict[str, str]
    connections: Connections
    work: Wakeup
    done: Wakeup
    notifier: Notifier
    listener: Listener
    broom: SweepState = field(default_factory=SweepState)
    marks: dict[tuple[str, str, tuple[str, ...]], Mark] = field(default_factory=dict)
    waits_until: dict[str, float] = field(default_factory=dict)
    """Until when, on the loop's clock, others know that this process waits, by what it waits for."""
    pid: int = field(default_factory=os.getpid)

    def sql(self, operation: str) -> dict[str, str]:
        """The statements of an operation."""
        return statements(operation, self.address.schema)

    def now_ms(self) -> int | None:
        """The instant that a test dictates; None: the server's own."""
        return self.clock() if self.clock is not None else None

    def mark_of(self, demand: Demand) -> Mark:
        """What is remembered of the queue that a demand names."""
        name = (demand.type, demand.group, demand.tenants)
        mark = self.marks.get(name)
        if mark is None:
            self.marks[name] = mark = Mark()
        return mark

    async def close(self) -> None:
        """Let go of every connection."""
        self.work.ring()
        self.done.ring()
        if self.broom.vacuuming is not None:
            self.broom.vacuuming.cancel()
            await asyncio.wait([self.broom.vacuuming])
        await self.notifier.close()
        await self.listener.close()
        await self.connections.close()
