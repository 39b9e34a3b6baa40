"""One run: start the deployment, load it, inject faults, sample it, and check the ledger."""

from __future__ import annotations

import asyncio
import math
import os
import random
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psycopg
import redis

from tests.servers import Server
from tests.soak import ledger
from tests.soak.deployment import SERVERS, WORKERS, Deployment
from tests.soak.faults import Faults
from tests.soak.judge import RESTARTED, WARM_UP_SHARE
from tests.soak.load import Load
from tests.soak.measure import observed_values, process_values, store_values
from tests.soak.series import FAULTS, FILE, Series
from tests.soak.visitors import Visitors
from tests.torture.places import Place

STORE: Final = "store"
_STORE_ERRORS: Final = (OSError, sqlite3.Error, psycopg.Error, redis.RedisError)
LOAD: Final = "load"
_TICK_SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True)
class Plan:
    """The options of a run; durations in seconds."""

    place: Place
    folder: Path
    seconds: float
    every: float = 60.0
    rate: float = 40.0
    fault_every: float = 45.0
    restart_every: float = math.inf
    """How often the second server is restarted; its series are then not judged."""
    keep_minutes: float = 5.0
    longest: float = 12.0
    """How long slow jobs run and delayed jobs wait: longer than a lease, unless the run has to be short."""
    seed: int = 1
    samples_min: int = 0
    """Continue until there are at least this many in the judged half, however slow the machine is."""
    workers: tuple[str, ...] = WORKERS
    leak: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Outcome:
    """The outcome of a run: `violations` must be empty; `problems` counts errors that faults may explain."""

    series: Series
    done: dict[str, int]
    problems: dict[str, int]
    violations: list[str]
    jobs: int
    seconds: float
    seed: int = 0
    store: str = ""


async def soak(plan: Plan, stop: asyncio.Event, progress: Callable[[str], None]) -> Outcome:
    """Run until the time is up or `stop` is set; then wait for every job and check the ledger."""
    plan.folder.mkdir(parents=True, exist_ok=True)
    deployment = Deployment(plan.place, plan.folder, plan.keep_minutes / 60, plan.longest, plan.workers, plan.leak)
    try:
        deployment.start()
        async with Load(deployment, plan.rate, random.Random(plan.seed)) as load:
            await load.await_workers()
            run = _Run(plan, deployment, load)
            await run.go_on_until(stop, progress)
            await load.end()
            progress("waiting for the last jobs")
            await ledger.drain(load.clients[SERVERS[0]])
            found = await ledger.violations(load.ledger, plan.folder, load.clients[SERVERS[0]])
        found += run.ended
    finally:
        codes = deployment.stop()
    found += [f"{name} ended with code {code} when it was stopped" for name, code in codes.items() if code]
    books = await ledger.at_rest(deployment.url)
    found += books.violations
    found += _internal_errors(deployment)
    return Outcome(
        run.series, dict(run.done), dict(load.problems), found, load.ledger.jobs, run.seconds, plan.seed, books.store
    )


