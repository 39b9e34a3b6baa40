"""The page of the audit log."""

from __future__ import annotations

import re

from everwork.service.access.audit import Audit
from everwork.service.access.principal import Permission, Principal
from tests.server.http.ui.visiting import Visitor

ANN = Principal("k1", "ann", frozenset([Permission.ALL]))
BOB = Principal("k2", "bob", frozenset([Permission.ALL]))


def actions_in(page: str) -> list[str]:
    """The actions of the entries, in order, without logins."""
    found = re.findall(r"<td[^>]*><code>([^<]+)</code></td>", page)
    return [one for one in found if not one.startswith("ui.")]


async def test_an_entry_says_who_did_what_to_what_from_where(visitor: Visitor) -> None:
    audit = Audit(visitor.rest.engine)
    key = (await visitor.rest.keys.create("shop", ["jobs"])).key.id
    await audit.record(ANN, "keys.revoke", key, "10.0.0.7")
    await audit.record(ANN, "types.policy", "a/b & c", "cli", {"max_attempts": 4, "secret": "hunter"})
    await audit.record(BOB, "jobs.cancel", "17", "cli", {"reason": "<b>"})
    await audit.record(BOB, "triggers.off", "w1/nightly", "cli", {"title": "nightly report"})
    await audit.record(BOB, "dead.purge", "*", "cli", {"filter": {"failed_before_ms": 0}, "changed": 2})
    page = await visitor.page("/ui/audit")
    assert actions_in(page) == ["dead.purge", "triggers.off", "jobs.cancel", "types.policy", "keys.revoke"]
    links = {
        "shop": "/ui/keys",
        "a/b & c": "/ui/type?name=a%2Fb+%26+c",
        "17": "/ui/jobs/17",
        "nightly report": "/ui/trigger?name=w1%2Fnightly",
    }
    for label, href in links.items():
        assert f'<a href="{href}">{label}</a>' in page, label
    for told in ("ann", "10.0.0.7", "max attempts 4", "failed before 1970-01-01 00:00 UTC, changed 2"):
        assert told in page, told
    assert "hunter" not in page


async def test_the_log_is_read_page_by_page_and_filtered(visitor: Visitor) -> None:
    audit = Audit(visitor.rest.engine)
    for number in range(250):
        await audit.record(BOB if number % 50 else ANN, f"types.pause{number}", "t", "cli")
    shown: list[str] = []
    path, lives = "/ui/audit?action=types", []
    while path:
        page = await visitor.page(path)
        shown += actions_in(page)
        lives.append("data-live" in page)
        [path] = re.findall(r'rel="next" href="([^"]+)"', page) or [""]
    assert shown == [f"types.pause{number}" for number in reversed(range(250))]
    assert lives == [True, False, False]
    few = await visitor.page("/ui/audit?who=ANN")
    assert actions_in(few) == [f"types.pause{number}" for number in (200, 150, 100, 50, 0)]
    none = await visitor.page("/ui/audit?action=keys.&who=nobody")
    assert "No matching entries" in none


async def test_a_cursor_that_is_none_is_told_in_words(visitor: Visitor) -> None:
    assert "below: must" in await visitor.page("/ui/audit?below=%00", 422)
