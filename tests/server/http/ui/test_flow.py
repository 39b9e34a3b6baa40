"""The charts of a store: minutes that somebody has watched, hours that the engine has counted."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from everwork.core.job import NewJob
from everwork.core.leasing import Demand
from everwork.core.measures import measured
from everwork.core.outcome import Complete
from everwork.server.http.ui.chart import UNKNOWN
from everwork.server.http.ui.flow import HourlyCounts, Point, window_of
from everwork.service.monitor.minutes import MINUTE_TYPES_MAX, Work
from tests.server.http.ui.timed_dashboard import timed_dashboard
from tests.stores import HOUR_MS, MINUTE_MS


def legend(page: str) -> list[str]:
    """The totals of the charts: of their legends, or of the bars instead of a chart with few points."""
    bars = r'<th scope="row">([^<]+)</th><td>.*?</td><td class="num">([^<]+)</td>'
    found = re.findall(rf'<span class="swatch \w+"></span>([^<]+) <b>([^<]+)</b>|{bars}', page)
    return [f"{one or other} <b>{value or total}" for one, value, other, total in found]


def titles(page: str) -> list[str]:
    """What is told to whoever points at a slot."""
    return re.findall(r"<title>(\d{4}-[^<]+)</title>", page)


async def test_a_young_store_is_drawn_by_minutes_and_those_that_were_not_counted_are_no_zeros(tmp_path: Path) -> None:
    async with timed_dashboard(tmp_path) as world:
        await world.work("mail", None, None, "busy", run_ms=2_000)
        await world.minutes_later(2)
        world.clock.advance(ms=3 * MINUTE_MS)  # No server is running.
        await world.sampler.fresh()
        await world.work("mail", None, run_ms=30_000)
        page = await world.page("/ui")
        assert legend(page)[:4] == ["completed <b>3", "failed, retried <b>0", "failed permanently <b>1", "p50 <b>2 s"]
        [*before, first, idle, idle_too, unknown, _, now] = titles(page)
        assert len(before) == 4  # Ten minutes, not an hour.
        assert "completed: 2\nfailed, retried: 0\nfailed permanently: 1" in first
        assert "completed: 0" in idle
        assert "completed: 0" in idle_too
        assert UNKNOWN in unknown
        assert re.search(r"22:05 UTC, so far\ncompleted: 1", now), now


async def test_before_the_first_attempt_the_page_says_since_when_they_are_counted(tmp_path: Path) -> None:
    async with timed_dashboard(tmp_path) as world:
        page = await world.page("/ui")
        assert re.search(r"No finished attempts since <time [^>]+>2023-11-14 22:00:00 UTC</time>", page)
        assert "Charts appear here as soon as an attempt finishes." in page
        assert "Run time" not in page


async def test_the_first_two_minutes_are_totals(tmp_path: Path) -> None:
    async with timed_dashboard(tmp_path) as world:
        await world.minutes_later(1)
        await world.work("mail", None, "busy", run_ms=2_000)
        page = await world.page("/ui")
        assert legend(page)[:4] == ["completed <b>1", "failed, retried <b>0", "failed permanently <b>1", "p50 <b>1.8 s"]
        assert page.count("in total</span>") == 3
        assert "Counted since" in page


async def test_from_the_third_minute_on_there_is_a_chart_of_ten(tmp_path: Path) -> None:
    async with timed_dashboard(tmp_path) as world:
        await world.work("mail", None, run_ms=2_000)
        await world.minutes_later(2)
        page = await world.page("/ui")
        assert 'Finished attempts <span class="unit">per minute</span>' in page
        assert len(titles(page)) == 10  # Of the throughput; run times have one point.


@pytest.mark.parametrize(("counted", "minutes"), [(0, 10), (1, 10), (10, 10), (11, 30), (30, 30), (31, 60), (60, 60)])
def test_the_window_of_minutes_grows_with_what_was_counted(counted: int, minutes: int) -> None:
    nothing = measured({}.items())
    points = [Point(at, Work(), nothing, is_known=at >= 60 - counted) for at in range(60)]
    window = window_of(points)
    assert (window.minutes, window.minutes % window.step, window.marked % window.step) == (minutes, 0, 0)


async def test_longer_ranges_come_from_the_engine_whoever_watched(tmp_path: Path) -> None:
    async with timed_dashboard(tmp_path) as world:
        await world.work("mail", None, run_ms=40)
        world.clock.advance(ms=30 * HOUR_MS)
        await world.log_in_again()
        await world.work("mail", "busy", None, retries=3)
        wholes = {name: legend(await world.page(f"/ui?range={name}"))[:2] for name in ("1h", "24h", "7d", "30d")}
        assert wholes == {
            "1h": ["completed <b>1", "failed, retried <b>1"],
            "24h": ["completed <b>1", "failed, retried <b>1"],
            "7d": ["completed <b>2", "failed, retried <b>1"],
            "30d": ["completed <b>2", "failed, retried <b>1"],
        }
        slots = {name: len(titles(await world.page(f"/ui?range={name}"))) for name in ("24h", "7d", "30d")}
        assert slots == {"24h": 24, "7d": 28, "30d": 30}
        assert 'aria-current="true">30 days' in await world.page("/ui?range=30d")
        assert 'aria-current="true">1 hour' in await world.page("/ui?range=century")


async def test_a_type_has_charts_of_its_own_and_knows_when_it_was_lost_among_many(tmp_path: Path) -> None:
    async with timed_dashboard(tmp_path) as world:
        await world.work("rare", None)
        await world.minutes_later(6)
        await world.work("rare", None)
        types = [f"t{number}" for number in range(MINUTE_TYPES_MAX)]
        await world.engine.create([NewJob(type) for type in types * 2])
        leased = (await world.engine.activate([Demand(type, "w1", 2, MINUTE_MS) for type in types])).jobs
        await world.engine.settle([Complete(job.key, job.attempt) for job in leased])
        page = await world.page("/ui/type?name=rare")
        assert legend(page)[0] == "completed <b>1"
        assert UNKNOWN in titles(page)[9]
        assert 'tile-value">few<' in page
        assert legend(await world.page("/ui/type?name=rare&range=24h"))[0] == "completed <b>2"


async def test_hours_that_are_over_are_read_once_and_none_is_lost_or_counted_twice(tmp_path: Path) -> None:
    async with timed_dashboard(tmp_path) as world:
        hourly, service = HourlyCounts(None), world.visitor.rest.service
        for hours in (24, 24, 720, 24, 720):
            await world.work("mail", None)
            await hourly.read(service, hours, world.clock.now_ms)
            world.clock.advance(ms=HOUR_MS)
        await world.work("mail", None)
        before = (await service.stats(1)).generated_at_ms
        world.clock.advance(ms=40 * HOUR_MS)  # Nobody looks at the chart for long, and the last reading is old.
        await world.work("mail", None)
        await hourly.read(service, 24, before)
        await hourly.read(service, 720, world.clock.now_ms)
        told = await service.stats(720)
        assert {hour: counts["completed"] for hour, counts in hourly.counts.items()} == {
            row.hour: row.completed for row in told.hours
        }
        assert len(hourly.counts) == 7
