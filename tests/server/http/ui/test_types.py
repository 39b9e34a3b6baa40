"""Types: the list, a type's own page, its policy, and breakers."""

from __future__ import annotations

import re
from pathlib import Path

from everwork.core.job import NewJob
from everwork.core.leasing import Demand
from everwork.core.outcome import Failed
from tests.server.http.ui.timed_dashboard import timed_dashboard
from tests.server.http.ui.visiting import Visitor, visiting
from tests.stores import HOUR_MS, MINUTE_MS, SECOND_MS

LATER = "2099-01-01T00:00:00Z"


def types_in(page: str) -> list[str]:
    """The types of a list, in its order."""
    return re.findall(r'<tr data-key="t-([^"]+)"', page)


def cells(page: str, type: str) -> dict[str, str]:
    """What a row of the list says, by its labels; and its state."""
    [row] = re.findall(rf'<tr data-key="t-{type}".*?</tr>', page, re.S)
    found = {label: _text(cell) for label, cell in re.findall(r'data-label="([^"]+)"[^>]*>(.*?)</td>', row, re.S)}
    [state] = re.findall(r'class="state state-[\w-]+">([^<]+)<', row)
    return {"State": state, **found}


def _text(html: str) -> str:
    return re.sub(r"<[^>]+>", "", html).strip()


# The list -----------------------------------------------------------------------------------------------


async def test_the_list_tells_what_waits_runs_and_fails_of_each_type_and_at_what_rate(tmp_path: Path) -> None:
    async with timed_dashboard(tmp_path) as world:
        await world.minutes_later(2)
        await world.work("mail", None, None, None, "busy", run_ms=40)
        await world.engine.create([NewJob("mail"), NewJob("later", delay_ms=HOUR_MS)])
        await world.engine.create([NewJob("lonely")])
        await world.minutes_later(3)
        page = await world.page("/ui/types")
        assert types_in(page) == ["later", "lonely", "mail"]
        mail = cells(page, "mail")
        assert mail.pop("Oldest due") == "2023-11-14 22:02:00 UTC"
        assert list(mail.values()) == ["no worker", "1", "1", "0", "1", "49 ms"], mail
        assert (cells(page, "later")["State"], cells(page, "later")["Oldest due"]) == ("active", "all scheduled")


async def test_the_list_is_searched_filtered_and_sorted(visitor: Visitor) -> None:
    rest = visitor.rest
    await rest.dead_letter(type="Bill")
    await rest.job(type="alarm")
    for _ in range(2):
        await rest.job(type="card")
    await rest.engine.pause("card", True)
    await rest.engine.open_breaker("alarm", HOUR_MS)
    asks = {
        "": ["Bill", "alarm", "card"],
        "q=AR": ["alarm", "card"],
        "show=paused": ["card"],
        "show=stopped": ["alarm"],
        "show=waiting&q=a": ["alarm", "card"],
        "show=failed": ["Bill"],
        "sort=waiting": ["card", "alarm", "Bill"],
        "sort=failed": ["Bill", "alarm", "card"],
        "sort=oldest": ["alarm", "card", "Bill"],
        "sort=nonsense": ["Bill", "alarm", "card"],
        "q=nobody": [],
    }
    for query, types in asks.items():
        assert types_in(await visitor.page(f"/ui/types?{query}")) == types, query
    assert "No matching types" in await visitor.page("/ui/types?q=nobody")


async def test_of_many_types_a_hundred_stand_on_a_page(visitor: Visitor) -> None:
    names = [f"t{number:03d}" for number in range(230)]
    await visitor.rest.engine.create([NewJob(name) for name in names])
    shown, path, page = [], "/ui/types?sort=name", ""
    while path:
        page = await visitor.page(path)
        shown.append(types_in(page))
        [path] = re.findall(r'href="([^"]+)">Next', page) or [""]
    assert shown == [names[:100], names[100:200], names[200:]]
    assert "201 to 230 of 230" in page
    assert types_in(await visitor.page("/ui/types?first=9999999")) == ["t229"]
    assert types_in(await visitor.page("/ui/types?first=x")) == names[:100]


async def test_pausing_and_resuming_is_done_and_noted(visitor: Visitor) -> None:
    await visitor.rest.job()
    said = await visitor.done("/ui/type/pause", "/ui/types", type="email-send")
    assert (said["text"].startswith("email-send is paused"), said["to"]) == (True, "/ui/types")
    page = await visitor.page("/ui/types")
    assert cells(page, "email-send")["State"] == "paused"
    assert "/ui/type/resume" in page
    await visitor.done("/ui/type/resume", type="email-send")
    assert [(action, target) for action, target, _ in await visitor.audit()] == [
        ("types.resume", "email-send"),
        ("types.pause", "email-send"),
    ]


# A type's own page --------------------------------------------------------------------------------------


async def test_a_type_s_page_tells_due_from_scheduled_and_how_full_its_limits_are(visitor: Visitor) -> None:
    rest = visitor.rest
    await rest.leased(type="card")
    for fields in ({}, {}, {"run_at": LATER}):
        await rest.job(type="card", **fields)
    said = await visitor.done("/ui/type/policy", type="card", policy='{"max_running": 4, "rate_jobs": 1}')
    assert said["to"] == "/ui/type?name=card"
    page = await visitor.page("/ui/type?name=card")
    told = _text(page)
    for part in (
        "2 due, oldest",
        "1 scheduled",
        "1 of 4 concurrently",
        "4 concurrently, 1 per min",
        "no rule; manual only",
    ):
        assert part in told, part
    assert "/ui/jobs?type=card&state=due" in page
    assert "type 'nobody' not found" in (await visitor.page("/ui/type?name=nobody", 404)).lower()


