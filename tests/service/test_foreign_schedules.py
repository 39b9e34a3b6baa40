"""What the loop of triggers makes of schedules of users' own, which may block, and of clocks that change."""

from __future__ import annotations

import asyncio
import random
import threading
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from everwork.app.schedules import AbstractCronSchedule, CronSchedule, time_points
from everwork.app.settings import Cron
from everwork.core.schedule import Every, Plan
from everwork.service.triggers import schedule_call
from everwork.service.triggers.loop import Scheduled, TriggerLoop
from tests.app.waiting import until
from tests.conformance.observe import every_job
from tests.stores import HOUR_MS, MINUTE_MS, SECOND_MS, START_MS, VirtualClock, open_store

if TYPE_CHECKING:
    from pathlib import Path

    from everwork.engines.contract import Engine

pytestmark = pytest.mark.parametrize("engine_name", ["sqlite"])
DAY_MS = 24 * HOUR_MS


async def none_is_off() -> frozenset[str]:
    return frozenset()


def a_loop(engine: Engine, plan: Plan, *others: Scheduled) -> TriggerLoop:
    scheduled = Scheduled(worker_id="w", trigger_id="tick", type="report", plan=plan)
    return TriggerLoop(engine, [scheduled, *others], none_is_off)


def a_custom_plan(schedule: AbstractCronSchedule, *, is_catchup: bool = True) -> Plan:
    return Plan(time_points(Cron(expression="daily", custom=True, timezone="UTC"), schedule), is_catchup)


async def points(engine: Engine, trigger_id: str = "tick") -> list[int]:
    keys = [(job.dedupe_key or "").split(":") for job in reversed(await every_job(engine))]
    return [int(point) for _, _, trigger, point in keys if trigger == trigger_id]


