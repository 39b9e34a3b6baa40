"""Job functions by the clock."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest

from everwork import Everwork, JobContext
from everwork.app.entries import trigger_entries, worker_entry
from everwork.app.settings import Interval, Trigger, WorkerSettings
from everwork.exceptions import InvalidInput
from everwork.service.fleet.fleet import Fleet
from tests.app.waiting import until, working
from tests.conformance.observe import every_job
from tests.stores import MINUTE_MS, START_MS, VirtualClock

pytestmark = pytest.mark.every_engine


async def test_a_function_runs_once_for_each_of_its_time_points(app: Everwork, clock: VirtualClock) -> None:
    ran: list[str] = []

    @app.job("report", cron="*/2 * * * *")
    async def report(ctx: JobContext, title: str = "daily") -> None:
        ran.append(title)

    async def has_begun() -> bool:
        return bool(await app._host.call(lambda service: service._engine.registered("trigger-mark")))

    async with working(app):
        await until(has_begun)
    clock.advance(ms=5 * MINUTE_MS)
    async with working(app):
        await until(lambda: len(ran) == 2)
    jobs = await app._host.call(lambda service: every_job(service._engine))
    points = [int((job.dedupe_key or "").rpartition(":")[2]) - START_MS for job in jobs]
    assert sorted(points) == [2 * MINUTE_MS, 4 * MINUTE_MS]
    assert ran == ["daily", "daily"]


async def test_a_functions_schedule_can_be_seen_and_switched_off(app: Everwork) -> None:
    @app.job("report", cron=Interval(minutes=1))
    async def report() -> None: ...

    async with working(app):
        fleet = Fleet(app.service._engine)
        assert await app._host.call(lambda _: fleet.switch_trigger("report", False))
        [seen] = await app._host.call(lambda _: fleet.triggers())
    assert (seen.entry.schedule, seen.entry.type, seen.is_on) == ("every 1 min", "report", False)


async def test_a_functions_schedule_is_served_as_long_as_its_application_works(app: Everwork) -> None:
    @app.job("report", cron=Interval(minutes=1))
    async def report() -> None: ...

    async def is_served() -> bool:
        [seen] = await app._host.call(lambda service: Fleet(service._engine).triggers())
        return seen.is_served and seen.next_ms is not None

    async def is_left() -> bool:
        return not await app._host.call(lambda service: service._engine.registered("firing"))

    async with working(app):
        await until(is_served)
    await until(is_left)


async def test_a_function_whose_schedule_is_gone_shows_none_and_a_worker_of_that_name_has_its_own(
    app: Everwork,
) -> None:
    @app.job("report", cron=Interval(minutes=1))
    async def report() -> None: ...

    settings = WorkerSettings(title="report", triggers=[Trigger(title="report", schedule=Interval(minutes=1))])
    [foreign] = trigger_entries(settings)
    async with working(app):
        fleet = Fleet(app.service._engine)
        await app._host.call(lambda _: fleet.declare([worker_entry(settings)], [foreign]))
        assert len(await app._host.call(lambda _: fleet.triggers())) == 2
    report.trigger = None
    async with working(app):
        assert [view.entry for view in await app._host.call(lambda _: fleet.triggers())] == [foreign]


async def test_a_schedule_gives_its_arguments_as_the_annotations_say(app: Everwork, clock: VirtualClock) -> None:
    ran: list[object] = []

    @app.job("report", cron=Interval(minutes=1), cron_arguments={"day": date(2026, 11, 18)}, is_catchup=False)
    async def report(day: date, title: str = "daily") -> None:
        ran.append(day)

    await app.run_once()
    [seen] = await app._host.call(lambda service: Fleet(service._engine).triggers())
    clock.advance(ms=MINUTE_MS)
    await app.run_once()
    assert (ran, seen.entry.is_catchup, seen.entry.variables) == ([date(2026, 11, 18)], False, '{"day":"2026-11-18"}')


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"cron": "0 9 * * *", "cron_arguments": {"day": "soon"}}, "cron_arguments.day: "),
        ({"cron": "0 9 * * *", "cron_arguments": {"dya": 1}}, "cron_arguments.dya: the handler has no such argument"),
        ({"cron": "0 9 * * *", "cron_arguments": [1]}, "cron_arguments: must be"),
        ({"cron_arguments": {"day": "2026-11-18"}}, "cron_arguments: need a schedule: set cron as well"),
        ({"cron": "0 9 * * *", "is_catchup": "no"}, "is_catchup: must be True or False, not 'no'"),
    ],
)
def test_bad_arguments_of_a_schedule_are_told_at_the_declaration(
    app: Everwork, given: dict[str, Any], problem: str
) -> None:
    with pytest.raises(InvalidInput) as refused:

        @app.job("report", **given)
        def report(day: date) -> None: ...

    assert str(refused.value).startswith(problem)


def test_a_function_that_needs_arguments_cannot_run_by_the_clock(app: Everwork) -> None:
    with pytest.raises(InvalidInput, match="cron: argument 'to' must have a default, or be in cron_arguments"):

        @app.job("send", cron="0 9 * * *")
        def send(to: str) -> None: ...


def test_a_bad_schedule_is_told_at_the_declaration(app: Everwork) -> None:
    with pytest.raises(InvalidInput, match="cron: must be a cron expression, such as '0 9 \\* \\* 1': Bad hour"):

        @app.job("send", cron="0 25 * * *")
        def send() -> None: ...
