"""The page of one job."""

from __future__ import annotations

import html
import re

import pytest

from tests.server.http.serving import JOBS, Rest
from tests.server.http.ui.visiting import Visitor, visiting

UNTRIED = "it cannot be requeued because it has used no attempts; run it now instead"
LATER = "2099-01-01T00:00:00Z"
TRACEBACK = 'Traceback (most recent call last):\n  File "a.py", line 1, in send\nOSError: s3cret-s3cret refused'


def timeline_of(page: str) -> list[str]:
    """What happened, newest first."""
    return re.findall(r'<p class="moment"><strong>(.*?)</strong>', page)


def offered_in(page: str, key: str) -> set[str]:
    """What the page lets be done to the job."""
    return set(re.findall(rf'action="/ui/jobs/{key}/([\w-]+)"', page))


async def test_a_job_tells_why_it_is_not_running_with_a_way_to_the_reason(visitor: Visitor) -> None:
    job = await visitor.rest.job(correlation_id="order 1", dedupe_key="once", priority=7)
    path = f"/ui/jobs/{job['key']}"
    page = await visitor.page(path)
    assert "No worker has polled for type 'email-send' yet" in page
    assert 'href="/ui/workers"' in page.partition('class="why')[2].partition("</section>")[0]
    assert 'href="/ui/jobs?correlation=order+1"' in page
    assert "once" in page
    await visitor.rest.ok("PUT", "/api/v1/types/email-send/pause")
    page = await visitor.page(path)
    assert "Type 'email-send' is paused" in page
    assert 'href="/ui/type?name=email-send"' in page.partition('class="why')[2]


def why_of(page: str) -> str:
    """What is read first, as people read it."""
    box = page.partition('class="why')[2].partition(">")[2].partition("</section>")[0]
    return " ".join(re.sub("<[^>]+>", " ", box).split())


async def test_a_failed_job_begins_with_its_error_and_a_running_one_counts_attempts_as_people_do(
    visitor: Visitor,
) -> None:
    rest = visitor.rest
    job = await rest.leased(max_attempts=2)
    path, at = f"/ui/jobs/{job['key']}", f"{JOBS}/{job['key']}"
    page = await visitor.page(path)
    assert "1 of 2 running, 1 left if it fails" in page
    assert not re.search(r"\dT\d", why_of(page))
    error = "2 fields are wrong\n  to: no address\n  from: missing\nTraceback (most recent call last):\n  line 7"
    await rest.ok("PUT", f"{at}/fail", {"error_message": error, "backoff_ms": 60_000, "retries": 1})
    page = await visitor.page(path)
    assert re.match(r"Why this job is not running Scheduled to start at .* UTC \)\. .*Attempt 1 failed", why_of(page))
    assert "1 of 2, 1 left" in page
    await visitor.done(f"{path}/run-now", path)
    await rest.ok("POST", f"{JOBS}/activate", {"type": "email-send", "worker": "w2", "max_jobs": 1})
    assert "2 of 2 running, the last one" in await visitor.page(path)
    await rest.ok("PUT", f"{at}/fail", {"error_message": error, "retries": 0})
    told = why_of(await visitor.page(path))
    assert told.startswith("Attempt 2 failed")
    assert "2 fields are wrong to: no address from: missing Full error" in told
    assert "It will not be retried; requeue it to run it again." in told
    await rest.ok("PUT", f"{at}/requeue")
    assert "fields are wrong" not in why_of(await visitor.page(path))


async def test_a_type_that_is_named_like_an_instant_is_shown_by_its_name(visitor: Visitor) -> None:
    job = await visitor.rest.job(type="t 2026-99-99T99:99:99.000Z")
    assert "type 't 2026-99-99T99:99:99.000Z' yet" in await visitor.page(f"/ui/jobs/{job['key']}")


