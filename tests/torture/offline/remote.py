"""Producers and workers that know a server only: what they do differently from those on the store itself."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from typing import Final

from everwork.client import ActiveJob, Client
from everwork.core.leasing import Created
from tests.torture.history import HistoryWriter
from tests.torture.offline.parts import CONCURRENCY, TYPE, handle, spool_of, watch_spool
from tests.torture.process import Life

KEY: Final = "EVERWORK_API_KEY"
"""The environment variable that a server takes its key from, and these programs too."""


def is_remote(life: Life) -> bool:
    """Whether a life goes through a server."""
    return life.url.startswith("grpc")


def client_of(life: Life) -> Client:
    """The client of a process, in offline mode."""
    return Client(life.url, key=os.environ[KEY], offline=spool_of(life))


async def create(client: Client, names: Sequence[str]) -> list[Created]:
    """Create jobs, alone or in bulk."""
    if len(names) == 1:
        return [await client.create(TYPE, {"r": names[0]})]
    return await client.create_many([(TYPE, {"r": name}) for name in names])


async def work(life: Life, history: HistoryWriter) -> None:
    """Run jobs until SIGTERM comes."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    watch_spool(history)
    history.joins()

    async def run(job: ActiveJob) -> str:
        return await handle(history, job.key, job.attempt, job.variables["r"], life.lease_ms)

    async with client_of(life) as client:
        await client.work({TYPE: run}, concurrency=CONCURRENCY, worker=life.name, lease=life.lease_ms / 1000, stop=stop)
