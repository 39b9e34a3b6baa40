"""last_registered: the newest pages of a kind whose names sort by time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from everwork.engines.values import Registered
from tests.stores import DAY_MS, SECOND_MS

if TYPE_CHECKING:
    from everwork.engines.contract import Engine
    from tests.stores import VirtualClock


async def names(engine: Engine, limit: int, below: str | None = None, kind: str = "audit") -> list[str]:
    """The names of a page."""
    return [entry.name for entry in await engine.last_registered(kind, limit, below)]


async def test_the_highest_names_come_first_with_all_that_is_said_of_them(engine: Engine, clock: VirtualClock) -> None:
    await engine.register("audit", "001", "first")
    await engine.register("audit", "002", "second", SECOND_MS)
    assert await engine.last_registered("audit", 10) == [
        Registered("audit", "002", "second", clock.now_ms + SECOND_MS),
        Registered("audit", "001", "first", None),
    ]


async def test_paging_on_from_the_last_name_meets_every_entry_once(engine: Engine) -> None:
    expected = [f"{number:03}" for number in range(25)]
    for name in sorted(expected, key=lambda name: name[::-1]):
        await engine.register("audit", name, "x")
    met = await names(engine, 10)
    while page := await names(engine, 10, met[-1]):
        met += page
    assert met == expected[::-1]


async def test_entries_of_other_kinds_are_not_met(engine: Engine) -> None:
    for kind in ("audi", "audit", "audits", "audit-old", "zebra"):
        await engine.register(kind, "name", kind)
    assert [entry.body for entry in await engine.last_registered("audit", 10)] == ["audit"]
    assert [entry.body for entry in await engine.registered("audit")] == ["audit"]
    assert await names(engine, 10, kind="unheard-of") == []


async def test_names_sort_by_their_characters_whatever_the_language(engine: Engine) -> None:
    expected = ["A", "Z", "a", "z", "é", "中", "😀"]
    for name in expected:
        await engine.register("audit", name, "x")
    assert await names(engine, 10) == expected[::-1]
    assert await names(engine, 10, "z") == ["a", "Z", "A"]


async def test_entries_that_ran_out_do_not_shorten_a_page(engine: Engine, clock: VirtualClock) -> None:
    for number in range(9):
        await engine.register("audit", str(number), "x", SECOND_MS if number % 3 else DAY_MS)
    clock.advance(seconds=2)
    assert await names(engine, 2) == ["6", "3"]
    assert await names(engine, 2, "3") == ["0"]


async def test_what_was_taken_away_is_not_met(engine: Engine) -> None:
    for name in "abc":
        await engine.register("audit", name, "x")
    await engine.unregister("audit", "b")
    assert await names(engine, 10) == ["c", "a"]


async def test_a_sweep_forgets_what_ran_out_and_leaves_the_rest_in_order(engine: Engine, clock: VirtualClock) -> None:
    for name in "abcd":
        await engine.register("audit", name, "x", SECOND_MS if name in "bd" else None)
    clock.advance(ms=DAY_MS)
    await engine.sweep("s")
    assert await names(engine, 10) == ["c", "a"]
    assert [entry.name for entry in await engine.registered("audit")] == ["a", "c"]
