"""Nothing that strangers have written is ever more than text, whatever page shows it."""

from __future__ import annotations

from urllib.parse import quote, urlencode

import pytest
import pytest_asyncio

from everwork.server.http.ui.texts import visible
from tests.browser.conftest import Visit
from tests.browser.hostile import CORPUS, NAMES, pour
from tests.browser.watching import Visitor
from tests.server.whole import KEY, Whole

LISTS = ("/ui", "/ui/types", "/ui/jobs", "/ui/dead", "/ui/workers", "/ui/triggers", "/ui/breakers", "/ui/keys",
         "/ui/audit", "/ui/settings")  # fmt: skip
GROWN = """() => {
  const bad = 'script, img, iframe, object, embed, link, meta, base, style, form[action^="http"]';
  const found = [...document.querySelectorAll('main *')].filter((one) => one.matches(bad)
    || [...one.attributes].some(({ name }) => name.startsWith('on') || name === 'style' || name === 'autofocus')
    || (one.hasAttribute('href') && !/^(\\/ui|\\/docs|#)/.test(one.getAttribute('href'))));
  return found.map((one) => one.outerHTML.slice(0, 200));
}"""
"""What no page of ours has, and what only a text that has become markup can have brought."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def jobs(whole: Whole) -> dict[str, int]:
    """A store with all of it; keys of jobs by the name of the text that they are full of."""
    return await pour(whole)


@pytest_asyncio.fixture(loop_scope="session")
async def reader(whole: Whole, jobs: dict[str, int], visit: Visit) -> Visitor:
    """Somebody who may see everything."""
    visitor = await visit(whole)
    await visitor.log_in(KEY)
    return visitor


async def looked_at(reader: Visitor, path: str) -> str:
    """The text of a page on which nothing has grown; its live part was merged in once more."""
    page = await reader.go(path)
    if await page.locator("#live").count():
        await page.locator("#pulse[data-state=live]").wait_for()
    assert await page.evaluate(GROWN) == [], path
    return flat(await page.evaluate("document.body.textContent"))


def flat(text: str) -> str:
    """Without a difference between blanks: HTML knows none."""
    return " ".join(text.split())


async def test_lists_show_hostile_names_as_text(reader: Visitor) -> None:
    for path in LISTS:
        await looked_at(reader, path)
        assert not await reader.is_too_wide(), path
    shown = await looked_at(reader, "/ui/types")
    assert [name for name, text in NAMES.items() if flat(visible(text))[:70] not in shown] == []


@pytest.mark.parametrize("name", CORPUS)
async def test_a_job_full_of_a_hostile_text_shows_it_as_text(reader: Visitor, jobs: dict[str, int], name: str) -> None:
    text = CORPUS[name]
    shown = await looked_at(reader, f"/ui/jobs/{jobs[name]}")
    assert flat(visible(text)) in shown
    assert not await reader.is_too_wide()
    for key in range(jobs[name] + 1, jobs[name] + 4):
        await looked_at(reader, f"/ui/jobs/{key}")
    if name in NAMES:
        await looked_at(reader, f"/ui/type?{urlencode({'name': text})}")


async def test_filters_in_an_address_are_text_too(reader: Visitor) -> None:
    for text in NAMES.values():
        names = ("type", "tenant", "worker", "correlation", "correlation_id", "error", "cursor", "back", "next")
        asked = urlencode(dict.fromkeys(names, text))
        reader.watch.allow("status of 4")
        for path in ("/ui/jobs", "/ui/dead", "/ui/login"):
            await reader.page.goto(f"{reader.url}{path}?{asked}")
            assert await reader.page.evaluate(GROWN) == [], (path, text)
        await reader.page.goto(f"{reader.url}/ui/jobs/{quote(text, safe='')}")
        assert await reader.page.evaluate(GROWN) == [], text
