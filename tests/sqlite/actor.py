"""Another process on the same file: `python -m tests.sqlite.actor create|wait|leave PATH`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from everwork.core.job import NewJob
from everwork.engines.sqlite.engine import SqliteEngine
from everwork.engines.sqlite.store_url import StoreUrl


async def main(role: str, path: str) -> None:
    """Open, say so, act when a line comes in."""
    engine = SqliteEngine(StoreUrl(path))
    await engine.open()
    waiting = asyncio.ensure_future(engine.wait(["work"], 60_000)) if role != "create" else None
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