async def test_the_timeline_tells_every_attempt_and_what_became_of_it(visitor: Visitor) -> None:
    rest = visitor.rest
    job = await rest.leased(variables={"password": "s3cret-s3cret"}, max_attempts=3)
    path, at = f"/ui/jobs/{job['key']}", f"{JOBS}/{job['key']}"
    assert timeline_of(await visitor.page(path)) == ["Attempt 1 of 3 is running", "Created"]
    await rest.ok("PUT", f"{at}/fail", {"error_message": TRACEBACK, "backoff_ms": 0, "retries": 2})
    await rest.ok("POST", f"{JOBS}/activate", {"type": "email-send", "worker": "w2", "max_jobs": 1})
    await rest.ok("PUT", f"{at}/fail", {"retries": 0, "error_message": "gone"})
    await rest.ok("PUT", f"{at}/requeue")
    await rest.ok("PUT", f"{at}/cancel", {"reason": "not needed"})
    page = await visitor.page(path)
    told = ["Cancelled", "Requeued", "Attempt 2 failed", "Attempt 1 failed", "Created"]
    assert timeline_of(page) == told
    assert "OSError: •••••• refused" in page
    assert 'File "a.py", line 1' in page.partition("<details id=")[2]
    assert " on w2, started" in page
    assert "not needed" in page
    assert "s3cret" not in page


async def test_each_failed_attempt_has_its_traceback_folded_escaped_and_masked(visitor: Visitor) -> None:
    rest = visitor.rest
    job = await rest.leased(variables={"password": "s3cret-s3cret"}, max_attempts=3)
    at = f"{JOBS}/{job['key']}"
    first = {
        "error_message": "one",
        "traceback": f"{TRACEBACK}<script>alert(1)</script>",
        "backoff_ms": 0,
        "retries": 2,
    }
    await rest.ok("PUT", f"{at}/fail", first)
    await rest.ok("POST", f"{JOBS}/activate", {"type": "email-send", "worker": "w2", "max_jobs": 1})
    await rest.ok("PUT", f"{at}/fail", {"retries": 0, "error_message": "two", "traceback": "at send (a.js:1)"})
    page = (await visitor.get(f"/ui/jobs/{job['key']}")).text
    assert re.findall(r'<details id="([a-z]+)-[^"]*"( open)?><summary>Traceback</summary>', page) == [
        ("why", " open"),
        *[("traceback", "")] * 2,
    ]
    assert page.count(">at send (a.js:1)</pre>") == 2  # Of the last attempt also where the page begins.
    assert "OSError: •••••• refused&lt;script&gt;alert(1)&lt;/script&gt;</pre>" in page
    assert ("s3cret" in page, "<script>alert" in page) == (False, False)


async def test_a_failure_without_a_message_does_not_bring_back_the_one_before(visitor: Visitor) -> None:
    rest = visitor.rest
    job = await rest.leased()
    at = f"{JOBS}/{job['key']}"
    await rest.ok("PUT", f"{at}/fail", {"error_message": "old", "retries": 0, "traceback": "at send (a.js:1)"})
    await rest.ok("PUT", f"{at}/requeue")
    await rest.ok("POST", f"{JOBS}/activate", {"type": "email-send", "worker": "w2", "max_jobs": 1})
    await rest.ok("PUT", f"{at}/fail", {"retries": 0})
    page = await visitor.page(f"/ui/jobs/{job['key']}")
    assert "old" not in why_of(page)
    assert "why-traceback" not in page


async def test_a_job_is_offered_only_what_its_state_allows_and_each_deed_is_in_the_audit_log(visitor: Visitor) -> None:
    rest = visitor.rest
    key = (await rest.job(run_at=LATER))["key"]
    path = f"/ui/jobs/{key}"
    assert offered_in(await visitor.page(path), key) == {"cancel", "run-now", "retries", "priority"}
    said = await visitor.done(f"{path}/retries", path, retries="9")
    assert (said["text"], said["to"]) == (f"Job {key} now has 9 attempts left; it had 5.", path)
    await visitor.done(f"{path}/priority", path, priority="-3")
    assert (await visitor.done(f"{path}/run-now", path))["text"] == f"Job {key} is due now."
    shown = await rest.ok("GET", f"{JOBS}/{key}")
    assert (shown["retries"], shown["priority"], shown["explanation"]["reason"]) == (9, -3, "not asked")
    assert offered_in(await visitor.page(path), key) == {"cancel", "retries", "priority"}
    await visitor.done(f"{path}/cancel", path, reason="a mistake")
    assert offered_in(await visitor.page(path), key) == {"delete"}
    assert (await visitor.done(f"{path}/delete", path))["to"] == "/ui/jobs"
    assert (await rest("GET", f"{JOBS}/{key}")).status_code == 404
    dead = (await rest.dead_letter())["key"]
    offered = {"requeue", "requeue-with", "retries", "delete"}
    assert offered_in(await visitor.page(f"/ui/jobs/{dead}"), dead) == offered
    await visitor.done(f"/ui/jobs/{dead}/requeue", path)
    assert await visitor.audit() == [
        ("jobs.requeue", dead, {}),
        ("jobs.delete", key, {}),
        ("jobs.cancel", key, {"reason": "a mistake"}),
        ("jobs.run-now", key, {}),
        ("jobs.priority", key, {"priority": -3}),
        ("jobs.retries", key, {"retries": 9}),
    ]


