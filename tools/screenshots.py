"""Pictures of every page of the dashboard: light, dark, and as a phone shows it.

python -m tools.screenshots [FOLDER]
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from playwright.async_api import Browser, ViewportSize, async_playwright

from tests.browser.watching import DESKTOP, PHONE, Visitor, visiting
from tests.browser.world import World, a_world
from tools.browser import find_browser, why_none

FOLDER: Final = Path("build/screenshots")
HEIGHT_MAX: Final = 1_800
MINUTES: Final = 170
"""What charts can show."""
LOOKS: Final[Mapping[str, Mapping[str, Any]]] = {
    "light": {"viewport": DESKTOP, "color_scheme": "light"},
    "dark": {"viewport": DESKTOP, "color_scheme": "dark"},
    "phone": {"viewport": PHONE, "color_scheme": "light", "device_scale_factor": 2, "is_mobile": True},
}


async def main(folder: Path) -> None:
    """Write `PAGE-LOOK.png` for each page and look."""
    path = find_browser()
    if path is None:
        raise SystemExit(why_none())
    with tempfile.TemporaryDirectory() as scratch:
        async with async_playwright() as playwright, a_world(Path(scratch), MINUTES) as world:
            browser = await playwright.chromium.launch(executable_path=path)
            for look in LOOKS:
                await _pictures(browser, world, look, folder)
            await browser.close()


async def _pictures(browser: Browser, world: World, look: str, folder: Path) -> None:
    visitor = await visiting(browser, world.url, **LOOKS[look])
    await visitor.go("/ui/login")
    await _picture(visitor, folder / f"login-{look}.png")
    await visitor.log_in(world.keys["operations"])
    for name, address in world.pages.items():
        await visitor.page.set_viewport_size(LOOKS[look]["viewport"])
        await visitor.go(address)
        await _picture(visitor, folder / f"{name}-{look}.png")
    await visitor.context.close()
    for problem in visitor.watch.problems:
        sys.stderr.write(f"{look}: {problem}\n")


async def _picture(visitor: Visitor, file: Path) -> None:
    if await visitor.page.locator("#pulse").count():
        await visitor.page.locator("#pulse[data-state=live]").wait_for()
    await _fit(visitor)
    await visitor.page.screenshot(path=file, animations="disabled")


async def _fit(visitor: Visitor) -> None:
    """A window as high as the page, within reason: what sticks to an edge stands where people see it."""
    window = visitor.page.viewport_size or DESKTOP
    height: int = await visitor.page.evaluate("document.documentElement.scrollHeight")
    fitting = ViewportSize(width=window["width"], height=min(max(height, DESKTOP["height"]), HEIGHT_MAX))
    await visitor.page.set_viewport_size(fitting)


if __name__ == "__main__":
    wanted = Path(sys.argv[1]) if sys.argv[1:] else FOLDER
    wanted.mkdir(parents=True, exist_ok=True)
    asyncio.run(main(wanted))
