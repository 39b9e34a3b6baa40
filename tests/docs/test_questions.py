"""The search of the site, in a real browser and from the disk, answers what people ask."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.async_api import Browser, Page, Request

from tests.browser.barriers import barriers

QUESTIONS: Final[list[dict[str, Any]]] = tomllib.loads(Path(__file__).with_name("questions.toml").read_text("utf-8"))[
    "question"
]
RESULTS_READ: Final = 5
"""Few people look further."""
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]


async def found(page: Page, site: Path, typed: str) -> list[str]:
    """Type words into the search of the first page; the pages of the first results."""
    await page.goto((site / "index.html").as_uri())
    await page.locator("input[name=q]").first.fill(typed)
    await page.locator("input[name=q]").first.press("Enter")
    await page.wait_for_function("document.querySelector('.search-summary')?.innerText")
    links = await page.locator("ul.search li a").evaluate_all("links => links.map(link => link.getAttribute('href'))")
    pages = dict.fromkeys(link.partition("#")[0].removesuffix(".html") for link in links[:RESULTS_READ])
    return list(pages)


async def test_every_question_leads_to_its_page(site: Path, browser: Browser) -> None:
    assert len(QUESTIONS) == 50
    page = await browser.new_page()
    missed = []
    for question in QUESTIONS:
        wanted = question["page"] if isinstance(question["page"], list) else [question["page"]]
        results = await found(page, site, question["typed"])
        if not set(wanted) & set(results):
            missed.append(f"{question['asked']} ({question['typed']}): {', '.join(results) or 'nothing'}")
    await page.close()
    assert missed == []


async def test_every_answer_is_a_page(site: Path) -> None:
    answers = [
        one
        for question in QUESTIONS
        for one in ([question["page"]] if isinstance(question["page"], str) else question["page"])
    ]
    assert [one for one in answers if not (site / f"{one}.html").exists()] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_the_pages_have_no_serious_barriers_and_load_nothing_from_another_host(
    scheme: Any, site: Path, browser: Browser
) -> None:
    page = await browser.new_page(color_scheme=scheme)
    foreign: list[str] = []

    def note(request: Request) -> None:
        if not request.url.startswith(("file:", "data:")):
            foreign.append(request.url)

    page.on("request", note)
    names = ["index", "how-to/failures", "reference/api/application", "search"]
    problems = []
    for name in names:
        await page.goto((site / f"{name}.html").as_uri() + ("?q=retry" if name == "search" else ""))
        problems += [f"{name}: {one}" for one in await barriers(page)]
    await page.close()
    assert (problems, foreign) == ([], [])


async def test_no_page_is_wider_than_a_phone(site: Path, browser: Browser) -> None:
    page = await browser.new_page(viewport={"width": 390, "height": 844})
    wide = []
    for name in (
        "index",
        "how-to/failures",
        "reference/rest-operations",
        "reference/api/application",
        "reference/metrics",
    ):
        await page.goto((site / f"{name}.html").as_uri())
        if await page.evaluate("document.documentElement.scrollWidth > innerWidth"):
            wide.append(name)
    await page.close()
    assert wide == []
