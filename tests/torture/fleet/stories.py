"""Scenarios with servers: which caller gets which response, and what happens to the lease of a disconnected caller."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from everwork.core.job import NewJob
from everwork.engines.contract import Engine
from everwork.engines.open import open_engine
from everwork.server import server as server_module
from tests.server.whole import Whole, running
from tests.torture import faults, plan
from tests.torture.fleet.parts import TENANTS, Caller, Eyes, RemoteEngine, of_tenant
from tests.torture.fleet.rest_jobs import RestEngine, RestJobs
from tests.torture.history import HistoryWriter
from tests.torture.logged import watched

if TYPE_CHECKING:
    from tests.torture.scenarios import Stage

_LEASE_MS: Final = 1_000
_SECONDS_MAX: Final = 20
_TICK_SECONDS: Final = 0.01


async def death_after_an_outcome_was_taken(stage: Stage) -> None:
    """The server dies right after it has confirmed an outcome to a worker."""
    async with _fleet(stage) as (_, first, _other):
        await _create(first, "done")
        job = await _take(first)
        await first.report([plan.outcome(job, "complete")])
        faults.die()


async def late_outcome_by_rest(stage: Stage) -> None:
    """A REST worker completes a job after its lease expired and another worker leased it."""
    async with _fleet(stage) as (_, first, _other):
        await _create(first, "late")
        old = await _take(first)
        stage.clock.advance(ms=_LEASE_MS)
        await stage.second.engine.sweep("second")
        stage.clock.advance(ms=_LEASE_MS)
        await _take(first)
        await first.report([plan.outcome(old, "complete")])


async def two_tenants(stage: Stage) -> None:
    """A tenant polls while only the other tenant has jobs."""
    async with _fleet(stage) as (_, first, other):
        await _create(other, "private")
        await first.poll(plan.WORK, 10, _LEASE_MS, 0)


async def a_batch_for_two_tenants(stage: Stage) -> None:
    """In one call, a tenant creates a job of its own and one for the other tenant."""
    async with _fleet(stage) as (_, first, other):
        mine = plan.Request("mine", _job("mine", first.tenant))
        foreign = plan.Request("foreign", _job("foreign", first.tenant)._replace(tenant=other.tenant))
        await first.create([mine, foreign])
        await other.poll(plan.WORK, 10, _LEASE_MS, 0)


async def a_caller_that_has_gone(stage: Stage) -> None:
    """A long poll leases a job at the moment its caller disconnects; the caller never sees it."""
    async with _fleet(stage) as (whole, first, _other):
        key = await _create(first, "for nobody")
        engine = whole.service._engine
        activate, is_asked, may_answer = engine.activate, asyncio.Event(), asyncio.Event()

        async def slow(*given: Any) -> Any:
            is_asked.set()
            await may_answer.wait()
            return await activate(*given)

        vars(engine)["activate"] = slow
        caller = asyncio.create_task(first.poll(plan.WORK, 1, _LEASE_MS, 5))
        await asyncio.wait_for(is_asked.wait(), _SECONDS_MAX)
        caller.cancel()
        await asyncio.wait([caller])
        await first.engine.close()
        first.history.leaves(_WORKER)
        stage.clock.advance(seconds=5)
        may_answer.set()
        await _is_leased(stage, key)
        vars(engine)["activate"] = activate


async def _is_leased(stage: Stage, key: int) -> None:
    """Wait until the job was leased; its history shows whether it was released."""
    async with asyncio.timeout(_SECONDS_MAX):
        while True:
            [job] = await stage.first.engine.get([key])
            if job is not None and job.attempt:
                return
            await asyncio.sleep(_TICK_SECONDS)


_WORKER: Final = "rest-0.0"


@asynccontextmanager
async def _fleet(stage: Stage) -> AsyncIterator[tuple[Whole, RestEngine, RestEngine]]:
    """A server in this process, and a REST client of each of two tenants."""

    def open_watched(url: str, **options: Any) -> Engine:
        history = HistoryWriter(stage.folder / "server-0.0000.jsonl", stage.clock)
        return watched(open_engine(url, clock=stage.clock, **options), history)

    vars(server_module)["open_engine"] = open_watched
    async with running(stage.url) as whole:
        first, other = [await _client(stage, whole, tenant) for tenant in TENANTS]
        yield whole, first, other
        for one in (first, other):
            await one.engine.close()


async def _client(stage: Stage, whole: Whole, tenant: str) -> RestEngine:
    key = await whole.server.keys.create(tenant, ["jobs"], tenants=[tenant])
    caller = Caller(tenant, key.text, whole.ports.grpc, whole.ports.http)
    history = HistoryWriter(stage.folder / f"rest-{tenant}.0000.jsonl", stage.clock)
    return RestEngine(RestJobs(caller, Eyes(history, tenant), _WORKER), history, tenant)


async def _create(client: RemoteEngine, name: str) -> int:
    created = await client.create([plan.Request(name, _job(name, client.tenant))])
    return int(created[0].key)


async def _take(client: RemoteEngine) -> plan.PolledJob:
    jobs = await client.poll(plan.WORK, 1, _LEASE_MS, 0)
    assert jobs
    client.history.begin(jobs[0].key, jobs[0].attempt)
    return jobs[0]


def _job(name: str, tenant: str) -> NewJob:
    return of_tenant(NewJob(plan.WORK, json.dumps({"r": name})), tenant)
