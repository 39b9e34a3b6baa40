"""The form for the policy of a type: the same policy as the JSON behind it, problems at their fields."""

from __future__ import annotations

import html
import re
from typing import Any

import httpx
import pytest

from everwork.core.policy import POLICY_FIELDS
from tests.server.http.ui.visiting import Visitor, visiting

PATH = "/ui/type/policy-form"


def values_in(page: str) -> dict[str, str]:
    """What stands in the fields of the form."""
    return dict(re.findall(r'<input id="policy-\w+" name="(\w+)" value="([^"]*)"', page))


def problem_at(answer: httpx.Response, field: str) -> str:
    """What is wrong with a field, told at it."""
    found = re.search(rf'id="p-{field}" role="alert">([^<]*)<', answer.text)
    return html.unescape(found[1]) if found else ""


async def test_every_field_is_offered_with_its_label_and_its_default(visitor: Visitor) -> None:
    await visitor.rest.job()
    page = await visitor.page("/ui/type?name=email-send")
    form = page.partition('id="policy-fields"')[2].partition("</form>")[0]
    offered = set(re.findall(r'name="(\w+)"', form))
    assert set(POLICY_FIELDS) - {"errors"} <= offered
    assert {"rule_match", "rule_value", "rule_strategy"} <= offered
    for told in ("Maximum attempts", "1 to 100. Default: 5.", "(seconds)", "(hours)", "Default: no breaker.", "2,160"):
        assert told in form, told


async def test_the_form_sets_the_policy_that_the_json_shows_and_an_empty_field_resets(visitor: Visitor) -> None:
    await visitor.rest.job()
    filled = {"type": "email-send", "max_attempts": "9", "base": "2.5", "strict": "yes", "rate_jobs": "100"}
    rules: dict[str, Any] = {
        "rule_match": ["exception", "text", "text"],
        "rule_value": ["shop.Timeout", " Declined ", ""],
        "rule_strategy": ["temporary", "permanent", "retryable"],
    }
    said = await visitor.done(PATH, **filled, **rules)
    assert said["text"] == "The policy of email-send was saved. It applies to the next attempt."
    assert said["to"] == "/ui/type?name=email-send"
    page = await visitor.page("/ui/type?name=email-send")
    set_to = {"max_attempts": "9", "base": "2.5", "rate_jobs": "100", "cap": ""}
    assert set_to.items() <= values_in(page).items()
    assert re.search(r'<option value="yes" selected>Yes', page)
    assert re.search(r'name="rule_value" value="shop.Timeout"', page)
    typed = html.unescape(page.partition('id="policy-text"')[2].partition(">")[2].partition("</textarea>")[0])
    assert '"exception": "shop.Timeout"' in typed
    assert '"max_attempts": 9' in typed
    await visitor.done(PATH, type="email-send", max_attempts="", base="2.5")
    [(_, _, second), (_, _, first)] = await visitor.audit()
    assert second == {"base": 2.5}
    assert first["errors"] == [
        {"exception": "shop.Timeout", "strategy": "temporary"},
        {"text": "Declined", "strategy": "permanent"},
    ]


WRONG = [
    ("max_attempts", "0", "must be a whole number from 1 to 100, not 0"),
    ("max_attempts", "2.5", "must be a whole number from 1 to 100, not 2.5"),
    ("base", "-1", "must be a number from 0 to 316224000, not -1"),
    ("cap", "soon", "must be a number from 0 to 316224000, not 'soon'"),
    ("jitter", "1.1", "must be a number from 0 to 1, not 1.1"),
    ("strict", "maybe", "must be true or false, not 'maybe'"),
    ("keep_failed_hours", "nan", "must be a number from 0.001 to 87840, not 'nan'"),
    ("max_running", "1e400", "must be a whole number from 1 to 1000000, not inf"),
]


@pytest.mark.parametrize(("field", "typed", "told"), WRONG, ids=[f"{name}={typed}" for name, typed, _ in WRONG])
async def test_a_problem_is_told_at_its_field_and_nothing_typed_is_lost(
    visitor: Visitor, field: str, typed: str, told: str
) -> None:
    await visitor.rest.job()
    answer = await visitor.post(PATH, type="email-send", **{"breaker_failures": "7", field: typed})
    assert (answer.status_code, problem_at(answer, field)) == (422, told)
    assert "The policy was not saved" in answer.text
    assert values_in(answer.text)["breaker_failures"] == "7"
    assert f'value="{typed}"' in answer.text
    assert await visitor.audit() == []


async def test_fields_that_contradict_each_other_are_told_at_the_one_to_change(visitor: Visitor) -> None:
    await visitor.rest.job()
    answer = await visitor.post(PATH, type="email-send", rate_seconds="60")
    assert "is required with rate_seconds" in problem_at(answer, "rate_jobs")
    answer = await visitor.post(PATH, type="email-send", failed_job_retry_hours="48", keep_failed_hours="24")
    assert "must be less than keep_failed_hours" in problem_at(answer, "failed_job_retry_hours")
    rules: dict[str, Any] = {
        "rule_match": ["text", "exception"],
        "rule_value": ["fine", "no class"],
        "rule_strategy": ["permanent"] * 2,
    }
    answer = await visitor.post(PATH, type="email-send", **rules)
    assert problem_at(answer, "errors").startswith("rule 2: must be a Python class name")
    assert 'value="no class"' in answer.text
    nonsense = {"rule_match": "state", "rule_value": "x", "rule_strategy": "explode"}
    assert (await visitor.post(PATH, type="email-send", **nonsense)).status_code == 422
    two = await visitor.post(PATH, type="email-send", max_attempts="x", factor="0")
    assert problem_at(two, "max_attempts")
    assert problem_at(two, "factor")
    assert await visitor.audit() == []


async def test_a_reader_sees_the_effective_policy_without_a_form(visitor: Visitor) -> None:
    await visitor.rest.job()
    await visitor.done(PATH, type="email-send", max_attempts="9")
    async with visiting(visitor.rest, "jobs:read") as reader:
        page = await reader.page("/ui/type?name=email-send")
        assert "<tr><td><code>max_attempts</code></td><td>9</td></tr>" in page
        assert "<tr><td><code>keep_completed_hours</code></td><td>7 d</td></tr>" in page
        assert "<textarea" not in page
        answer = await reader.post(PATH, type="email-send", max_attempts="1")
        assert answer.status_code == 403


async def test_a_form_without_the_token_of_the_session_changes_no_policy(visitor: Visitor) -> None:
    await visitor.rest.job()
    answer = await visitor.client.post(PATH, data={"type": "email-send", "max_attempts": "1", "csrf": "x"})
    assert answer.status_code == 403
    assert await visitor.audit() == []


@pytest.mark.parametrize(
    "stored", ['{"max_attempts": "ten", "strict": 1}', '{"errors": 7}', '{"errors": ["x", {"text": "y"}]}', "no JSON"]
)
async def test_a_policy_that_was_edited_by_hand_is_shown_and_can_be_replaced(visitor: Visitor, stored: str) -> None:
    await visitor.rest.job()
    await visitor.rest.engine.set_policy("email-send", stored)
    assert "Save policy" in await visitor.page("/ui/type?name=email-send")
    await visitor.done(PATH, type="email-send", max_attempts="7")
    assert values_in(await visitor.page("/ui/type?name=email-send"))["max_attempts"] == "7"
