"""Snapshot: the cost of activation on PostgreSQL while a transaction holds a snapshot open, and after it has ended.

No vacuum can remove rows that such a snapshot might still see, so the index entries of all finished jobs stay. With a
plain index, activation gets 33 times slower over 240,000 jobs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from statistics import fmean

import asyncpg

from benchmarks.bench import BATCH, Bench, Row, Timing, opened
from benchmarks.drain import DEMAND, fill, worked
from everwork.engines.contract import Engine

PORTION = 10_000
TIMES_SLOWER_MAX = 3.0
TIMES_AFTER_MAX = 1.5
VACUUM = "VACUUM (INDEX_CLEANUP ON) everwork.live"


async def measure_snapshot(bench: Bench) -> list[Row]:
    """Portions of 10,000 jobs, created and drained: one before, many during, one after."""
    jobs = bench.jobs(240_000, 40_000)
    with bench.store() as url:
        async with opened(url) as engine:
            await _pass(bench, engine)
            await _vacuum(url)
            before = await _pass(bench, engine)
            async with _snapshot(url):
                during = [await _noted(bench, engine, low) for low in range(0, jobs, PORTION)]
            await _vacuum(url)
            await _pass(bench, engine)
            after = await _pass(bench, engine)
    return [
        _row("activate 100, before", before),
        _row("snapshot held: the first 10,000 jobs", during[0]),
        _row(f"snapshot held: the last 10,000 of {jobs:,} jobs", during[-1]),
        _row("after the snapshot ended and a vacuum", after),
        *_times("ratio: held (last) to before", during[-1], before, TIMES_SLOWER_MAX),
        *_times("ratio: after to before", after, before, TIMES_AFTER_MAX),
    ]


def _row(what: str, taken: list[Timing]) -> Row:
    what = f"{what} (mean; worst {max(t.seconds for t in taken) * 1e3:.1f} ms)"
    return Row(part="snapshot", what=what, value=_mean_ms(taken), unit="ms", cpu_us=fmean(t.cpu_us for t in taken))


def _times(what: str, taken: list[Timing], before: list[Timing], value_max: float) -> list[Row]:
    pairs = {
        "wall time": _mean_ms(taken) / _mean_ms(before),
        "CPU": fmean(t.cpu_us for t in taken) / fmean(t.cpu_us for t in before),
    }
    return [
        Row(part="snapshot", what=f"{what}, {kind}", value=value, unit="times", value_max=value_max)
        for kind, value in pairs.items()
    ]


def _mean_ms(taken: list[Timing]) -> float:
    return fmean(timing.seconds for timing in taken) * 1e3


async def _noted(bench: Bench, engine: Engine, low: int) -> list[Timing]:
    taken = await _pass(bench, engine)
    bench.say(f"snapshot: held, from job {low:,}: activate 100 takes {_mean_ms(taken):.2f} ms")
    return taken


async def _pass(bench: Bench, engine: Engine) -> list[Timing]:
    """Create and drain a portion; returns the time of each activation."""
    await fill(engine, PORTION)
    taken = []
    for _ in range(PORTION // BATCH):
        with bench.timing(BATCH) as timing:
            leased = (await engine.activate([DEMAND])).jobs
        taken.append(timing)
        if len(leased) != BATCH:
            raise RuntimeError(f"a batch had {len(leased)} jobs")
        await engine.settle(worked(leased))
    await engine.sweep("bench")  # Every service does this once per second.
    return taken


@asynccontextmanager
async def _snapshot(url: str) -> AsyncIterator[None]:
    """A transaction that has read the jobs and stays open."""
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction(isolation="repeatable_read"):
            await connection.fetchval("SELECT count(*) FROM everwork.live")
            yield
    finally:
        await connection.close()


async def _vacuum(url: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(VACUUM)
    await connection.close()
