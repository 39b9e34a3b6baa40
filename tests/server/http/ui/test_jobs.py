"""The page that finds jobs, and changes many of them at once."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from urllib.parse import urlencode

import pytest

from everwork.core.job import NewJob
from everwork.core.queries import JobFilter
from everwork.server.http.ui.pages.dead_letters import RecentFailures
from everwork.server.http.ui.pages.jobs import count_text
from everwork.server.http.ui.render import render
from everwork.service import bulk
from everwork.service.bulk import BulkFilter, Counted
from everwork.service.jobs import Jobs
from everwork.service.verb import IN_PROCESS
from tests.server.http.serving import JOBS, Rest, serving
from tests.server.http.ui.visiting import Visitor, visiting
from tests.stores import url_of

PLAIN = NewJob("plain")
LATER = "2099-01-01T00:00:00Z"
SURE = {"sure": "yes", "scope": "all"}


def keys_in(page: str) -> list[str]:
    """The jobs of a list, in its order."""
    return re.findall(r'<tr data-key="(\d+)"', page)


async def test_a_list_shows_what_is_filtered_for_and_counts_the_states_of_the_type(visitor: Visitor) -> None:
    rest = visitor.rest
    dead = await rest.dead_letter("no such address", correlation_id="order-1")
    held = await rest.leased(tenant="acme")
    later = await rest.job(type="report", run_at=LATER, dedupe_key="monthly", variables={"to": "ann@example.org"})
    asks = {
        "": [later, held, dead],
        "state=failed": [dead],
        "state=scheduled": [later],
        "state=due": [],
        "type=report&state=pending": [later],
        "worker=w1&state=processing": [held],
        "tenant=acme": [held],
        "correlation=order-1": [dead],
        "error=such+addr": [dead],
        "dedupe=monthly": [later],
        "dedupe=month": [],
        "variables=ann%40example": [later],
        "variables=%22to%22%3A%22ann": [later],
        "variables=ANN": [],
        "after=2099-01-01T00:00": [],
        "before=2099-01-01T00:00&type=email-send": [held, dead],
    }
    for query, jobs in asks.items():
        assert keys_in(await visitor.page(f"/ui/jobs?{query}")) == [job["key"] for job in jobs], query
    page = await visitor.page("/ui/jobs?type=email-send")
    assert "no such address" in page
    assert 'class="count"' not in await visitor.page("/ui/jobs?type=email-send&worker=nobody")
    tabs = dict(re.findall(r'>(\w+) <span class="count">(\d+)<', page))
    assert tabs == {"All": "2", "pending": "0", "processing": "1", "completed": "0", "failed": "1", "cancelled": "0"}


async def test_older_jobs_are_on_the_next_pages_which_are_not_followed(visitor: Visitor) -> None:
    made = await visitor.rest.ok("POST", JOBS, [{"type": "t"} for _ in range(120)])
    keys = [job["key"] for job in reversed(made)]
    shown, path, page = [], "/ui/jobs?type=t", ""
    while path:
        page = await visitor.page(path)
        assert ("data-live" in page) == (path == "/ui/jobs?type=t")
        shown.append(keys_in(page))
        [path] = re.findall(r'rel="next" href="([^"]+)">Older', page) or [""]
    assert shown == [keys[:50], keys[50:100], keys[100:]]
    assert "cursor=" in page.partition("Newest")[0]


async def test_what_lies_far_below_others_is_looked_for_and_found(local: Rest) -> None:
    await local.job(tenant="acme", run_at=LATER)
    for _ in range(3):
        await local.engine.create([PLAIN] * 10_000)
    jobs, rare = Jobs(local.service, IN_PROCESS), BulkFilter(JobFilter(tenants=("acme",)))
    short = await bulk.find_within(jobs, rare, 50, 0, seconds=0)
    assert (short.jobs, short.next is None) == ([], False)
    assert [job.key for job in (await bulk.find_within(jobs, rare, 50, 0, seconds=60)).jobs] == [1]
    async with visiting(local, "jobs", tenants=("acme",)) as somebody:
        page = await somebody.page("/ui/jobs?tenant=acme")
        while not keys_in(page):
            assert "Nothing found so far" in page
            page = await somebody.page(re.findall(r'rel="next" href="([^"]+)">Scan older jobs', page)[0])
        assert keys_in(page) == ["1"]
        answer = await somebody.post("/ui/jobs/change", act="cancel", scope="all")
        assert "Cancel 1 job?" in answer.text
        assert 'name="below" value="30002"' in answer.text


def test_that_none_was_found_so_far_is_not_told_as_none() -> None:
    told = render(
        "failures.html", {"failures": RecentFailures([], 0, True), "totals": {"failed": 3}, "further": "/ui/dead"}
    )
    assert "No dead letters among the newest jobs" in told
    assert [count_text(Counted(*one)) for one in ((0, False), (0, True), (1, True), (2_000, False))] == [
        "all matching jobs",
        "0 jobs",
        "1 job",
        "at least 2,000 jobs",
    ]


async def test_a_filter_that_cannot_be_understood_is_told_at_its_field_and_what_was_typed_stays(
    visitor: Visitor,
) -> None:
    await visitor.rest.job()
    page = await visitor.page("/ui/jobs?state=lost&after=soon&type=email-send", 422)
    assert "must be one of pending, processing, completed, failed, cancelled, scheduled, due, not 'lost'" in page
    allowed = "must be a time in UTC, like 2030-01-31T12:00Z, or with an offset, like 2030-01-31T14:00+02:00"
    assert f"""id="p-after" role="alert">{allowed}, not 'soon'<""" in page
    assert 'value="soon"' in page
    assert 'value="email-send"' in page
    assert keys_in(page) == []
    assert "cursor: must be a key" in await visitor.page("/ui/jobs?cursor=x", 422)


async def test_a_key_that_is_typed_leads_to_its_job_or_to_a_plain_word(visitor: Visitor) -> None:
    job = await visitor.rest.job()
    assert (await visitor.done("/ui/jobs/find", key=f" {job['key']} "))["to"] == f"/ui/jobs/{job['key']}"
    for key, told in {"x": "Job 'x' not found", "999": "Job '999' not found", "": "key: is required"}.items():
        said = await visitor.done("/ui/jobs/find", "/ui/jobs", key=key)
        assert (told in said["text"], said["is_good"], said["to"]) == (True, False, "/ui/jobs"), said


async def test_without_jobs_the_page_says_what_to_do(visitor: Visitor) -> None:
    assert "everwork jobs create" in await visitor.page("/ui/jobs")


async def test_what_is_secret_in_a_job_does_not_stand_in_its_error_either(visitor: Visitor) -> None:
    await visitor.rest.dead_letter("login failed: hunter2-hunter2", variables={"smtp": {"password": "hunter2-hunter2"}})
    page = await visitor.page("/ui/jobs")
    assert "login failed: ••••••" in page
    assert "hunter2" not in page


@pytest.mark.parametrize("text", ["hunter2", '"password":"h', "hunter2-in-an-url", "refused hunter2", "77"])
async def test_what_is_masked_cannot_be_searched_for(visitor: Visitor, text: str) -> None:
    secrets = {"password": "hunter2", "token": 77, "db": "redis://:hunter2-in-an-url@h", "note": "it is hunter2"}
    job = await visitor.rest.dead_letter("refused hunter2", variables={"to": "ann", **secrets})
    for field in ("variables", "error"):
        query = urlencode({field: text})
        assert keys_in(await visitor.page(f"/ui/jobs?{query}")) == []
        asked = {"act": "delete", "scope": "all", "filter": query}
        assert "Delete 0 jobs?" in (await visitor.post("/ui/jobs/change", **asked)).text
        assert (await visitor.done("/ui/jobs/change", **asked, sure="yes", below="99"))["is_good"] is False
    assert "No matching dead letters" in await visitor.page(f"/ui/dead?{urlencode({'error': text})}")
    for found in ("variables=%22to%22%3A%22ann", "variables=%22password%22%3A", "error=refused"):
        assert keys_in(await visitor.page(f"/ui/jobs?{found}")) == [job["key"]]


# Many at once ---------------------------------------------------------------------------------------------


@pytest.mark.every_engine
async def test_all_jobs_that_match_are_changed_after_a_page_that_says_what_will_happen(rest: Rest) -> None:
    async with visiting(rest) as visitor:
        mine = [(await rest.job(correlation_id="c1", run_at=LATER))["key"] for _ in range(3)]
        other = await rest.job(correlation_id="c2", run_at=LATER)
        asked = {"act": "cancel", "scope": "all", "filter": "correlation=c1&state=pending"}
        answer = await visitor.post("/ui/jobs/change", "/ui/jobs?correlation=c1", **asked)
        assert answer.status_code == 200
        assert "Cancel 3 jobs?" in answer.text
        assert "Pending jobs will never start" in answer.text
        assert await states(rest, *mine) == ["pending"] * 3
        [below] = re.findall(r'name="below" value="(\d+)"', answer.text)
        too_late = await rest.job(correlation_id="c1", run_at=LATER)
        said = await visitor.done("/ui/jobs/change", "/ui/jobs?correlation=c1", **asked, sure="yes", below=below)
        assert said["text"] == "3 of 3 jobs were cancelled."
        assert said["to"] == "/ui/jobs?correlation=c1"
        assert await states(rest, *mine, other["key"], too_late["key"]) == ["cancelled"] * 3 + ["pending"] * 2
        [(action, _, detail)] = await visitor.audit()
        assert action == "jobs.cancel"
        assert detail["filter"] == {"correlation_id": "c1", "states": ["pending"], "below": int(below)}
        assert (detail["matched"], detail["changed"]) == (3, 3)


async def test_of_the_picked_jobs_those_are_changed_that_can_be(visitor: Visitor) -> None:
    rest = visitor.rest
    dead, later, due = await rest.dead_letter(), await rest.job(run_at=LATER), await rest.job(type="other")
    picked = [dead["key"], later["key"], due["key"]]
    for act, changed in {"requeue": dead, "run-now": later}.items():
        page = await visitor.post("/ui/jobs/change", act=act, key=picked)
        assert "1 job?" in page.text
        assert "2 of them cannot be" in page.text
        said = await visitor.done("/ui/jobs/change", act=act, key=picked, sure="yes")
        assert said["text"].startswith("1 of 3 jobs ")
        assert (await rest.ok("GET", f"{JOBS}/{changed['key']}"))["explanation"]["reason"] == "queued"
    assert (await rest.ok("GET", f"{JOBS}/{due['key']}"))["run_at"] == due["run_at"]
    assert [(action, detail["changed"]) for action, _, detail in await visitor.audit()] == [
        ("jobs.run-now", 1),
        ("jobs.requeue", 1),
    ]


async def test_two_operators_who_requeue_the_same_dead_letters_bring_each_back_once(visitor: Visitor) -> None:
    for _ in range(5):
        await visitor.rest.dead_letter()
    asked = {"act": "requeue", "filter": "state=failed", "below": "1000", **SURE}
    said = await asyncio.gather(*(visitor.done("/ui/jobs/change", **asked) for _ in range(2)))
    assert sum(int(re.findall(r"(\d+) of \d+ jobs? (?:was|were) requeued", one["text"])[0]) for one in said) == 5
    page = await visitor.page("/ui/jobs?state=pending")
    assert len(keys_in(page)) == 5


NONSENSE = [
    ({"act": "cancel"}, "no job is selected"),
    ({"act": "explode", "key": "1"}, "act: must be one of cancel, requeue, run-now, delete"),
    ({"act": "cancel", "scope": "all", "filter": "state=failed"}, "jobs that are failed cannot be cancelled"),
    ({"act": "run-now", "scope": "all", "filter": "state=due"}, "jobs that are due cannot be due now"),
    (
        {"act": "cancel", "scope": "all", "filter": "after=x"},
        "after: must be a time in UTC, like 2030-01-31T12:00Z, or with an offset",
    ),
    ({"act": "delete", "key": "x"}, "must be a job key"),
]


async def test_a_change_that_makes_no_sense_is_refused_in_words(visitor: Visitor) -> None:
    for fields, told in NONSENSE:
        said = await visitor.done("/ui/jobs/change", "/ui/jobs", **fields)
        assert told in said["text"]
        assert (said["is_good"], said["to"]) == (False, "/ui/jobs")
    assert await visitor.audit() == []


async def test_a_key_that_may_only_read_changes_nothing_and_is_offered_nothing(local: Rest) -> None:
    job = await local.job()
    async with visiting(local, "jobs:read") as reader:
        assert "data-pick" not in await reader.page("/ui/jobs")
        for fields in ({"key": job["key"]}, SURE | {"below": "9"}):
            assert (await reader.post("/ui/jobs/change", act="cancel", **fields)).status_code == 403
        assert await states(local, job["key"]) == ["pending"]


async def test_a_key_that_is_bound_to_a_tenant_sees_and_changes_its_jobs_only(local: Rest) -> None:
    mine, other = await local.job(tenant="acme"), await local.job(tenant="umbrella", type="umbrella-secret")
    async with visiting(local, "jobs", tenants=("acme",)) as somebody:
        page = await somebody.page("/ui/jobs")
        assert keys_in(page) == [mine["key"]]
        assert "umbrella" not in page
        assert 'All <span class="count">1<' in page
        assert "acme" not in page.partition("<table")[0]
        await somebody.page("/ui/jobs?tenant=umbrella", 403)
        said = await somebody.done("/ui/jobs/change", act="cancel", below="9", **SURE)
        assert said["text"] == "1 of 1 job was cancelled."
        assert (await somebody.done("/ui/jobs/change", act="cancel", key=other["key"], sure="yes"))["is_good"] is False
        assert await states(local, mine["key"], other["key"]) == ["cancelled", "pending"]
        [*_, (_, _, detail)] = await somebody.audit()
        assert detail["filter"] == {"tenants": ["acme"], "states": ["pending", "processing"], "below": 9}


async def test_names_that_are_no_secrets_by_themselves_can_be_masked_and_others_not(tmp_path: Path) -> None:
    async with serving(url_of("sqlite", tmp_path), masked_variables=("pin",)) as rest, visiting(rest) as visitor:
        await rest.dead_letter("1234 is wrong, abcdef too", variables={"card_pin": 1234, "password": "abcdef"})
        assert "•••••• is wrong, abcdef too" in await visitor.page("/ui/jobs")


async def states(rest: Rest, *keys: str) -> list[str]:
    """The states of jobs as they stand."""
    return [(await rest.ok("GET", f"{JOBS}/{key}"))["state"] for key in keys]
