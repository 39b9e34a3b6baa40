"""Nothing that strangers have written is ever more than text, whatever page shows it."""

from __future__ import annotations

from urllib.parse import quote, urlencode

import pytest
import pytest_asyncio

from everwork.server.http.ui.redaction import visible
from tests.browser.hostile import CORPUS, NAMES, pour
from tests.browser.watching import Visitor
from tests.server.whole import Whole

LISTS = ("/ui", "/ui/types", "/ui/jobs", "/ui/dead", "/ui/workers", "/ui/triggers", "/ui/breakers", "/ui/keys",
         "/ui/audit", "/ui/settings")  # fmt: skip
GROWN = """() => {
  const bad = 'script, img, iframe, object, embed, link, meta, base, style, form[action^="http"]';
  const own = 'img[src^="/ui/static/"], input#key';
  const found = [...document.querySelectorAll('main *')].filter((one) => !one.matches(own) && (one.matches(bad)
    || [...one.attributes].some(({ name }) => name.startsWith('on') || name === 'style' || name === 'autofocus')
    || (one.hasAttribute('href') && !/^(\\/ui|\\/docs|#)/.test(one.getAttribute('href')))));
  return found.map((one) => one.outerHTML.slice(0, 200));
}"""
"""What no page of ours has, and what only a text that has become markup can have brought."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def jobs(whole: Whole) -> dict[str, int]:
    """A store with all of it; keys of jobs by the name of the text that they are full of."""
    return await pour(whole)


async def looked_at(operator: Visitor, path: str) -> str:
    """The text of a page on which nothing has grown; its live part was merged in once more."""
    page = await operator.go(path)
    if await page.locator("#pulse").count():
        await page.locator("#pulse[data-state=live]").wait_for()
    assert await page.evaluate(GROWN) == [], path
    return flat(await page.evaluate("document.body.textContent"))


def flat(text: str) -> str:
    """Without a difference between blanks: HTML knows none."""
    return " ".join(text.split())


async def test_lists_show_hostile_names_as_text(operator: Visitor, jobs: dict[str, int]) -> None:
    for path in (*LISTS, "/ui/trigger?name=way-out000000000/t"):
        await looked_at(operator, path)
        assert not await operator.is_too_wide(), path
    shown = await looked_at(operator, "/ui/types")
    assert [name for name, text in NAMES.items() if flat(visible(text))[:70] not in shown] == []


@pytest.mark.parametrize("name", CORPUS)
async def test_a_job_full_of_a_hostile_text_shows_it_as_text(
    operator: Visitor, jobs: dict[str, int], name: str
) -> None:
    text = CORPUS[name]
    shown = await looked_at(operator, f"/ui/jobs/{jobs[name]}")
    assert flat(visible(text)) in shown
    assert not await operator.is_too_wide()
    for path in (f"/ui/jobs/{jobs[name] + 1}", f"/ui/jobs/{jobs[name] + 2}", f"/ui/type?{urlencode({'name': text})}"):
        if name in NAMES or path.startswith("/ui/jobs"):  # One that is completed, one that is cancelled.
            await operator.go(path)
            assert await operator.page.evaluate(GROWN) == [], path


async def test_a_job_of_a_megabyte_is_shown_in_part(operator: Visitor, jobs: dict[str, int]) -> None:
    shown = await looked_at(operator, f"/ui/jobs/{jobs['huge']}")
    assert "more characters not shown" in shown
    assert len(shown) < 200_000
    assert not await operator.is_too_wide()


async def test_filters_in_an_address_are_text_too(operator: Visitor, jobs: dict[str, int]) -> None:
    names = ("type", "tenant", "worker", "correlation", "error", "cursor", "state", "back", "next", "token")
    asked = {name: urlencode(dict.fromkeys(names, text)) for name, text in NAMES.items()}
    paths = [f"/ui/jobs?{query}" for query in asked.values()]
    for name in ("image", "attribute", "way out", "address"):
        paths += [f"/ui/dead?{asked[name]}", f"/ui/login?{asked[name]}", f"/ui/jobs/{quote(NAMES[name], safe='')}"]
    operator.watch.allow("status of 4")
    for path in paths:
        await operator.page.goto(operator.url + path)
        assert await operator.page.evaluate(GROWN) == [], path
