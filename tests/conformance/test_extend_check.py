"""extend and check: heartbeats, and what the holder of a lease learns by them (G3, G11)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from everwork.core.leasing import Lease, LeaseStatus
from everwork.core.outcome import Complete, Failed, Release
from everwork.core.states import State
from tests.conformance.observe import sight
from tests.factories import (
    LEASE_MS,
    Stage,
    a_completed_job,
    a_dead_letter,
    a_pending_job,
    a_processing_job,
    activated,
    settled,
    the_job,
    the_state,
)
from tests.stores import SECOND_MS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from everwork.engines.contract import Engine
    from tests.stores import VirtualClock

pytestmark = pytest.mark.every_way("redis-cluster")

HELD, CANCELLED, LOST = LeaseStatus.HELD, LeaseStatus.CANCELLED, LeaseStatus.LOST


async def extended(engine: Engine, leases: Sequence[Lease], lease_ms: int = LEASE_MS) -> list[LeaseStatus]:
    """What extend answers, which check must have answered before."""
    checked = await engine.check(leases)
    answer = await engine.extend(leases, lease_ms)
    assert checked == answer, "check and extend disagree"
    return answer


async def test_an_extended_lease_ends_that_long_from_the_engine_s_now(engine: Engine, clock: VirtualClock) -> None:
    job = await a_processing_job(engine, lease_ms=30_000)
    clock.advance(seconds=20)
    assert await extended(engine, [Lease(job.key, 1)], 15_000) == [HELD]
    assert (await the_job(engine, job.key)).lease_until_ms == clock.now_ms + 15_000


async def test_an_extension_may_also_shorten_a_lease(engine: Engine, clock: VirtualClock) -> None:
    job = await a_processing_job(engine, lease_ms=30_000)
    await engine.extend([Lease(job.key, 1)], SECOND_MS)
    assert (await the_job(engine, job.key)).lease_until_ms == clock.now_ms + SECOND_MS


async def test_a_job_with_heartbeats_outlives_its_first_lease(engine: Engine, clock: VirtualClock) -> None:
    job = await a_processing_job(engine, lease_ms=10_000)
    for _ in range(5):
        clock.advance(seconds=8)
        await engine.extend([Lease(job.key, 1)], 10_000)
        assert (await engine.sweep("s")).lapsed == 0
    assert (await settled(engine, Complete(job.key, 1))).state is State.COMPLETED


async def test_an_extension_changes_nothing_but_the_deadline(engine: Engine, clock: VirtualClock) -> None:
    job = await a_processing_job(engine)
    before = await sight(engine, job.key)
    clock.advance(seconds=5)
    await engine.extend([Lease(job.key, 1)], LEASE_MS)
    after = await sight(engine, job.key)
    assert (after.history, after.counts) == (before.history, before.counts)
    assert after.job is not None
    assert (after.job.attempt, after.job.attempts, after.job.activated_at_ms) == (1, 1, job.activated_at_ms)


async def test_check_changes_nothing(engine: Engine, clock: VirtualClock) -> None:
    job = await a_processing_job(engine)
    before = await sight(engine, job.key)
    clock.advance(seconds=5)
    assert await engine.check([Lease(job.key, 1)]) == [HELD]
    assert await sight(engine, job.key) == before


async def test_a_lease_that_ran_out_can_be_extended_until_a_sweep_takes_it(engine: Engine, clock: VirtualClock) -> None:
    job = await a_processing_job(engine, lease_ms=SECOND_MS)
    clock.advance(seconds=60)
    assert await extended(engine, [Lease(job.key, 1)]) == [HELD]
    assert (await engine.sweep("s")).lapsed == 0


async def test_a_lease_that_a_sweep_took_away_is_lost(engine: Engine, clock: VirtualClock) -> None:
    job = await a_processing_job(engine, lease_ms=SECOND_MS)
    clock.advance(seconds=2)
    await engine.sweep("s")
    before = await sight(engine, job.key)
    assert await extended(engine, [Lease(job.key, 1)]) == [LOST]
    assert await sight(engine, job.key) == before


async def test_an_old_attempt_cannot_extend_the_lease_of_the_next(engine: Engine, clock: VirtualClock) -> None:
    job = await a_processing_job(engine)
    await settled(engine, Release(job.key, 1))
    held = await activated(engine, job, worker="w2")
    clock.advance(seconds=5)
    assert await extended(engine, [Lease(job.key, 1)]) == [LOST]
    assert await the_job(engine, job.key) == held


async def test_an_attempt_that_has_not_begun_cannot_be_extended(engine: Engine) -> None:
    job = await a_processing_job(engine)
    assert await extended(engine, [Lease(job.key, 2)]) == [LOST]


async def test_old_and_live_leases_of_one_job_are_told_apart_in_one_call(engine: Engine, clock: VirtualClock) -> None:
    job = await a_processing_job(engine)
    await settled(engine, Release(job.key, 1))
    await activated(engine, job)
    clock.advance(seconds=5)
    assert await extended(engine, [Lease(job.key, 1), Lease(job.key, 2)], 9_000) == [LOST, HELD]
    assert await extended(engine, [Lease(job.key, 2), Lease(job.key, 1)], 9_000) == [HELD, LOST]
    assert (await the_job(engine, job.key)).lease_until_ms == clock.now_ms + 9_000


async def test_the_holder_learns_that_its_job_was_cancelled(engine: Engine) -> None:
    job = await a_processing_job(engine)
    await engine.cancel([job.key])
    before = await sight(engine, job.key)
    assert await extended(engine, [Lease(job.key, 1)]) == [CANCELLED]
    assert await sight(engine, job.key) == before


@pytest.mark.parametrize("stage", [a_completed_job, a_dead_letter])
async def test_the_lease_of_a_finished_job_is_lost(engine: Engine, stage: Stage) -> None:
    job = await stage(engine)
    assert await extended(engine, [Lease(job.key, 1)]) == [LOST]


async def test_the_lease_of_a_retried_attempt_is_lost(engine: Engine) -> None:
    job = await a_processing_job(engine)
    await settled(engine, Failed(job.key, 1, "boom"))
    assert await extended(engine, [Lease(job.key, 1)]) == [LOST]


async def test_a_job_that_nobody_holds_or_that_does_not_exist_is_lost(engine: Engine) -> None:
    job = await a_pending_job(engine)
    assert await extended(engine, [Lease(job.key, 1), Lease(999_999, 1)]) == [LOST, LOST]
    assert await the_state(engine, job.key) is State.PENDING


async def test_a_batch_of_leases_is_answered_in_its_order(engine: Engine) -> None:
    jobs = [await a_processing_job(engine) for _ in range(4)]
    await engine.cancel([jobs[1].key])
    await settled(engine, Complete(jobs[2].key, 1))
    leases = [Lease(job.key, 1) for job in reversed(jobs)]
    assert await extended(engine, leases) == [HELD, LOST, CANCELLED, HELD]


async def test_no_leases_get_no_answers(engine: Engine) -> None:
    assert await extended(engine, []) == []
