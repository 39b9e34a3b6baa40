"""Offline mode while the store is there: what `offline=` costs each enqueue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from benchmarks.bench import Bench, Measure, Row, Timing, interleave, rate_row
from benchmarks.drain import TYPE
from everwork import Everwork

CALLERS: Final = 64
THREADS: Final = 8
ROUNDS: Final = 25
RATIO_MIN: Final = 0.95

Enqueue = Callable[[Everwork, int], Coroutine[Any, Any, None]]


async def measure_offline(bench: Bench) -> list[Row]:
    """By turns with and without a spool, on two stores that stay open."""
    rounds = 5 if bench.is_quick else ROUNDS
    with (
        bench.store() as plain_url,
        bench.store() as spooled_url,
        TemporaryDirectory(prefix="everwork-spool-") as folder,
    ):
        plain, spooled = Everwork(plain_url), Everwork(spooled_url, offline=str(Path(folder) / "spool.db"))
        async with plain, spooled:
            rows = []
            for what, jobs, enqueue in (
                ("one after the other", bench.jobs(300, 100), _one_by_one),
                (f"{CALLERS} callers at once", bench.jobs(6_400, 1_280), _at_once),
                (f"{THREADS} threads", bench.jobs(800, 160), _in_threads),
            ):
                measures: dict[str, Measure] = {
                    f"app.enqueue, {what}": _timed(bench, plain, jobs, enqueue),
                    f"the same with offline=, {what}": _timed(bench, spooled, jobs, enqueue),
                }
                for measure in measures.values():
                    await measure()  # Warm.
                (name, before), (other, now) = (await interleave(bench, "offline", measures, rounds)).items()
                rows += [rate_row("offline", name, before), rate_row("offline", other, now, before, RATIO_MIN)]
            return rows


def _timed(bench: Bench, app: Everwork, jobs: int, enqueue: Enqueue) -> Measure:
    async def measure() -> Timing:
        with bench.timing(jobs) as timing:
            await enqueue(app, jobs)
        return timing

    return measure


async def _one_by_one(app: Everwork, jobs: int) -> None:
    for n in range(jobs):
        await app.enqueue(TYPE, n=n)


async def _at_once(app: Everwork, jobs: int) -> None:
    await asyncio.gather(*(_one_by_one(app, jobs // CALLERS) for _ in range(CALLERS)))


async def _in_threads(app: Everwork, jobs: int) -> None:
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(THREADS) as pool:
        await asyncio.gather(*(loop.run_in_executor(pool, _blocking, app, jobs // THREADS) for _ in range(THREADS)))


def _blocking(app: Everwork, jobs: int) -> None:
    for n in range(jobs):
        app.sync.enqueue(TYPE, n=n)
