"""What operators do at the dashboard: see what fails and why, act, and see that it helped."""

from __future__ import annotations

import re
from typing import Final

import httpx
import pytest
from playwright.async_api import Locator, Page, expect

from everwork import Everwork, RetryPolicy
from everwork.core.states import State
from everwork.server.http.ui.address import SERVER
from everwork.server.http.ui.pages import ACTIONS
from everwork.service.access.principal import Permission
from tests.app.waiting import working
from tests.browser.barriers import barriers
from tests.browser.conftest import Visit
from tests.browser.watching import Visitor
from tests.factories import a_dead_letter, a_pending_job, a_policy
from tests.server.whole import KEY, Whole

KEY_TEXT: Final = re.compile(r"ew_[0-9a-f]{12}_[\w-]+")


async def press(page: Page, name: str, within: Locator | None = None) -> None:
    """A button, and yes to the question that it may ask."""
    place = within or page.locator("main")
    await place.get_by_role("button", name=name, exact=True).first.click()
    question = page.locator("dialog#confirm[open]")
    if await question.count():
        await question.locator("[data-yes]").click()


async def offered(page: Page, name: str) -> None:
    """Wait for a button of the page that comes next."""
    await expect(page.locator("main").get_by_role("button", name=name, exact=True)).to_be_visible()


async def said(page: Page, text: str) -> None:
    """Wait for what the last action has to say."""
    await expect(page.locator(".said")).to_contain_text(re.compile(text))


@pytest.fixture
def url_of_store(whole: Whole) -> str:
    """The store of the server."""
    return whole.server.settings.engine


async def test_a_failing_job_is_watched_understood_requeued_and_seen_to_complete(
    visitor: Visitor, whole: Whole, url_of_store: str
) -> None:
    is_down = True
    app = Everwork(url_of_store)

    @app.job("card-charge", retry=RetryPolicy(max_attempts=1))
    async def charge(cents: int) -> dict[str, int]:
        if is_down:
            raise ConnectionError("the bank of card 4711 does not answer")
        return {"charged": cents}

    page = await visitor.log_in(KEY, "/ui/jobs")  # By the form, as people do.
    async with app, working(app):
        key = await app.enqueue("card-charge", cents=1999)
        row = page.get_by_role("row").filter(has=page.get_by_role("link", name=str(key), exact=True))
        await expect(row).to_contain_text("failed")
        await row.get_by_role("link", name=str(key), exact=True).click()
        await expect(page.locator("main")).to_contain_text("ConnectionError: the bank of card 4711 does not answer")
        is_down = False
        await press(page, "Requeue")
        await said(page, "requeued")
        await expect(page.locator("main .state").first).to_have_text("completed")
        await expect(page.locator("main")).to_contain_text('"charged": 1999')
    assert (await whole.job(int(key))).state is State.COMPLETED


async def test_a_dead_letter_gets_other_variables_and_what_is_typed_survives_the_updates_of_the_page(
    operator: Visitor, whole: Whole
) -> None:
    job = await a_dead_letter(whole.service._engine, type="bill", variables='{"to":"ann"}')
    page = await operator.go(f"/ui/jobs/{job.key}")
    await page.locator("#requeue-with summary").click()
    field = page.get_by_label("Variables as a JSON object")
    await field.fill('{"to": "ada"')
    await a_policy(whole.service._engine, type="bill", failed_job_retry_hours=24.0)
    await expect(page.locator("main")).to_contain_text("will be requeued automatically")
    await expect(field).to_have_value('{"to": "ada"')
    operator.watch.allow("status of 422")
    await press(page, "Requeue with these variables")
    await said(page, "variables: must be a JSON object")
    await expect(field).to_have_value('{"to": "ada"')
    await field.fill('{"to": "ada"}')
    await press(page, "Requeue with these variables")
    await said(page, "requeued with new variables")
    assert (await whole.job(job.key)).variables == '{"to":"ada"}'


async def test_a_type_is_paused_and_goes_on(operator: Visitor, whole: Whole) -> None:
    job = await a_pending_job(whole.service._engine, type="newsletter")
    page = await operator.go("/ui/type?name=newsletter")
    await press(page, "Pause")
    await said(page, "paused")
    await operator.go(f"/ui/jobs/{job.key}")
    await expect(page.locator("main")).to_contain_text("paused")
    await operator.go("/ui/type?name=newsletter")
    await press(page, "Resume")
    [info] = [one for one in await whole.service._engine.types() if one.type == "newsletter"]
    assert not info.paused