async def test_a_dead_letter_is_requeued_with_edited_variables_and_a_slip_is_shown_with_what_was_typed(
    visitor: Visitor,
) -> None:
    key = (await visitor.rest.dead_letter(variables={"to": "<ann>", "mark": "\u202e\U000e0001"}))["key"]
    path, act = f"/ui/jobs/{key}", f"/ui/jobs/{key}/requeue-with"
    page = await visitor.page(path)
    typed = page.partition('<textarea id="variables"')[2].partition(">\n")[2].partition("</textarea>")[0]
    assert typed == '{\n  "to": "<ann>",\n  "mark": "\\u202e\\udb40\\udc01"\n}'
    for slip in ('{"to": "ada"', "[1]", ""):
        answer = await visitor.post(act, path, variables=slip)
        assert (answer.status_code, "variables: must be a JSON object" in answer.text) == (422, True)
        assert f">\n{slip}</textarea>" in html.unescape(answer.text)
    said = await visitor.done(act, path, variables=typed.replace("<ann>", "ada").replace("\n", "\r\n"))
    assert (said["is_good"], said["to"]) == (True, path)
    shown = await visitor.rest.ok("GET", f"{JOBS}/{key}")
    assert (shown["state"], shown["variables"]) == ("pending", {"to": "ada", "mark": "\u202e\U000e0001"})
    assert "arguments changed" in await visitor.page(path)
    again = await visitor.done(act, path, variables="{}")
    assert (again["text"], again["is_good"]) == (f"Job '{key}' is pending: {UNTRIED}", False)
    assert (await visitor.audit()) == [("jobs.requeue", key, {"variables": "changed"})]


async def test_a_job_that_waits_for_its_retry_is_requeued_with_edited_variables(visitor: Visitor) -> None:
    rest = visitor.rest
    key = (await rest.leased(max_attempts=3))["key"]
    await rest.ok("PUT", f"{JOBS}/{key}/fail", {"error_message": "no", "backoff_ms": 3_600_000, "retries": 2})
    path = f"/ui/jobs/{key}"
    assert "requeue-with" in offered_in(await visitor.page(path), key)
    said = await visitor.done(f"{path}/requeue-with", path, variables='{"to": "ada"}')
    assert said["text"] == f"Job {key} was requeued with new variables. It is due now, with attempts reset to 0."
    shown = await rest.ok("GET", f"{JOBS}/{key}")
    assert (shown["state"], shown["attempts"], shown["variables"]) == ("pending", 0, {"to": "ada"})
    assert shown["explanation"]["reason"] != "scheduled"


@pytest.mark.parametrize("variables", [{"password": "hunter2-hunter2"}, {"text": "x" * 30_000}], ids=["masked", "long"])
async def test_variables_that_are_not_shown_as_they_are_cannot_be_edited(
    visitor: Visitor, variables: dict[str, str]
) -> None:
    key = (await visitor.rest.dead_letter(variables=variables))["key"]
    path = f"/ui/jobs/{key}"
    page = await visitor.page(path)
    assert "The variables cannot be edited here, because some are masked or they are too long to show." in page
    assert "<textarea" not in page
    said = await visitor.done(f"{path}/requeue-with", path, variables='{"password": "••••••"}')
    assert said["text"] == "variables: cannot be edited here, because some of them are masked or too long to show"
    assert (await visitor.rest.ok("GET", f"{JOBS}/{key}"))["variables"] == variables


