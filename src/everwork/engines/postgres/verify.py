"""verify: amcheck where it is installed, invalid indexes, and rows that belong to no job."""

from __future__ import annotations

from typing import Final

import asyncpg

from everwork.engines.postgres.opened import OpenStore, connected
from everwork.engines.values import StoreProblem

ANSWER_SECONDS: Final = 3_600.0
"""How long one check may take."""
RESTORE: Final = "check the server's disk and log; keep a copy of the data, then restore a backup"


async def verify(store: OpenStore) -> list[StoreProblem]:
    """The problems of a schema, found on a separate connection."""
    sql = store.sql("verify")
    async with connected(store.url) as connection:
        try:
            invalid = await connection.fetch(sql["invalid_indexes"], timeout=ANSWER_SECONDS)
            orphans = await connection.fetchval(sql["orphans"], timeout=ANSWER_SECONDS)
            unsound = await _of_indexes(connection, sql)
        except (asyncpg.DataCorruptedError, asyncpg.IndexCorruptedError) as error:
            return [StoreProblem(f"the store is damaged: {error}", RESTORE)]
    schema = store.url.schema
    defects = [StoreProblem(f"index {name} is invalid", f"run: REINDEX INDEX {schema}.{name}") for (name,) in invalid]
    if orphans:
        text = f"{orphans:,} row{' belongs' if orphans == 1 else 's belong'} to jobs that do not exist"
        defects.append(StoreProblem(text, RESTORE))
    return defects + unsound


async def _of_indexes(connection: asyncpg.Connection, sql: dict[str, str]) -> list[StoreProblem]:
    extension = await connection.fetchval(sql["has_amcheck"])
    if extension is None:
        text = "indexes were not checked: the extension amcheck is not installed"
        return [StoreProblem(text, "to check them, have a superuser run: CREATE EXTENSION amcheck", is_note=True)]
    defects = []
    check = f'SELECT "{extension}".bt_index_check($1::regclass)'
    for (name,) in await connection.fetch(sql["indexes"]):
        try:
            await connection.execute(check, name, timeout=ANSWER_SECONDS)
        except asyncpg.IndexCorruptedError as error:
            defects.append(StoreProblem(f"index {name} is damaged: {error}", f"run: REINDEX INDEX {name}"))
        except asyncpg.InsufficientPrivilegeError:
            text = "indexes were not checked: this user may not call bt_index_check"
            return [StoreProblem(text, "run everwork doctor as a superuser to check them", is_note=True)]
    return defects
