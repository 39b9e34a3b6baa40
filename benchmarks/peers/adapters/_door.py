"""Shared by the adapters: enqueuing through the public API, and a worker that records when each job starts.

The adapters run in an environment of the harness, whose `record` records the start of a job.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from record import hit  # type: ignore[import-not-found]

import everwork
from everwork import Everwork

ROOT = Path(__file__).resolve().parents[3]
if not Path(everwork.__file__).resolve().is_relative_to(ROOT):
    sys.exit(f"this would measure {everwork.__file__}, which is not in {ROOT}: install Everwork from there")

TYPE = "job"
CONCURRENCY = int(os.environ.get("BENCH_CONCURRENCY", "500"))
CALLERS = 64


class Door:
    """A producer. The harness measures `one` and `many`."""

    def __init__(self, url: str) -> None:
        self._app = Everwork(url)

    async def open(self) -> None:
        """Open the engine."""
        await self._app.open()

    async def one(self, n: int, t: float) -> None:
        """Enqueue one job."""
        await self._app.enqueue(TYPE, n=n, t=t)

    async def many(self, ns: Sequence[int]) -> None:
        """Enqueue many jobs in one call."""
        await self._app.enqueue_many([(TYPE, {"n": n}) for n in ns])

    async def close(self) -> None:
        """Close the engine."""
        await self._app.close()


class Callers(Door):
    """The same with many independent callers, each of which enqueues jobs sequentially."""

    async def many(self, ns: Sequence[int]) -> None:
        """Enqueue singly, 64 at a time."""
        left = iter(ns)
        await asyncio.gather(*(self._call(left) for _ in range(CALLERS)))

    async def _call(self, left: Iterator[int]) -> None:
        for n in left:
            await self._app.enqueue(TYPE, n=n)


async def make_store(url: str) -> None:
    """Create the store in advance, so that no producer has to."""
    async with Everwork(url):
        pass


def work(url: str) -> None:
    """Run the jobs until SIGTERM."""
    app = Everwork(url)

    @app.job(TYPE, concurrency=CONCURRENCY)
    async def job(n: int, t: float = 0.0) -> None:
        hit(n, t)

    app.run()
