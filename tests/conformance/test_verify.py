"""The store's own check finds damage, and nothing in an intact store, whatever jobs it has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from everwork.service.doctor import examine
from tests.damage import NO_OBJECT, NOT_JSON, StoreDamage
from tests.factories import (
    a_cancelled_job,
    a_completed_job,
    a_dead_letter,
    a_pending_job,
    a_processing_job,
    a_scheduled_job,
)
from tests.stores import url_of

if TYPE_CHECKING:
    from pathlib import Path

    from everwork.engines.contract import Engine
    from tests.stores import VirtualClock


async def test_a_store_with_jobs_in_every_state_is_sound(engine: Engine) -> None:
    for make in (a_completed_job, a_dead_letter, a_processing_job, a_cancelled_job, a_scheduled_job, a_pending_job):
        await make(engine)
    assert [defect for defect in await engine.verify() if not defect.is_note] == []


@pytest.mark.parametrize("raw", [NOT_JSON, NO_OBJECT], ids=["not-json", "no-object"])
async def test_the_doctor_names_jobs_with_damaged_json(
    engine: Engine, engine_name: str, tmp_path: Path, clock: VirtualClock, raw: bytes
) -> None:
    jobs = [await a_pending_job(engine) for _ in range(3)]
    StoreDamage(url_of(engine_name, tmp_path)).spoil_job(jobs[1].key, "variables", raw)
    texts = [finding.text for finding in (await examine(engine, clock, integrity=True)).findings if finding.is_problem]
    assert f"the JSON of 1 job is damaged: {jobs[1].key}" in texts
