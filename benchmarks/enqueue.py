"""Enqueue: how fast jobs are stored durably, compared with bare inserts of the same size."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from benchmarks.bare import bare_of
from benchmarks.bench import BATCH, Bench, Measure, Row, Timing, interleave, rate_row
from benchmarks.drain import TYPE, a_job
from everwork import Everwork

CALLERS = 64
BULK = 1_000

Enqueue = Callable[[Everwork, int], Coroutine[Any, Any, None]]


async def measure_enqueue(bench: Bench) -> list[Row]:
    """Sequentially, with many concurrent callers, in bulk, and the engine alone."""
    few, some, many = bench.jobs(3_000, 300), bench.jobs(25_600, 2_560), bench.jobs(100_000, 10_000)
    measures: dict[str, Measure] = {
        "bare insert of 1": _inserted(bench, few, 1),
        "app.enqueue, sequentially": _enqueued(bench, few, _one_by_one),
        f"app.enqueue, {CALLERS} concurrent callers": _enqueued(bench, some, _at_once),
        f"bare insert of {BULK:,}": _inserted(bench, many, BULK),
        f"app.enqueue_many of {BULK:,}": _enqueued(bench, many, _in_bulk),
        f"bare insert of {BATCH}": _inserted(bench, many, BATCH),
        f"engine: create of {BATCH}": _created(bench, many),
    }
    taken = await interleave(bench, "enqueue", measures)
    rows = []
    last: list[Timing] = []
    for name, timings in taken.items():
        is_bare = name.startswith("bare")
        last = timings if is_bare else last
        rows.append(rate_row("enqueue", name, timings, None if is_bare else last))
    return rows


async def _one_by_one(app: Everwork, jobs: int) -> None:
    for n in range(jobs):
        await app.enqueue(TYPE, n=n)


async def _at_once(app: Everwork, jobs: int) -> None:
    await asyncio.gather(*(_one_by_one(app, jobs // CALLERS) for _ in range(CALLERS)))


async def _in_bulk(app: Everwork, jobs: int) -> None:
    for low in range(0, jobs, BULK):
        await app.enqueue_many([(TYPE, {"n": n}) for n in range(low, low + BULK)])


def _enqueued(bench: Bench, jobs: int, enqueue: Enqueue) -> Measure:
    async def measure() -> Timing:
        with bench.store() as url:
            async with Everwork(url) as app:
                await app.enqueue(TYPE, n=0)
                with bench.timing(jobs) as timing:
                    await enqueue(app, jobs)
                return timing

    return measure


def _created(bench: Bench, jobs: int) -> Measure:
    async def measure() -> Timing:
        async with bench.engine() as engine:
            with bench.timing(jobs) as timing:
                for low in range(0, jobs, BATCH):
                    await engine.create([a_job(n) for n in range(low, low + BATCH)])
            return timing

    return measure


def _inserted(bench: Bench, jobs: int, batch: int) -> Measure:
    async def measure() -> Timing:
        return await bare_of(bench).insert(bench, jobs, batch)

    return measure
