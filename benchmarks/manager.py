"""Manager: its processes compared with the function API, and their cost while idle."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.bench import Bench, Measure, Row, Timing, interleave, opened, rate_row
from benchmarks.noop import CONCURRENCY, MODULES, TYPE
from everwork.core.job import NewJob
from everwork.core.states import State
from everwork.engines.contract import Engine

RATIO_MIN: Final = 0.8
IDLE_PERCENT_MAX: Final = 2.0
MEMORY_MB_MAX: Final = 60.0
IDLE_SECONDS: Final = 20.0
IDLE_PROCESSES: Final = 2
READY_SECONDS: Final = 30.0
FILL: Final = 1_000
FORBIDDEN: Final = {"grpc", "starlette", "uvicorn", "typer", "google", "prometheus_client"}


async def measure_manager(bench: Bench) -> list[Row]:
    """One process under a manager and one process with a function; then two idle processes."""
    jobs = bench.jobs(60_000, 5_000)
    measures: dict[str, Measure] = {
        f"function API, its own process, concurrency {CONCURRENCY}": _worked(bench, jobs, "functions"),
        f"manager with one process, concurrency {CONCURRENCY}": _worked(bench, jobs, "manager"),
    }
    (function, function_taken), (manager, manager_taken) = (await interleave(bench, "manager", measures)).items()
    return [
        rate_row("manager", function, function_taken),
        rate_row("manager", manager, manager_taken, function_taken, RATIO_MIN),
        *await _idle_rows(bench),
    ]


def _worked(bench: Bench, jobs: int, which: str) -> Measure:
    async def measure() -> Timing:
        with bench.store() as url:
            async with opened(url) as engine:
                with _running(which, url) as program:
                    await _until_asked(engine)
                    await engine.pause(TYPE, True)
                    for begin in range(0, jobs, FILL):
                        await engine.create([NewJob(TYPE, f'{{"n":{n}}}') for n in range(begin, begin + FILL)])
                    bench.host.loaded(url)
                    family = [program.pid, *_children_of(program.pid)]
                    with Timing(jobs, lambda: bench.host.cpu_seconds() + _cpu_seconds(family)) as timing:
                        await engine.pause(TYPE, False)
                        await _until_completed(engine, jobs)
            return timing

    return measure


async def _idle_rows(bench: Bench) -> list[Row]:
    """CPU of the manager and its processes while idle, and the memory of each."""
    bench.say(f"manager: {IDLE_PROCESSES} idle processes for {IDLE_SECONDS:g} s")
    with bench.store() as url:
        async with opened(url) as engine:
            with _running("manager", url, IDLE_PROCESSES) as program:
                await _until_asked(engine)
                [modules] = await engine.create([NewJob(MODULES)])
                await _until_completed(engine, 1)
                imported = set(json.loads((await engine.get([modules.key]))[0].result))  # type: ignore[union-attr,arg-type]
                family = [program.pid, *_children_of(program.pid)]
                before, began = _cpu_seconds(family), time.perf_counter()
                await asyncio.sleep(IDLE_SECONDS)
                percent = (_cpu_seconds(family) - before) / (time.perf_counter() - began) * 100
                sizes = {pid: _memory_mb(pid) for pid in family}
    workers = [mb for pid, mb in sizes.items() if pid != program.pid and _is_worker(mb)]
    return [
        _row("manager and 2 processes while idle", percent, "% of a core", IDLE_PERCENT_MAX),
        _row("memory of a worker process", median(workers), "MB", MEMORY_MB_MAX),
        _row("memory of the manager", sizes[program.pid], "MB", MEMORY_MB_MAX),
        _row("unwanted packages imported by a worker process", len(imported & FORBIDDEN), "packages", 0),
    ]


def _row(what: str, value: float, unit: str, value_max: float) -> Row:
    return Row(part="manager", what=what, value=value, unit=unit, value_max=value_max)


@contextmanager
def _running(which: str, url: str, processes: int = 1) -> Iterator[subprocess.Popen[bytes]]:
    program = subprocess.Popen([sys.executable, "-m", "benchmarks.noop", which, url, str(processes)])
    try:
        yield program
    finally:
        program.send_signal(signal.SIGTERM)
        program.wait(READY_SECONDS)


async def _until_asked(engine: Engine) -> None:
    """Wait until a worker polls for jobs."""
    ends = time.monotonic() + READY_SECONDS
    while not any(info.type == TYPE and info.last_asked_ms for info in await engine.types()):
        if time.monotonic() > ends:
            raise RuntimeError("the workers did not start")
        await asyncio.sleep(0.05)


async def _until_completed(engine: Engine, jobs: int) -> None:
    completed = 0
    while completed < jobs:
        await asyncio.sleep(0.02)
        completed = sum(count.jobs for count in await engine.count() if count.state is State.COMPLETED)


def _children_of(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _cpu_seconds(pids: list[int]) -> float:
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _memory_mb(pid: int) -> float:
    """The resident memory, as shown by `ps`."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def _is_worker(mb: float) -> bool:
    """Whether a child process is a worker and not the interpreter's resource tracker."""
    return mb > 20
