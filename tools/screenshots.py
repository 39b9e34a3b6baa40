"""Takes screenshots of every page of the dashboard: light, dark, and on a phone.

python -m tools.screenshots [FOLDER]
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from playwright.async_api import Browser, ViewportSize, async_playwright

from tests.browser.watching import DESKTOP, PHONE, Visitor, visiting
from tests.browser.world import World, a_world
from tools.browser import find_browser, why_none

FOLDER: Final = Path("build/screenshots")
CHOSEN: Final = ("overview-light", "overview-dark", "job-failed-light", "dead-light", "type-dark", "jobs-phone")
HEIGHT_MAX: Final = 1_800
MINUTES: Final = 170
"""The metrics of the charts."""
LOOKS: Final[Mapping[str, Mapping[str, Any]]] = {
    "light": {"viewport": DESKTOP, "color_scheme": "light"},
    "dark": {"viewport": DESKTOP, "color_scheme": "dark"},
    "phone": {"viewport": PHONE, "color_scheme": "light", "device_scale_factor": 2, "is_mobile": True},
}


async def main(folder: Path, chosen: Collection[str] | None) -> None:
    """Write `PAGE-LOOK.png` for each page and look, or for the chosen ones."""
    path = find_browser()
    if path is None:
        raise SystemExit(why_none())
    with tempfile.TemporaryDirectory() as scratch:
        async with async_playwright() as playwright, a_world(Path(scratch), MINUTES) as world:
            browser = await playwright.chromium.launch(executable_path=path)
            for look in LOOKS:
                await _pictures(browser, world, look, _Album(folder, chosen))
            await browser.close()


class _Album(NamedTuple):
    """The folder of the screenshots, and which to take; None: all."""

    folder: Path
    chosen: Collection[str] | None

    async def add(self, visitor: Visitor, name: str, path: str) -> None:
        """Take a screenshot of a page once its live part is loaded."""
        if self.chosen is not None and name not in self.chosen:
            return
        page = await visitor.go(path)
        if await page.locator("#pulse").count():
            await page.locator("#pulse[data-state=live]").wait_for()
        await _fit(visitor)
        await page.screenshot(path=self.folder / f"{name}.png", animations="disabled")


async def _pictures(browser: Browser, world: World, look: str, album: _Album) -> None:
    visitor = await visiting(browser, world.url, **LOOKS[look])
    await album.add(visitor, f"login-{look}", "/ui/login")
    await visitor.log_in(world.keys["operations"])
    for name, path in world.pages.items():
        await visitor.page.set_viewport_size(LOOKS[look]["viewport"])
        await album.add(visitor, f"{name}-{look}", path)
    await visitor.context.close()
    for problem in visitor.watch.problems:
        sys.stderr.write(f"{look}: {problem}\n")


async def _fit(visitor: Visitor) -> None:
    """Make the window as high as the page, up to a limit, so that sticky elements are in their usual position."""
    window = visitor.page.viewport_size or DESKTOP
    height: int = await visitor.page.evaluate("document.documentElement.scrollHeight")
    fitting = ViewportSize(width=window["width"], height=min(max(height, DESKTOP["height"]), HEIGHT_MAX))
    await visitor.page.set_viewport_size(fitting)


if __name__ == "__main__":
    wanted, *_ = [*(Path(one) for one in sys.argv[1:] if one != "--chosen"), FOLDER]
    wanted.mkdir(parents=True, exist_ok=True)
    asyncio.run(main(wanted, CHOSEN if "--chosen" in sys.argv else None))
