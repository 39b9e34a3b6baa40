"""The page of dead letters: by error group, requeued or deleted a group at a time."""

from __future__ import annotations

import re

from everwork.service.dead_letters import dead_filter, survey
from everwork.service.jobs import Jobs
from everwork.service.verb import IN_PROCESS
from tests.server.http.serving import JOBS, Rest
from tests.server.http.ui.visiting import Visitor, visiting


def groups_in(page: str) -> list[tuple[str, str, str]]:
    """Type, sort and number of jobs of each row, in order."""
    return re.findall(r'data-key="g-([^/"]+)/(\w+)".*?class="num"><a[^>]*>([\d,]+)<', page, re.DOTALL)


async def states(rest: Rest, *jobs: dict[str, object]) -> list[str]:
    """The states of jobs as they stand; one that is gone is `gone`."""
    answers = [await rest("GET", f"{JOBS}/{job['key']}") for job in jobs]
    return [answer.json().get("state", "gone") for answer in answers]


async def test_dead_letters_are_grouped_by_error_and_a_sort_leads_to_its_jobs(visitor: Visitor) -> None:
    rest = visitor.rest
    refused = [await rest.dead_letter(f"connection refused by host {n}", tenant="acme") for n in range(3)]
    other = await rest.dead_letter("no such address\nTraceback: far", type="sms-send")
    page = await visitor.page("/ui/dead")
    assert [(type, jobs) for type, _, jobs in groups_in(page)] == [("email-send", "3"), ("sms-send", "1")]
    assert "4 dead letters in 2 error groups" in page
    assert ("connection refused by host 2" in page, "Traceback" in page) == (True, False)
    sort = groups_in(page)[0][1]
    one = await visitor.page(f"/ui/dead?type=email-send&fingerprint={sort}")
    assert re.findall(r'<tr data-key="(\d+)"', one) == [job["key"] for job in reversed(refused)]
    assert f"/ui/jobs/{other['key']}" not in one
    listed = re.findall(r'href="(/ui/jobs\?[^"]+)">show in job list', one)
    assert len(re.findall(r'<tr data-key="(\d+)"', await visitor.page(listed[0]))) == 3
    for query, found in {"error=such": 1, "tenant=acme": 1, "type=sms-send": 1, "after=2099-01-01T00:00": 0}.items():
        assert len(groups_in(await visitor.page(f"/ui/dead?{query}"))) == found, query


CLASS = re.compile(r'data-key="x-([^"]+)"><th[^>]*>[^<]+<span class="quietly">(\d+)<')
CLASS_BAR = re.compile(r'data-key="x-([^"]+)">.*?class="num">(\d+)</td><td class="quietly">([^<]+)<', re.DOTALL)


async def test_error_groups_are_listed_by_exception_class(visitor: Visitor) -> None:
    for error in ("no paper", "no paper", "no paper", "KeyError: 'a' is missing", "shop.Declined: no funds"):
        await visitor.rest.dead_letter(error)
    await visitor.rest.dead_letter("KeyError: of another message")
    page = await visitor.page("/ui/dead")
    assert CLASS.findall(page) == [("KeyError", "2"), ("Declined", "1"), ("Other errors", "3")]
    assert [jobs for _, _, jobs in groups_in(page)] == ["1", "1", "1", "3"]


async def test_recent_dead_letters_are_counted_by_exception_class_with_its_classification(visitor: Visitor) -> None:
    rules = [{"strategy": "permanent", "exception": "Declined"}]
    await visitor.rest.ok("PUT", "/api/v1/types/email-send/policy", {"errors": rules})
    for error in ("TimeoutError: a", "TimeoutError: b", "shop.Declined: no funds", "no paper"):
        await visitor.rest.dead_letter(error)
    await visitor.rest.dead_letter("Declined", type="sms-send")
    await visitor.rest.dead_letter("NoPaper: hunter2", variables={"password": "hunter2"}, type="print")
    bars = CLASS_BAR.findall(await visitor.page("/ui/type?name=email-send"))
    assert bars == [
        ("TimeoutError", "2", "transient error"),
        ("Declined", "1", "permanent error"),
        ("Other errors", "1", "unclassified error"),
    ]
    page = await visitor.page("/ui")
    assert "hunter2" not in page
    assert ("NoPaper", "1", "unclassified error") in CLASS_BAR.findall(page)
    assert re.findall(r'<a href="([^"]+)">TimeoutError<', page) == ["/ui/dead?error=TimeoutError"]
    await visitor.rest.dead_letter("timed out after 5 s", type="slow")
    [timeouts] = re.findall(r'<a href="([^"]+)">TimeoutError<', await visitor.page("/ui/type?name=slow"))
    assert len(groups_in(await visitor.page(timeouts))) == 1


