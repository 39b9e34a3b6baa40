"""everwork bench: measures a store with jobs of its own type, which are deleted afterwards."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Annotated, Final, NamedTuple

import typer

from everwork.cli.options import AsJson, EngineUrl, number
from everwork.cli.output import write, write_json
from everwork.cli.progress import Step, shown_progress
from everwork.cli.session import resolved_url, run
from everwork.codec.new_job import new_job
from everwork.codec.urls import shown_url
from everwork.core import checks
from everwork.core.instants import utc_text
from everwork.core.job import NewJob
from everwork.core.leasing import Demand
from everwork.core.outcome import Complete
from everwork.core.queries import JobFilter
from everwork.engines.contract import Engine
from everwork.engines.open import open_engine
from everwork.exceptions import EngineBusy
from everwork.service.service import JobService

TYPE: Final = "everwork-bench"
KIND: Final = "bench"
"""The kind of the registry entry with the latest time at which a running benchmark ends."""
JOBS_MAX: Final = 1_000_000
SECONDS_MAX: Final = 600.0
CREATE_STEP: Final = 500
DRAIN_STEP: Final = 100
ROUNDS: Final = 100
CLEAN_STEP: Final = 500
WAIT_MS: Final = 1_000
TIDY_MS: Final = 60_000
OnStep = Callable[[Step], None]

app = typer.Typer(add_completion=False, rich_markup_mode="rich")


class Measured(NamedTuple):
    """The results. Rates are jobs per second with one caller; latency is the time from creating a job to its lease."""

    jobs: int
    create_per_second: float
    drain_per_second: float
    latency_ms_median: float
    latency_ms_p95: float


@app.command()
def bench(
    *,
    jobs: Annotated[str, typer.Option(metavar="NUMBER", help=f"Number of jobs, 1 to {JOBS_MAX:,}.")] = "5000",
    seconds: Annotated[
        str, typer.Option(metavar="SECONDS", help=f"Time limit of each of the three parts, 0.1 to {SECONDS_MAX:g}.")
    ] = "5",
    engine: EngineUrl = None,
    as_json: AsJson = False,
) -> None:
    """Measure the throughput and latency of a store.

    Creates and completes jobs in batches with one caller, then measures the time from creating a job to its lease. The
    jobs have the type everwork-bench and are deleted afterwards.

    Examples:
        everwork bench
        everwork bench --jobs 1000 --engine postgresql://app@db.example.org/jobs
    """
    most = checks.whole_number("jobs", number(jobs), 1, JOBS_MAX)
    limit = checks.number("seconds", number(seconds), 0.1, SECONDS_MAX)
    with shown_progress() as on_step:
        found = run(_open_and_measure(resolved_url(engine), most, limit, on_step))
    if as_json:
        write_json({"engine": shown_url(resolved_url(engine)), **found._asdict()})
    else:
        write(
            f"{shown_url(resolved_url(engine))}: {found.jobs:,} jobs, one caller\n"
            f"  create           {found.create_per_second:>10,.0f} jobs/s  in batches of {CREATE_STEP}\n"
            f"  run              {found.drain_per_second:>10,.0f} jobs/s  in batches of {DRAIN_STEP}\n"
            f"  create to lease  {found.latency_ms_median:>10,.1f} ms      "
            f"median, one job at a time; p95 {found.latency_ms_p95:,.1f} ms\n"
        )


async def _open_and_measure(url: str, jobs: int, seconds: float, on_step: OnStep) -> Measured:
    engine = open_engine(url)
    service = JobService(engine, f"cli-{os.getpid()}")
    await service.open(upkeep=False, create=False)
    try:
        return await _measure(engine, service, jobs, seconds, on_step)
    finally:
        await service.close()


async def _measure(engine: Engine, service: JobService, jobs: int, seconds: float, on_step: OnStep) -> Measured:
    holder, ttl_ms = f"bench-{os.getpid()}", round(seconds * 3_000) + TIDY_MS
    if not await engine.take_turn(TYPE, holder, ttl_ms):
        raise EngineBusy(await _taken_text(engine))
    try:
        await engine.register(KIND, TYPE, holder, ttl_ms)
        await _clean(engine, service)
        created, create_rate = await _create(engine, jobs, seconds, on_step)
        drain_rate = await _drain(engine, created, seconds, on_step)
        delays = sorted(await _delays(engine, service, seconds))
        median, p95 = (delays[min(round(len(delays) * share), len(delays) - 1)] for share in (0.5, 0.95))
        return Measured(created, create_rate, drain_rate, median, p95)
    finally:
        await _clean(engine, service)
        await engine.unregister(KIND, TYPE)
        await engine.take_turn(TYPE, holder, 1)


async def _taken_text(engine: Engine) -> str:
    """Why the store cannot be measured now. The end of a turn cannot be read, so a registry entry holds it."""
    notes = await engine.registered(KIND)
    until = next((f"until {utc_text(note.until_ms)} at the latest" for note in notes if note.until_ms), "for a moment")
    return f"another benchmark of this store is running, or was killed; try again later ({until})"


async def _create(engine: Engine, jobs: int, seconds: float, on_step: OnStep) -> tuple[int, float]:
    started, created = time.perf_counter(), 0
    while created < jobs and time.perf_counter() - started < seconds:
        batch = [_job() for _ in range(min(CREATE_STEP, jobs - created))]
        created += len(await engine.create(batch))
        on_step(Step(created, 2 * jobs))
    return created, created / (time.perf_counter() - started)


async def _drain(engine: Engine, jobs: int, seconds: float, on_step: OnStep) -> float:
    """Drain the jobs: each step settles the jobs of the previous step and leases the next ones, as workers do."""
    started, done = time.perf_counter(), 0
    demand = [Demand(TYPE, TYPE, DRAIN_STEP)]
    leased = (await engine.activate(demand)).jobs
    while leased:
        outcomes = [Complete(job.key, job.attempt) for job in leased]
        is_over = time.perf_counter() - started >= seconds
        settlement = await engine.settle(outcomes, () if is_over else demand)
        done += len(outcomes)
        leased = settlement.activation.jobs
        on_step(Step(jobs + done, 2 * jobs))
    return done / (time.perf_counter() - started)


async def _delays(engine: Engine, service: JobService, seconds: float) -> list[float]:
    """The delays of jobs created one at a time, in milliseconds; measures at least one job."""
    await _clean(engine, service)
    ends, delays = time.perf_counter() + seconds, list[float]()
    while not delays or (len(delays) < ROUNDS and time.perf_counter() < ends):
        started = time.perf_counter()
        await engine.create([_job()])
        leased = await service.activate(Demand(TYPE, TYPE, 1), WAIT_MS)
        delays.append((time.perf_counter() - started) * 1_000)
        await service.settle([Complete(job.key, job.attempt) for job in leased])
    return delays


async def _clean(engine: Engine, service: JobService) -> None:
    """Delete all jobs of the benchmark, including those of an interrupted run."""
    while True:
        page = await service.find(JobFilter(type=TYPE), CLEAN_STEP)
        keys = sorted(job.key for job in page.jobs)
        if not keys:
            return
        await engine.cancel(keys, "measured")
        await engine.delete(keys)


def _job() -> NewJob:
    return new_job(TYPE, {"text": "x" * 100})