class _Run:
    """The loop that samples and injects faults."""

    def __init__(self, plan: Plan, deployment: Deployment, load: Load) -> None:
        self.series = Series(plan.folder / FILE)
        self.faults = Faults(deployment, random.Random(plan.seed + 1))
        self.ended: list[str] = []
        self.done = load.done.copy()
        self._plan = plan
        self._deployment = deployment
        self._load = load
        self._sampled: list[float] = []
        self._started = time.monotonic()

    @property
    def seconds(self) -> float:
        """The time since the start."""
        return time.monotonic() - self._started

    async def go_on_until(self, stop: asyncio.Event, progress: Callable[[str], None]) -> None:
        """Load, inject faults and sample until the time is up."""
        plan = self._plan
        self._load.begin()
        Visitors(self._load).begin()
        sample_at, fault_at, restart_at = plan.every, plan.fault_every, plan.restart_every
        while not (self._is_enough() or stop.is_set() or self.ended):
            if self.seconds >= sample_at:
                sample_at = max(sample_at + plan.every, self.seconds)
                await self.sample()
                progress(self._line())
            if self.seconds >= fault_at:
                fault_at = max(fault_at + plan.fault_every, self.seconds)
                await self._strike()
            if self.seconds >= restart_at:
                restart_at += plan.restart_every
                await self._deployment.restart_server(SERVERS[-1])
                self.series.add(self.seconds, FAULTS, {f"{SERVERS[-1]} restarted": 1})
            await asyncio.sleep(_TICK_SECONDS)

    def _is_enough(self) -> bool:
        """Whether the time is up, and the judged half has enough samples."""
        judged = sum(at >= self.seconds * WARM_UP_SHARE for at in self._sampled)
        return self.seconds >= self._plan.seconds and judged >= self._plan.samples_min

    async def _strike(self) -> None:
        try:
            name = await self.faults.strike()
        except _STORE_ERRORS as error:
            self._load.problems[f"fault: {type(error).__name__}"] += 1
        else:
            self.series.add(self.seconds, FAULTS, {name: 1} if name else {})

    async def sample(self) -> None:
        """Measure everything now."""
        now = self.seconds
        self._sampled.append(now)
        await asyncio.gather(*(self._sample_process(now, name) for name in self._deployment.lasting))
        self._sample_server(now)
        self.series.add(now, LOAD, process_values(os.getpid()))
        managed = [process_values(pid) for pid in self._deployment.managed()]
        self.series.add(now, "manager's processes", {"count": len(managed)} | _summed(managed))
        try:
            self.series.add(now, STORE, await asyncio.to_thread(store_values, self._deployment.url))
        except _STORE_ERRORS as error:  # A fault may cut this connection, too.
            self._load.problems[f"sample of the store: {type(error).__name__}"] += 1
        self._sample_load(now)
        self.ended += [f"{name} ended with code {code}" for name, code in self._deployment.ended().items()]

    async def _sample_process(self, now: float, name: str) -> None:
        pid = self._deployment.processes[name].pid
        inside = await asyncio.to_thread(observed_values, pid, self._plan.folder)
        is_judged = name != SERVERS[-1] or math.isinf(self._plan.restart_every)
        self.series.add(now, name if is_judged else RESTARTED, process_values(pid) | inside)

    def _sample_server(self, now: float) -> None:
        server = self._deployment.place.server
        if isinstance(server, Server):
            values = process_values(server.pid)
            values.pop("threads", None)
            self.series.add(now, "database", values)

    def _sample_load(self, now: float) -> None:
        for name, taken in sorted(self._load.latencies.items()):
            if taken:
                ordered = sorted(taken)
                values = {f"p{share}_ms": 1_000 * ordered[len(ordered) * share // 100] for share in (50, 99)}
                self.series.add(now, f"latency {name}", values)
        self._load.latencies.clear()
        self.series.add(now, LOAD, {f"did {name}": count for name, count in self._load.done.items()})
        self.series.add(now, LOAD, {"problems": sum(self._load.problems.values())})
        self.done.update(self._load.done)
        self._load.done.clear()

    def _line(self) -> str:
        rss = {name: self.series.points(name, "rss_bytes") for name in self._deployment.lasting}
        shown = "  ".join(f"{name} {points[-1].value / 2**20:.0f}" for name, points in rss.items() if points)
        counts = f"{self._load.ledger.jobs:,} jobs  {len(self.series.faults())} faults"
        return f"{self.seconds / 60:6.1f} min  {counts}  {sum(self._load.problems.values())} problems  MiB: {shown}"


def _summed(all_values: list[dict[str, float]]) -> dict[str, float]:
    """Add up the values of short-lived processes, which are shown, not judged."""
    return {f"sum {name}": sum(one.get(name, 0) for one in all_values) for name in ("rss_bytes", "descriptors")}


def _internal_errors(deployment: Deployment) -> list[str]:
    """Log lines that no fault explains."""
    found = []
    for path in sorted((deployment.folder / "logs").glob("*.log")):
        lines = path.read_text(errors="replace").splitlines()
        bad = [line for line in lines if "internal error" in line or "never awaited" in line]
        found += [f"{path.name}: {len(bad)} internal errors, such as {bad[0][:300]}"] if bad else []
    return found
