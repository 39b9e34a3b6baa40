"""measures and oldest: how long attempts waited and ran, of what sort failures were, and since when work waits."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from everwork.core import measures
from everwork.core.leasing import Demand
from everwork.core.outcome import Complete, Failed, Outcome, Reject, Release, Retry, Throw
from everwork.core.queries import Measure, Oldest, WorkerHour
from tests.conformance.failing import where_it_is_decided
from tests.factories import (
    TYPE,
    a_completed_job,
    a_new_job,
    a_pending_job,
    a_processing_job,
    a_scheduled_job,
    activated,
    asked,
    settled,
)
from tests.stores import HOUR_MS, SECOND_MS, START_MS

if TYPE_CHECKING:
    from everwork.engines.contract import Engine
    from tests.stores import VirtualClock

THIS_HOUR = START_MS // HOUR_MS
pytestmark = where_it_is_decided


async def counted_as(engine: Engine, hours: int = 1) -> dict[str, int]:
    return {measure.name: measure.jobs for measure in await engine.measures(hours)}


async def test_a_completed_attempt_is_in_the_buckets_of_its_wait_and_its_duration(
    engine: Engine, clock: VirtualClock
) -> None:
    job = await a_pending_job(engine)
    clock.advance(ms=300)
    await activated(engine, job)
    clock.advance(ms=2_000)
    await settled(engine, Complete(job.key, 1))
    assert await engine.measures(1) == [
        Measure(THIS_HOUR, TYPE, measures.execution(8), 1),
        Measure(THIS_HOUR, TYPE, measures.wait(6), 1),
    ]


@pytest.mark.parametrize("bucket", [0, 5, len(measures.BOUNDS_MS) - 1])
async def test_the_end_of_a_bucket_belongs_to_it(engine: Engine, clock: VirtualClock, bucket: int) -> None:
    bound_ms = measures.BOUNDS_MS[bucket]
    jobs = [await a_processing_job(engine, lease_ms=HOUR_MS), await a_processing_job(engine, lease_ms=HOUR_MS)]
    clock.advance(ms=bound_ms)
    await settled(engine, Complete(jobs[0].key, 1))
    clock.advance(ms=1)
    await settled(engine, Complete(jobs[1].key, 1))
    told = measures.measured((measure.name, measure.jobs) for measure in await engine.measures(2))
    assert {at: jobs for at, jobs in enumerate(told.execution) if jobs} == {bucket: 1, bucket + 1: 1}


async def test_each_job_of_a_batch_is_in_a_bucket_of_its_own(engine: Engine, clock: VirtualClock) -> None:
    for _ in range(3):
        await engine.create([a_new_job(), a_new_job(type="other")])
        clock.advance(ms=100)
    jobs = (await asked(engine)).jobs + (await asked(engine, type="other")).jobs
    clock.advance(ms=3)
    await engine.settle([Complete(job.key, job.attempt) for job in jobs])
    found = [tuple(measure[1:]) for measure in await engine.measures(1)]
    waited = [(measures.wait(4), 1), (measures.wait(5), 1), (measures.wait(6), 1)]
    assert sorted(found) == [(type, *one) for type in (TYPE, "other") for one in ((measures.execution(0), 3), *waited)]


@pytest.mark.parametrize(
    ("outcome", "sort"),
    [
        (Failed(0, 1, "boom"), measures.UNCLASSIFIED),
        (Failed(0, 1, "boom", final=True), measures.UNCLASSIFIED),
        (Failed(0, 1, "too many requests", classes=()), "rate_limited"),
        (Failed(0, 1, "boom", classes=("TimeoutError",), final=True), "retryable"),
        (Reject(0, 1), measures.REJECTED),
        (Throw(0, 1, "E42"), measures.THROWN),
        (Retry(0, 1), measures.ASKED),
    ],
    ids=str,
)
async def test_a_failed_attempt_is_counted_by_the_sort_of_its_failure(
    engine: Engine, outcome: Outcome, sort: str
) -> None:
    job = await a_processing_job(engine)
    await settled(engine, outcome._replace(key=job.key))
    expected = {measures.execution(0): 1, measures.wait(0): 1, measures.failure(sort): 1}
    assert await counted_as(engine) == expected


async def test_a_lapsed_lease_is_counted_as_such_and_has_no_run_time(engine: Engine, clock: VirtualClock) -> None:
    await a_processing_job(engine, lease_ms=SECOND_MS)
    clock.advance(ms=2 * SECOND_MS)
    await engine.sweep("s")
    assert await counted_as(engine) == {measures.wait(0): 1, measures.failure(measures.LAPSED): 1}
    [hour] = (await engine.stats(1)).hours
    assert (hour.retried, hour.execution_ms) == (1, 0)


async def test_a_release_and_what_is_refused_or_repeated_are_not_measured(engine: Engine) -> None:
    job = await a_processing_job(engine)
    await settled(engine, Release(job.key, 1))
    assert await counted_as(engine) == {}
    await activated(engine, job)
    await settled(engine, Complete(job.key, 2))
    await engine.settle([Complete(job.key, 2), Failed(job.key, 1, "late"), Complete(999_999, 1)])
    assert await counted_as(engine) == {measures.execution(0): 1, measures.wait(0): 1}


async def test_measures_are_kept_by_hour_and_folded_without_loss(engine: Engine, clock: VirtualClock) -> None:
    for _ in range(2):
        job = await a_processing_job(engine)
        await settled(engine, Complete(job.key, 1))
        await engine.sweep("s")
        clock.advance(ms=HOUR_MS)
    found = [(one.hour - THIS_HOUR, one.name, one.jobs) for one in await engine.measures(24)]
    names = (measures.execution(0), measures.wait(0))
    assert sorted(found) == [(hour, name, 1) for hour in (0, 1) for name in names]
    assert await counted_as(engine, 1) == {}


async def test_measures_of_one_type_are_those_of_its_groups_and_of_no_other(
    engine: Engine, clock: VirtualClock
) -> None:
    await engine.add_group(TYPE, "audit")
    for type in (TYPE, TYPE + "2"):
        await a_completed_job(engine, type=type)
    copy = (await asked(engine, group="audit")).jobs[0]
    clock.advance(ms=50 * HOUR_MS)
    await engine.settle([Complete(copy.key, copy.attempt)])
    await engine.sweep("s")
    names = (measures.execution(0), measures.wait(0))
    late = (measures.execution(measures.BUCKETS - 1), measures.wait(0))
    mine = [*((0, name) for name in names), *((50, name) for name in late)]
    assert await engine.measures(51, TYPE) == [Measure(THIS_HOUR + hour, TYPE, name, 1) for hour, name in mine]
    assert await engine.measures(50, TYPE) == [Measure(THIS_HOUR + 50, TYPE, name, 1) for name in late]
    assert [one for one in await engine.measures(720) if one.type == TYPE] == await engine.measures(720, TYPE)
    assert [one.type for one in await engine.measures(720)] == [TYPE, TYPE, TYPE + "2", TYPE + "2", TYPE, TYPE]
    assert await engine.measures(720, "unknown") == []


async def test_measures_of_many_types_and_hours_are_told_once_each_and_in_order(
    engine: Engine, clock: VirtualClock
) -> None:
    types = [f"{letter}{number}" for letter in ("t", "ü", "T") for number in range(20)]
    for _ in range(30):
        await engine.create([a_new_job(type=type) for type in types])
        jobs = (await engine.activate([Demand(type, "w", 1, SECOND_MS) for type in types])).jobs
        await engine.settle([Complete(job.key, job.attempt) for job in jobs])
        clock.advance(ms=2 * HOUR_MS)
    names, hours = (measures.execution(0), measures.wait(0)), range(THIS_HOUR + 2, THIS_HOUR + 60, 2)
    expected = [Measure(hour, type, name, 1) for hour in hours for type in sorted(types) for name in names]
    assert await engine.measures(60) == expected


# oldest -------------------------------------------------------------------------------------------


async def test_nothing_waits_in_an_empty_store(engine: Engine) -> None:
    assert await engine.oldest() == []


async def test_the_longest_waiting_job_is_found_whatever_its_priority_and_lane(
    engine: Engine, clock: VirtualClock
) -> None:
    await engine.create([a_new_job(priority=-3, limit_key="c", tenant="acme"), a_new_job(type="other", delay_ms=50)])
    clock.advance(ms=SECOND_MS)
    await engine.create([a_new_job(priority=9), a_new_job(tenant="acme"), a_new_job(priority=9, limit_key="c")])
    assert await engine.oldest() == [Oldest(TYPE, "", START_MS), Oldest("other", "", START_MS + 50)]


async def test_behind_higher_priorities_of_its_lane_the_longest_waiting_job_is_found(
    engine: Engine, clock: VirtualClock
) -> None:
    await engine.create([a_new_job(priority=-7), a_new_job(priority=-300)])
    clock.advance(ms=SECOND_MS)
    await engine.create([a_new_job(priority=priority) for priority in (500, 0, -7, -300, -512)])
    assert await engine.oldest() == [Oldest(TYPE, "", START_MS)]


async def test_a_group_that_was_dropped_does_not_wait(engine: Engine) -> None:
    await engine.add_group(TYPE, "audit")
    await engine.create([a_new_job()])
    await engine.drop_group(TYPE, "audit")
    assert await engine.oldest() == [Oldest(TYPE, "", START_MS)]


async def test_only_work_that_is_due_and_not_begun_waits(engine: Engine, clock: VirtualClock) -> None:
    await a_processing_job(engine)
    await a_scheduled_job(engine, delay_ms=60_000)
    assert await engine.oldest() == []
    clock.advance(ms=60_000)
    assert await engine.oldest() == [Oldest(TYPE, "", START_MS + 60_000)]


async def test_work_that_is_ahead_since_the_clock_was_set_back_does_not_wait(
    engine: Engine, clock: VirtualClock
) -> None:
    await engine.create([a_new_job(priority=1)])
    clock.advance(ms=-SECOND_MS)
    assert await engine.oldest() == []
    await engine.create([a_new_job()])
    assert await engine.oldest() == [Oldest(TYPE, "", START_MS - SECOND_MS)]


async def test_groups_wait_apart(engine: Engine, clock: VirtualClock) -> None:
    await engine.add_group(TYPE, "audit")
    await a_pending_job(engine)
    await asked(engine)
    clock.advance(ms=SECOND_MS)
    await a_pending_job(engine)
    assert await engine.oldest() == [Oldest(TYPE, "", START_MS + SECOND_MS), Oldest(TYPE, "audit", START_MS)]


async def test_totals_by_hour_are_the_sums_of_statistics_and_measures(engine: Engine, clock: VirtualClock) -> None:
    await engine.add_group(TYPE, "audit")
    for type, worker in ((TYPE, "w1"), (TYPE, "w2"), ("other", "w1")):
        for group in ("", "audit") if type == TYPE else ("",):
            await engine.create([a_new_job(type=type), a_new_job(type=type)])
            clock.advance(ms=7)
            done, failed = (await engine.activate([Demand(type, worker, 2, group=group)])).jobs
            clock.advance(ms=20)
            await engine.settle([Complete(done.key, 1), Failed(failed.key, 1, "boom")])
        clock.advance(ms=HOUR_MS)
    assert await engine.hour_totals(48) == await summed(engine, None)
    assert await engine.hour_totals(48, TYPE) == await summed(engine, TYPE)
    assert {one.hour for one in await engine.hour_totals(2)} == {clock.now_ms // HOUR_MS - 1}
    assert await engine.hour_totals(48, "unknown") == []


async def summed(engine: Engine, type: str | None) -> list[Measure]:
    """The expected totals."""
    sums: Counter[tuple[int, str]] = Counter()
    for row in (await engine.stats(48)).hours:
        if type in (None, row.type):
            sums.update({(row.hour, name): getattr(row, name) for name in WorkerHour._fields[3:]})
    for measure in await engine.measures(48, type):
        sums[measure.hour, measure.name] += measure.jobs
    return sorted(Measure(hour, "", name, jobs) for (hour, name), jobs in sums.items() if jobs)
