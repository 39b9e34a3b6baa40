"""The pages of triggers: when they fire, what they made, and letting them fire now."""

from __future__ import annotations

import re

from everwork.service.fleet.fleet import Fleet
from tests.fleets import a_process, a_trigger
from tests.server.http.serving import Rest
from tests.server.http.ui.visiting import Visitor, visiting

NAME = "0123456789abcdef/nightly"
HOUR_MS = 3_600_000


async def test_a_cron_expression_is_told_in_words(visitor: Visitor) -> None:
    await a_trigger(visitor.rest.engine, schedule="30 2 * * 1 Europe/Berlin")
    for path in ("/ui/triggers", f"/ui/trigger?name={NAME}"):
        page = await visitor.page(path)
        assert ("At 02:30 on Monday" in page, "30 2 * * 1 Europe/Berlin" in page) == (True, True)


async def test_a_trigger_is_shown_with_its_points_and_without_its_secrets(visitor: Visitor) -> None:
    variables = '{"pages":3,"api_key":"hunter-hunter"}'
    await a_trigger(visitor.rest.engine, description="The report", interval_ms=HOUR_MS, variables=variables)
    listed = await visitor.page("/ui/triggers")
    assert "no process fires it" in listed
    assert "starts when a program that declares it first runs" in listed
    await visitor.rest.engine.trigger_marks([NAME])
    await a_process(visitor.rest.engine)
    listed = await visitor.page("/ui/triggers")
    for told in (
        "nightly-report",
        "The report",
        "every day",
        'mailer <span class="quietly">own source</span></a>',
        "not yet",
    ):
        assert told in listed, told
    [href] = set(re.findall(r'href="(/ui/trigger\?[^"]+)"', listed))
    page = await visitor.page(href)
    assert '"pages": 3' in page
    assert '"api_key": "••••••"' in page
    assert "hunter" not in listed + page
    points = re.findall(r'<time datetime="([^"]+)" data-as="clock"', page)
    assert len(points) == 5
    assert sorted(set(points)) == points


async def test_a_trigger_is_fired_by_hand_and_its_page_knows_the_job(visitor: Visitor) -> None:
    await a_trigger(visitor.rest.engine)
    said = await visitor.done("/ui/triggers/fire", "/ui/triggers", trigger=NAME)
    assert said["text"] == "nightly-report fired manually and created this job."
    key = said["to"].removeprefix("/ui/jobs/")
    page = await visitor.page("/ui/trigger", name=NAME)
    assert re.search(rf'data-key="f-{key}".*?pending.*?manual', page, re.DOTALL)
    assert f"/ui/jobs/{key}" in await visitor.page("/ui/triggers")
    [(action, target, detail)] = await visitor.audit()
    assert (action, target, detail["key"]) == ("triggers.fire", NAME, key)


async def test_a_trigger_is_switched_off_and_on(visitor: Visitor) -> None:
    await a_trigger(visitor.rest.engine)
    said = await visitor.done("/ui/triggers/switch", "/ui/triggers", trigger=NAME, on="no")
    assert said["text"].startswith("nightly-report is disabled; missed runs")
    assert await Fleet(visitor.rest.engine).triggers_off() == {NAME}
    page = await visitor.page("/ui/trigger", name=NAME)
    assert ("it is disabled" in page, "Enable" in page) == (True, True)
    assert (await visitor.done("/ui/triggers/switch", trigger=NAME, on="yes"))["text"] == "nightly-report is enabled."
    assert [action for action, _, _ in await visitor.audit()] == ["triggers.on", "triggers.off"]


async def test_a_trigger_that_is_not_there_is_told_in_words(visitor: Visitor) -> None:
    assert "Give a function a schedule" in await visitor.page("/ui/triggers")
    assert "not found" in await visitor.page("/ui/trigger?name=none", 404)
    assert "name: is required" in await visitor.page("/ui/trigger", 422)
    assert (await visitor.done("/ui/triggers/fire", trigger="none"))["is_good"] is False


async def test_a_key_that_may_only_read_is_offered_nothing(local: Rest) -> None:
    await a_trigger(local.engine)
    async with visiting(local, "jobs:read") as reader:
        for path in ("/ui/triggers", f"/ui/trigger?name={NAME}"):
            page = await reader.page(path)
            assert ("nightly-report" in page, "Fire now" in page, "able</button>" in page) == (True, False, False)
