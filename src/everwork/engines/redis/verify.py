"""verify: whether every job has a readable state and payload, and is indexed under its state."""

from __future__ import annotations

from typing import Final

from everwork.engines.redis.connection import Connection
from everwork.engines.values import StoreProblem

SHOWN_MAX: Final = 5
RESTORE: Final = "keep a copy of the data, then restore a backup"


async def verify(connection: Connection) -> list[StoreProblem]:
    """The problems of a namespace, found in steps, because the server serves no other client while a script runs."""
    damaged: set[int] = set()
    after = ""
    while True:
        after, ids = await connection.read("verify", after)
        damaged |= set(map(int, ids))
        if not after:
            break
    keys = sorted(damaged)
    shown = ", ".join(map(str, keys[:SHOWN_MAX])) + (" …" if len(keys) > SHOWN_MAX else "")
    text = f"{len(keys):,} job{' is' if len(keys) == 1 else 's are'} damaged or incomplete: {shown}"
    return [StoreProblem(text, RESTORE)] if keys else []
