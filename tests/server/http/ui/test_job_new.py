"""The page that creates a job: problems at their fields, permissions and tenants as in the API."""

from __future__ import annotations

import html
import re

import httpx
import pytest

from everwork.exceptions import EngineUnavailable
from tests.server.http.serving import JOBS, Rest
from tests.server.http.ui.visiting import Visitor, visiting

PATH = "/ui/jobs/new"


def problem_at(answer: httpx.Response, field: str) -> str:
    """What is wrong with a field, told at it."""
    found = re.search(rf'id="p-{field}" role="alert">([^<]*)<', answer.text)
    return html.unescape(found[1]) if found else ""


async def test_a_job_is_created_with_everything_that_was_typed_and_shown(visitor: Visitor) -> None:
    full = {
        "type": "email-send", "variables": '{"to": "ada"}', "tenant": "acme", "priority": "-3", "limit_key": "eu",
        "run_at": "2099-01-01T02:00+02:00", "dedupe_key": "once", "correlation_id": "order 1", "max_attempts": "7",
        "timeout": "2.5", "expires_at": "2099-02-01T00:00", "headers": '{"trace": "1"}',
    }  # fmt: skip
    said = await visitor.done(PATH, **full)
    key = said["to"].removeprefix("/ui/jobs/")
    assert (said["text"], said["is_good"]) == (f"Job {key} was created.", True)
    shown = await visitor.rest.ok("GET", f"{JOBS}/{key}")
    expected = {
        "type": "email-send", "variables": {"to": "ada"}, "tenant": "acme", "priority": -3, "limit_key": "eu",
        "run_at": "2099-01-01T00:00:00.000Z", "dedupe_key": "once", "correlation_id": "order 1", "max_attempts": 7,
        "expires_at": "2099-02-01T00:00:00.000Z", "headers": {"trace": "1"},
    }  # fmt: skip
    assert {name: shown[name] for name in expected} == expected


async def test_a_type_alone_is_enough(visitor: Visitor) -> None:
    said = await visitor.done(PATH, type=" report ")
    shown = await visitor.rest.ok("GET", f"{JOBS}/{said['to'].removeprefix('/ui/jobs/')}")
    assert (shown["type"], shown["variables"], shown["tenant"]) == ("report", {}, "<default>")


async def test_a_second_job_with_the_same_dedupe_key_is_not_created_and_the_first_is_shown(visitor: Visitor) -> None:
    first = await visitor.done(PATH, type="report", dedupe_key="once")
    again = await visitor.done(PATH, type="report", dedupe_key="once")
    key = first["to"].removeprefix("/ui/jobs/")
    assert again["text"] == f"Already exists: job {key} has the dedupe key 'once'. No job was created."
    assert (again["to"], again["is_good"]) == (first["to"], False)


async def test_a_link_fills_in_the_form_and_known_types_are_offered(visitor: Visitor) -> None:
    await visitor.rest.job(type="sms-send")
    page = await visitor.page(PATH, type="e<b>", variables='{"a": 1}', run_at="2030-01-31T12:00+02:00")
    assert '<option value="sms-send">' in page
    assert 'name="type" value="e<b>"' in page  # As a browser shows its entities.
    assert '>\n{"a": 1}</textarea>' in page
    assert 'value="2030-01-31T10:00" data-utc="2030-01-31T10:00:00.000Z"' in page
    assert '<details id="more-options" open>' in page
    assert '<details id="more-options">' in await visitor.page(PATH)
    assert f'href="{PATH}?type=sms-send"' in await visitor.page("/ui/jobs?type=sms-send")
    assert f'href="{PATH}?type=sms-send"' in await visitor.page("/ui/type?name=sms-send")


