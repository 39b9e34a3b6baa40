"""Looks for barriers on a page: what keeps people out who do not see, or do not use a mouse."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from axe_playwright_python.base import AXE_SCRIPT  # type: ignore[import-untyped]
from playwright.async_api import Page

SERIOUS: Final = ("serious", "critical")
CONTRAST: Final = "color-contrast"
EVERYTHING: Final[Mapping[str, Any]] = {}
COLOURS: Final[Mapping[str, Any]] = {"runOnly": [CONTRAST]}
"""All that a dark page can have beyond the light one."""
SHAPES: Final[Mapping[str, Any]] = {"rules": {CONTRAST: {"enabled": False}}}
"""All that a narrow page can have; colours take most of the time."""

TELL: Final = """async (options) => {
  const found = await axe.run(document, { ...options, resultTypes: ['violations'] });
  return found.violations.map(({ id, impact, nodes }) => ({ id, impact, nodes: nodes.slice(0, 3).map(
    (node) => node.html.slice(0, 150) + ' ' + (node.failureSummary || '').replaceAll('\\n', ' ').slice(0, 200)) }));
}"""


async def barriers(page: Page, options: Mapping[str, Any] = EVERYTHING) -> list[str]:
    """The serious ones."""
    if not await page.evaluate("typeof axe === 'object'"):
        await page.evaluate(AXE_SCRIPT)  # Not by a script element, which the page's policy forbids.
    found: list[dict[str, Any]] = await page.evaluate(TELL, dict(options))
    return [f"{one['id']}: {node}" for one in found if one["impact"] in SERIOUS for node in one["nodes"]]
