"""Time points of cron expressions: clocks that change, and schedules of users' own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import pytest

from everwork.app.function_triggers import function_trigger
from everwork.app.schedules import AbstractCronSchedule, CronSchedule, scheduled_triggers, time_points
from everwork.app.settings import Cron, Interval, Trigger, WorkerSettings
from everwork.core.schedule import Awaited, Calendar, Every
from everwork.exceptions import BadConfiguration, InvalidInput
from everwork.service.triggers.cron import matches

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


def a_calendar(
    schedule: AbstractCronSchedule, timezone: str = "Europe/Berlin", expression: str = "* * * * *"
) -> Calendar | Awaited:
    calendar = time_points(Cron(expression=expression, timezone=timezone), schedule)
    assert not isinstance(calendar, Every)
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


CHANGES = {
    "Europe/Berlin": ("2026-03-28T23:00+00:00", "2026-10-24T22:00+00:00"),
    "Australia/Lord_Howe": ("2026-04-04T12:00+00:00", "2026-10-03T12:00+00:00"),  # By half an hour.
    "Africa/Cairo": ("2026-04-23T20:00+00:00", "2026-10-29T19:00+00:00"),  # At midnight.
    "America/Santiago": ("2026-04-05T01:00+00:00", "2026-09-06T02:00+00:00"),
}


@pytest.mark.parametrize("zone", CHANGES)
def test_every_instant_of_the_changes_leads_to_the_same_points(zone: str) -> None:
    for expression in (NIGHTLY, HOURLY, "*/20 * * * *", "15 1-4/2 * * *", "*/15 0 * * *", "0 0 5 * * *", "0 0 * * *"):
        for begin in CHANGES[zone]:
            walked = list(islice(matches(expression, ZoneInfo(zone), ms(begin)), 8))
            calendar = a_calendar(CronSchedule(), zone, expression)
            for after in range(ms(begin), walked[-1], 600_000):
                assert calendar.next_after(after) == next(point for point in walked if point > after)


SHOWS: dict[str, Callable[[datetime], bool]] = {
    "*/15 1 * * *": lambda at: at.hour == 1 and at.minute % 15 == 0,
    "0 30 0,2 * * *": lambda at: at.hour in (0, 2) and at.minute == 30,
    "10 * * * *": lambda at: at.minute == 10,
    "* 5 * * *": lambda at: at.hour == 5,
}


@pytest.mark.parametrize("zone", CHANGES)
def test_what_stands_in_six_fields_or_at_every_minute_matches_whenever_the_clock_shows_it(zone: str) -> None:
    for begin in map(ms, CHANGES[zone]):
        minutes = range(begin + 60_000, begin + 36 * 3_600_000, 60_000)
        clock = {at: datetime.fromtimestamp(at / 1000, ZoneInfo(zone)) for at in minutes}
        for expression, shows in SHOWS.items():
            expected = [at for at in minutes if shows(clock[at])]
            found = list(islice(matches(expression, ZoneInfo(zone), begin), len(expected) + 1))
            assert found[:-1] == expected
            assert found[-1] >= minutes.stop


def test_two_loops_that_go_through_one_calendar_do_not_take_each_others_points() -> None:
    calendar = a_calendar(CronSchedule())
    begin = ms("2026-01-01T00:00+01:00")
    for _ in range(2):
        assert calendar.next_after(begin) == begin + 60_000
    with ThreadPoolExecutor(2) as threads:
        walks = list(threads.map(lambda _: _walked(calendar, begin, 2_000), range(2)))
    assert walks == [[begin + at * 60_000 for at in range(1, 2_001)]] * 2


def _walked(calendar: Calendar | Awaited, after_ms: int, count: int) -> list[int | None]:
    found: list[int | None] = []
    for _ in range(count):
        after_ms = calendar.next_after(after_ms) or 0
        found.append(after_ms)
    return found


def test_the_built_in_schedule_looks_from_an_instant_or_from_now() -> None:
    after = datetime(2026, 3, 29, 0, 59, 59, 999_000, UTC)
    assert CronSchedule().next_execution(HOURLY, after, "Europe/Berlin") == datetime(2026, 3, 29, 1, tzinfo=UTC)
    before = datetime.now(UTC)
    found = CronSchedule().next_execution("* * * * *")
    assert before < found <= datetime.now(UTC) + timedelta(minutes=1)


def test_an_interval_is_counted_in_milliseconds() -> None:
    assert time_points(Interval(seconds=1.5), CronSchedule()) == Every(1_500)


# Schedules of users' own --------------------------------------------------------------------------


class FromAnywhere(AbstractCronSchedule):
    """Every full second, without time zone."""

    def next_execution(self, cron_expression: str, after: datetime) -> datetime:  # type: ignore[override]
        return (after + timedelta(seconds=1)).replace(tzinfo=None)


class FromItsNow(AbstractCronSchedule):
    """As simple as it gets: it knows only its own now, which tests move."""

    instant = datetime(2026, 1, 1, tzinfo=UTC)

    def next_execution(self, cron_expression: str) -> datetime:
        return self.instant + timedelta(seconds=10)


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
    schedule.instant += timedelta(seconds=10)
    assert next_after(begin) == begin + 10_000
    assert next_after(begin + 10_000) == begin + 20_000
    assert next_after(begin + 90_000) is None


class EveryTenMinutes(AbstractCronSchedule):
    """By the clock on the wall, without time zone."""

    def next_execution(self, cron_expression: str, after: datetime) -> datetime:  # type: ignore[override]
        wall = after.replace(tzinfo=None) + timedelta(minutes=10)
        return wall.replace(minute=wall.minute // 10 * 10, second=0, microsecond=0)


class HalfAMillisecondLater(AbstractCronSchedule):
    def next_execution(self, cron_expression: str, after: datetime) -> datetime:  # type: ignore[override]
        return after + timedelta(microseconds=500)


def test_a_time_without_zone_in_an_hour_that_comes_twice_is_the_one_still_to_come() -> None:
    in_the_second = ms("2026-10-25T02:05+01:00")
    assert a_calendar(EveryTenMinutes()).next_after(in_the_second) == ms("2026-10-25T02:10+01:00")


def test_an_answer_within_the_same_millisecond_is_one_after_it() -> None:
    assert a_calendar(HalfAMillisecondLater()).next_after(1_000) == 1_001


@pytest.mark.parametrize(
    ("schedule", "says"),
    [
        (Stuck(), r"Stuck.next_execution\('\* \* \* \* \*'\) must return a time after 2026"),
        (Nonsense(), r"Nonsense.next_execution\('\* \* \* \* \*'\) must return a datetime, not 'soon'"),
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
    with pytest.raises(BadConfiguration, match="must return a datetime, not 'soon'"):
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
    assert (by_cron.scheduled.type, by_cron.entry.type, by_cron.entry.title) == ("mail.send", "mail.send", "mail.send")
    assert by_cron.entry.name == by_cron.scheduled.name
    assert by_interval.scheduled.plan.schedule == Every(60_000)


@pytest.mark.parametrize(
    ("cron", "says"),
    [(5, "cron: must be a cron expression, a Cron or an Interval, not 5"), ("0 25 * * *", "cron: .*Bad hour")],
)
def test_a_function_with_a_bad_schedule_is_refused(cron: object, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        function_trigger("mail.send", cron)