async def test_an_open_breaker_is_seen_with_its_type_and_closed(operator: Visitor, whole: Whole) -> None:
    engine = whole.service._engine
    await a_policy(engine, type="bank-call", breaker_failures=1, breaker_seconds=3_600)
    await a_dead_letter(engine, type="bank-call", error="the bank is closed")
    page = await operator.go("/ui")
    await page.get_by_role("link", name="Breakers").click()
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name="bank-call"))
    await expect(row).to_contain_text("open")
    await press(page, "Close", row)
    await said(page, "closed|reset")
    [info] = [one for one in await engine.types() if one.type == "bank-call"]
    assert info.breaker.value == "closed"


async def test_a_key_is_made_shown_once_used_and_revoked(operator: Visitor, whole: Whole) -> None:
    page = await operator.go("/ui/keys")
    await page.get_by_label("Name").fill("the wall screen")
    await press(page, "Create key")
    await expect(page.locator("main")).to_contain_text(KEY_TEXT)
    assert await barriers(page) == []
    text = KEY_TEXT.search(await page.locator("main").inner_text())
    assert text is not None
    assert await status_of(operator, text[0]) == 200
    await operator.go("/ui/keys")
    assert text[0] not in await page.content()
    row = page.get_by_role("row").filter(has_text="the wall screen")
    await press(page, "Revoke", row)
    await said(page, "revoked")
    assert await status_of(operator, text[0]) == 401
    await operator.go("/ui/audit")
    await expect(page.locator("main")).to_contain_text("keys.revoke")


async def status_of(visitor: Visitor, key: str) -> int:
    """How REST answers to a key."""
    async with httpx.AsyncClient(base_url=visitor.url, headers={"X-API-Key": key}) as client:
        return (await client.get("/api/v1/jobs")).status_code


PATHS = ("/ui", "/ui/jobs", "/ui/dead", "/ui/types", "/ui/type?name=report", "/ui/breakers", "/ui/workers",
         "/ui/triggers")  # fmt: skip
OPEN = ("/ui/login", "/ui/logout", "/ui/jobs/find")
FORM = {"type": "report", "name": "report", "act": "requeue", "scope": "all", "filter": "type=report", "sure": "yes",
        "below": "99", "priority": "1", "retries": "1", "permission": "*", "policy": "{}", "seconds": "5",
        "id": "0123456789ab", "worker": "w", "trigger": "t", "process": "p", "on": "yes",
        "until": "1", "variables": "{}"}  # fmt: skip
"""Something for every field that an action asks for: nobody is refused for what he has not said."""
ACTING = "main form[method=post]:not([action='/ui/jobs/find'])"


async def test_a_key_that_may_only_read_can_do_nothing(visitor: Visitor, whole: Whole) -> None:
    job = await a_dead_letter(whole.service._engine, type="report")
    key = await whole.server.keys.create("reader", [Permission.JOBS_READ.value])
    page = await visitor.log_in(key.text)
    for path in (*PATHS, f"/ui/jobs/{job.key}"):
        await visitor.go(path)
        assert await page.locator(ACTING).count() == 0, path
    visitor.watch.allow("status of 403")
    paths = [path.format(key=job.key) for path in (SERVER.at(one.path) for one in ACTIONS) if path not in OPEN]
    assert {path: await posted(page, path, **FORM) for path in paths} == dict.fromkeys(paths, 403)
    assert (await whole.job(job.key)).state is State.FAILED


async def posted(page: Page, path: str, **fields: str) -> int:
    """The status of a form that somebody has made by hand, with the token of the session."""
    status: int = await page.evaluate(
        """async ([path, fields]) => {
          fields.csrf = document.querySelector('[name=csrf]').value;
          return (await fetch(path, { method: 'POST', body: new URLSearchParams(fields) })).status;
        }""",
        [path, fields],
    )
    return status


async def test_a_form_without_the_token_of_the_session_does_nothing(operator: Visitor, whole: Whole) -> None:
    job = await a_dead_letter(whole.service._engine, type="report")
    page = await operator.go("/ui")
    operator.watch.allow("status of 403")
    made = "async (path) => (await fetch(path, { method: 'POST', body: new URLSearchParams({ csrf: 'x' }) })).status"
    assert await page.evaluate(made, f"/ui/jobs/{job.key}/requeue") == 403
    assert (await whole.job(job.key)).state is State.FAILED