class AtSeven(AbstractCronSchedule):
    """Every day at seven, from its own now, which is the engine's."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock

    def next_execution(self, cron_expression: str) -> datetime:
        now = datetime.fromtimestamp(self._clock.now_ms / 1000, UTC)
        seven = now.replace(hour=7, minute=0, second=0, microsecond=0)
        return seven if seven > now else seven + timedelta(days=1)


@pytest.mark.parametrize("is_catchup", [True, False])
async def test_a_schedule_that_knows_only_its_now_fires_each_day(
    engine: Engine, clock: VirtualClock, is_catchup: bool
) -> None:
    loop = a_loop(engine, a_custom_plan(AtSeven(clock), is_catchup=is_catchup))
    first = START_MS // DAY_MS * DAY_MS + 7 * HOUR_MS
    days = [at for at in range(first, START_MS + 5 * DAY_MS, DAY_MS) if at > START_MS]
    await loop.tick()
    for at in days:
        clock.now_ms = at - HOUR_MS
        assert await loop.tick() <= 5
        clock.now_ms = at
        await loop.tick()
    assert await points(engine) == days


async def test_a_point_of_such_a_schedule_that_was_late_is_fired_if_it_catches_up(
    engine: Engine, clock: VirtualClock
) -> None:
    loop = a_loop(engine, a_custom_plan(AtSeven(clock)))
    await loop.tick()
    clock.advance(ms=2 * DAY_MS)
    await loop.tick()
    assert len(await points(engine)) == 1


class Blocking(AbstractCronSchedule):
    """Every full minute; the answer waits until a test lets it go."""

    def __init__(self) -> None:
        self.may_answer = threading.Event()
        self.asked = 0

    def next_execution(self, cron_expression: str, after: datetime) -> datetime:  # type: ignore[override]
        self.asked += 1
        self.may_answer.wait(60)
        return after.replace(second=0, microsecond=0) + timedelta(minutes=1)


async def test_a_schedule_that_blocks_is_broken_for_a_while_and_keeps_nobody_waiting(
    engine: Engine, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(schedule_call, "ANSWER_SECONDS_MAX", 0.0)
    schedule = Blocking()
    other = Scheduled(worker_id="w", trigger_id="other", type="report", plan=Plan(Every(SECOND_MS)))
    loop = a_loop(engine, a_custom_plan(schedule), other)
    await loop.tick()
    turns = 0
    for _ in range(30):
        clock.advance(ms=SECOND_MS)
        await loop.tick()
        turns += 1
    assert len(await points(engine, "other")) == turns
    assert schedule.asked == 1, "one that is stuck is not asked again"
    assert "trigger failed, retrying later" in caplog.text
    assert "its schedule takes longer than" in caplog.text

    schedule.may_answer.set()
    clock.advance(ms=2 * MINUTE_MS)
    loop.start()
    await until(lambda: loop.fired > turns + 2 * 60 + 1)
    await loop.stop()
    first = START_MS // MINUTE_MS * MINUTE_MS + MINUTE_MS
    assert await points(engine) == list(range(first, clock.now_ms + 1, MINUTE_MS))


async def test_an_answer_that_comes_while_others_are_fired_is_taken_up_at_once(
    engine: Engine, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule_call, "ANSWER_SECONDS_MAX", 0.0)
    schedule = Blocking()

    async def answers_meanwhile() -> frozenset[str]:
        question = loop._states["w/tick"].call
        schedule.may_answer.set()
        await until(lambda: question is None or question.answer.done())
        return frozenset()

    other = Scheduled(worker_id="w", trigger_id="other", type="report", plan=Plan(Every(SECOND_MS)))
    tick = Scheduled(worker_id="w", trigger_id="tick", type="report", plan=a_custom_plan(schedule))
    loop = TriggerLoop(engine, [tick, other], answers_meanwhile)
    await loop.tick()
    clock.advance(ms=SECOND_MS)
    assert await loop.tick() == 0


CHANGES = {
    ("Europe/Berlin", "30 2 * * *", "2026-03-28T12:00Z"): ["29 03:00+0200", "30 02:30+0200"],
    ("Europe/Berlin", "30 2 * * *", "2026-10-24T12:00Z"): ["25 02:30+0200", "26 02:30+0100"],
    ("Europe/Berlin", "*/30 1-3 * * *", "2026-03-28T12:00Z"): [
        "29 01:00+0100", "29 01:30+0100", "29 03:00+0200", "29 03:30+0200",
        "30 01:00+0200", "30 01:30+0200", "30 02:00+0200", "30 02:30+0200", "30 03:00+0200", "30 03:30+0200",
    ],
    ("Australia/Lord_Howe", "0 0 2 * * *", "2026-04-04T00:00Z"): ["05 02:00+1030", "06 02:00+1030"],
    ("Africa/Cairo", "0 */12 * * *", "2026-10-29T00:00Z"): [
        "29 12:00+0300", "30 00:00+0200", "30 12:00+0200", "31 00:00+0200",
    ],
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: f"{change[0]} {change[1]} {change[2][5:7]}")
async def test_three_managers_with_restarts_fire_each_point_of_a_changing_clock_once(
    engine: Engine, engine_name: str, tmp_path: Path, clock: VirtualClock, change: tuple[str, str, str]
) -> None:
    zone, expression, begin = change
    clock.now_ms = round(datetime.fromisoformat(begin).timestamp() * 1000)
    end_ms = clock.now_ms + 2 * DAY_MS
    cron, chance = Cron(expression=expression, timezone=zone), random.Random(5)
    engines = [engine, *[await open_store(engine_name, tmp_path, clock) for _ in range(2)]]
    loops = [a_loop(one, Plan(time_points(cron, CronSchedule()))) for one in engines]
    while clock.now_ms < end_ms:
        await asyncio.gather(*(loop.tick() for loop in chance.sample(loops, 2)))
        at = chance.randrange(12)
        loops[at % 3] = a_loop(engines[at % 3], Plan(time_points(cron, CronSchedule()))) if at < 3 else loops[at % 3]
        clock.advance(ms=min(chance.randrange(20 * MINUTE_MS), end_ms - clock.now_ms))
    await asyncio.gather(*(loop.tick() for loop in loops))
    fired = [datetime.fromtimestamp(at / 1000, cron.zone).strftime("%d %H:%M%z") for at in await points(engine)]
    assert fired == CHANGES[change]
    await asyncio.gather(*(one.close() for one in engines[1:]))
