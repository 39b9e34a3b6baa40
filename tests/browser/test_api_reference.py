"""The API reference at /docs: requests can be sent from it, in any look, without another host."""

from __future__ import annotations

import json

import pytest

from everwork.server.http.app import DOCUMENT
from tests.browser.barriers import COLOURS, SHAPES, barriers
from tests.browser.watching import PHONE, Visitor
from tests.server.whole import KEY


async def test_a_request_is_sent_and_its_response_shown(visitor: Visitor) -> None:
    page = await visitor.go("/docs#createJobs")
    part = page.locator("#createJobs")
    await page.get_by_label("API key").fill(KEY)
    await part.get_by_label("Request body (JSON)").fill('{"type": "from-the-reference"}')
    await part.get_by_role("button", name="Send request").click()
    await part.locator(".status", has_text="201 Created").wait_for()
    created = json.loads(await part.locator("pre").last.inner_text())
    assert (created["type"], created["state"]) == ("from-the-reference", "pending")


async def test_markup_directions_and_long_numbers_of_a_job_are_shown_as_they_are(visitor: Visitor) -> None:
    page = await visitor.go("/docs#createJobs")
    part = page.locator("#createJobs")
    await page.get_by_label("API key").fill(KEY)
    variables = '{"<img src=x onerror=alert(1)>": "</script>", "n": 9007199254740993, "d": "a\u202eb"}'
    await part.get_by_label("Request body (JSON)").fill(f'{{"type": "odd", "variables": {variables}}}')
    assert "9007199254740993" in await part.locator("pre").first.inner_text()
    await part.get_by_role("button", name="Send request").click()
    await part.locator(".status", has_text="201 Created").wait_for()
    shown = await part.locator("pre").last.inner_text()
    assert '"<img src=x onerror=alert(1)>": "</script>"' in shown
    assert ('"n": 9007199254740993' in shown, '"d": "a\\u202eb"' in shown) == (True, True)
    assert await page.locator("img[src=x]").count() == 0


async def test_parameters_become_part_of_the_address_and_of_the_curl_command(visitor: Visitor) -> None:
    page = await visitor.go("/docs#listJobs")
    part = page.locator("#listJobs")
    await part.get_by_label("type", exact=True).fill("it's")
    await part.get_by_label("state", exact=True).fill("failed, pending")
    command = await part.locator("pre").first.inner_text()
    assert "/api/v1/jobs?state=failed&state=pending&type=it%27s'" in command
    assert '-H "X-API-Key: $KEY"' in command


async def test_an_error_of_the_server_is_shown_as_it_is(visitor: Visitor) -> None:
    visitor.watch.allow("status of 40[14]")
    page = await visitor.go("/docs#getJob")
    part = page.locator("#getJob")
    await part.get_by_role("button", name="Send request").click()
    await part.get_by_text("Enter an API key at the top of the page first.").wait_for()
    await page.get_by_label("API key").fill("ew_wrong")
    await part.get_by_role("button", name="Send request").click()
    await part.locator(".status", has_text="401 Unauthorized").wait_for()
    await page.get_by_label("API key").fill(KEY)
    await part.get_by_label("key (required)").fill("999999")
    await part.get_by_role("button", name="Send request").click()
    await part.locator(".status", has_text="404 Not Found").wait_for()
    assert '"code": "job_not_found"' in await part.locator("pre").last.inner_text()


async def test_a_long_poll_can_be_cancelled(visitor: Visitor) -> None:
    page = await visitor.go("/docs#activateJobs")
    part = page.locator("#activateJobs")
    await page.get_by_label("API key").fill(KEY)
    await part.get_by_label("Request body (JSON)").fill('{"type": "never", "worker": "w", "wait": 60}')
    await part.get_by_role("button", name="Send request").click()
    await part.get_by_role("button", name="Cancel").click()
    await part.get_by_text("Cancelled", exact=True).wait_for()


async def test_operations_are_found_by_their_words(visitor: Visitor) -> None:
    page = await visitor.go("/docs")
    await page.locator("#listJobs").wait_for()
    await page.get_by_label("Find an operation").fill("PUT breaker")
    shown = page.locator("details.operation:visible")
    assert await shown.evaluate_all("all => all.map(one => one.id)") == ["openBreaker", "resetBreaker"]
    await page.get_by_label("Find an operation").fill("nothing like that")
    await page.get_by_text("No matching operations.").wait_for()


async def test_every_operation_opens_without_error(visitor: Visitor) -> None:
    page = await visitor.go("/docs")
    await page.locator("#listJobs").wait_for()
    await page.evaluate("document.querySelectorAll('details.operation').forEach(one => { one.open = true; })")
    await page.locator("#healthz form.try").wait_for()
    operations = sum(len(methods) for methods in DOCUMENT["paths"].values())
    assert await page.locator("form.try").count() == operations


@pytest.mark.parametrize("look", ["light", "dark", "phone"])
async def test_the_reference_has_no_serious_barrier(look: str, visitor: Visitor) -> None:
    page = await visitor.go("/docs#createJobs")
    await page.locator("#createJobs form.try").wait_for()
    if look == "dark":
        await page.emulate_media(color_scheme="dark")
    if look == "phone":
        await page.set_viewport_size(PHONE)
    assert await barriers(page, {"light": {}, "dark": COLOURS, "phone": SHAPES}[look]) == []
    assert not await visitor.is_too_wide()
