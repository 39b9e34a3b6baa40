"""Opening: check the server, migrate, and put the parts together."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg

from everwork.engines.base import Clock
from everwork.engines.postgres.connections import Connections, close, connect
from everwork.engines.postgres.errors import DRIVER_ERRORS, translated
from everwork.engines.postgres.migrate import check_server, migrate, migrations, stored_version
from everwork.engines.postgres.parts import Parts
from everwork.engines.postgres.store_url import Address
from everwork.engines.postgres.wake import Bell, Listener, Notifier
from everwork.engines.values import Schema

SETTINGS = ("server_version", "fsync", "synchronous_commit", "full_page_writes", "max_connections")


async def opened(address: Address, clock: Clock | None, *, create: bool) -> Parts:
    """The parts of an engine whose server can hold jobs and whose schema is up to date."""
    async with connected(address) as connection:
        return await _checked(connection, address, clock, create)


async def stored_schema(address: Address) -> Schema:
    """The version of the schema, as it is."""
    async with connected(address) as connection:
        return Schema(await stored_version(connection, address.schema), len(migrations()))


@asynccontextmanager
async def connected(address: Address) -> AsyncIterator[asyncpg.Connection]:
    """A connection for a moment; whatever goes wrong is said in one line."""
    try:
        connection = await connect(address)
        try:
            yield connection
        finally:
            await close(connection)
    except (*DRIVER_ERRORS, ValueError) as error:
        raise translated(address, error) from error


async def _checked(connection: asyncpg.Connection, address: Address, clock: Clock | None, create: bool) -> Parts:
    await check_server(connection, address)
    version = await migrate(connection, address, create=create)
    store_id = await connection.fetchval(f"SELECT id FROM {address.schema}.store")  # noqa: S608 - the name was checked
    rows = await connection.fetch("SELECT name, current_setting(name) FROM unnest($1::text[]) name", list(SETTINGS))
    settings: dict[str, str] = dict(rows)
    server_version = settings.pop("server_version")
    connections = Connections(address)
    work, done = Bell(), Bell()
    return Parts(
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
