"""What the torture has found, told in small."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from pathlib import Path

from everwork import Reconnect
from everwork.workers.child import Orders
from everwork.workers.spawned import Spawned


def a_process(folder: Path) -> Spawned:
    """One that has nothing to do."""
    orders = Orders(
        url=f"sqlite:///{folder}/jobs.db",
        name="process",
        posts=(),
        shutdown_timeout=1,
        reconnect=Reconnect(),
        lease_ms=1_000,
        log_format=None,
        log_level="INFO",
    )
    return Spawned(multiprocessing.get_context("spawn"), orders, slots=1, off=set(), tell=lambda: None)


async def test_a_process_that_dies_and_is_let_go_while_it_is_asked_where_it_stands_says_nothing(tmp_path: Path) -> None:
    process = a_process(tmp_path)
    os.kill(process.pid, signal.SIGSTOP)
    asked = asyncio.ensure_future(process.stack())
    await asyncio.sleep(0)
    process.kill("was killed")
    await process.ended.wait()
    process.close()
    assert await asked == ""
