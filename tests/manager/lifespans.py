"""A lifespan of worker processes, and a worker with its state and dependencies."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from everwork import Depends, JobContext, WorkerSettings
from tests.manager.workers import Told, say


@asynccontextmanager
async def lifespan() -> AsyncIterator[dict[str, int]]:
    """Says when it is entered and left."""
    say("entered")
    yield {"size": 5}
    say("left")


async def pool() -> AsyncIterator[str]:
    """Shared by the process."""
    say("opened")
    yield "pool"
    say("closed")


class Stateful(Told):
    """Returns what it gets from its process."""

    @classmethod
    def _get_settings(cls) -> WorkerSettings:
        return WorkerSettings(title="stateful", sources={"stateful"})

    async def __call__(self, ctx: JobContext, pool: str = Depends(pool, scope="process")) -> list[object]:
        say("stateful", ctx.key)
        return [ctx.state, pool]