async def test_a_policy_is_changed_and_taken_back_and_mistakes_are_told_with_what_was_typed(visitor: Visitor) -> None:
    await visitor.rest.job()
    mistakes = {
        '{"max_attempts": 0}': "max_attempts",
        '{"nonsense": 1}': "unknown policy field",
        "[1]": "must be a JSON object",
        "{": "must be a JSON object: unexpected end of data",
        '{"base": 1, "base": 2}': "must not have the name &#39;base&#39; twice in one object",
        '{"breaker_failures": "x"}': "breaker_failures",
    }
    for typed, told in mistakes.items():
        answer = await visitor.post("/ui/type/policy", type="email-send", policy=typed)
        assert (answer.status_code, told in answer.text) == (422, True), answer.text
        assert f">{_escaped(typed)}</textarea>" in answer.text
        assert "data-live" not in answer.text
    typed = '{"max_attempts": 9, "base": 90, "jitter": 0.5, "keep_failed_hours": 48, "strict": true}'
    await visitor.done("/ui/type/policy", type="email-send", policy=typed)
    page = await visitor.page("/ui/type?name=email-send")
    rows = dict(re.findall(r"<tr><td><code>(\w+)</code></td><td>([^<]*)</td></tr>", page))
    assert list(rows)[:5] == ["max_attempts", "base", "jitter", "strict", "keep_failed_hours"]
    assert [rows[name] for name in (*list(rows)[:5], "cap", "max_running")] == [
        "9", "1.5 min", "50 %", "yes", "2 d", "5 min", "none",
    ]  # fmt: skip
    await visitor.done("/ui/type/policy-clear", type="email-send")
    assert "All fields use the default policy" in await visitor.page("/ui/type?name=email-send")
    assert [action for action, _, _ in await visitor.audit()] == ["types.policy-clear", "types.policy"]


def _escaped(text: str) -> str:
    return text.replace('"', "&#34;")


async def test_groups_and_workers_of_a_type_are_shown(visitor: Visitor) -> None:
    await visitor.rest.engine.add_group("card", "audit")
    await visitor.rest.job(type="card")
    page = await visitor.page("/ui/type?name=card")
    assert re.search(r'<tr data-key="g-audit">.*?data-label="pending" class="num">1<', page, re.S)
    assert "none running" in page


# Breakers -----------------------------------------------------------------------------------------------


async def test_a_breaker_is_shown_opened_and_closed_and_that_is_noted(tmp_path: Path) -> None:
    async with timed_dashboard(tmp_path, [NewJob("card")] * 4) as world:
        visitor = world.visitor
        await visitor.done("/ui/type/policy", type="card", policy='{"breaker_failures": 2, "breaker_seconds": 90}')
        assert "All breakers are closed" in await world.page("/ui/breakers")
        leased = (await world.engine.activate([Demand("card", "w1", 2, MINUTE_MS)])).jobs
        await world.engine.settle([Failed(one.key, one.attempt, "busy", backoff_ms=1) for one in leased])
        told = _text(await world.page("/ui/breakers"))
        assert "1 breaker is not closed; 4 pending jobs are held back" in told
        assert "after 2 failures, for 1.5 min" in told
        world.clock.advance(ms=91 * SECOND_MS)
        [probe] = (await world.engine.activate([Demand("card", "w1", 2, MINUTE_MS)])).jobs
        for path in ("/ui/breakers", "/ui/type?name=card"):
            page = await world.page(path)
            assert "half-open" in page
            assert f"/ui/jobs/{probe.key}" in page
        assert (await visitor.done("/ui/type/breaker-reset", type="card"))["text"] == "The breaker of card is closed."
        said = await visitor.done("/ui/type/breaker-open", type="card", seconds="600")
        assert said["text"].startswith("The breaker of card is open for 10 min;")
        assert "The breaker is open" in await world.page("/ui/type?name=card")
        assert "must be a number" in (await visitor.done("/ui/type/breaker-open", type="card", seconds="x"))["text"]
        actions = [action for action, _, _ in await visitor.audit()]
        assert actions == ["types.breaker-open", "types.breaker-reset", "types.policy"]


async def test_a_key_that_only_reads_changes_nothing_about_types(visitor: Visitor) -> None:
    await visitor.rest.job()
    acts = ("pause", "resume", "policy", "policy-clear", "breaker-open", "breaker-reset", "delete")
    async with visiting(visitor.rest, "jobs:read") as reader:
        for path in ("/ui/types", "/ui/type?name=email-send", "/ui/breakers"):
            assert "/ui/type/" not in await reader.page(path)
        for act in acts:
            answer = await reader.post(f"/ui/type/{act}", type="email-send", seconds="60", policy="{}")
            assert answer.status_code == 403, act
    assert await visitor.audit() == []


async def test_a_type_is_deleted_from_its_page_unless_it_is_in_use(visitor: Visitor) -> None:
    key = (await visitor.rest.job())["key"]
    assert 'action="/ui/type/delete"' in await visitor.page("/ui/type?name=email-send")
    said = await visitor.done("/ui/type/delete", type="email-send")
    assert "'email-send' has 1 unfinished job; cancel them first" in said["text"]
    await visitor.rest.engine.cancel([int(key)])
    said = await visitor.done("/ui/type/delete", type="email-send")
    assert said["text"] == "email-send was deleted, with 1 finished job."
    assert await visitor.rest.engine.types() == []
    assert [action for action, _, _ in await visitor.audit()] == ["types.delete"]
