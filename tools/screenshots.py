"""Take screenshots of every page of the dashboard: light, dark, and on a phone.

python -m tools.screenshots [FOLDER] [--chosen] [--store busy|empty|one|young|failing|broken]
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from playwright.async_api import Browser, Page, ViewportSize, async_playwright

from tests.browser.populations import POPULATIONS, Population, a_population
from tests.browser.watching import DESKTOP, PHONE, Visitor, visiting
from tests.browser.world import World, a_world
from tests.server.whole import KEY
from tools.browser import find_browser, why_none

FOLDER: Final = Path("build/screenshots")
CHOSEN: Final = ("overview-light", "overview-dark", "job-failed-light", "dead-light", "type-dark", "jobs-phone")
BUSY: Final = "busy"
BROKEN: Final = "broken"
HEIGHT_MAX: Final = 1_800
MINUTES: Final = 170
"""What charts can show."""
LATE_MS: Final = 30_000
LOOKS: Final[Mapping[str, Mapping[str, Any]]] = {
    "light": {"viewport": DESKTOP, "color_scheme": "light"},
    "dark": {"viewport": DESKTOP, "color_scheme": "dark"},
    "phone": {"viewport": PHONE, "color_scheme": "light", "device_scale_factor": 2, "is_mobile": True},
}


async def main(folder: Path, chosen: Collection[str] | None, store: str) -> None:
    """Write `PAGE-LOOK.png` for each page and look, or for the chosen ones."""
    path = find_browser()
    if path is None:
        raise SystemExit(why_none())
    with tempfile.TemporaryDirectory() as scratch:
        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(executable_path=path)
            album = _Album(folder, chosen)
            if store == BROKEN:
                await _broken(browser, Path(scratch), album)
            else:
                async with _opened(store, Path(scratch)) as place:
                    for look in LOOKS:
                        await _pictures(browser, place, look, album)
            await browser.close()


@asynccontextmanager
async def _opened(store: str, scratch: Path) -> AsyncIterator[World | Population]:
    if store == BUSY:
        async with a_world(scratch, MINUTES) as world:
            yield world
    else:
        async with a_population(store, scratch) as population:
            yield population


class _Album(NamedTuple):
    """The folder of the screenshots, and which to take; None for all."""

    folder: Path
    chosen: Collection[str] | None

    async def add(self, visitor: Visitor, name: str, path: str) -> None:
        """Take a screenshot of a page once its live part is loaded."""
        if self.chosen is not None and name not in self.chosen:
            return
        page = await visitor.go(path)
        if await page.locator("#pulse").count():
            await page.locator("#pulse[data-state=live]").wait_for()
        await self.take(page, name)

    async def take(self, page: Page, name: str) -> None:
        """A screenshot of a page as it is."""
        await _fit(page)
        await page.screenshot(path=self.folder / f"{name}.png", animations="disabled")


async def _pictures(browser: Browser, place: World | Population, look: str, album: _Album) -> None:
    visitor = await visiting(browser, place.url, **LOOKS[look])
    await album.add(visitor, f"login-{look}", "/ui/login")
    await visitor.log_in(place.keys["operations"] if isinstance(place, World) else KEY)
    for name, path in place.pages.items():
        await visitor.page.set_viewport_size(LOOKS[look]["viewport"])
        await album.add(visitor, f"{name}-{look}", path)
    await visitor.context.close()
    for problem in visitor.watch.problems:
        sys.stderr.write(f"{look}: {problem}\n")


async def _broken(browser: Browser, scratch: Path, album: _Album) -> None:
    """Pages that were open when the engine became unavailable, and pages that were opened later."""
    async with a_population(BROKEN, scratch) as population:
        visitors = {look: await visiting(browser, population.url, **options) for look, options in LOOKS.items()}
        for visitor in visitors.values():
            await visitor.log_in(KEY)
            await visitor.page.locator("#pulse[data-state=live]").wait_for()
        population.leave()
        for look, visitor in visitors.items():
            page = visitor.page
            await page.locator("#pulse[data-state=reconnecting]").wait_for(timeout=LATE_MS)
            await album.take(page, f"overview-{look}")
            for name, path in (("jobs", "/ui/jobs"), ("login", "/ui/login"), ("nowhere", "/ui/nowhere")):
                await page.set_viewport_size(LOOKS[look]["viewport"])
                await page.goto(population.url + path)
                await album.take(page, f"{name}-{look}")
            await visitor.context.close()


async def _fit(page: Page) -> None:
    """Make the window as high as the page, up to a limit, so that sticky elements are in their usual position."""
    window = page.viewport_size or DESKTOP
    height: int = await page.evaluate("document.documentElement.scrollHeight")
    fitting = ViewportSize(width=window["width"], height=min(max(height, DESKTOP["height"]), HEIGHT_MAX))
    await page.set_viewport_size(fitting)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Take pictures of every page of the dashboard.")
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER, help=f"where they go (default: {FOLDER})")
    parser.add_argument("--chosen", action="store_true", help="only the pictures of the documentation")
    parser.add_argument("--store", choices=(BUSY, *POPULATIONS), default=BUSY, help="what the store contains")
    return parser.parse_args()


if __name__ == "__main__":
    given = _arguments()
    given.folder.mkdir(parents=True, exist_ok=True)
    asyncio.run(main(given.folder, CHOSEN if given.chosen else None, given.store))
