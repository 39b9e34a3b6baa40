"""Bring the schema up to date: numbered files, forward only, one process at a time."""

from __future__ import annotations

import asyncio
from importlib.resources import files
from typing import Final

import asyncpg

from everwork.engines.postgres.statements import filled, functions
from everwork.engines.postgres.store_url import StoreUrl
from everwork.exceptions import BadConfiguration, EngineUnavailable, SchemaMismatch

SERVER_VERSION_MIN: Final = 140_000
LOCK_MS: Final = 500
"""How long to wait for a table lock: less than the server's deadlock_timeout, after which it aborts a transaction."""
LOCK_TRIES: Final = 20
PAUSE_SECONDS: Final = 0.5
"""The pause between two tries, during which transactions that queued behind the lock continue."""


def migrations() -> list[str]:
    """The migrations of this version, in order."""
    folder = files(__package__) / "migrations"
    found = sorted(file.name for file in folder.iterdir() if file.name.endswith(".sql"))
    return [(folder / name).read_text("utf-8") for name in found]


async def check_server(connection: asyncpg.Connection, url: StoreUrl) -> None:
    """Refuse a server that cannot hold jobs."""
    version, shown, encoding, standby, read_only = await connection.fetchrow(
        "SELECT current_setting('server_version_num')::int, current_setting('server_version'),"
        " current_setting('server_encoding'), pg_is_in_recovery(), current_setting('transaction_read_only') = 'on'"
    )
    require_server(url, version, shown)
    if standby or read_only:
        raise EngineUnavailable(f"{url.shown} is a read-only replica; use the primary server")
    if encoding != "UTF8":
        raise BadConfiguration(f"{url.shown} uses the encoding {encoding}; create the database with ENCODING 'UTF8'")


def require_server(url: StoreUrl, version: int, shown: str) -> None:
    """Refuse a version that lacks features we use."""
    if version < SERVER_VERSION_MIN:
        raise BadConfiguration(f"{url.shown} is PostgreSQL {shown}; Everwork needs 14 or newer")


async def migrate(connection: asyncpg.Connection, url: StoreUrl, *, create: bool = True) -> int:
    """Run missing migrations in one transaction under an advisory lock; return the version."""
    version = await stored_version(connection, url.schema)
    latest = len(migrations())
    if version is None and not create:
        raise EngineUnavailable(f"{url.shown} holds no jobs in schema {url.schema!r}; check the URL")
    if version is None or version < latest:
        await _run_between_others(connection, url.schema)
        version = latest
    if version > latest:
        raise SchemaMismatch(
            f"{url.shown}: schema {url.schema!r} has version {version}, but this Everwork supports up to {latest};"
            " upgrade Everwork"
        )
    return version


async def stored_version(connection: asyncpg.Connection, schema: str) -> int | None:
    """The version of the schema, or None if there is none."""
    if not await connection.fetchval(_HAS_STORE, schema):
        return None
    version: int = await connection.fetchval(f"SELECT version FROM {schema}.store")  # noqa: S608 - the name was checked
    return version


# Not to_regclass or a cast: they read a cache that does not include what was committed while we waited.
_HAS_STORE: Final = """SELECT EXISTS (SELECT 1 FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = 'store')"""
# Done before anything is changed, so that a process that must wait holds few locks.
_LOCK: Final = """SET LOCAL lock_timeout = {wait_ms}; SET LOCAL search_path = {schema};
LOCK TABLE live, finished, job, queue, lane, type IN ACCESS EXCLUSIVE MODE; SET LOCAL search_path = DEFAULT"""
_HAS_SCHEMA: Final = "SELECT EXISTS (SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = $1)"


async def _run_between_others(connection: asyncpg.Connection, schema: str) -> None:
    """Run missing migrations while other processes are working: no lock order suits all of them, so this one yields."""
    for left in reversed(range(LOCK_TRIES)):
        try:
            async with connection.transaction():
                await connection.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", f"everwork {schema}")
                await _run_missing(connection, schema)
            break
        except (asyncpg.DeadlockDetectedError, asyncpg.LockNotAvailableError):
            if not left:
                raise
        await asyncio.sleep(PAUSE_SECONDS)


async def _run_missing(connection: asyncpg.Connection, schema: str) -> None:
    version = await stored_version(connection, schema)
    if version is None and not await connection.fetchval(_HAS_SCHEMA, schema):
        await connection.execute(f"CREATE SCHEMA {schema}")
    missing = migrations()[version or 0 :]
    if version and missing:
        await connection.execute(_LOCK.format(schema=schema, wait_ms=LOCK_MS))
    for text in missing:
        await connection.execute(filled(text, schema))
    if missing:
        # A changed function needs a migration, even an empty one: functions are written only when the version
        # increases.
        for text in functions(schema):
            await connection.execute(text)
        await connection.execute(f"UPDATE {schema}.store SET version = $1", len(migrations()))  # noqa: S608 - as above
