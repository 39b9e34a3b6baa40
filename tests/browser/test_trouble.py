"""What people see when something goes wrong around them: said plainly, nothing lost, and over when it is over."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio
from playwright.async_api import expect

from tests.browser.conftest import Visit
from tests.browser.watching import Visitor
from tests.server.whole import KEY, Whole, running
from tests.servers import RedisServer, redis_server

LATE_MS = 30_000
"""The deadline of what a server must be restarted for."""
UNREACHABLE = "ERR_CONNECTION|ERR_INCOMPLETE_CHUNKED|ERR_EMPTY_RESPONSE|status of 503"


async def test_a_wrong_key_is_refused_in_a_sentence(visitor: Visitor) -> None:
    visitor.watch.allow("status of 401")
    page = await visitor.go("/ui/login")
    await page.get_by_label("API key").fill("ew_000000000000_no-such-key")
    await page.get_by_role("button", name="Log in").click()
    await page.get_by_role("alert").get_by_text("unknown API key").wait_for()
    await visitor.log_in(KEY)


async def test_whoever_follows_a_shared_link_comes_there_by_way_of_the_login(visitor: Visitor) -> None:
    page = await visitor.log_in(KEY, "/ui/jobs?state=failed")
    assert page.url == f"{visitor.url}/ui/jobs?state=failed"


async def test_a_session_that_ends_while_a_page_is_open_is_said_so_and_can_be_begun_again(
    visitor: Visitor, whole: Whole
) -> None:
    page = await visitor.log_in(KEY, "/ui/jobs")
    await page.locator("#pulse[data-state=live]").wait_for()
    for session in await whole.service._engine.registered("session"):
        await whole.service._engine.unregister("session", session.name)
    await page.locator("#trouble").get_by_text("Your session has expired").wait_for()
    await page.get_by_role("link", name="Log in again").click()
    await page.get_by_label("API key").fill(KEY)
    await page.get_by_role("button", name="Log in").click()
    await page.wait_for_url("**/ui/jobs")


async def test_a_form_of_a_session_that_is_over_does_nothing_and_says_so(visitor: Visitor, whole: Whole) -> None:
    visitor.watch.allow("status of 401")
    page = await visitor.log_in(KEY)
    for session in await whole.service._engine.registered("session"):
        await whole.service._engine.unregister("session", session.name)
    await page.get_by_role("button", name="Log out").click()
    await page.get_by_role("heading", name="Session expired").wait_for()


@pytest_asyncio.fixture(loop_scope="session")
async def redis() -> AsyncIterator[RedisServer]:
    """An engine that can be taken away."""
    with redis_server() as started:
        yield started


async def test_a_page_says_that_the_engine_is_away_and_goes_on_when_it_is_back(
    redis: RedisServer, visit: Visit
) -> None:
    async with running(redis.url) as whole:
        visitor = await visit(whole)
        visitor.watch.allow(UNREACHABLE)
        page = await visitor.log_in(KEY)
        await page.locator("#pulse[data-state=live]").wait_for()
        redis.kill()
        await page.locator("#trouble").get_by_text("engine").wait_for(timeout=LATE_MS)
        await expect(page.locator("#pulse[data-state=reconnecting]")).to_have_text("Reconnecting")
        await page.goto(f"{visitor.url}/ui/jobs")
        await page.get_by_role("heading", name="Engine unavailable").wait_for(timeout=LATE_MS)
        redis.start()
        await page.get_by_role("heading", name="Jobs").wait_for(timeout=LATE_MS)
        await page.locator("#pulse[data-state=live]").wait_for(timeout=LATE_MS)
        await visitor.context.close()
