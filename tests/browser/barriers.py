"""Looks for barriers on a page: what keeps people out who do not see, or do not use a mouse."""

from __future__ import annotations

from typing import Any, Final

from axe_playwright_python.base import AXE_SCRIPT  # type: ignore[import-untyped]
from playwright.async_api import Page

SERIOUS: Final = ("serious", "critical")
TELL: Final = """async (rules) => {
  const options = rules ? { runOnly: rules, resultTypes: ['violations'] } : { resultTypes: ['violations'] };
  const found = await axe.run(document, options);
  return found.violations.map(({ id, impact, nodes }) => ({ id, impact, nodes: nodes.slice(0, 3).map(
    (node) => node.html.slice(0, 150) + ' ' + (node.failureSummary || '').replaceAll('\\n', ' ').slice(0, 200)) }));
}"""


async def barriers(page: Page, *rules: str) -> list[str]:
    """The serious ones; only those that some rules find, if any are named."""
    if not await page.evaluate("typeof axe === 'object'"):
        await page.evaluate(AXE_SCRIPT)  # Not by a script element, which the page's policy forbids.
    found: list[dict[str, Any]] = await page.evaluate(TELL, list(rules) or None)
    return [f"{one['id']}: {node}" for one in found if one["impact"] in SERIOUS for node in one["nodes"]]