WRONG = [
    ("type", "", "is required"),
    ("variables", '{"a": {"b": 1, "b": 2}}', "must not have the name 'b' twice in one object"),
    ("headers", '{"a": 1, "a": 2}', "must not have the name 'a' twice in one object"),
    ("type", "x" * 256, "must have 1 to 255 characters, not 256"),
    ("variables", '{"to": ', "must be a JSON object: "),
    ("variables", "[1]", "must be a JSON object, not [1]"),
    ("variables", '{"a": NaN}', "must be a JSON object: "),
    ("headers", "7", "must be a JSON object, not 7"),
    ("priority", "512", "must be a whole number from -512 to 511, not 512"),
    ("priority", "high", "must be a whole number from -512 to 511, not 'high'"),
    ("delay", "-1", "must be a number from 0 to 316224000, not -1"),
    ("timeout", "0", "must be a number from 0.001 to 86400, not 0"),
    ("max_attempts", "0", "must be a whole number from 1 to 100, not 0"),
    ("run_at", "tomorrow", "must be a time in UTC, like 2030-01-31T12:00Z"),
    ("expires_at", "2030-02-31T00:00", "must be a time from 1970 to 9999"),
    ("dedupe_key", "a\tb", "must consist of printable characters"),
]


@pytest.mark.parametrize(("field", "typed", "told"), WRONG, ids=[f"{name}={typed[:12]}" for name, typed, _ in WRONG])
async def test_a_problem_is_told_at_its_field_and_nothing_typed_is_lost(
    visitor: Visitor, field: str, typed: str, told: str
) -> None:
    answer = await visitor.post(PATH, **{"type": "report", "correlation_id": "order-1", field: typed})
    assert (answer.status_code, problem_at(answer, field)[: len(told)]) == (422, told)
    assert "No job was created." in answer.text
    assert 'value="order-1"' in answer.text
    shown = html.unescape(answer.text)
    assert f'value="{typed}"' in shown or f">\n{typed}</textarea>" in shown
    assert (await visitor.rest.ok("GET", JOBS))["jobs"] == []


async def test_several_problems_are_told_together(visitor: Visitor) -> None:
    answer = await visitor.post(PATH, type="", variables="{", priority="x", delay="5", run_at="2030-01-31T12:00")
    assert all(problem_at(answer, field) for field in ("type", "variables", "priority", "run_at"))
    both = await visitor.post(PATH, type="t", delay="5", run_at="2030-01-31T12:00")
    assert problem_at(both, "run_at") == "cannot be combined with a delay"


async def test_a_key_of_one_tenant_creates_for_its_tenant_only(local: Rest) -> None:
    async with visiting(local, "jobs", tenants=("acme",)) as somebody:
        page = await somebody.page(PATH)
        assert 'name="tenant"' not in page
        answer = await somebody.post(PATH, type="report", tenant="umbrella", variables='{"a": 1}')
        assert (answer.status_code, problem_at(answer, "tenant")) == (403, "must be one of your tenants: acme")
        assert '{"a": 1}' in html.unescape(answer.text)
        assert (await local.ok("GET", JOBS))["jobs"] == []
        said = await somebody.done(PATH, type="report")
        shown = await local.ok("GET", f"{JOBS}/{said['to'].removeprefix('/ui/jobs/')}")
        assert shown["tenant"] == "acme"
    async with visiting(local, "jobs", tenants=("acme", "globex")) as somebody:
        answer = await somebody.post(PATH, type="report")
        assert "is required" in problem_at(answer, "tenant")


async def test_a_key_that_may_only_read_is_offered_no_button_and_is_refused(local: Rest) -> None:
    await local.job()
    async with visiting(local, "jobs:read") as reader:
        for path in ("/ui/jobs", "/ui/type?name=email-send"):
            assert PATH not in await reader.page(path), path
        await reader.page(PATH, 403)
        assert (await reader.post(PATH, type="report")).status_code == 403
    assert len((await local.ok("GET", JOBS))["jobs"]) == 1


async def test_a_form_without_the_token_of_the_session_creates_nothing(visitor: Visitor) -> None:
    answer = await visitor.client.post(PATH, data={"type": "report", "csrf": "x"})
    assert answer.status_code == 403
    assert (await visitor.rest.ok("GET", JOBS))["jobs"] == []


async def test_what_was_typed_is_kept_while_the_engine_does_not_answer(
    visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unavailable(*_: object) -> None:
        raise EngineUnavailable("connection to db.internal refused")

    monkeypatch.setattr(type(visitor.rest.service), "create", unavailable)
    answer = await visitor.post(PATH, type="report", variables='{"a": 1}')
    assert answer.status_code == 503
    assert "The engine did not respond" in answer.text
    assert "db.internal" not in answer.text
    assert '{"a": 1}' in html.unescape(answer.text)
