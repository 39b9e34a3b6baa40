"""History: what a batch costs beside a million finished and a million future jobs, against an empty file (G10)."""

from __future__ import annotations

import time
from statistics import median

from benchmarks.bare import BATCH
from benchmarks.bench import Bench, Row
from benchmarks.drain import DEMAND, FILL_BATCH, a_job, fill, worked
from everwork.core.outcome import Complete
from everwork.engines.base import Engine

WARM_UP_BATCHES = 20
TAKE = DEMAND._replace(limit=1_000)
HOUR_MS = 3_600_000


async def measure_history(bench: Bench) -> list[Row]:
    """Fused batches of 100, one in each file in turn; the median time of a batch."""
    jobs, batches = bench.jobs(1_000_000, 20_000), bench.jobs(500, 100)
    async with bench.engine() as empty, bench.engine() as full:
        await _finish(bench, full, jobs)
        await _schedule(bench, full, jobs)
        for engine in (empty, full):
            await fill(engine, (WARM_UP_BATCHES + batches) * BATCH)
        bench.say(f"history: {batches} batches in each file")
        alone, beside = await _in_turn(empty, full, batches)
    return [
        Row(part="history", what="batch of 100, fused, empty file", value=median(alone), unit="ms"),
        Row(
            part="history",
            what=f"beside {jobs:,} finished and {jobs:,} future jobs",
            value=median(beside),
            unit="ms",
        ),
        Row(
            part="history",
            what="the second as a multiple of the first (G10)",
            value=median(beside) / median(alone),
            unit="times",
            value_max=2,
        ),
    ]


async def _in_turn(empty: Engine, full: Engine, batches: int) -> tuple[list[float], list[float]]:
    outcomes: dict[Engine, list[Complete]] = {empty: [], full: []}
    taken_ms: dict[Engine, list[float]] = {empty: [], full: []}
    for _ in range(WARM_UP_BATCHES + batches):
        for engine, spent in taken_ms.items():
            began = time.perf_counter()
            settlement = await engine.settle(outcomes[engine], [DEMAND])
            spent.append((time.perf_counter() - began) * 1e3)
            outcomes[engine] = worked(settlement.activation.jobs)
            if len(outcomes[engine]) != BATCH:
                raise RuntimeError(f"a batch had {len(outcomes[engine])} jobs")
    return taken_ms[empty][WARM_UP_BATCHES:], taken_ms[full][WARM_UP_BATCHES:]


async def _finish(bench: Bench, engine: Engine, jobs: int) -> None:
    """Create and complete, a part at a time, so that the ready jobs stay few."""
    part = 10 * FILL_BATCH
    for low in range(0, jobs, part):
        bench.say(f"history: finishing jobs, {low:,} of {jobs:,}")
        await fill(engine, min(part, jobs - low))
        outcomes: list[Complete] = []
        while leased := (await engine.settle(outcomes, [TAKE])).activation.jobs:
            outcomes = [Complete(job.key, job.attempt) for job in leased]


async def _schedule(bench: Bench, engine: Engine, jobs: int) -> None:
    bench.say(f"history: creating {jobs:,} future jobs")
    await fill(engine, jobs, lambda n: a_job(n)._replace(delay_ms=24 * HOUR_MS + n))
