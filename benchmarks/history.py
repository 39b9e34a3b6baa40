"""History: the cost of a batch with millions of finished and future jobs, compared with an empty store."""

from __future__ import annotations

from statistics import median

from benchmarks.bench import BATCH, Bench, Row, Timing, opened
from benchmarks.drain import DEMAND, FILL_BATCH, a_job, fill, worked
from everwork.core.outcome import Complete
from everwork.engines.contract import Engine

WARM_UP_BATCHES = 20
TAKE = DEMAND._replace(limit=1_000)
HOUR_MS = 3_600_000


async def measure_history(bench: Bench) -> list[Row]:
    """Fused batches of 100, one in each store in turn; the median time of a batch."""
    jobs, batches = bench.jobs(bench.history_jobs, 20_000), bench.jobs(500, 100)
    with bench.store() as empty_url, bench.store() as full_url:
        async with opened(empty_url) as empty, opened(full_url) as full:
            await _finish(bench, full, jobs)
            await _schedule(bench, full, jobs)
            for engine in (empty, full):
                await fill(engine, (WARM_UP_BATCHES + batches) * BATCH)
            for url in (empty_url, full_url):
                bench.host.loaded(url)
            bench.say(f"history: {batches} batches in each store")
            alone, beside = await _in_turn(bench, empty, full, batches)
    return [
        _batch_row("batch of 100, fused, empty store", alone),
        _batch_row(f"with {jobs:,} finished and {jobs:,} future jobs", beside),
        _multiple_row("ratio of the two, wall time", [median(t.seconds for t in x) for x in (alone, beside)]),
        _multiple_row("ratio of the two, CPU", [median(t.cpu_seconds for t in x) for x in (alone, beside)]),
    ]


def _batch_row(what: str, taken: list[Timing]) -> Row:
    cpu_us = median(timing.cpu_us for timing in taken)
    return Row(part="history", what=what, value=median(t.seconds for t in taken) * 1e3, unit="ms", cpu_us=cpu_us)


def _multiple_row(what: str, pair: list[float]) -> Row:
    return Row(part="history", what=what, value=pair[1] / pair[0], unit="times", value_max=2)


async def _in_turn(bench: Bench, empty: Engine, full: Engine, batches: int) -> tuple[list[Timing], list[Timing]]:
    """Alternate batches between the stores. Nothing else runs, so the CPU time is that of the batch."""
    outcomes: dict[Engine, list[Complete]] = {empty: [], full: []}
    taken: dict[Engine, list[Timing]] = {empty: [], full: []}
    for _ in range(WARM_UP_BATCHES + batches):
        for engine, timings in taken.items():
            with bench.timing(BATCH) as timing:
                settlement = await engine.settle(outcomes[engine], [DEMAND])
            timings.append(timing)
            outcomes[engine] = worked(settlement.activation.jobs)
            if len(outcomes[engine]) != BATCH:
                raise RuntimeError(f"a batch had {len(outcomes[engine])} jobs")
    return taken[empty][WARM_UP_BATCHES:], taken[full][WARM_UP_BATCHES:]


async def _finish(bench: Bench, engine: Engine, jobs: int) -> None:
    """Create and complete jobs in portions, so that few jobs are ready at a time."""
    part = 10 * FILL_BATCH
    for low in range(0, jobs, part):
        bench.say(f"history: finishing jobs, {low:,} of {jobs:,}")
        await fill(engine, min(part, jobs - low))
        outcomes: list[Complete] = []
        while leased := (await engine.settle(outcomes, [TAKE])).activation.jobs:
            outcomes = [Complete(job.key, job.attempt) for job in leased]
        await engine.sweep("bench")  # Every service does this once per second.


async def _schedule(bench: Bench, engine: Engine, jobs: int) -> None:
    bench.say(f"history: creating {jobs:,} future jobs")
    await fill(engine, jobs, lambda n: a_job(n)._replace(delay_ms=24 * HOUR_MS + n))
