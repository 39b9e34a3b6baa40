"""Shared by all parts: the stopwatch, new stores, interleaved rounds, and the rows of the table."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.hosts import Host
from everwork.engines.open import open_engine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from everwork.engines.contract import Engine

ROUNDS = 3
BATCH = 100
RESAMPLES = 1_000
HISTORY_JOBS = 1_000_000
BARE_CPU_MIN = 0.5
"""A bare loop with a lower CPU share is waiting for the disk, which then limits everything."""


@dataclass(frozen=True, slots=True)
class Bench:
    """One run on one engine: its stores, how much is measured, and where progress is reported."""

    host: Host
    is_quick: bool
    say: Callable[[str], None]
    keep: Path | None = None
    """The folder that keeps stores between runs that take long to fill."""
    history_jobs: int = HISTORY_JOBS
    """How many finished jobs, and how many future jobs, the store of `history` holds."""

    def jobs(self, full: int, quick: int) -> int:
        """The number of jobs of a measurement."""
        return quick if self.is_quick else full

    def timing(self, jobs: int) -> Timing:
        """A stopwatch for a number of jobs, which includes the database server's CPU."""
        return Timing(jobs, self.host.cpu_seconds)

    @contextmanager
    def store(self) -> Iterator[str]:
        """The URL of a new store, deleted afterwards."""
        with self.host.store() as url:
            yield url

    @asynccontextmanager
    async def engine(self, *, own_loop: bool = False) -> AsyncIterator[Engine]:
        """An engine on an empty store, with its default durability."""
        with self.store() as url:
            async with opened(url, own_loop=own_loop) as engine:
                yield engine


@asynccontextmanager
async def opened(url: str, *, own_loop: bool = False) -> AsyncIterator[Engine]:
    """An open engine on a store."""
    engine = open_engine(url, own_loop=own_loop)
    await engine.open()
    try:
        yield engine
    finally:
        await engine.close()


@dataclass(slots=True)
class Timing:
    """The time taken by a number of jobs: wall time, and CPU time of all threads of this process and of the server."""

    jobs: int
    server_cpu: Callable[[], float]
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    _began: tuple[float, float] = field(default=(0.0, 0.0), repr=False)

    def __enter__(self) -> Timing:
        # The server's CPU time is read outside the measurement, because reading it costs this process CPU time.
        server_cpu = self.server_cpu()
        self._began = (time.perf_counter(), time.process_time() + server_cpu)
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._began[0]
        own_cpu = time.process_time()
        self.cpu_seconds = own_cpu + self.server_cpu() - self._began[1]

    @property
    def rate(self) -> float:
        """Jobs per second."""
        return self.jobs / self.seconds

    @property
    def cpu_us(self) -> float:
        """Microseconds of CPU per job."""
        return self.cpu_seconds / self.jobs * 1e6


def check_all(done: int, jobs: int) -> None:
    """Fail unless all jobs were done: otherwise the rate is meaningless."""
    if done != jobs:
        raise RuntimeError(f"{done} of {jobs} jobs were run")


Measure = Callable[[], Awaitable[Timing]]


async def interleave(
    bench: Bench, part: str, measures: Mapping[str, Measure], rounds: int = ROUNDS
) -> dict[str, list[Timing]]:
    """Measure everything once per round, so that disturbances affect all measurements alike."""
    taken: dict[str, list[Timing]] = {name: [] for name in measures}
    for number in range(1, rounds + 1):
        for name, measure in measures.items():
            bench.say(f"{part}: round {number} of {rounds}: {name}")
            gc.collect()
            taken[name].append(await measure())
    return taken


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table. `ratio` is to the bare loop of the same run."""

    part: str
    what: str
    value: float
    unit: str = "jobs/s"
    ratio: float | None = None
    interval: tuple[float, float] | None = None
    """The bootstrap interval of the ratio, if it was computed."""
    cpu_us: float | None = None
    ratio_min: float | None = None
    ratio_max: float | None = None
    value_max: float | None = None
    value_min: float | None = None
    is_judged: bool = True
    """False if the bare loop waited for the disk, so that the ratio says nothing about the engine."""

    @property
    def aim(self) -> str:
        """The target as text."""
        if self.ratio_min is not None:
            return f"ratio >= {self.ratio_min:.2f}"
        if self.ratio_max is not None:
            return f"ratio <= {self.ratio_max:.2f}"
        if self.value_min is not None:
            return f">= {self.value_min:,.0f} {self.unit}"
        return "" if self.value_max is None else f"<= {self.value_max:g} {self.unit}"

    @property
    def is_met(self) -> bool | None:
        """Whether the target is met; None if there is none or it cannot be judged."""
        if not self.is_judged:
            return None
        if self.ratio_min is not None:
            return self.ratio is not None and self.ratio >= self.ratio_min
        if self.ratio_max is not None:
            return self.ratio is not None and self.ratio <= self.ratio_max
        if self.value_min is not None:
            return self.value >= self.value_min
        return None if self.value_max is None else self.value <= self.value_max


def rate_row(
    part: str,
    what: str,
    taken: Sequence[Timing],
    bare: Sequence[Timing] | None = None,
    ratio_min: float | None = None,
    *,
    value_min: float | None = None,
    with_interval: bool = False,
) -> Row:
    """Medians over the rounds; the ratio is the median of the ratios of the rounds."""
    ratios = [t.rate / b.rate for t, b in zip(taken, bare, strict=True)] if bare is not None else []
    return Row(
        part=part,
        what=what,
        value=median(timing.rate for timing in taken),
        cpu_us=median(timing.cpu_us for timing in taken),
        ratio=median(ratios) if ratios else None,
        interval=resampled(ratios) if with_interval else None,
        ratio_min=ratio_min,
        value_min=value_min,
        is_judged=ratio_min is None or bare is None or median(map(_cpu_share, bare)) >= BARE_CPU_MIN,
    )


def resampled(ratios: Sequence[float]) -> tuple[float, float]:
    """The 95 % bootstrap interval of the median."""
    drawn = sorted(median(random.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES))
    return drawn[RESAMPLES // 40], drawn[-RESAMPLES // 40 - 1]


def _cpu_share(timing: Timing) -> float:
    return timing.cpu_seconds / timing.seconds
