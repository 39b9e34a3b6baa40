"""Latency: from enqueue in one process to the start of the handler in another, and the idle cost of that worker."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from asyncio.subprocess import PIPE, Process

from benchmarks.bench import Bench, Row
from benchmarks.hosts import alive_seconds
from benchmarks.tick_worker import TICK
from everwork import Everwork

EVERY_SECONDS = 0.01
WARM_UP_JOBS = 20
START_SECONDS_MAX = 60.0
SETTLE_SECONDS = 1.5
"""PostgreSQL's processes report what they have counted when they have been idle for a second."""
P99_MS_MAX = {"sqlite": 5.0}
"""The targets of the servers are relative to peers."""


async def measure_latency(bench: Bench) -> list[Row]:
    """One worker process serves all measurements, with the same build and settings."""
    jobs, idle_seconds = bench.jobs(500, 100), 2.0 if bench.is_quick else 20.0
    with bench.store() as url:
        worker = await asyncio.create_subprocess_exec(sys.executable, "-m", "benchmarks.tick_worker", url, stdout=PIPE)
        try:
            bench.say(f"latency: {jobs} jobs, one every {EVERY_SECONDS * 1000:g} ms")
            per_job = await _produce(bench, url, jobs)
            bench.say(f"latency: CPU of the idle worker over {idle_seconds:g} s")
            idle_percent = await _cpu_percent(worker.pid, idle_seconds)
        finally:
            late_ms = await _stop(worker)
    p99_max = P99_MS_MAX.get(bench.host.name)
    return _rows(sorted(late_ms[WARM_UP_JOBS:]), jobs, idle_percent, p99_max) + [
        Row(part="latency", what=f"{name} per job, looks of the idle worker included", value=number, unit="",
            value_max=3) for name, number in per_job.items()
    ]  # fmt: skip


def _rows(late_ms: list[float], jobs: int, idle_percent: float, p99_max: float | None) -> list[Row]:
    if len(late_ms) != jobs:
        raise RuntimeError(f"the worker ran {len(late_ms)} of {jobs} jobs")
    what = "two processes, enqueue to start"
    return [
        Row(part="latency", what=f"{what}, median", value=late_ms[jobs // 2], unit="ms"),
        Row(part="latency", what=f"{what}, p99", value=late_ms[jobs * 99 // 100], unit="ms", value_max=p99_max),
        Row(part="latency", what=f"{what}, worst", value=late_ms[-1], unit="ms"),
        Row(part="latency", what="the same worker while idle", value=idle_percent, unit="% of a core", value_max=0.3),
    ]


async def _produce(bench: Bench, url: str, jobs: int) -> dict[str, float]:
    """Enqueue jobs; returns what the server did for each of them."""
    async with Everwork(url) as app:
        key = 0
        for _ in range(WARM_UP_JOBS):
            key = await app.enqueue(TICK, sent_ns=0)
            await app.result(key, timeout=START_SECONDS_MAX)
        await asyncio.sleep(SETTLE_SECONDS)
        before = bench.host.counters(url)
        next_at = time.monotonic()
        for _ in range(jobs):
            key = await app.enqueue(TICK, sent_ns=time.monotonic_ns())
            next_at += EVERY_SECONDS
            await asyncio.sleep(max(0.0, next_at - time.monotonic()))
        await app.result(key, timeout=START_SECONDS_MAX)
        await asyncio.sleep(SETTLE_SECONDS)
        return {name: (number - before[name]) / jobs for name, number in bench.host.counters(url).items()}


async def _cpu_percent(pid: int, seconds: float) -> float:
    before, began = alive_seconds(str(pid)), time.monotonic()
    await asyncio.sleep(seconds)
    return (alive_seconds(str(pid)) - before) / (time.monotonic() - began) * 100


async def _stop(worker: Process) -> list[float]:
    """Stop the worker and read its delays in milliseconds from its last line; log lines can be above it."""
    if worker.returncode is None:
        worker.terminate()
    output, _ = await worker.communicate()
    return [late_ns / 1e6 for late_ns in json.loads((output.splitlines() or [b"[]"])[-1])]
