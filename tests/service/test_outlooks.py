"""When a trigger fires next, told from its entry alone: the point that those who run it come to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from everwork.app.entries import trigger_entries
from everwork.app.schedules import CronSchedule, scheduled
from everwork.app.settings import Cron, Interval, Trigger, WorkerSettings
from everwork.core.schedule import next_point
from everwork.engines.values import TriggerMark
from everwork.service.fleet.entries import TriggerEntry
from everwork.service.triggers.outlook import FOREIGN, NOT_BEGUN, OVER, UNKNOWN, next_fire
from tests.stores import DAY_MS, HOUR_MS, MINUTE_MS, START_MS

MARK = TriggerMark(START_MS, START_MS + 5 * MINUTE_MS)
OFTEN = TriggerEntry(worker_id="w", id="t", title="often", type="a", interval_ms=MINUTE_MS)


def trigger_of(schedule: Interval | Cron, **more: Any) -> tuple[WorkerSettings, Trigger]:
    """A worker with one trigger."""
    trigger = Trigger(title="it", schedule=schedule, **more)
    return WorkerSettings(title="worker", triggers=[trigger]), trigger


@pytest.mark.parametrize(
    "schedule",
    [
        Interval(seconds=0.7),
        Interval(weeks=3),
        Cron(expression="30 2 * * *", timezone="Europe/Berlin"),
        Cron(expression="*/7 * * * *", timezone="Australia/Lord_Howe"),
        Cron(expression="15 0 0 29 2 *", timezone="UTC"),
    ],
    ids=["short", "long", "nightly", "often", "leap day"],
)
@pytest.mark.parametrize("after_ms", [0, 6 * MINUTE_MS + 1, 140 * DAY_MS])
def test_the_next_point_is_the_one_that_those_who_run_it_come_to(schedule: Interval | Cron, after_ms: int) -> None:
    settings, trigger = trigger_of(schedule)
    [entry] = trigger_entries(settings)

    point_ms, why = next_fire(entry, MARK, START_MS + after_ms)

    plan = scheduled(settings, trigger, CronSchedule()).plan
    assert (point_ms, why) == (next_point(plan, *MARK, START_MS + after_ms), None)
    assert point_ms is not None
    assert point_ms > max(MARK.last_ms, START_MS + after_ms)


@pytest.mark.parametrize(
    ("fields", "mark", "expected"),
    [
        ({"is_foreign": True}, MARK, FOREIGN),
        ({}, None, NOT_BEGUN),
        ({"lifetime_ms": HOUR_MS}, TriggerMark(START_MS - 2 * HOUR_MS, START_MS), OVER),
        ({"lifetime_ms": MINUTE_MS}, TriggerMark(START_MS, START_MS + MINUTE_MS), OVER),
        ({"interval_ms": None}, MARK, UNKNOWN),
    ],
    ids=["own class", "not begun", "over", "last point has passed", "older program"],
)
def test_where_there_is_no_next_point_the_reason_is_told(
    fields: dict[str, Any], mark: TriggerMark | None, expected: object
) -> None:
    assert next_fire(replace(OFTEN, **fields), mark, START_MS) == expected


@pytest.mark.parametrize(
    "fields",
    [{"cron": "0 0 * * *", "timezone": "Nowhere/At all"}, {"cron": "x"}, {"cron": "* *"}, {"interval_ms": 0}],
)
def test_a_schedule_that_makes_no_sense_here_says_so(fields: dict[str, Any]) -> None:
    point_ms, why = next_fire(replace(OFTEN, **{"interval_ms": None, **fields}), MARK, START_MS)

    assert point_ms is None
    assert why is not None
    assert why.startswith("its schedule cannot be read here: ")


def test_a_trigger_of_a_programs_own_cron_class_is_told_apart() -> None:
    settings, _ = trigger_of(Cron(expression="every second day", custom=True))
    [entry] = trigger_entries(settings)

    [foreign] = trigger_entries(settings, {entry.name})

    assert (entry.is_foreign, foreign) == (False, replace(entry, is_foreign=True))
