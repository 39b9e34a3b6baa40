"""Another process on the same file: `python -m tests.sqlite.actor create|wait|leave|park|fork|die PATH`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from everwork.core.job import LeasedJob, NewJob
from everwork.core.leasing import Demand
from everwork.engines.sqlite.engine import SqliteEngine
from everwork.engines.sqlite.store_url import StoreUrl


class Parker:
    """A worker that waits for a job, and says which one it gets."""

    def handed(self, job: LeasedJob) -> None:
        """Say so."""
        print(job.key, flush=True)

    def lost(self) -> None:
        """Say so."""
        print("lost", flush=True)


async def park(engine: SqliteEngine, *, forks: bool) -> None:
    """Wait for a job as a parked worker, until this process is killed."""
    parker = Parker()
    while True:
        await engine.activate([Demand("work", "parker", 1, 60_000, receiver=parker)])
        if forks:
            fork()
            forks = False
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)


def fork() -> None:
    """Leave a child that outlives this process, and ends when the test does."""
    if os.fork() == 0:
        signal.alarm(60)
        sys.stdin.read()
        os._exit(0)


async def main(role: str, path: str) -> None:
    """Open, say so, act when a line comes in."""
    engine = SqliteEngine(StoreUrl(path))
    await engine.open()
    if role in ("park", "fork"):
        await park(engine, forks=role == "fork")
    if role == "die":
        engine._store.writer.deliver = lambda _: os.kill(os.getpid(), signal.SIGKILL)
    waiting = asyncio.ensure_future(engine.wait(["work"], 60_000)) if role not in ("create", "die") else None
    await asyncio.sleep(0)
    print("ready", flush=True)
    if role == "leave":
        os.kill(os.getpid(), signal.SIGKILL)
    if waiting is None:
        await asyncio.to_thread(sys.stdin.readline)
        await engine.create([NewJob("work")])
    else:
        print("woken" if await waiting else "timed out", flush=True)
    await engine.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
