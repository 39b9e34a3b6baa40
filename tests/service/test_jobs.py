"""Jobs: what a bound key may not do by any way."""

from __future__ import annotations

import re

import pytest

from everwork.core.job import NewJob
from everwork.core.leasing import Demand
from everwork.core.outcome import Complete
from everwork.core.queries import JobFilter, Reason
from everwork.core.states import State
from everwork.exceptions import InvalidInput, PermissionDenied
from everwork.service.access.principal import Permission, Principal
from everwork.service.fleet.entries import POLLER, ProcessEntry, WorkerEntry
from everwork.service.jobs import Jobs
from everwork.service.service import JobService
from everwork.service.verb import IN_PROCESS, Caller
from tests.factories import TYPE, a_pending_job
from tests.stores import START_MS, VirtualClock


async def test_a_completion_brings_no_jobs_of_other_tenants(service: JobService) -> None:
    jobs = Jobs(service, Caller(Principal("k", "ann", frozenset([Permission.JOBS]), ("acme",)), "here"))
    await jobs.create([NewJob(TYPE, tenant="acme")])
    [job] = await jobs.activate(Demand(TYPE, "w", 1))
    with pytest.raises(PermissionDenied, match="not allowed to act for tenant 'other'"):
        await jobs.settle([Complete(job.key, job.attempt, None, (NewJob(TYPE, tenant="other"),))])
    assert (await jobs.get(job.key)).state is State.PROCESSING
    [judged] = await jobs.settle([Complete(job.key, job.attempt, None, (NewJob(TYPE, tenant="acme"),))])
    assert judged.ok


async def test_a_bound_key_is_told_that_a_type_has_workers_but_not_those_of_others(service: JobService) -> None:
    job = await a_pending_job(service._engine)
    workers = [ProcessEntry(name=name, kind=POLLER, types=(TYPE,), running=3) for name in ("their-host-1", "b")]
    await service.fleet.beat(None, workers)
    bound = Jobs(service, Caller(Principal("k", "ann", frozenset([Permission.JOBS]), (job.tenant,)), "here"))
    why = await bound.explain(job.key)
    assert (why.reason, why.text) == (
        Reason.QUEUED,
        "ready: waiting for a free worker; 2 workers take this type",
    )
    assert "their-host-1" in (await Jobs(service, IN_PROCESS).explain(job.key)).text


async def test_a_bound_key_is_not_told_why_a_worker_does_not_start(service: JobService) -> None:
    job = await a_pending_job(service._engine)
    await service.fleet.declare([WorkerEntry(id="a1", title="Mailer", sources=(TYPE,))], [])
    broken = {"a1": "cannot reach db.internal with password 'hunter2'"}
    await service.fleet.beat(None, [ProcessEntry(name="p1", workers=("a1",), broken=broken)])
    bound = Jobs(service, Caller(Principal("k", "ann", frozenset([Permission.JOBS]), (job.tenant,)), "here"))
    why = await bound.explain(job.key)
    assert why.reason is Reason.NOT_ASKED
    assert not {"Mailer", "p1", "hunter2"}.intersection(re.findall(r"\w+", why.text))
    assert "hunter2" in (await Jobs(service, IN_PROCESS).explain(job.key)).text


@pytest.mark.parametrize("wanted", [JobFilter(), JobFilter(states=frozenset([State.FAILED]))])
async def test_an_empty_filter_brings_nothing_back_unless_all_is_said(service: JobService, wanted: JobFilter) -> None:
    with pytest.raises(InvalidInput, match=r"^all: must be true"):
        await Jobs(service, IN_PROCESS).requeue_matching(wanted)
    assert await Jobs(service, IN_PROCESS).requeue_matching(wanted, all=True) == (0, 0)


async def test_the_first_job_since_an_instant_is_found_without_reading_all_of_them(
    service: JobService, clock: VirtualClock
) -> None:
    jobs, made = Jobs(service, IN_PROCESS), []
    assert await jobs.key_since(START_MS) is None
    for _ in range(9):
        made.append((await a_pending_job(service._engine)).key)
        clock.advance(seconds=10)
    assert [await jobs.key_since(START_MS + at * 10_000) for at in range(9)] == made
    assert await jobs.key_since(START_MS + 1) == made[1]
    assert await jobs.key_since(0) == made[0]
    assert await jobs.key_since(START_MS + 80_001) is None
