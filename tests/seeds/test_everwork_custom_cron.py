"""A cron schedule of one's own with the printed signature, `next_execution(cron_expression)`, catches up."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from everwork import AbstractCronSchedule, Cron, Trigger, WorkerSettings
from everwork.app.schedules import scheduled_triggers
from everwork.service.triggers.cron import at, ms_of
from everwork.service.triggers.loop import TriggerLoop
from tests.conformance.observe import every_job
from tests.stores import HOUR_MS, START_MS, VirtualClock

if TYPE_CHECKING:
    from everwork.engines.contract import Engine

pytestmark = pytest.mark.every_engine


class Hourly(AbstractCronSchedule):
    """Every full hour, as the seed's class would have it."""

    def next_execution(self, cron_expression: str) -> datetime:
        return self.now().replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)


class Iterating(AbstractCronSchedule):
    """Goes from hour to hour, whenever it is asked."""

    def __init__(self) -> None:
        self._hours = self._from(at(START_MS))

    def _from(self, hour: datetime) -> Iterator[datetime]:
        while True:
            hour = hour.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
            yield hour

    def next_execution(self, cron_expression: str) -> datetime:
        return next(self._hours)

    def check(self, cron_expression: str) -> None:
        """Asked nothing, it loses no hour."""


def a_loop(engine: Engine, schedule: AbstractCronSchedule, *, is_catchup: bool = True) -> TriggerLoop:
    """What a new manager does about a trigger with this schedule."""
    cron = Cron(expression="hourly", custom=True, timezone="UTC")
    trigger = Trigger(title="tick", schedule=cron, is_catchup=is_catchup)
    triggers = scheduled_triggers(WorkerSettings(title="report", triggers=[trigger]), schedule)

    async def none_is_off() -> frozenset[str]:
        return frozenset()

    return TriggerLoop(engine, triggers, none_is_off)


async def fired(engine: Engine) -> list[int]:
    """The time points of all jobs, in hours after the beginning."""
    points = [int((job.dedupe_key or "").rpartition(":")[2]) for job in reversed(await every_job(engine))]
    first = START_MS // HOUR_MS * HOUR_MS
    return [(point - first) // HOUR_MS for point in points]


async def test_points_missed_while_no_manager_ran_are_caught_up_with_in_order(
    engine: Engine, clock: VirtualClock
) -> None:
    await a_loop(engine, Hourly()).tick()
    clock.advance(ms=5 * HOUR_MS)
    await a_loop(engine, Hourly()).tick()  # Another manager, after an outage of five hours.
    assert await fired(engine) == [1, 2, 3, 4, 5]


async def test_without_catch_up_only_the_next_point_fires(engine: Engine, clock: VirtualClock) -> None:
    await a_loop(engine, Hourly(), is_catchup=False).tick()
    clock.now_ms = START_MS // HOUR_MS * HOUR_MS + 5 * HOUR_MS
    await a_loop(engine, Hourly(), is_catchup=False).tick()
    assert await fired(engine) == [5]


async def test_a_schedule_that_goes_from_point_to_point_is_asked_until_it_has_caught_up(
    engine: Engine, clock: VirtualClock
) -> None:
    loop = a_loop(engine, Iterating())
    await loop.tick()
    clock.advance(ms=5 * HOUR_MS)
    await loop.tick()
    assert await fired(engine) == [1, 2, 3, 4, 5]


def test_now_is_the_current_time_for_everybody_else() -> None:
    before = datetime.now(UTC)
    assert before <= Hourly().now() <= datetime.now(UTC)
    assert ms_of(Hourly().next_execution("hourly")) % HOUR_MS == 0
