"""One tenant's many jobs do not starve another's few (G9), at the size at which it would hurt."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from everwork.core.leasing import Demand
from everwork.core.outcome import Complete
from tests.factories import TYPE, WORKER, a_new_job, a_policy

if TYPE_CHECKING:
    from everwork.core.job import LeasedJob
    from everwork.engines.contract import Engine

MANY, FEW, BATCH = 100_000, 10, 10


async def handed_out(engine: Engine, batches: int) -> list[LeasedJob]:
    """What one worker is given that completes each batch before it asks for the next."""
    given: list[LeasedJob] = []
    done: list[Complete] = []
    for _ in range(batches):
        jobs = (await engine.settle(done, [Demand(TYPE, WORKER, BATCH)])).activation.jobs
        done = [Complete(job.key, job.attempt) for job in jobs]
        given += jobs
    await engine.settle(done)
    return given


@pytest.mark.timeout(240)
async def test_ten_jobs_of_one_tenant_are_among_the_first_fifty_beside_a_hundred_thousand_of_another(
    engine: Engine,
) -> None:
    for _ in range(MANY // 10_000):
        await engine.create([a_new_job(tenant="a") for _ in range(10_000)])
    await engine.create([a_new_job(tenant="b") for _ in range(FEW)])
    assert sum(count.jobs for count in await engine.count()) == MANY + FEW
    assert [job.tenant for job in await handed_out(engine, 5)].count("b") == FEW
    await a_policy(engine, max_running=BATCH)
    await engine.create([a_new_job(tenant="b") for _ in range(FEW)])
    assert [job.tenant for job in await handed_out(engine, 5)].count("b") == FEW
