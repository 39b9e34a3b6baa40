"""The pulse: growth by the minute, shared readings, minutes that outlive a server."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from everwork.core.outcome import Failed
from everwork.core.queries import Measure, Stats, WorkerHour
from everwork.core.states import State
from everwork.service.monitor.minutes import (
    MINUTE_TYPES_MAX,
    OTHER_TYPES,
    Growth,
    Minute,
    Work,
    bounded_minute,
    minute_from,
)
from everwork.service.monitor.sampler import (
    MINUTE_KIND,
    RECENT_SECONDS_MAX,
    SLOW_SECONDS,
    TURN,
    TURN_MS,
    MetricsSampler,
)
from tests.app.waiting import DEADLINE_S
from tests.factories import TYPE, a_completed_job, a_dead_letter, a_pending_job, a_processing_job, settled
from tests.stores import HOUR_MS, START_MS

if TYPE_CHECKING:
    from everwork.engines.contract import Engine
    from tests.stores import VirtualClock

OTHER = "resize"


async def test_what_ends_is_counted_in_its_minute_by_type(engine: Engine, clock: VirtualClock) -> None:
    await a_completed_job(engine)  # Before anybody looked: it belongs to no minute.
    sampler = MetricsSampler(engine, "a")
    await sampler.fresh()
    job = await a_processing_job(engine)
    clock.advance(seconds=3)
    await settled(engine, Failed(job.key, job.attempt, "busy", retries=2, backoff_ms=600_000))
    await a_dead_letter(engine, type=OTHER)
    await sampler.fresh()
    [minute] = sampler.minutes
    assert minute.minute == START_MS // 60_000
    assert minute.by_type == {TYPE: Work(retried=1, execution_ms=3_000), OTHER: Work(failed=1)}
    assert minute.total == Work(0, 1, 1, 3_000, 0)
    assert sum(minute.measured[TYPE].execution) == sum(minute.measured[TYPE].wait) == 1
    assert sum(minute.measured[OTHER].failures.values()) == 1
    span = sampler.span(5)
    assert (span.seconds, span.work.ended, span.execution_ms(1.0)) == (3.0, 2, 3_000)
    assert sampler.span(5, OTHER).work == Work(failed=1)


async def test_a_reading_tells_counts_types_and_since_when_work_waits(engine: Engine) -> None:
    await a_pending_job(engine)
    reading = await MetricsSampler(engine, "a").fresh()
    assert [(count.type, count.state, count.jobs) for count in reading.counts] == [(TYPE, State.PENDING, 1)]
    assert [(one.type, one.run_at_ms) for one in reading.oldest] == [(TYPE, START_MS)]
    assert ([info.type for info in reading.types], reading.at_ms, reading.number) == ([TYPE], START_MS, 1)


async def test_nothing_is_lost_or_counted_twice_when_an_hour_ends(engine: Engine, clock: VirtualClock) -> None:
    clock.advance(ms=HOUR_MS - 1_000)
    sampler = MetricsSampler(engine, "a")
    await sampler.fresh()
    await a_completed_job(engine)
    clock.advance(seconds=2)
    await a_completed_job(engine)
    await sampler.fresh()
    clock.advance(ms=3 * HOUR_MS)
    await a_completed_job(engine)
    await sampler.fresh()
    await sampler.fresh()
    assert [minute.total.completed for minute in sampler.minutes] == [0, 2, 1]
    assert sampler.totals[TYPE]["completed"] == 3


async def test_after_the_clock_was_set_back_work_is_counted_once_and_minutes_stay_in_order(
    engine: Engine, clock: VirtualClock
) -> None:
    clock.advance(ms=-3 * HOUR_MS)
    await a_completed_job(engine)  # It was counted in its time: nobody looked.
    clock.advance(ms=3 * HOUR_MS)
    sampler = MetricsSampler(engine, "a")
    await sampler.fresh()
    for ms in (0, 61_000, -70_000, -3 * HOUR_MS, 61_000, 61_000, 3 * HOUR_MS):
        clock.advance(ms=ms)
        await a_completed_job(engine)
        await sampler.fresh()
        assert [one.minute for one in sampler.minutes] == sorted({one.minute for one in sampler.minutes})
        assert sampler.minutes[-1].minute == clock.now_ms // 60_000
    # Of the jobs that ended in an hour nobody had looked at yet, the first reading cannot tell which are new.
    assert sampler.totals[TYPE]["completed"] == 6


async def test_a_clock_that_is_set_back_a_little_loses_nothing_of_the_minute(
    engine: Engine, clock: VirtualClock
) -> None:
    sampler = MetricsSampler(engine, "a")
    for ms in (0, 59_000, 2_000, -5_000):
        clock.advance(ms=ms)
        await sampler.fresh()
        await a_completed_job(engine)
    await sampler.fresh()
    assert [(one.minute, one.total.completed) for one in sampler.minutes] == [(START_MS // 60_000, 4)]


def test_what_ended_just_before_the_hour_is_counted_when_it_is_read_after_it() -> None:
    growth = Growth()
    row, measure = WorkerHour(100, TYPE, "w", 1, 0, 0, 5, 0), Measure(100, TYPE, "e00", 1)
    growth.step(Stats([], [row], 100 * HOUR_MS), [measure], 2)
    late = 101 * HOUR_MS + 1_000
    assert growth.hours(late) == 2
    growth.step(Stats([], [row], late), [measure], 2)
    assert growth.hours(late + 1_000) == 2
    later = Stats([], [row._replace(completed=3)], late + 1_000)
    assert growth.step(later, [measure._replace(jobs=3)], 2) == {TYPE: {"completed": 2, "e00": 2}}
    assert growth.hours(late + 120_000) == 1


def test_what_is_counted_after_a_lapse_was_undone_is_new() -> None:
    growth = Growth()
    row, measure = WorkerHour(100, TYPE, "w", 4, 0, 1, 5, 0), Measure(100, TYPE, "f:lapsed", 1)
    growth.step(Stats([], [row._replace(retried=0)], 100 * HOUR_MS), [], 1)
    assert growth.step(Stats([], [row], 100 * HOUR_MS), [measure], 1) == {TYPE: {"retried": 1, "f:lapsed": 1}}
    assert growth.step(Stats([], [row._replace(retried=0)], 100 * HOUR_MS), [], 1) == {}
    assert growth.step(Stats([], [row], 100 * HOUR_MS), [measure], 1) == {TYPE: {"retried": 1, "f:lapsed": 1}}


async def test_callers_at_the_same_time_share_a_reading_and_later_ones_get_a_later_one(engine: Engine) -> None:
    sampler = MetricsSampler(engine, "a")
    readings = await asyncio.gather(*(sampler.fresh() for _ in range(5)))
    assert {reading.number for reading in readings} == {1}
    under_way = asyncio.create_task(sampler.fresh())
    for _ in range(2):  # The task that asks, and the one that reads.
        await asyncio.sleep(0)
    assert sampler._sampling_in_turn.locked()
    await a_pending_job(engine)
    assert [count.jobs for count in (await sampler.fresh()).counts] == [1]
    await under_way


async def test_a_reading_that_is_dear_is_used_for_a_while(engine: Engine) -> None:
    sampler = MetricsSampler(engine, "a")
    sampler._cost_seconds = 1_000.0
    assert (await sampler.recent()).number == 1  # There was none yet.
    sampler._cost_seconds = SLOW_SECONDS
    assert (await sampler.recent()).number == 2
    sampler._cost_seconds = 1_000.0
    assert (await sampler.recent()).number == 2
    sampler._read_at -= RECENT_SECONDS_MAX
    assert (await sampler.recent()).number == 3


async def test_whoever_waits_for_a_change_gets_the_next_reading(engine: Engine) -> None:
    sampler = MetricsSampler(engine, "a")
    assert not await sampler.wait_change(0, 0.0)
    waiting = asyncio.create_task(sampler.wait_change(0, DEADLINE_S))
    await sampler.fresh()
    assert await waiting


async def test_minutes_outlive_the_server_and_the_running_one_goes_on(engine: Engine, clock: VirtualClock) -> None:
    first = MetricsSampler(engine, "a")
    await first.open()
    await a_completed_job(engine)
    await first.fresh()
    clock.advance(seconds=60)
    await first.fresh()
    await a_completed_job(engine)
    await first.fresh()
    await first.close()
    second = MetricsSampler(engine, "b")
    await second.open()
    await a_completed_job(engine)
    await second.fresh()
    assert [minute.total.completed for minute in second.minutes] == [1, 2]
    await second.close()


async def test_one_server_writes_a_minute_and_the_other_takes_it_over(engine: Engine, clock: VirtualClock) -> None:
    writer, other = MetricsSampler(engine, "a"), MetricsSampler(engine, "b")
    await writer.fresh()
    await a_completed_job(engine)
    await other.fresh()  # It comes in the middle of the minute, and has not seen the job.
    await writer.fresh()
    clock.advance(seconds=60)
    for sampler in (writer, other):
        await sampler.fresh()
        await sampler._tick()
    assert [minute.total.completed for minute in other.minutes] == [1, 0]
    assert len(await engine.registered(MINUTE_KIND)) == 1


async def test_a_minute_that_the_writer_has_missed_is_written_by_another(engine: Engine, clock: VirtualClock) -> None:
    writer, other = MetricsSampler(engine, "a"), MetricsSampler(engine, "b")
    for sampler in (writer, other):
        await sampler.fresh()
    for lookers in ([writer, other], [other], [writer, other], [writer, other]):
        clock.advance(seconds=50)
        await engine.take_turn(TURN, "a", TURN_MS)  # Late, so that it keeps its turn over a minute of silence.
        await a_completed_job(engine)
        clock.advance(seconds=10)
        for sampler in lookers:
            await sampler.fresh()
            await sampler._tick()
    first = START_MS // 60_000
    assert [int(entry.name) - first for entry in await engine.registered(MINUTE_KIND)] == [0, 1, 2, 3]
    assert not other._unsaved


def test_of_more_types_than_are_told_apart_those_with_the_least_work_are_one() -> None:
    grown = {f"t{n:03}": {"completed": n, "e00": n} for n in range(MINUTE_TYPES_MAX + 3)}
    minute = bounded_minute(7, grown)
    assert len(minute.by_type) == MINUTE_TYPES_MAX + 1
    assert minute.by_type[OTHER_TYPES].completed == 0 + 1 + 2
    assert minute.total.completed == sum(counts["completed"] for counts in grown.values())


def test_a_stored_minute_that_cannot_be_read_is_none() -> None:
    for body in ("", "{", "[1]", '{"a":1}', '{"a":{"completed":"x"}}'):
        assert minute_from("0000000007", body) is None
    assert minute_from("0000000007", '{"a":{"completed":2}}') == Minute(7, {"a": {"completed": 2}})
