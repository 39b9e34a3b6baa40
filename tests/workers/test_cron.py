"""Time points of cron expressions: clocks that change, and schedules of users' own."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import pytest

from everwork.core.schedule import Calendar, Every
from everwork.exceptions import BadConfiguration, InvalidInput
from everwork.workers.cron import (
    AbstractCronSchedule,
    CronSchedule,
    matches,
    scheduled_triggers,
    time_points,
)
from everwork.workers.firing import function_trigger
from everwork.workers.settings import Cron, Interval, Trigger, WorkerSettings

BERLIN = ZoneInfo("Europe/Berlin")
NIGHTLY = "30 2 * * *"
HOURLY = "0 * * * *"


def ms(text: str) -> int:
    """An instant, written with its offset from UTC."""
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def points(expression: str, after: str, count: int) -> list[str]:
    """The next points in Berlin, as its clocks show them."""
    found = islice(matches(expression, BERLIN, ms(after)), count)
    return [datetime.fromtimestamp(at / 1000, BERLIN).strftime("%d %H:%M%z") for at in found]


def a_calendar(schedule: AbstractCronSchedule, timezone: str = "Europe/Berlin") -> Calendar:
    calendar = time_points(Cron(expression="* * * * *", timezone=timezone), schedule)
    assert isinstance(calendar, Calendar)
    return calendar


# Clocks that change -------------------------------------------------------------------------------


def test_an_hour_that_is_left_out_lets_a_fixed_time_run_right_after_it() -> None:
    assert points(NIGHTLY, "2026-03-28T00:00+01:00", 3) == ["28 02:30+0100", "29 03:00+0200", "30 02:30+0200"]


def test_an_hour_that_is_left_out_costs_an_hourly_schedule_nothing() -> None:
    assert points(HOURLY, "2026-03-29T00:30+01:00", 3) == ["29 01:00+0100", "29 03:00+0200", "29 04:00+0200"]


def test_an_hour_that_comes_twice_lets_a_fixed_time_run_in_the_first() -> None:
    assert points(NIGHTLY, "2026-10-24T12:00+02:00", 2) == ["25 02:30+0200", "26 02:30+0100"]


def test_an_hour_that_comes_twice_has_two_hourly_points() -> None:
    expected = ["25 02:00+0200", "25 02:00+0100", "25 03:00+0100"]
    assert points(HOURLY, "2026-10-25T01:30+02:00", 3) == expected


def test_who_begins_to_look_inside_the_second_of_both_hours_does_not_run_twice() -> None:
    assert points(NIGHTLY, "2026-10-25T02:10+01:00", 1) == ["26 02:30+0100"]


def test_every_instant_of_the_changes_leads_to_the_same_points() -> None:
    for expression in (NIGHTLY, HOURLY, "*/20 * * * *", "15 1-4/2 * * *"):
        for begin in ("2026-03-28T23:00+00:00", "2026-10-24T22:00+00:00"):
            walked = list(islice(matches(expression, BERLIN, ms(begin)), 8))
            next_after = time_points(Cron(expression=expression, timezone="Europe/Berlin"), CronSchedule())
            assert isinstance(next_after, Calendar)
            for after in range(ms(begin), walked[-1], 600_000):
                assert next_after.next_after(after) == next(point for point in walked if point > after)


def test_the_built_in_schedule_looks_from_an_instant_or_from_now() -> None:
    after = datetime(2026, 3, 29, 0, 59, 59, 999_000, UTC)
    assert CronSchedule().next_execution(HOURLY, after, "Europe/Berlin") == datetime(2026, 3, 29, 1, tzinfo=UTC)
    assert timedelta(0) < CronSchedule().next_execution("* * * * *") - datetime.now(UTC) < timedelta(minutes=1)


def test_an_interval_is_counted_in_milliseconds() -> None:
    assert time_points(Interval(seconds=1.5), CronSchedule()) == Every(1_500)


# Schedules of users' own --------------------------------------------------------------------------


class FromAnywhere(AbstractCronSchedule):
    """Every full second, without time zone."""

    def next_execution(self, cron_expression: str, after: datetime) -> datetime:  # type: ignore[override]
        return (after + timedelta(seconds=1)).replace(tzinfo=None)


class FromItsNow(AbstractCronSchedule):
    """As simple as it gets: it knows only its own now, which tests move."""

    now = datetime(2026, 1, 1, tzinfo=UTC)

    def next_execution(self, cron_expression: str) -> datetime:
        return self.now + timedelta(seconds=10)


class Stuck(AbstractCronSchedule):
    def next_execution(self, cron_expression: str, **given: object) -> datetime:
        return datetime(2020, 1, 1, tzinfo=UTC)


class Nonsense(AbstractCronSchedule):
    def next_execution(self, cron_expression: str, **given: object) -> datetime:
        return "soon"  # type: ignore[return-value]


def test_a_time_without_zone_is_one_of_the_triggers_zone() -> None:
    after = ms("2026-01-01T12:00+01:00")
    assert a_calendar(FromAnywhere()).next_after(after) == after + 1_000


def test_a_point_of_a_schedule_that_knows_only_its_now_is_kept_until_it_has_passed() -> None:
    schedule = FromItsNow()
    begin = ms("2026-01-01T00:00+00:00")
    next_after = a_calendar(schedule).next_after
    assert next_after(begin) == begin + 10_000
    schedule.now += timedelta(seconds=10)
    assert next_after(begin) == begin + 10_000
    assert next_after(begin + 10_000) == begin + 20_000
    assert next_after(begin + 90_000) is None


@pytest.mark.parametrize(
    ("schedule", "says"),
    [
        (Stuck(), r"Stuck.next_execution\('\* \* \* \* \*'\) must answer an instant after 2026"),
        (Nonsense(), r"Nonsense.next_execution\('\* \* \* \* \*'\) must answer a datetime, not 'soon'"),
    ],
)
def test_a_schedule_that_answers_nonsense_is_told_so(schedule: AbstractCronSchedule, says: str) -> None:
    with pytest.raises(BadConfiguration, match=says):
        a_calendar(schedule).next_after(ms("2026-01-01T00:00+00:00"))


def test_what_a_schedule_refuses_is_told_with_trigger_and_worker_before_anything_starts() -> None:
    trigger = Trigger(title="moon", schedule=Cron(expression="every full moon", custom=True))
    settings = WorkerSettings(title="tides", triggers=[trigger])
    with pytest.raises(
        BadConfiguration, match="trigger 'moon' of worker 'tides': 'every full moon' is refused by Cron"
    ):
        scheduled_triggers(settings, CronSchedule())
    with pytest.raises(BadConfiguration, match="must answer a datetime, not 'soon'"):
        scheduled_triggers(settings, Nonsense())
    assert len(scheduled_triggers(settings, FromAnywhere())) == 1


# What is fired ------------------------------------------------------------------------------------


def test_a_trigger_fires_into_its_workers_own_source_with_its_kwargs() -> None:
    trigger = Trigger(title="tick", schedule=Interval(minutes=1), kwargs={"full": True}, lifetime=90)
    settings = WorkerSettings(title="mail", triggers=[trigger])
    [scheduled] = scheduled_triggers(settings, CronSchedule())
    assert (scheduled.type, scheduled.name) == (settings.default_source, f"{settings.id}/{trigger.id}")
    assert (scheduled.variables, scheduled.plan.lifetime_ms) == ('{"full":true}', 90_000)


def test_a_function_fires_into_its_own_type() -> None:
    [by_cron, by_interval] = [function_trigger("mail.send", cron) for cron in ("0 9 * * *", Interval(minutes=1))]
    assert (by_cron.scheduled.type, by_cron.card.type, by_cron.card.title) == ("mail.send", "mail.send", "mail.send")
    assert by_cron.card.name == by_cron.scheduled.name
    assert by_interval.scheduled.plan.schedule == Every(60_000)


@pytest.mark.parametrize(
    ("cron", "says"),
    [(5, "cron: must be a cron expression, a Cron or an Interval, not 5"), ("0 25 * * *", "cron: .*Bad hour")],
)
def test_a_function_with_a_bad_schedule_is_refused(cron: object, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        function_trigger("mail.send", cron)
