"""Drain: how fast the engine activates and settles jobs, in batches of 100, compared with the bare loop."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from benchmarks.bare import bare_of
from benchmarks.bench import BATCH, Bench, Measure, Row, Timing, check_all, interleave, opened, rate_row
from everwork.core.job import LeasedJob, NewJob
from everwork.core.leasing import Demand
from everwork.core.outcome import Complete
from everwork.core.states import State
from everwork.engines.contract import Engine

TYPE = "bench"
DEMAND = Demand(TYPE, "bench-worker", BATCH)
FILL_BATCH = 10_000
BARE_LOOP = "bare loop: claim 100, delete 100"
WAYS = {
    "sqlite": {"engine in its own event loop, as in workers": True, "engine with a writer thread": False},
    "postgres": {"engine": False},
    "redis": {"engine": False},
}
"""How an engine can be called, and whether it has its own event loop."""

Make = Callable[[int], NewJob]
"""The n-th job of a load."""
Drain = Callable[[Engine, int], Coroutine[Any, Any, None]]


async def measure_drain(bench: Bench) -> list[Row]:
    """One lane: activate and settle as two calls and as one."""
    jobs = bench.jobs(100_000, 10_000)
    measures: dict[str, Measure] = {BARE_LOOP: bare_loop(bench, jobs)}
    for name, own_loop in WAYS[bench.host.name].items():
        measures[f"{name}: activate, settle"] = drained(bench, jobs, in_two_calls, own_loop=own_loop)
        measures[f"{name}: fused"] = drained(bench, jobs, fused, own_loop=own_loop)
    first, *others = (await interleave(bench, "drain", measures)).items()
    rows = [rate_row("drain", *first)]
    return rows + [rate_row("drain", name, taken, first[1], 0.6) for name, taken in others]


async def measure_lanes(bench: Bench) -> list[Row]:
    """Turns between lanes: one lane, ten tenants, ten thousand limit keys."""
    jobs, keys = bench.jobs(50_000, 10_000), bench.jobs(10_000, 2_000)
    measures: dict[str, Measure] = {
        BARE_LOOP: bare_loop(bench, jobs),
        "1 lane": drained(bench, jobs, fused),
        "10 tenants": drained(bench, jobs, fused, lambda n: a_job(n)._replace(tenant=f"tenant-{n % 10}")),
        f"{keys:,} limit keys": drained(bench, jobs, fused, lambda n: a_job(n)._replace(limit_key=f"key-{n % keys}")),
    }
    first, *others = (await interleave(bench, "lanes", measures)).items()
    rows = [rate_row("lanes", *first)]
    return rows + [rate_row("lanes", f"engine, fused: {name}", taken, first[1]) for name, taken in others]


def bare_loop(bench: Bench, jobs: int) -> Measure:
    """The bare loop, to be measured in turn with others."""

    async def measure() -> Timing:
        return await bare_of(bench).drain(bench, jobs)

    return measure


def a_job(n: int) -> NewJob:
    """A small job, due immediately."""
    return NewJob(TYPE, f'{{"n": {n}}}')


async def fill(engine: Engine, jobs: int, make: Make = a_job) -> None:
    """Create a number of jobs."""
    for low in range(0, jobs, FILL_BATCH):
        await engine.create([make(n) for n in range(low, min(low + FILL_BATCH, jobs))])


async def in_two_calls(engine: Engine, jobs: int) -> None:
    """Activate a batch and settle it, until nothing is left."""
    done = 0
    while leased := (await engine.activate([DEMAND])).jobs:
        await engine.settle(worked(leased))
        done += len(leased)
    check_all(done, jobs)


async def fused(engine: Engine, jobs: int) -> None:
    """Settle the last batch and activate the next in one call."""
    done = 0
    outcomes: list[Complete] = []
    while leased := (await engine.settle(outcomes, [DEMAND])).activation.jobs:
        outcomes = worked(leased)
        done += len(leased)
    check_all(done, jobs)


def worked(leased: Sequence[LeasedJob]) -> list[Complete]:
    """The minimum that a worker does: parse the variables and report the outcome."""
    outcomes = []
    for job in leased:
        json.loads(job.variables)
        outcomes.append(Complete(job.key, job.attempt))
    return outcomes


async def check_completed(engine: Engine, jobs: int) -> None:
    """Fail unless every job of the store is completed: otherwise the rate is meaningless."""
    counts = {count.state: 0 for count in await engine.count()}
    for count in await engine.count():
        counts[count.state] += count.jobs
    if counts != {State.COMPLETED: jobs}:
        found = {state.label: number for state, number in counts.items()}
        raise RuntimeError(f"{jobs} jobs should be completed, the engine reports {found}")


def drained(
    bench: Bench, jobs: int, drain: Drain, make: Make = a_job, *, own_loop: bool = False, policy: str | None = None
) -> Measure:
    """Drain a load; measured in turn with others."""

    async def measure() -> Timing:
        with bench.store() as url:
            async with opened(url, own_loop=own_loop) as engine:
                if policy is not None:
                    await engine.set_policy(TYPE, policy)
                await fill(engine, jobs, make)
                bench.host.loaded(url)
                with bench.timing(jobs) as timing:
                    await drain(engine, jobs)
                await check_completed(engine, jobs)
                return timing

    return measure
