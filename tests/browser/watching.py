"""A browser's page under watch: whatever a good page never does is noted, and fails the test that has opened it."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Dialog, Error, Page, Request, ViewportSize

from tests.app.waiting import until

DEADLINE_MS: Final = 30_000
"""Far more than anything here takes; reached only by a defect."""

GUARD: Final = """
document.addEventListener('securitypolicyviolation', (event) => {
  console.error('CSP VIOLATION: ' + event.violatedDirective + ' ' + event.blockedURI + ' ' + event.sourceFile);
});
Object.defineProperty(window, '__pwned', {
  set(what) { console.error('HOSTILE CODE RAN: ' + what); },
});
"""
"""Runs before any script of a page: a broken policy and a hostile text that was executed are told as errors."""


@dataclass
class Watch:
    """What has happened in the pages of one visitor that must not happen."""

    host: str
    seen: list[str] = field(default_factory=list)
    allowed: list[str] = field(default_factory=list)

    def allow(self, pattern: str) -> None:
        """A problem that the test itself brings about, such as the status of a refusal."""
        self.allowed.append(pattern)

    @property
    def problems(self) -> list[str]:
        """Everything else."""
        return [one for one in self.seen if not any(re.search(pattern, one) for pattern in self.allowed)]

    def end(self) -> list[str]:
        """The problems; what comes later, and what is allowed then, is another test's."""
        problems, self.seen, self.allowed = self.problems, [], []
        return problems

    def follow(self, page: Page) -> None:
        """Watch a page from its beginning."""
        page.on("console", self._hear)
        page.on("pageerror", lambda error: self.seen.append(f"script error: {error}"))
        page.on("dialog", self._close)
        page.on("request", self._look_at)

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.seen.append(f"console {message.type}: {message.text} {message.location.get('url', '')}")

    async def _close(self, dialog: Dialog) -> None:
        self.seen.append(f"dialog: {dialog.message}")
        with suppress(Error):
            await dialog.dismiss()

    def _look_at(self, request: Request) -> None:
        if urlsplit(request.url).netloc != self.host:
            self.seen.append(f"request to another host: {request.url[:200]}")


@dataclass
class Visitor:
    """Somebody with a browser profile of their own: cookies, window size, colours."""

    context: BrowserContext
    page: Page
    watch: Watch
    url: str

    async def go(self, path: str) -> Page:
        """Open a page of the server; it must be there."""
        response = await self.page.goto(self.url + path)
        assert response is not None, path
        assert response.ok, f"{path}: {response.status}"
        return self.page

    async def log_in(self, key: str, path: str = "/ui") -> Page:
        """Come in with an API key, and land on a page."""
        await self.go(path)
        await self.page.get_by_label("API key").fill(key)
        await self.page.get_by_role("button", name="Log in").click()
        await self.page.wait_for_url(self.url + path)
        return self.page

    async def sees(self, condition: Callable[[], Any]) -> None:
        """Wait until something is so, which the page may bring about."""
        await until(condition)

    async def is_too_wide(self) -> bool:
        """Whether the page scrolls sideways."""
        wide: bool = await self.page.evaluate(
            "document.documentElement.scrollWidth > document.documentElement.clientWidth"
        )
        return wide


DESKTOP: Final = ViewportSize(width=1280, height=900)
PHONE: Final = ViewportSize(width=390, height=844)


async def visiting(browser: Browser, url: str, **more: Any) -> Visitor:
    """A visitor who has not opened anything yet; `more` is what Playwright calls the options of a context."""
    options = {"viewport": DESKTOP, "timezone_id": "Europe/Berlin", "locale": "en-GB", **more}
    context = await browser.new_context(**options)
    context.set_default_timeout(DEADLINE_MS)
    await context.add_init_script(GUARD)
    watch = Watch(urlsplit(url).netloc)
    context.on("page", watch.follow)
    return Visitor(context, await context.new_page(), watch, url)
