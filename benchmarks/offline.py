"""Offline mode while the store is available: the cost of `offline=` per enqueue."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from benchmarks.bench import Bench, Row, Timing, rate_row
from benchmarks.drain import TYPE
from everwork import Everwork

CALLERS: Final = 64
THREADS: Final = 8
GARBAGE_TURNS: Final = 25
"""How many turns between garbage collections."""
RATIO_MIN: Final = 0.95

Enqueue = Callable[[Everwork, int], Coroutine[Any, Any, None]]
Run = tuple[int, Enqueue]
"""How many jobs a turn has, and how they are enqueued."""


async def measure_offline(bench: Bench) -> list[Row]:
    """Alternate turns with and without a spool, on two stores that stay open.

    Many short turns, because the difference is smaller than the variation of machines from one second to the next.
    """
    with (
        bench.store() as plain_url,
        bench.store() as spooled_url,
        TemporaryDirectory(prefix="everwork-spool-") as folder,
        ThreadPoolExecutor(THREADS) as pool,
    ):
        plain, spooled = Everwork(plain_url), Everwork(spooled_url, offline=str(Path(folder) / "spool.db"))
        async with plain, spooled:
            rows = []
            for what, turns, jobs, enqueue in (
                ("sequentially", 1_000, 8, _one_by_one),
                (f"{CALLERS} concurrent callers", 300, 10 * CALLERS, _at_once),
                (f"{THREADS} threads", 400, 8 * THREADS, _in_threads(pool)),
            ):
                without, with_ = await _turns(bench, what, (plain, spooled), bench.jobs(turns, 30), (jobs, enqueue))
                rows += [
                    rate_row("offline", f"app.enqueue, {what}", without),
                    rate_row(
                        "offline", f"the same with offline=, {what}", with_, without, RATIO_MIN, with_interval=True
                    ),
                ]
            return rows


async def _turns(
    bench: Bench, what: str, apps: tuple[Everwork, Everwork], turns: int, run: Run
) -> tuple[list[Timing], list[Timing]]:
    """The turns of both; the first to run alternates, and the first turns are a warm-up."""
    warm_up, (jobs, enqueue) = turns // 15, run
    taken: tuple[list[Timing], list[Timing]] = ([], [])
    for number in range(turns + warm_up):
        if number % GARBAGE_TURNS == 0:
            bench.say(f"offline: turn {number} of {turns + warm_up}: {what}")
            gc.collect()
        for which in (0, 1) if number % 2 else (1, 0):
            with bench.timing(jobs) as timing:
                await enqueue(apps[which], jobs)
            taken[which].append(timing)
    return taken[0][warm_up:], taken[1][warm_up:]


async def _one_by_one(app: Everwork, jobs: int) -> None:
    for n in range(jobs):
        await app.enqueue(TYPE, n=n)


async def _at_once(app: Everwork, jobs: int) -> None:
    await asyncio.gather(*(_one_by_one(app, jobs // CALLERS) for _ in range(CALLERS)))


def _in_threads(pool: ThreadPoolExecutor) -> Enqueue:
    async def enqueue(app: Everwork, jobs: int) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.gather(*(loop.run_in_executor(pool, _blocking, app, jobs // THREADS) for _ in range(THREADS)))

    return enqueue


def _blocking(app: Everwork, jobs: int) -> None:
    for n in range(jobs):
        app.sync.enqueue(TYPE, n=n)
