"""owners: whose a job is, wherever it is in its life."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from everwork.core.limits import DEFAULT_TENANT, KEY_MAX
from tests.factories import (
    Stage,
    a_cancelled_job,
    a_completed_job,
    a_dead_letter,
    a_new_job,
    a_pending_job,
    a_processing_job,
    a_scheduled_job,
)

if TYPE_CHECKING:
    from everwork.engines.contract import Engine

STAGES: list[Stage] = [
    a_pending_job, a_scheduled_job, a_processing_job, a_completed_job, a_dead_letter, a_cancelled_job,
]  # fmt: skip


@pytest.mark.parametrize("stage", STAGES)
async def test_a_job_has_its_tenant_at_every_stage_of_life(engine: Engine, stage: Stage) -> None:
    job = await stage(engine, tenant="acme")
    assert await engine.owners([job.key]) == ["acme"]


async def test_owners_stand_in_the_order_asked_for(engine: Engine) -> None:
    new = [a_new_job(tenant="acme"), a_new_job(), a_new_job(limit_key="c"), a_new_job(tenant="birch", limit_key="c")]
    keys = [job.key for job in await engine.create(new)]
    asked = [keys[3], keys[1], KEY_MAX, keys[0], keys[2], keys[3]]
    assert await engine.owners(asked) == ["birch", DEFAULT_TENANT, None, "acme", DEFAULT_TENANT, "birch"]


async def test_nobody_owns_what_does_not_exist(engine: Engine) -> None:
    job = await a_completed_job(engine)
    await engine.delete([job.key])
    assert await engine.owners([job.key, 999]) == [None, None]
    assert await engine.owners([]) == []


async def test_the_owners_of_thousands_are_told(engine: Engine) -> None:
    created = await engine.create([a_new_job(tenant=f"t{number % 3}") for number in range(5_000)])
    expected = [f"t{number % 3}" for number in range(5_000)]
    assert await engine.owners([job.key for job in created]) == expected
