"""The watch itself: what a page must not do is noticed, or all other tests of pages would prove nothing."""

from __future__ import annotations

from tests.browser.watching import Visitor

MISDEEDS = {
    "console error": "console.error('something is wrong')",
    "script error": "setTimeout(() => { throw new Error('broken') })",
    "CSP VIOLATION": "document.body.appendChild(document.createElement('script')).textContent = 'window.__pwned = 1'",
    "HOSTILE CODE RAN": "window.__pwned = 'yes'",
    "dialog": "setTimeout(() => alert('hello'))",
    "request to another host": "location.href = 'http://other.invalid/x'",
}


async def test_the_page_about_rest_does_nothing_wrong(visitor: Visitor) -> None:
    page = await visitor.go("/docs")
    await page.get_by_text("/api/v1/jobs/{key}/cancel").wait_for()
    assert visitor.watch.seen == []


async def test_what_a_page_must_not_do_is_noticed(visitor: Visitor) -> None:
    page = await visitor.go("/docs")
    visitor.watch.allow("")
    for name, misdeed in MISDEEDS.items():
        await page.evaluate(f"() => {{ {misdeed} }}")
        await visitor.sees(lambda name=name: any(name in one for one in visitor.watch.seen))  # type: ignore[misc]
