"""The first page: whether work flows, in a sentence; what needs somebody; and what a visitor may see of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from everwork.core.job import NewJob
from everwork.core.leasing import Demand
from everwork.engines.contract import Engine
from everwork.service.fleet.entries import ManagerEntry, ProcessEntry, WorkerEntry
from everwork.service.fleet.fleet import Fleet
from tests.server.http.ui.timed_dashboard import timed_dashboard
from tests.server.http.ui.visiting import Visitor, visiting
from tests.stores import HOUR_MS, MINUTE_MS


def glance(page: str) -> str:
    """The sentence at the top."""
    [said] = re.findall(r'<p class="glance-main"><a href="[^"]+">([^<]+)</a>', page)
    return str(said)


def needs(page: str) -> dict[str, str]:
    """What needs somebody, and where it leads to."""
    return {text: href for href, text in re.findall(r'<li class="need-\w+"><a href="([^"]+)">([^<]+)</a>', page)}


def tiles(page: str) -> dict[str, str]:
    """The figures of the states."""
    return dict(re.findall(r'tile-label">([^<]+)</span><span class="tile-value">([^<]+)<', page))


async def test_a_sentence_says_how_work_flows(tmp_path: Path) -> None:
    async with timed_dashboard(tmp_path) as world:
        assert glance(await world.page("/ui")) == "Idle: no jobs yet"
        await world.engine.create([NewJob("mail", delay_ms=HOUR_MS)])
        assert glance(await world.page("/ui")) == "Idle: no jobs are due; all pending jobs are scheduled for later"
        await world.minutes_later(4)
        await world.work("mail", *[None] * 57, "busy", "busy", "busy")
        page = await world.page("/ui")
        assert glance(page) == "Healthy: 14 completed per minute in the last 4 minutes, 5 % of attempts failed"
        why = re.findall(r'<td title="(\w+)">([^<]+)</td>.*?class="num">(\d+)<', await world.page("/ui?range=7d"), re.S)
        assert why == [("unclassified", "unclassified error", "3")]
        await world.engine.create([NewJob("mail")])
        await world.minutes_later(8)
        said = glance(await world.page("/ui"))
        assert said == "No workers running: the oldest due job has waited 8 min"


async def test_when_all_fails_the_sentence_says_so(tmp_path: Path) -> None:
    async with timed_dashboard(tmp_path) as world:
        await world.minutes_later(2)
        await world.work("mail", *["busy"] * 4, retries=2)
        page = await world.page("/ui")
        assert glance(page) == "Failing: all 4 attempts failed in the last 2 minutes"
        assert "glance-bad" in page


async def test_what_needs_somebody_is_said_with_a_way_to_it(tmp_path: Path) -> None:
    async with timed_dashboard(tmp_path) as world:
        engine = world.engine
        assert needs(await world.page("/ui")) == {}
        await engine.create([NewJob(type) for type in ("held", "broken", "lonely", "taken")])
        await engine.pause("held", True)
        await engine.open_breaker("broken", HOUR_MS)
        await world.minutes_later(3)
        await _a_worker_that_does_not_start(engine)
        await engine.create([NewJob("taken")])
        await engine.activate([Demand("taken", "w1", 1, MINUTE_MS)])
        page = await world.page("/ui")
        assert needs(page) == {
            "1 breaker is not closed: broken": "/ui/breakers",
            "1 worker fails to start: Mailer": "/ui/workers",
            "2 types have due jobs but no worker: broken, lonely": "/ui/types?show=unasked",
            "1 type is paused: held": "/ui/type?name=held",
        }
        shown = {label: value for label, value in tiles(page).items() if value != "0"}
        assert shown == {"pending": "4", "processing": "1", "workers": "1"}
        rows = re.findall(r'<tr data-key="w-(\w+)/"', page)
        assert rows == ["broken", "held", "lonely", "taken"]


async def _a_worker_that_does_not_start(engine: Engine) -> None:
    fleet = Fleet(engine)
    await fleet.declare([WorkerEntry(id="w-1", title="Mailer")], [])
    await fleet.beat(
        ManagerEntry(name="m1"), [ProcessEntry(name="p1", workers=("w-1",), broken={"w-1": "no such host"})]
    )


async def test_dead_letters_are_grouped_by_error_without_what_is_secret_in_them(visitor: Visitor) -> None:
    rest = visitor.rest
    for order in (17, 18):
        await rest.dead_letter(f"order {order} has no street")
    secret = {"smtp": {"password": "hunter2-hunter2"}}
    await rest.dead_letter("login failed: hunter2-hunter2\nTraceback", type="sms", variables=secret)
    for path in ("/ui", "/ui/type?name=sms"):
        page = await visitor.page(path)
        assert "login failed: ••••••<" in page
        assert "hunter2" not in page
    page = await visitor.page("/ui")
    kinds = re.findall(r'class="error-link" href="([^"]+)">([^<]+)<.*?data-label="Jobs" class="num">(\d+)<', page, re.S)
    assert [(error, jobs) for _, error, jobs in kinds] == [
        ("login failed: ••••••", "1"),
        ("order 18 has no street", "2"),
    ]
    assert "order 18 has no street" in await visitor.page(kinds[1][0])


async def test_a_bound_key_sees_its_own_jobs_and_is_told_what_it_does_not_see(visitor: Visitor) -> None:
    await visitor.rest.dead_letter("secret of others")
    await visitor.rest.dead_letter("mine", tenant="acme")
    async with visiting(visitor.rest, "jobs", tenants=("acme",)) as bound:
        page = await bound.page("/ui")
        assert tiles(page)["failed"] == "1"
        assert "limited to acme" in page
        assert "mine" in page
        for other in ("secret of others", "<svg", "/ui/type?", "Backlog"):
            assert other not in page
        for path in ("/ui/types", "/ui/type?name=email-send", "/ui/breakers"):
            assert (await bound.get(path)).status_code == 403


@pytest.mark.parametrize("permissions", [("admin",), ("jobs:read",)])
async def test_whoever_may_read_or_administer_sees_how_it_stands(
    visitor: Visitor, permissions: tuple[str, ...]
) -> None:
    await visitor.rest.dead_letter("no such address")
    async with visiting(visitor.rest, *permissions) as other:
        for path in ("/ui", "/ui?range=24h", "/ui/types", "/ui/type?name=email-send", "/ui/breakers"):
            page = await other.page(path)
            assert ("no such address" in page) == (
                permissions == ("jobs:read",) and "types" not in path and "br" not in path
            )
            assert ("/ui/type/pause" in page) == (permissions == ("admin",) and "/ui/type" in path)


async def test_an_empty_store_says_what_to_do(visitor: Visitor) -> None:
    page = await visitor.page("/ui")
    assert "everwork jobs create" in page
    assert "No finished attempts since" in page
    for path, told in {"/ui/types": "A type appears with its first job", "/ui/breakers": "--breaker-failures"}.items():
        assert told in await visitor.page(path)
