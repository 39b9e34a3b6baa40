"""The search of the site, in a real browser and from the disk, answers what people ask."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.async_api import Browser, Page, Request

from tests.browser.barriers import COLOURS, barriers
from tests.browser.barriers import EVERYTHING as ALL_RULES
from tests.stores import EVERYTHING, at_length

QUESTIONS: Final[list[dict[str, Any]]] = tomllib.loads(Path(__file__).with_name("questions.toml").read_text("utf-8"))[
    "question"
]
RESULTS_READ: Final = 5
"""Few people look further."""
RESULTS: Final = """
all => all.map(typed =>
  Search._performSearch(...Search._parseQuery(typed)).reverse().map(([page, , anchor]) => `${page}.html${anchor}`))
"""
"""Sphinx's search with the site's ranking, worst result first; displaying the results would take seconds per query."""
LOOKED_AT: Final = (
    *("index", "how-to/failures", "search"),
    "reference/api/application" if EVERYTHING else "reference/api/exceptions",
)
"""One page of each kind; of the reference, the longest one if everything is tested, otherwise a short one."""
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]
"""The first test builds the site, which takes minutes on a busy machine."""


async def test_every_question_leads_to_its_page(site: Path, browser: Browser) -> None:
    assert len(QUESTIONS) == 50
    typed = [question["typed"] for question in QUESTIONS]
    page = await browser.new_page()
    results = [first_pages(links) for links in await asked_at_once(page, site, typed)]
    await page.close()
    assert [
        f"{question['asked']} ({question['typed']}): {', '.join(pages) or 'nothing'}"
        for question, pages in zip(QUESTIONS, results, strict=True)
        if not set(_wanted(question)) & set(pages)
    ] == []


async def test_typing_into_the_search_of_a_page_shows_these_results(site: Path, browser: Browser) -> None:
    typed = [question["typed"] for question in QUESTIONS[: at_length(len(QUESTIONS), 2)]]
    page = await browser.new_page()
    shown = [await asked_by_hand(page, site, one) for one in typed]
    assert shown == await asked_at_once(page, site, typed)
    assert all(shown)
    await page.close()


async def asked_by_hand(page: Page, site: Path, typed: str) -> list[str]:
    """Type words into the search of the first page; returns the links of the results."""
    await page.goto((site / "index.html").as_uri())
    await page.locator("input[name=q]").first.fill(typed)
    await page.locator("input[name=q]").first.press("Enter")
    await page.wait_for_function("document.querySelector('.search-summary')?.innerText")
    links = page.locator("ul.search li a")
    shown: list[str] = await links.evaluate_all("links => links.map(link => link.getAttribute('href'))")
    return shown


async def asked_at_once(page: Page, site: Path, typed: list[str]) -> list[list[str]]:
    """What the results page would show for each query; the index is read once, and nothing is displayed."""
    await page.goto((site / "search.html").as_uri())
    await page.wait_for_function("Search.hasIndex()")
    results: list[list[str]] = await page.evaluate(RESULTS, typed)
    return results


def first_pages(links: list[str]) -> list[str]:
    """The pages of the first results."""
    return list(dict.fromkeys(link.partition("#")[0].removesuffix(".html") for link in links[:RESULTS_READ]))


def _wanted(question: dict[str, Any]) -> list[str]:
    return question["page"] if isinstance(question["page"], list) else [question["page"]]


async def test_every_answer_is_a_page(site: Path) -> None:
    answers = [one for question in QUESTIONS for one in _wanted(question)]
    assert [one for one in answers if not (site / f"{one}.html").exists()] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_the_pages_have_no_serious_barriers_and_load_nothing_from_another_host(
    scheme: Any, site: Path, browser: Browser
) -> None:
    page = await browser.new_page(color_scheme=scheme)
    options = COLOURS if scheme == "dark" else ALL_RULES
    foreign: list[str] = []

    def note(request: Request) -> None:
        if not request.url.startswith(("file:", "data:")):
            foreign.append(request.url)

    page.on("request", note)
    problems = []
    for name in LOOKED_AT:
        await page.goto((site / f"{name}.html").as_uri() + ("?q=retry" if name == "search" else ""))
        problems += [f"{name}: {one}" for one in await barriers(page, options)]
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
