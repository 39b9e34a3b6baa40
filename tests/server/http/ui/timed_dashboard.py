"""A dashboard whose store and pulse live by a clock that the test moves."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from everwork.core.job import NewJob
from everwork.core.leasing import Demand
from everwork.core.outcome import Complete, Failed
from everwork.engines.contract import Engine
from everwork.engines.open import open_engine
from everwork.server.http.framework.server import HttpServer
from everwork.server.settings import Settings
from everwork.service.access.keys import KeyRing
from everwork.service.monitor.sampler import MetricsSampler
from everwork.service.service import JobService
from tests.server.http.serving import DEADLINE_S, ROOT_KEY, Rest
from tests.server.http.ui.visiting import Visitor, visiting
from tests.stores import MINUTE_MS, VirtualClock, url_of

LEASE_MS = 10 * MINUTE_MS


@dataclass(frozen=True)
class TimedDashboard:
    """Somebody who looks at the dashboard, and what can happen in its store."""

    visitor: Visitor
    engine: Engine
    sampler: MetricsSampler
    clock: VirtualClock

    async def work(self, type: str, *errors: str | None, run_ms: int = 0, retries: int = 0) -> None:
        """Jobs that take so long: one for each error, None for one that succeeds."""
        await self.engine.create([NewJob(type)] * len(errors))
        leased = (await self.engine.activate([Demand(type, "w1", len(errors), LEASE_MS)])).jobs
        self.clock.advance(ms=run_ms)
        pairs = zip(leased, errors, strict=True)
        await self.engine.settle(
            [
                Complete(job.key, job.attempt)
                if error is None
                else Failed(job.key, job.attempt, error, retries=retries, backoff_ms=100 * MINUTE_MS)
                for job, error in pairs
            ]
        )
        await self.sampler.fresh()

    async def log_in_again(self) -> None:
        """After so long a time that the session is over."""
        assert (await self.visitor.client.post("/ui/login", data={"key": ROOT_KEY})).status_code == 303

    async def minutes_later(self, minutes: int) -> None:
        """So many minutes pass, in which somebody looks all the time."""
        for _ in range(minutes):
            self.clock.advance(ms=MINUTE_MS)
            await self.sampler.fresh()

    async def page(self, path: str) -> str:
        """A page of what is so by now."""
        await self.sampler.fresh()
        return await self.visitor.page(path)


@asynccontextmanager
async def timed_dashboard(folder: Path, jobs: Sequence[NewJob] = ()) -> AsyncIterator[TimedDashboard]:
    """A dashboard that somebody has begun to watch."""
    clock = VirtualClock()
    engine = open_engine(url_of("sqlite", folder), clock=clock)
    service = JobService(engine, "test")
    await service.open()
    keys, sampler = KeyRing(engine, environment_key=ROOT_KEY), MetricsSampler(engine, "test")
    await keys.open()
    server = HttpServer(service, keys, Settings(http_port=0), sampler=sampler)
    place = f"http://127.0.0.1:{await server.start()}"
    client = httpx.AsyncClient(base_url=place, headers={"X-API-Key": ROOT_KEY}, timeout=DEADLINE_S)
    try:
        await engine.create(jobs)
        await sampler.fresh()
        async with client, visiting(Rest(server, engine, service, keys, place, client)) as visitor:
            yield TimedDashboard(visitor, engine, sampler, clock)
    finally:
        await server.stop(5)
        await keys.close()
        await service.close()
