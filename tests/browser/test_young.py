"""Empty and young stores look deliberate, and the live indicator is understood without color."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from playwright.async_api import expect

from tests.browser.barriers import barriers
from tests.browser.conftest import Visit
from tests.browser.populations import a_population
from tests.browser.watching import PHONE, Visitor
from tests.server.whole import KEY

STATES: Final = ("live", "reconnecting", "paused")
CONTRAST_MIN: Final = 3.0
"""Of graphics that have a meaning (WCAG 2.2, 1.4.11)."""
DOT: Final = """(state) => {
  const pulse = document.getElementById('pulse');
  pulse.dataset.state = state;
  const style = getComputedStyle(pulse.querySelector('.dot'));
  const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = (text) => rgb(text).slice(0, 3).map((c) => c / 255)
    .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, at) => sum + c * [0.2126, 0.7152, 0.0722][at], 0);
  const isFull = rgb(style.backgroundColor).length < 4;
  const [a, b] = [light(isFull ? style.backgroundColor : style.borderLeftColor),
                  light(getComputedStyle(document.body).backgroundColor)];
  return {
    contrast: (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05),
    shape: [isFull, style.borderTopWidth !== '0px', style.borderRadius === '50%'].join(),
  };
}"""
"""The contrast of the live indicator in a state, and what tells its shape apart."""


@pytest.mark.parametrize("look", ["light", "dark"])
async def test_the_live_indicator_is_visible_and_its_states_differ_in_shape(operator: Visitor, look: str) -> None:
    page = await operator.go("/ui/types")
    await page.emulate_media(color_scheme="dark" if look == "dark" else "light")
    await page.locator("#pulse[data-state=live]").wait_for()
    dots = [await page.evaluate(DOT, state) for state in STATES]
    assert all(dot["contrast"] >= CONTRAST_MIN for dot in dots), dots
    assert len({dot["shape"] for dot in dots}) == len(STATES)


async def test_a_page_in_the_background_is_paused_and_live_again_in_front(operator: Visitor) -> None:
    page = await operator.go("/ui/types")
    await expect(page.locator("#pulse[data-state=live]")).to_have_text("Live")
    hide = """(is_hidden) => {
      Object.defineProperty(document, 'hidden', { value: is_hidden, configurable: true });
      document.dispatchEvent(new Event('visibilitychange'));
    }"""
    await page.evaluate(hide, True)
    await expect(page.locator("#pulse[data-state=paused]")).to_have_text("Paused")
    await page.evaluate(hide, False)
    await expect(page.locator("#pulse[data-state=live]")).to_have_text("Live")


@pytest.mark.parametrize(
    ("name", "words", "tone"),
    [
        ("empty", "Idle: no jobs yet", "calm"),
        ("one", "No workers running: the oldest due job has waited", "bad"),
        ("young", "Elevated failure rate: 2 of 6 attempts failed", "warn"),
        ("failing", "Failing: all 4 attempts failed", "bad"),
    ],
)
async def test_a_young_store_says_how_it_is_and_has_no_serious_barrier(
    name: str, words: str, tone: str, tmp_path: Path, visit: Visit
) -> None:
    async with a_population(name, tmp_path) as population:
        visitor = await visit(population.whole, KEY)
        page = await visitor.go("/ui")
        await expect(page.locator(f".glance-{tone} .glance-main")).to_contain_text(words)
        assert await page.locator(".chart, circle").count() == 0  # Neither lone dots nor a chart of one point.
        assert await page.locator(".chart-empty" if name in ("empty", "one") else ".totals").count() > 0
        assert await barriers(page) == []
        await page.set_viewport_size(PHONE)
        assert not await visitor.is_too_wide()
        await visitor.context.close()
