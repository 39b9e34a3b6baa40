"""Faults: workers are killed, connections to the database are closed, the SQLite file is locked."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import time
from pathlib import Path
from typing import Final

from tests.soak.deployment import MORTAL, Deployment

_LOCK_SECONDS: Final = (0.2, 2.0)


class Faults:
    """Chooses and injects faults."""

    def __init__(self, deployment: Deployment, rng: random.Random) -> None:
        self._deployment = deployment
        self._rng = rng

    async def strike(self) -> str:
        """Inject a fault now; returns its name."""
        there = [name for name in ("manager", *MORTAL) if name in self._deployment.workers]
        kind = self._rng.choice([*there, "store", "store"])
        if kind == "manager":
            return "manager's process killed" if self._deployment.kill_managed(self._rng) else ""
        if kind == "store":
            return await self._disturb()
        self._deployment.kill(kind)
        return f"{kind.partition('-')[0]} worker killed"

    async def _disturb(self) -> str:
        """Inject a fault of the store; a file has no connections to close, so its lock is held for a while."""
        if self._deployment.place.server is not None:
            return await asyncio.to_thread(self._deployment.place.disturb, self._rng)
        path = Path(self._deployment.url.removeprefix("sqlite:///"))
        await asyncio.to_thread(_hold, path, self._rng.uniform(*_LOCK_SECONDS))
        return "write lock held"


def _hold(path: Path, seconds: float) -> None:
    """Hold the write lock as another program would, without changing anything."""
    connection = sqlite3.connect(path, timeout=5, isolation_level=None)
    try:
        connection.execute("BEGIN IMMEDIATE")
        time.sleep(seconds)
        connection.execute("ROLLBACK")
    finally:
        connection.close()
