"""Forms in a browser: a job is created, a policy set, and times are those of the viewer's zone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs, urlsplit
from zoneinfo import ZoneInfo

from playwright.async_api import Page, expect

from everwork.codec.json import decode_policy
from tests.browser.barriers import barriers
from tests.browser.conftest import Visit
from tests.browser.test_operator import press, said
from tests.browser.watching import PHONE, Visitor
from tests.factories import a_dead_letter, a_pending_job
from tests.server.whole import KEY, Whole

TYPED = "%Y-%m-%dT%H:%M"


def query_of(page: Page) -> dict[str, list[str]]:
    """The query of the address that a page has."""
    return parse_qs(urlsplit(page.url).query)


async def test_times_are_typed_and_shown_in_the_zone_of_the_viewer_and_a_link_means_the_same_to_all(
    visit: Visit, whole: Whole
) -> None:
    job = await a_pending_job(whole.service._engine, type="zoned")
    now = datetime.now(UTC).replace(second=0, microsecond=0)
    in_york, in_tokyo = ZoneInfo("America/New_York"), ZoneInfo("Asia/Tokyo")
    first = await visit(whole, KEY, timezone_id="America/New_York")
    page = await first.go("/ui/jobs?type=zoned")
    link = page.get_by_role("link", name=str(job.key), exact=True)
    for hours, is_found in ((-1, True), (1, False), (-1, True)):
        at = now + timedelta(hours=hours)
        await page.get_by_label("Created after (local time)").fill(at.astimezone(in_york).strftime(TYPED))
        await press(page, "Filter")
        await expect(link).to_have_count(int(is_found))
        assert query_of(page)["after"] == [at.strftime(f"{TYPED}Z")]
    field = page.get_by_label("Created after (local time)")
    await expect(field).to_have_value((now - timedelta(hours=1)).astimezone(in_york).strftime(TYPED))
    second = await visit(whole, KEY, timezone_id="Asia/Tokyo")
    there = await second.go(page.url.removeprefix(second.url))
    field = there.get_by_label("Created after (local time)")
    await expect(field).to_have_value((now - timedelta(hours=1)).astimezone(in_tokyo).strftime(TYPED))
    await press(there, "Filter")  # Sent again, it is the same moment.
    assert query_of(there)["after"][0].startswith((now - timedelta(hours=1)).strftime(TYPED))
    await expect(there.get_by_role("link", name=str(job.key), exact=True)).to_be_visible()


async def test_without_script_times_are_in_utc_and_say_so(visit: Visit, whole: Whole) -> None:
    job = await a_pending_job(whole.service._engine, type="unzoned")
    plain = await visit(whole, KEY, java_script_enabled=False, timezone_id="Asia/Tokyo")
    now = datetime.now(UTC)
    page = await plain.go("/ui/jobs?type=unzoned")
    for hours, is_found in ((1, False), (-1, True)):
        await page.get_by_label("Created after (UTC)").fill((now + timedelta(hours=hours)).strftime(TYPED))
        await press(page, "Filter")
        await expect(page.get_by_role("link", name=str(job.key), exact=True)).to_have_count(int(is_found))


async def test_the_hour_that_a_change_of_the_clocks_repeats_stays_the_one_of_the_link(
    visit: Visit, whole: Whole
) -> None:
    visitor = await visit(whole, KEY, timezone_id="Europe/Berlin")
    page = await visitor.go("/ui/jobs?after=2026-10-25T01:30Z")
    await expect(page.get_by_label("Created after (local time)")).to_have_value("2026-10-25T02:30")
    await press(page, "Filter")
    await expect(page.get_by_label("Created after (local time)")).to_have_value("2026-10-25T02:30")
    assert query_of(page)["after"] == ["2026-10-25T01:30:00.000Z"]


async def test_dead_letters_are_filtered_and_deleted_by_times_in_the_zone_of_the_viewer(
    visit: Visit, whole: Whole
) -> None:
    await a_dead_letter(whole.service._engine, type="zoned-dead")
    visitor = await visit(whole, KEY, timezone_id="Asia/Tokyo")
    page = await visitor.go("/ui/dead?type=zoned-dead")
    at = (datetime.now(UTC) - timedelta(hours=1)).astimezone(ZoneInfo("Asia/Tokyo")).strftime(TYPED)
    await page.get_by_label("Failed after (local time)").fill(at)
    await press(page, "Filter")
    await press(page, "Delete all matching…")
    await expect(page.locator("main")).to_contain_text(f"that failed at or after {at.replace('T', ' ')}:00")


async def test_a_job_is_created_after_a_slip_was_corrected(operator: Visitor, whole: Whole) -> None:
    page = await operator.go("/ui/jobs?type=greeting")
    await page.get_by_role("link", name="Create job").click()
    await expect(page.get_by_label("Type", exact=True)).to_have_value("greeting")
    await page.get_by_label("Variables").fill('{"to": "ada"')
    await page.get_by_text("More options").click()
    run_at = datetime(2099, 7, 1, 9, 30, tzinfo=ZoneInfo("Europe/Berlin"))
    await page.get_by_label("Run at (local time)").fill(run_at.strftime(TYPED))
    operator.watch.allow("status of 422")
    await press(page, "Create job")
    await expect(page.locator("#p-variables")).to_contain_text("must be a JSON object")
    await expect(page.get_by_label("Variables")).to_have_value('{"to": "ada"')
    await expect(page.get_by_label("Run at (local time)")).to_have_value("2099-07-01T09:30")
    assert await barriers(page) == []
    await page.set_viewport_size(PHONE)
    assert not await operator.is_too_wide()
    await page.get_by_label("Variables").fill('{"to": "ada"}')
    await press(page, "Create job")
    await said(page, r"Job \d+ was created")
    job = await whole.job(int(page.url.rpartition("/")[2]))
    assert (job.type, job.variables) == ("greeting", '{"to":"ada"}')
    assert job.run_at_ms == run_at.timestamp() * 1000


async def test_a_policy_is_set_by_its_form_with_and_without_script(visit: Visit, whole: Whole) -> None:
    engine = whole.service._engine
    await a_pending_job(engine, type="formed")
    for has_script, attempts in ((True, 9), (False, 8)):
        visitor = await visit(whole, KEY, java_script_enabled=has_script)
        page = await visitor.go("/ui/type?name=formed")
        await page.get_by_label("Maximum attempts").fill("0")
        await page.get_by_label("Rate limit").fill("100")
        await page.get_by_label("Exception class or text of rule 1").fill("shop.Declined")
        await page.get_by_label("Action of rule 1").select_option("permanent")
        visitor.watch.allow("status of 422")
        await press(page, "Save policy")
        await expect(page.locator("#p-max_attempts")).to_have_text("must be a whole number from 1 to 100, not 0")
        await expect(page.get_by_label("Rate limit")).to_have_value("100")
        if has_script:
            assert await barriers(page) == []
        await page.get_by_label("Maximum attempts").fill(str(attempts))
        await press(page, "Save policy")
        await said(page, "The policy of formed was saved")
        [info] = [one for one in await engine.types() if one.type == "formed"]
        policy = decode_policy(info.policy)
        assert (policy.retry.max_attempts, policy.rate and policy.rate.jobs) == (attempts, 100)
        assert policy.errors[0].exception == "shop.Declined"
        await page.get_by_label("Rate limit").fill("")
        await press(page, "Save policy")
        [info] = [one for one in await engine.types() if one.type == "formed"]
        assert decode_policy(info.policy).rate is None


async def test_what_is_typed_into_a_policy_survives_the_updates_of_the_page(operator: Visitor, whole: Whole) -> None:
    await a_pending_job(whole.service._engine, type="watched")
    page = await operator.go("/ui/type?name=watched")
    await page.get_by_label("Maximum attempts").fill("7")
    await a_pending_job(whole.service._engine, type="watched")
    await expect(page.locator(".tile").first).to_contain_text("2")
    await expect(page.get_by_label("Maximum attempts")).to_have_value("7")
