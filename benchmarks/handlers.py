"""Handlers: the whole path through `@app.job` functions in one process, compared with the bare loop."""

from __future__ import annotations

from benchmarks.bench import Bench, Measure, Row, Timing, interleave, opened, rate_row
from benchmarks.drain import BARE_LOOP, TYPE, bare_loop, check_completed, fill
from everwork import Everwork

CONCURRENCY = 100
RATIO_MIN = {"sqlite": 25_000 / 130_000}
"""25,000 jobs/s where the bare loop does 130,000; the targets of the servers are relative to peers."""


async def measure_handlers(bench: Bench) -> list[Row]:
    """An async handler that does nothing, and a plain one, which runs in threads."""
    many, few = bench.jobs(50_000, 5_000), bench.jobs(10_000, 1_000)
    measures: dict[str, Measure] = {
        BARE_LOOP: bare_loop(bench, many),
        f"async def handler, concurrency {CONCURRENCY}": _worked(bench, many, is_async=True),
        f"plain def handler, concurrency {CONCURRENCY}": _worked(bench, few, is_async=False),
    }
    taken = await interleave(bench, "handlers", measures)
    (bare_name, bare_taken), (async_name, async_taken), (plain_name, plain_taken) = taken.items()
    return [
        rate_row("handlers", bare_name, bare_taken),
        rate_row("handlers", async_name, async_taken, bare_taken, RATIO_MIN.get(bench.host.name)),
        rate_row("handlers", plain_name, plain_taken, bare_taken),
    ]


def _worked(bench: Bench, jobs: int, *, is_async: bool) -> Measure:
    async def measure() -> Timing:
        with bench.store() as url:
            async with opened(url) as engine:
                await fill(engine, jobs)
            bench.host.loaded(url)
            timing = await _work(bench, url, jobs, is_async=is_async)
            async with opened(url) as engine:
                await check_completed(engine, jobs)
            return timing

    return measure


async def _work(bench: Bench, url: str, jobs: int, *, is_async: bool) -> Timing:
    """Run from the start of the workers until all jobs are settled and the workers have stopped."""
    app = Everwork(url)
    left = jobs

    def count_down() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            app.stop()

    async def do_nothing(n: int) -> None:  # noqa: ARG001 - it is part of a job
        count_down()

    def do_nothing_in_a_thread(n: int) -> None:  # noqa: ARG001
        # Appending is atomic; counting down from several threads would not be.
        done.append(None)
        if len(done) == jobs:
            app.stop()

    done: list[None] = []
    declare = app.job(TYPE, concurrency=CONCURRENCY)
    declare(do_nothing) if is_async else declare(do_nothing_in_a_thread)
    async with app:
        with bench.timing(jobs) as timing:
            await app.work()
    return timing
