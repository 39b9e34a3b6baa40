"""The dashboard in another application, below a path: a visitor finds every page, and never leaves it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import pytest_asyncio
import uvicorn
from fastapi import FastAPI
from playwright.async_api import Browser, expect
from starlette.requests import Request

from everwork import Access, Everwork, RetryPolicy
from tests.app.waiting import until
from tests.browser.watching import Visitor, visiting

PREFIX = "/a/b"


class Server(uvicorn.Server):
    """A server whose signals are the test's."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Let them alone."""
        yield


@pytest_asyncio.fixture(loop_scope="session")
async def app(tmp_path: Path) -> Everwork:
    """An application whose jobs fail at once."""
    made = Everwork(f"sqlite:///{tmp_path}/jobs.db")

    @made.job("mail-send", retry=RetryPolicy(max_attempts=1))
    async def send(to: str) -> None:
        raise ValueError(f"no such mailbox: {to}")

    return made


@pytest_asyncio.fixture(loop_scope="session")
async def site(app: Everwork, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """A web application that lets in who brings a header, and works. Its live pages connect again all the time."""
    monkeypatch.setattr("everwork.server.http.mounted.LIVE_SECONDS", 0)

    def check(request: Request) -> Access | None:
        return Access("ada", ["*"]) if request.headers.get("x-user") == "ada" else None

    api = FastAPI(lifespan=app.lifespan(work=True))
    api.mount(PREFIX, app.dashboard(auth=check))
    server = Server(uvicorn.Config(api, port=0, log_config=None))
    serving = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    await serving


@pytest_asyncio.fixture(loop_scope="session")
async def visitor(browser: Browser, site: str) -> AsyncIterator[Visitor]:
    """Somebody whom the application lets in; a request beside the prefix is a problem."""
    one = await visiting(browser, site, extra_http_headers={"x-user": "ada"})
    strays: list[str] = []
    one.page.on("request", lambda sent: strays.append(sent.url) if not is_below(sent.url) else None)
    yield one
    await one.context.close()
    assert one.watch.problems == []
    assert strays == []


def is_below(url: str) -> bool:
    return urlsplit(url).path.startswith(f"{PREFIX}/")


async def test_every_page_is_found_by_its_link_and_kept_live(visitor: Visitor, app: Everwork) -> None:
    page = await visitor.go(f"{PREFIX}/")
    labels = await page.locator("nav[aria-label=Pages] a").all_inner_texts()
    assert len(labels) == 10
    for label in labels:
        await page.get_by_role("navigation").get_by_role("link", name=label, exact=True).click()
        await expect(page.locator("nav[aria-label=Pages] a[aria-current=page]")).to_have_text(label)
    await visitor.go(f"{PREFIX}/dead")
    await expect(page.locator("#pulse")).to_have_attribute("data-state", "live")
    key = await app.enqueue("mail-send", to="nobody")
    await page.locator("a.key", has_text=str(key)).click()
    await page.wait_for_url(f"{visitor.url}{PREFIX}/jobs/{key}")
    await page.get_by_role("button", name="Requeue").click()
    await expect(page.locator(".said")).to_contain_text("requeued")
    async with page.expect_request(lambda sent: urlsplit(sent.url).path == f"{PREFIX}/live"):
        await expect(page.locator("#trouble")).to_be_hidden()
    await page.get_by_role("button", name="Theme").click()
    cookies = {one["name"].rpartition("_")[2]: one["path"] for one in await visitor.context.cookies()}
    assert cookies == {"form": PREFIX, "theme": PREFIX}


async def test_a_page_says_when_access_is_taken_away(visitor: Visitor) -> None:
    page = await visitor.go(f"{PREFIX}/jobs")
    await expect(page.locator("#pulse")).to_have_attribute("data-state", "live")
    await page.set_extra_http_headers({"x-user": "eve"})
    visitor.watch.allow("status of 403")
    await page.evaluate("dispatchEvent(new Event('pagehide')); dispatchEvent(new Event('pageshow'))")
    await page.get_by_role("link", name="Reload the page").click()
    await expect(page.locator("main")).to_contain_text("You do not have access to this dashboard.")
