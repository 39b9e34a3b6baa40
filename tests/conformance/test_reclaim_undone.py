"""reclaim undoes all that a lapse has counted: a job is compared with its twin, whose lease never lapsed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from everwork.core.leasing import Lease, LeaseStatus
from everwork.core.limits import STATISTICS_KEEP_HOURS
from everwork.core.measures import LAPSED, failure
from everwork.core.outcome import Complete, Failed
from everwork.core.states import State
from tests.conformance.observe import assert_counts_add_up
from tests.factories import (
    LEASE_MS,
    TYPE,
    a_new_job,
    a_pending_job,
    a_policy,
    a_processing_job,
    activated,
    leased_keys,
    settled,
    the_job,
)
from tests.stores import HOUR_MS

if TYPE_CHECKING:
    from everwork.core.job import HistoryEntry, StoredJob
    from everwork.core.outcome import Outcome
    from everwork.engines.contract import Engine
    from tests.stores import VirtualClock

TWIN = "email-twin"
WAIT_MS = 700
LONG_MS = 100 * HOUR_MS


async def twins(
    engine: Engine, clock: VirtualClock, *, lease_ms: int = LONG_MS, **fields: Any
) -> tuple[StoredJob, StoredJob]:
    """Two jobs that waited and began together; only the lease of the first is short."""
    mine, twin = await a_pending_job(engine, **fields), await a_pending_job(engine, type=TWIN, **fields)
    clock.advance(ms=WAIT_MS)
    return await activated(engine, mine), await activated(engine, twin, lease_ms=lease_ms)


async def lapse(engine: Engine, clock: VirtualClock, *, later_ms: int = LEASE_MS) -> None:
    clock.advance(ms=later_ms)
    await engine.sweep("sweeper")


async def reclaimed(engine: Engine, job: StoredJob) -> LeaseStatus:
    [status] = await engine.reclaim([Lease(job.key, job.attempt)], LEASE_MS)
    return status


async def both_settled(engine: Engine, pair: tuple[StoredJob, StoredJob], outcome: Outcome) -> None:
    for job in pair:
        await settled(engine, outcome._replace(key=job.key, attempt=job.attempt))


async def statistics(engine: Engine, type: str = TYPE) -> tuple[list[Any], list[Any]]:
    """What is counted of a type, by hour; without its name."""
    hours = [(one.hour, *one[2:]) for one in (await engine.stats(STATISTICS_KEEP_HOURS)).hours if one.type == type]
    return hours, [(one.hour, one.name, one.jobs) for one in await engine.measures(STATISTICS_KEEP_HOURS, type)]


async def life(engine: Engine, key: int) -> tuple[StoredJob, list[HistoryEntry]]:
    """A job and its history, without what tells it from its twin."""
    job = await the_job(engine, key)
    return replace(job, key=0, type="", lease_until_ms=None), await engine.history(key)


async def assert_alike(engine: Engine, pair: tuple[StoredJob, StoredJob]) -> None:
    mine, twin = pair
    assert await statistics(engine) == await statistics(engine, TWIN)
    assert await life(engine, mine.key) == await life(engine, twin.key)
    await assert_counts_add_up(engine)


@pytest.mark.parametrize("max_attempts", [5, 1])
@pytest.mark.parametrize("limit_key", [None, "ada"])
async def test_after_a_late_completion_nothing_tells_of_the_lapse(
    engine: Engine, clock: VirtualClock, max_attempts: int, limit_key: str | None
) -> None:
    for type in (TYPE, TWIN):
        await a_policy(engine, type=type, max_running=1, max_running_per_key=1)
    pair = await twins(engine, clock, max_attempts=max_attempts, limit_key=limit_key)
    await lapse(engine, clock)
    assert (await statistics(engine)) != ([], [])
    assert await reclaimed(engine, pair[0]) is LeaseStatus.HELD
    assert await statistics(engine) == ([], [])
    await assert_alike(engine, pair)
    clock.advance(ms=300)
    await both_settled(engine, pair, Complete(0, 0))
    await assert_alike(engine, pair)


@pytest.mark.parametrize("max_attempts", [5, 1])
async def test_a_lapse_of_an_earlier_hour_is_undone_in_that_hour(
    engine: Engine, clock: VirtualClock, max_attempts: int
) -> None:
    pair = await twins(engine, clock, max_attempts=max_attempts)
    await lapse(engine, clock)
    await lapse(engine, clock, later_ms=3 * HOUR_MS)
    await reclaimed(engine, pair[0])
    assert await statistics(engine) == ([], [])
    await both_settled(engine, pair, Complete(0, 0))
    await assert_alike(engine, pair)


async def test_a_late_failure_is_counted_as_any_other(engine: Engine, clock: VirtualClock) -> None:
    pair = await twins(engine, clock)
    await lapse(engine, clock)
    await reclaimed(engine, pair[0])
    await both_settled(engine, pair, Failed(0, 0, "boom", backoff_ms=1_000))
    await assert_alike(engine, pair)


@pytest.mark.parametrize("max_attempts", [5, 1])
async def test_a_lease_that_lapses_again_counts_once(engine: Engine, clock: VirtualClock, max_attempts: int) -> None:
    pair = await twins(engine, clock, max_attempts=max_attempts, lease_ms=2 * LEASE_MS + 500)
    await lapse(engine, clock)
    clock.advance(ms=500)
    await reclaimed(engine, pair[0])
    await lapse(engine, clock)
    assert await statistics(engine) == await statistics(engine, TWIN) != ([], [])
    await reclaimed(engine, pair[0])
    await reclaimed(engine, pair[1])
    assert await statistics(engine) == ([], [])
    await both_settled(engine, pair, Complete(0, 0))
    await assert_alike(engine, pair)


async def test_what_other_attempts_have_counted_is_kept(engine: Engine, clock: VirtualClock) -> None:
    """An earlier attempt of the job failed, another job of the same worker lapsed in the same instant."""
    pair = await twins(engine, clock)
    await both_settled(engine, pair, Failed(0, 0, "greylisted", backoff_ms=0))
    clock.advance(ms=WAIT_MS)
    mine, twin = await activated(engine, pair[0]), await activated(engine, pair[1], lease_ms=LONG_MS)
    for type in (TYPE, TWIN):
        await a_processing_job(engine, type=type)
    await lapse(engine, clock)
    await reclaimed(engine, mine)
    assert await statistics(engine) == await statistics(engine, TWIN)
    assert dict(one[1:] for one in (await statistics(engine))[1])[failure(LAPSED)] == 1
    await both_settled(engine, (mine, twin), Complete(0, 0))
    await assert_alike(engine, (mine, twin))


async def test_several_lapses_are_undone_in_one_call(engine: Engine, clock: VirtualClock) -> None:
    await engine.create([a_new_job(max_attempts=number, tenant=tenant) for number in (1, 5) for tenant in ("a", "b")])
    leases = [Lease(key, 1) for key in await leased_keys(engine)]
    await lapse(engine, clock)
    assert await engine.reclaim([*leases, *leases], LEASE_MS) == [LeaseStatus.HELD] * 8
    assert await statistics(engine) == ([], [])
    await assert_counts_add_up(engine)


async def test_a_lapse_is_undone_once(engine: Engine, clock: VirtualClock) -> None:
    job = await a_processing_job(engine)
    other = await a_processing_job(engine)
    await lapse(engine, clock)
    for _ in range(3):
        await reclaimed(engine, job)
    assert [hour[2:5] for hour in (await statistics(engine))[0]] == [(0, 0, 1)]
    assert (await the_job(engine, other.key)).state is State.PENDING


async def test_a_lease_that_is_not_taken_back_stays_counted(engine: Engine, clock: VirtualClock) -> None:
    job = await a_processing_job(engine)
    await lapse(engine, clock)
    before = await statistics(engine)
    clock.advance(ms=60_000)
    await activated(engine, job, worker="w2")
    assert await reclaimed(engine, job) is LeaseStatus.LOST
    assert await statistics(engine) == before


@pytest.mark.parametrize(("max_attempts", "waiting"), [(1, False), (5, True)])
async def test_a_requeue_that_followed_the_lapse_is_undone_too(
    engine: Engine, clock: VirtualClock, max_attempts: int, waiting: bool
) -> None:
    pair = await twins(engine, clock, max_attempts=max_attempts)
    await lapse(engine, clock)
    clock.advance(ms=1_000)
    await engine.requeue([pair[0].key], waiting=waiting)
    assert await reclaimed(engine, pair[0]) is LeaseStatus.HELD
    await assert_alike(engine, pair)
    await both_settled(engine, pair, Complete(0, 0))
    await assert_alike(engine, pair)


async def test_attempts_are_those_before_the_requeue(engine: Engine, clock: VirtualClock) -> None:
    pair = await twins(engine, clock, max_attempts=2)
    await both_settled(engine, pair, Failed(0, 0, "greylisted", backoff_ms=0))
    pair = await activated(engine, pair[0]), await activated(engine, pair[1], lease_ms=LONG_MS)
    await lapse(engine, clock)
    await engine.set_retries(pair[0].key, 1)
    await reclaimed(engine, pair[0])
    await assert_alike(engine, pair)


async def test_an_automatic_requeue_that_followed_the_lapse_is_not_one_of_its_rounds(
    engine: Engine, clock: VirtualClock
) -> None:
    for type in (TYPE, TWIN):
        await a_policy(engine, type=type, failed_job_retry_hours=1.0, failed_job_retry_rounds=1)
    pair = await twins(engine, clock, max_attempts=1)
    await lapse(engine, clock)
    await lapse(engine, clock, later_ms=HOUR_MS)
    assert [entry.kind for entry in await engine.history(pair[0].key)] == ["lapse", "requeue"]
    await reclaimed(engine, pair[0])
    await both_settled(engine, pair, Failed(0, 0, "boom"))
    await lapse(engine, clock, later_ms=HOUR_MS)
    assert (await the_job(engine, pair[0].key)).state is State.PENDING
    await assert_alike(engine, pair)


async def test_a_success_makes_the_breaker_forget_the_lapse(engine: Engine, clock: VirtualClock) -> None:
    """A breaker counts failures in a row; what a lapse has added to it is not undone before that."""
    await a_policy(engine, breaker_failures=2, breaker_seconds=60.0)
    job = await a_processing_job(engine)
    await lapse(engine, clock)
    await reclaimed(engine, job)
    await settled(engine, Complete(job.key, 1))
    await settled(engine, Failed((await a_processing_job(engine)).key, 1, "boom", final=True))
    assert len(await leased_keys(engine)) == 0
    await engine.create([a_new_job()])
    assert len(await leased_keys(engine)) == 1


async def test_statistics_that_were_forgotten_do_not_come_back(engine: Engine, clock: VirtualClock) -> None:
    job = await a_processing_job(engine, max_attempts=1)
    await lapse(engine, clock)
    await lapse(engine, clock, later_ms=(STATISTICS_KEEP_HOURS + 2) * HOUR_MS)
    assert await reclaimed(engine, job) is LeaseStatus.HELD
    assert await statistics(engine) == ([], [])
