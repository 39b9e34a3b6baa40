"""How long finished jobs are kept may differ by type."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from everwork.core.states import State
from everwork.engines.values import Swept
from tests.conformance.failing import where_it_is_decided
from tests.conformance.observe import count_of
from tests.conformance.test_sweep import swept
from tests.factories import TYPE, Stage, a_cancelled_job, a_completed_job, a_dead_letter, a_new_job, a_policy
from tests.stores import HOUR_MS

if TYPE_CHECKING:
    from everwork.engines.contract import Engine
    from tests.stores import VirtualClock

pytestmark = where_it_is_decided

FIELD_OF: list[tuple[Stage, str]] = [
    (a_completed_job, "keep_completed_hours"),
    (a_cancelled_job, "keep_completed_hours"),
    (a_dead_letter, "keep_failed_hours"),
]


@pytest.mark.parametrize(("stage", "field"), FIELD_OF)
async def test_a_type_may_keep_its_jobs_for_a_shorter_time(
    engine: Engine, clock: VirtualClock, stage: Stage, field: str
) -> None:
    await a_policy(engine, **{field: 2.0})  # type: ignore[arg-type]
    job, other = await stage(engine), await stage(engine, type="other")
    clock.advance(ms=2 * HOUR_MS - 1)
    assert await swept(engine) == Swept()
    clock.advance(ms=2)
    assert await swept(engine) == Swept(deleted=1)
    assert await engine.get([job.key, other.key]) == [None, other]


@pytest.mark.parametrize(("stage", "field"), FIELD_OF)
async def test_a_type_may_keep_its_jobs_for_a_longer_time(
    engine: Engine, clock: VirtualClock, stage: Stage, field: str
) -> None:
    job, other = await stage(engine), await stage(engine, type="other")
    usual_ms = engine.retention[job.state]
    await a_policy(engine, **{field: 2 * usual_ms / HOUR_MS})  # type: ignore[arg-type]
    clock.advance(ms=usual_ms + 1)
    assert await swept(engine) == Swept(deleted=1)
    assert await engine.get([job.key, other.key]) == [job, None]
    clock.advance(ms=usual_ms)
    assert await swept(engine) == Swept(deleted=1)


async def test_each_field_holds_for_its_own_states(engine: Engine, clock: VirtualClock) -> None:
    await a_policy(engine, keep_failed_hours=1.0)
    done, dead = await a_completed_job(engine), await a_dead_letter(engine)
    clock.advance(ms=HOUR_MS + 1)
    await swept(engine)
    assert await engine.get([done.key, dead.key]) == [done, None]


async def test_a_longer_time_keeps_what_is_older_than_usual_already(engine: Engine, clock: VirtualClock) -> None:
    job = await a_completed_job(engine)
    clock.advance(ms=engine.retention[State.COMPLETED] + 1)
    await a_policy(engine, keep_completed_hours=24.0 * 365)
    assert await swept(engine) == Swept()
    assert await engine.get([job.key]) == [job]


async def test_a_policy_that_is_taken_away_leaves_the_usual_time(engine: Engine, clock: VirtualClock) -> None:
    await a_policy(engine, keep_completed_hours=1.0)
    job = await a_completed_job(engine)
    await engine.set_policy(TYPE, None)
    clock.advance(ms=engine.retention[State.COMPLETED] - 1)
    assert await swept(engine) == Swept()
    assert await engine.get([job.key]) == [job]


async def test_a_great_number_that_is_kept_longer_does_not_hide_what_is_old(
    engine: Engine, clock: VirtualClock
) -> None:
    await a_policy(engine, keep_completed_hours=24.0 * 365)
    kept = await engine.create([a_new_job() for _ in range(1_200)])
    await engine.cancel([one.key for one in kept])
    await a_cancelled_job(engine, type="other")
    clock.advance(ms=engine.retention[State.CANCELLED] + 1)
    assert await swept(engine) == Swept(deleted=1)
    assert await count_of(engine, State.CANCELLED) == 1_200


async def test_a_shorter_time_deletes_in_bounded_steps(engine: Engine, clock: VirtualClock) -> None:
    await a_policy(engine, keep_completed_hours=1.0)
    created = await engine.create([a_new_job() for _ in range(1_200)])
    await engine.cancel([one.key for one in created])
    clock.advance(ms=HOUR_MS + 1)
    first = await engine.sweep("s")
    assert (0 < first.deleted <= 1_000, first.more) == (True, True)
    assert first.deleted + (await swept(engine)).deleted == 1_200