async def test_what_cannot_be_done_is_refused_in_words_and_not_noted(visitor: Visitor) -> None:
    key = (await visitor.rest.job())["key"]
    path = f"/ui/jobs/{key}"
    refused = {
        "requeue": (
            {},
            f"Job '{key}' is pending: {UNTRIED}",
        ),
        "delete": ({}, f"Job '{key}' is pending: it cannot be deleted"),
        "retries": ({"retries": "x"}, "retries: must be a whole number from 0 to 100, not 'x'"),
        "priority": ({"priority": "512"}, "priority: must be a whole number from -512 to 511, not 512"),
    }
    for name, (fields, told) in refused.items():
        said = await visitor.done(f"{path}/{name}", path, **fields)
        assert (said["text"], said["is_good"], said["to"]) == (told, False, path)
    assert await visitor.audit() == []


async def test_secrets_are_masked_and_long_texts_are_saved_masked_too(visitor: Visitor) -> None:
    job = await visitor.rest.leased(
        variables={"smtp": [{"password": "hunter2-hunter2"}], "list": ["x" * 100] * 300},
        headers={"Authorization": "Bearer abc"},
    )
    done = {"variables": {"accessToken": "tok-1234", "echo": "with hunter2-hunter2"}, "attempt": 1}
    await visitor.rest.ok("PUT", f"{JOBS}/{job['key']}/complete", done)
    path = f"/ui/jobs/{job['key']}"
    page = await visitor.page(path)
    assert '"password": "••••••"' in page
    assert '"echo": "with ••••••"' in page
    assert "more characters not shown" in page
    saved = await visitor.get(f"{path}/text?part=variables")
    assert saved.headers["content-type"] == "text/plain; charset=utf-8"
    assert saved.headers["content-disposition"] == f'attachment; filename="job-{job["key"]}-variables.txt"'
    assert saved.headers["x-content-type-options"] == "nosniff"
    assert len(saved.text) > 30_000
    for text in (page, saved.text, (await visitor.get(f"{path}/text?part=result")).text):
        assert not re.search("hunter2|Bearer abc|tok-1234", text)
    await visitor.page(f"{path}/text?part=extra", 404)
    await visitor.page(f"{path}/text?part=last_error", 404)


async def test_texts_of_strangers_are_only_texts(visitor: Visitor) -> None:
    evil = "<script>alert(1)</script>"
    job = await visitor.rest.dead_letter(
        f"{evil}\n\u202etxt", type=evil, variables={evil: "\u202e"}, correlation_id=evil
    )
    raw = (await visitor.get(f"/ui/jobs/{job['key']}")).text
    assert evil not in raw
    assert "\u202e" not in raw
    assert evil not in (await visitor.get("/ui/jobs")).text


async def test_a_job_that_does_not_exist_is_a_plain_page(visitor: Visitor) -> None:
    assert "Job '99' not found" in await visitor.page("/ui/jobs/99", 404)
    assert "Job 'x' not found" in await visitor.page("/ui/jobs/x", 404)


def same(page: str, path: str) -> str:
    """The text of a page, without what depends on the requested job and the time."""
    key = path.rpartition("/")[2]
    main = page.partition("<main")[2] or page
    return re.sub(rf"jobs/{key}\b|(?<=&#39;){key}(?=&#39;)|(?<='){key}(?=')", "KEY", main)


async def test_a_job_is_read_but_not_changed_by_those_who_may_only_read(local: Rest) -> None:
    job = await local.job(tenant="acme")
    path = f"/ui/jobs/{job['key']}"
    async with visiting(local, "jobs:read", tenants=("acme",)) as reader:
        page = await reader.page(path)
        assert offered_in(page, job["key"]) == set()
        assert 'href="/ui/workers"' not in page.partition('class="why')[2]
        for deed in ("cancel", "requeue", "requeue-with", "run-now", "delete"):
            assert (await reader.post(f"{path}/{deed}")).status_code == 403
    async with visiting(local, "jobs", tenants=("umbrella",)) as stranger:
        missing = "/ui/jobs/99999999"
        for below in ("", "/text"):
            page = await stranger.page(f"{path}{below}", 404)
            assert ("acme" in page, same(page, path)) == (
                False,
                same(await stranger.page(missing + below, 404), missing),
            )
        for deed in ("cancel", "requeue", "requeue-with", "run-now", "delete"):
            answers = [await stranger.post(f"{one}/{deed}", one, sure="yes") for one in (path, missing)]
            told = [(one.status_code, same(one.text, at)) for one, at in zip(answers, (path, missing), strict=True)]
            assert told[0] == told[1], deed
    assert (await local.ok("GET", f"{JOBS}/{job['key']}"))["state"] == "pending"