async def test_a_key_of_one_tenant_sees_its_own_jobs_only(visitor: Visitor, whole: Whole) -> None:
    mine = await a_pending_job(whole.service._engine, type="theirs", tenant="acme")
    other = await a_pending_job(whole.service._engine, type="theirs", tenant="globex")
    key = await whole.server.keys.create("acme", ["jobs"], tenants=["acme"])
    page = await visitor.log_in(key.text, "/ui/jobs")
    await expect(page.get_by_role("link", name=str(mine.key), exact=True)).to_be_visible()
    assert await page.get_by_role("link", name=str(other.key), exact=True).count() == 0
    visitor.watch.allow("status of 404")
    await page.goto(f"{visitor.url}/ui/jobs/{other.key}")
    await expect(page.locator("main")).to_contain_text(f"Job '{other.key}' not found")


async def test_of_two_operators_at_one_job_the_second_is_told_that_it_has_changed(visit: Visit, whole: Whole) -> None:
    """The second one's browser runs no script, so that the page stays as it was."""
    job = await a_dead_letter(whole.service._engine, type="contract")
    first, second = await visit(whole, KEY), await visit(whole, KEY, java_script_enabled=False)
    for one in (first, second):
        await one.go(f"/ui/jobs/{job.key}")
    await press(first.page, "Requeue")
    await said(first.page, "requeued")
    await press(second.page, "Requeue")
    await expect(second.page.locator(".said.bad")).to_contain_text("pending")
    assert (await whole.job(job.key)).state is State.PENDING


async def test_secrets_of_a_job_are_masked(operator: Visitor, whole: Whole) -> None:
    said = '{"password": "hunter2hunter2", "card": {"api_key": "sesame-open"}, "order": 17}'
    error = "login with hunter2hunter2 failed"
    job = await a_dead_letter(whole.service._engine, type="login", variables=said, error=error)
    page = await operator.go(f"/ui/jobs/{job.key}")
    await expect(page.locator("main")).to_contain_text('"order": 17')
    shown = await page.content()
    assert "hunter2" not in shown
    assert "sesame" not in shown


async def test_many_jobs_are_changed_after_a_question(operator: Visitor, whole: Whole) -> None:
    jobs = [await a_pending_job(whole.service._engine, type="bulk", delay_ms=3_600_000) for _ in range(3)]
    page = await operator.go("/ui/jobs?type=bulk")
    for job in jobs[:2]:
        await page.get_by_label(f"Select job {job.key}", exact=True).check()
    await press(page, "Cancel…")
    await offered(page, "Cancel 2 jobs")
    assert await barriers(page) == []
    await press(page, "Cancel 2 jobs")
    await said(page, "2 of 2 jobs were cancelled")
    states = [(await whole.job(job.key)).state for job in jobs]
    assert states == [State.CANCELLED, State.CANCELLED, State.PENDING]


async def test_the_keyboard_is_enough(operator: Visitor, whole: Whole) -> None:
    [job, *_] = [await a_pending_job(whole.service._engine, type="typed") for _ in range(3)]
    page = await operator.go("/ui")
    await page.keyboard.press("g")
    await page.keyboard.press("j")
    await page.wait_for_url("**/ui/jobs")
    await page.keyboard.press("?")
    await expect(page.locator("dialog#help")).to_be_visible()
    await page.keyboard.press("Escape")
    await page.keyboard.press("/")
    assert await page.evaluate("document.activeElement.matches('[data-search]')")
    await operator.go("/ui/jobs?type=typed")
    for key in ("j", "j", "j", "j", "k", "j", "Enter"):
        await page.keyboard.press(key)
    await page.wait_for_url(f"**/ui/jobs/{job.key}")


async def test_dead_letters_of_one_sort_are_brought_back_after_a_question(operator: Visitor, whole: Whole) -> None:
    jobs = [await a_dead_letter(whole.service._engine, type="import", error=f"row {n} is broken") for n in range(3)]
    page = await operator.go("/ui/dead?type=import")
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name="import"))
    await press(page, "Requeue…", row)
    await offered(page, "Requeue 3")
    assert await barriers(page) == []
    await press(page, "Requeue 3")
    await said(page, "3 dead letters were requeued")
    assert {(await whole.job(job.key)).state for job in jobs} == {State.PENDING}
