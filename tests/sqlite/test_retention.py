"""Retention: how the sweep finds old jobs among many that stay."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from everwork.core.outcome import Complete
from tests.factories import a_completed_job, a_processing_job, settled
from tests.stores import DAY_MS, HOUR_MS, open_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from everwork.engines.contract import Engine
    from tests.stores import VirtualClock

ROWS_PER_STEP = 3


@pytest.fixture
async def engine(tmp_path: Path, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Engine]:
    """An engine that looks at a few finished jobs at a time."""
    monkeypatch.setattr("everwork.engines.sqlite.sweep.SWEEP_STEP_MAX", ROWS_PER_STEP)
    opened = await open_store("sqlite", tmp_path, clock)
    yield opened
    await opened.close()


async def sweeps_until_deleted(engine: Engine, key: int) -> int:
    """How many sweeps it takes until a job is gone."""
    for sweeps in range(1, 100):
        await engine.sweep("s")
        if await engine.get([key]) == [None]:
            return sweeps
    raise AssertionError("the job is still there")


@pytest.mark.parametrize("young", [ROWS_PER_STEP, 10 * ROWS_PER_STEP])
async def test_jobs_that_stay_do_not_delay_the_deletion_of_old_ones(
    engine: Engine, clock: VirtualClock, young: int
) -> None:
    await a_processing_job(engine, type="a", lease_ms=30 * DAY_MS)  # The scan comes to this type first.
    old = await a_completed_job(engine, type="b")
    clock.advance(ms=8 * DAY_MS)
    for _ in range(young):
        await a_completed_job(engine, type="a")
    assert await sweeps_until_deleted(engine, old.key) == 1


async def test_an_old_job_behind_others_that_finished_late_is_deleted_too(engine: Engine, clock: VirtualClock) -> None:
    for _ in range(2):  # Not only the first time.
        late = [await a_processing_job(engine, lease_ms=30 * DAY_MS) for _ in range(2 * ROWS_PER_STEP)]
        old = await a_completed_job(engine)
        clock.advance(ms=8 * DAY_MS)
        for job in late:
            await settled(engine, Complete(job.key, job.attempt))
        assert await sweeps_until_deleted(engine, old.key) > 1
        assert None not in await engine.get([job.key for job in late])


async def test_all_finished_jobs_are_looked_through_once_an_hour(engine: Engine, clock: VirtualClock) -> None:
    late = [await a_processing_job(engine, lease_ms=30 * DAY_MS) for _ in range(ROWS_PER_STEP)]
    hidden = await a_completed_job(engine)
    clock.advance(ms=7 * DAY_MS - HOUR_MS // 2)
    for job in late:
        await settled(engine, Complete(job.key, job.attempt))
    for _ in range(10):
        await engine.sweep("s")
    clock.advance(ms=HOUR_MS)
    assert await sweeps_until_deleted(engine, hidden.key) == 2
