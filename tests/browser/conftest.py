"""A browser for each test process, servers to look at, and visitors who look.

Everything runs in one event loop for all tests: the browser is driven from the loop that it was started in.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio
from playwright.async_api import Browser, StorageState, async_playwright

from tests.browser.watching import DESKTOP, Visitor, visiting
from tests.browser.world import World, a_world
from tests.server.whole import KEY, Whole, running
from tests.stores import url_of
from tools.browser import find_browser

HERE: Final = Path(__file__).parent
collect_ignore_glob = [] if find_browser() else ["test_*.py"]
"""Without a browser nothing of this runs; the end of the run says so, see tests/conftest.py."""

Visit = Callable[..., Awaitable[Visitor]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All of these share the loop of the browser."""
    for item in items:
        if HERE in item.path.parents and pytest_asyncio.is_async_test(item):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    """The system's Chromium, without a window. Root cannot have its sandbox."""
    async with async_playwright() as playwright:
        started = await playwright.chromium.launch(
            executable_path=find_browser(), chromium_sandbox=os.geteuid() != 0, args=["--disable-dev-shm-usage"]
        )
        yield started
        await started.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    """A world full of life, for all tests that only look at it."""
    async with a_world(tmp_path_factory.mktemp("world")) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def whole(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Whole]:
    """A server on a file that is empty at first, for all tests of a module."""
    async with running(url_of("sqlite", tmp_path_factory.mktemp("browser"))) as opened:
        yield opened


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def lookers() -> AsyncIterator[dict[tuple[str, str], Visitor]]:
    """The visitors that tests of a module share, by server and key."""
    found: dict[tuple[str, str], Visitor] = {}
    yield found
    for one in found.values():
        await one.context.close()


@pytest_asyncio.fixture(loop_scope="session")
async def shared_visit(browser: Browser, lookers: dict[tuple[str, str], Visitor]) -> AsyncIterator[Visit]:
    """Finds a visitor, logged in, for a test that leaves nothing in its browser: opening a page is expensive.

    As with `visit`, what a visitor meets that a good page never does fails the test.
    """
    used: list[Visitor] = []

    async def find(where: World | Whole, key: str) -> Visitor:
        server = where.whole if isinstance(where, World) else where
        url = f"http://127.0.0.1:{server.ports.http}"
        if (url, key) not in lookers:
            lookers[url, key] = await visiting(browser, url, storage_state=await _logged_in(browser, url, key))
        used.append(one := lookers[url, key])
        await one.page.set_viewport_size(DESKTOP)
        await one.page.emulate_media(color_scheme="light")
        return one

    yield find
    problems: list[str] = []
    for one in used:
        await one.page.evaluate("sessionStorage.clear(), localStorage.clear()")
        await one.page.goto("about:blank")  # What a page does until it ends belongs to this test.
        problems += one.watch.end()
    assert problems == []


@pytest_asyncio.fixture(loop_scope="session")
async def visit(browser: Browser) -> AsyncIterator[Visit]:
    """Makes visitors of a server; what they met that a good page never does fails the test."""
    visitors: list[Visitor] = []

    async def make(where: World | Whole, key: str | None = None, **more: Any) -> Visitor:
        """With a key, somebody who is logged in already."""
        server = where.whole if isinstance(where, World) else where
        url = f"http://127.0.0.1:{server.ports.http}"
        if key is not None:
            more["storage_state"] = await _logged_in(browser, url, key)
        visitors.append(one := await visiting(browser, url, **more))
        return one

    yield make
    for one in visitors:
        await one.context.close()
    assert [problem for one in visitors for problem in one.watch.problems] == []


_cookies: Final[dict[tuple[str, str], StorageState]] = {}


async def _logged_in(browser: Browser, url: str, key: str) -> StorageState:
    """The cookies of whoever holds a key; one session is enough for all tests that only need to be inside."""
    if (url, key) not in _cookies:
        visitor = await visiting(browser, url)
        await visitor.log_in(key)
        _cookies[url, key] = await visitor.context.storage_state()
        await visitor.context.close()
    return _cookies[url, key]


@pytest_asyncio.fixture(loop_scope="session")
async def visitor(visit: Visit, whole: Whole) -> Visitor:
    """Somebody who has not logged in."""
    return await visit(whole)


@pytest_asyncio.fixture(loop_scope="session")
async def operator(shared_visit: Visit, whole: Whole) -> Visitor:
    """Somebody who has logged in, and may do everything."""
    return await shared_visit(whole, KEY)
