"""Every page, as people look at it: light, dark, on a phone, and while there is nothing to show yet."""

from __future__ import annotations

import pytest

from everwork.server.http.ui import pages
from everwork.server.http.ui.address import SERVER
from tests.browser.barriers import COLOURS, SHAPES, barriers
from tests.browser.conftest import Visit
from tests.browser.watching import DESKTOP, PHONE, Visitor
from tests.browser.world import PAGES, World

EMPTY = ("/ui", "/ui/types", "/ui/jobs", "/ui/dead", "/ui/workers", "/ui/triggers", "/ui/breakers", "/ui/keys",
         "/ui/audit", "/ui/settings")  # fmt: skip


def test_no_page_is_left_out() -> None:
    seen = {path.partition("?")[0] for path in PAGES.values()} | {"/ui/login"}
    shown = {SERVER.at(page.path).partition("{")[0] for page in pages.PAGES if not page.path.endswith("/text")}
    assert {path.partition("{")[0] for path in seen} == shown


@pytest.mark.parametrize("name", [name for name in PAGES if name != "jobs-failed"])
async def test_a_page_has_no_serious_barrier_in_any_look(name: str, world: World, shared_visit: Visit) -> None:
    visitor = await shared_visit(world, world.keys["operations"])
    page = await visitor.go(world.pages[name])
    found = {"light": await barriers(page)}
    await page.emulate_media(color_scheme="dark")
    found["dark"] = await barriers(page, COLOURS)
    await page.set_viewport_size(PHONE)
    found["phone"] = await barriers(page, SHAPES)
    assert {look: told for look, told in found.items() if told} == {}
    assert not await visitor.is_too_wide()


async def test_the_page_to_log_in_has_no_serious_barrier(visitor: Visitor) -> None:
    assert await barriers(await visitor.go("/ui/login")) == []


async def test_pages_without_anything_to_show_have_no_serious_barrier(operator: Visitor) -> None:
    page = operator.page
    for path in EMPTY:
        await operator.go(path)
        assert await barriers(page) == [], path
        await page.set_viewport_size(PHONE)
        assert not await operator.is_too_wide(), path
        await page.set_viewport_size(DESKTOP)