async def test_a_sort_is_brought_back_after_a_question_and_what_fails_meanwhile_stays(visitor: Visitor) -> None:
    rest = visitor.rest
    meant, other = await rest.dead_letter("refused"), await rest.dead_letter("lost")
    await rest.ok("PUT", "/api/v1/types/email-send/policy", {"failed_job_retry_hours": 12})
    fields = {"act": "requeue", "error": "refused", "type": "email-send"}
    question = await visitor.post("/ui/dead/sure", "/ui/dead?error=refused", **fields)
    assert "Requeue 1 dead letter?" in question.text
    assert "requeue them automatically 12 hours" in question.text
    assert await states(rest, meant, other) == ["failed", "failed"]
    [until] = re.findall(r'name="until" value="(\d+)"', question.text)
    late = await rest.dead_letter("refused, too")
    said = await visitor.done("/ui/dead/change", until=until, **fields)
    assert (said["text"], said["to"]) == ("1 dead letter was requeued.", "/ui/dead")
    assert await states(rest, meant, other, late) == ["pending", "failed", "failed"]
    [(action, target, detail), *_] = await visitor.audit()
    assert (action, target, detail["changed"]) == ("dead.requeue", "email-send", 1)
    assert detail["filter"]["error_text"] == "refused"


async def test_all_are_removed_and_nothing_is_left_to_ask_about(visitor: Visitor) -> None:
    jobs = [await visitor.rest.dead_letter(error) for error in ("refused", "lost")]
    question = await visitor.post("/ui/dead/sure", act="purge")
    assert "Delete 2 dead letters?" in question.text
    assert "deleted permanently" in question.text
    [until] = re.findall(r'name="until" value="(\d+)"', question.text)
    assert (await visitor.done("/ui/dead/change", act="purge", until=until))["text"] == "2 dead letters were deleted."
    assert await states(visitor.rest, *jobs) == ["gone", "gone"]
    assert "No dead letters to change" in (await visitor.post("/ui/dead/sure", act="purge")).text
    late = await visitor.done("/ui/dead/change", "/ui/dead", act="purge", until=until)
    assert (late["is_good"], "no dead letter matches" in late["text"]) == (False, True)
    assert "Jobs are listed here" in await visitor.page("/ui/dead")


async def test_a_filter_that_cannot_be_understood_is_told_at_its_field(visitor: Visitor) -> None:
    await visitor.rest.dead_letter()
    page = await visitor.page("/ui/dead?after=soon&fingerprint=xyz&type=email-send", 422)
    assert re.search(r'id="p-after" role="alert">must be a time in UTC', page)
    assert re.search(r'id="p-fingerprint" role="alert">must be 10 letters', page)
    assert 'value="soon"' in page
    assert groups_in(page) == []
    for fields in ({"act": "burn"}, {}, {"act": "purge", "until": "x"}, {"act": "purge", "until": "1", "after": "x"}):
        assert (await visitor.done("/ui/dead/change", **fields))["is_good"] is False, fields
    assert await visitor.audit() == []


async def test_no_secret_of_a_job_stands_in_its_error_nor_in_a_link(visitor: Visitor) -> None:
    await visitor.rest.dead_letter("cannot log in with hunter-hunter today", variables={"password": "hunter-hunter"})
    page = await visitor.page("/ui/dead")
    sort = groups_in(page)[0][1]
    for shown in (page, await visitor.page(f"/ui/dead?fingerprint={sort}")):
        assert "cannot log in with •••••• today" in shown
        assert "hunter" not in shown


async def test_a_look_ends_after_so_many_and_says_so(local: Rest) -> None:
    for number in range(4):
        await local.dead_letter("refused" if number else "lost")
    jobs = Jobs(local.service, IN_PROCESS)
    seen = await survey(jobs, dead_filter(), 3, 2)
    assert (seen.matched, seen.grouped.looked_at, seen.grouped.is_cut) == (3, 3, True)
    assert ([job.key for job in seen.newest], [group.jobs for group in seen.grouped.groups]) == ([4, 3], [3])
    whole = await survey(jobs, dead_filter(error_text="lost"), 3)
    assert (whole.matched, whole.grouped.is_cut, whole.newest) == (1, False, [])


async def test_a_bound_key_sees_and_changes_the_dead_letters_of_its_tenant_only(local: Rest) -> None:
    mine, other = await local.dead_letter("refused", tenant="acme"), await local.dead_letter("umbrella", tenant="other")
    async with visiting(local, "jobs", tenants=("acme",)) as somebody:
        page = await somebody.page("/ui/dead")
        assert ("1 dead letter in 1 error group" in page, "umbrella" in page) == (True, False)
        await somebody.page("/ui/dead?tenant=other", 403)
        question = await somebody.post("/ui/dead/sure", act="purge")
        [until] = re.findall(r'name="until" value="(\d+)"', question.text)
        assert (await somebody.done("/ui/dead/change", act="purge", until=until))["text"].startswith("1 dead letter")
        [(_, _, detail)] = await somebody.audit()
        assert detail["filter"] == {"tenants": ["acme"], "failed_before_ms": int(until)}
    assert await states(local, mine, other) == ["gone", "failed"]
    async with visiting(local, "jobs:read") as reader:
        assert "Requeue" not in await reader.page("/ui/dead")
