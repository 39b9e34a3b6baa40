"""The page of settings and health."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.server.http.serving import serving
from tests.server.http.ui.visiting import Visitor, visiting
from tests.stores import url_of


async def test_the_settings_in_force_are_shown_without_secrets(tmp_path: Path) -> None:
    secret = "postgresql://ann:hunter-hunter@db.example.org/jobs"
    settings: dict[str, Any] = {
        "engine": secret,
        "api_key": "root-root-root-root",
        "masked_variables": ("pin",),
        "rate_limit": 7,
    }
    async with serving(url_of("sqlite", tmp_path), **settings) as rest, visiting(rest) as visitor:
        page = await visitor.page("/ui/settings")
        assert ("hunter" in page, "root-root" in page) == (False, False)
        own, _, usual = page.partition("Defaults")
        for name, value in {"engine": "db.example.org/jobs", "rate_limit": "7", "masked_variables": "pin"}.items():
            assert name in own
            assert value in own
        assert "log_level" in usual


async def test_the_page_says_what_an_examination_finds_and_what_to_do(visitor: Visitor) -> None:
    await visitor.rest.dead_letter()
    page = await visitor.page("/ui/settings")
    for told in ("All good; 1 note", "1 failed job (dead letters", "survive a power failure", "1 failed"):
        assert told in page, told
    assert "sqlite" in page
    assert '<a href="/ui/dead">Dead letters</a>' in page
    assert "0 (any free port)" in page


async def test_what_needs_somebody_stands_first(visitor: Visitor) -> None:
    await visitor.rest.job(type="orphan")
    await visitor.rest.dead_letter()
    page = await visitor.page("/ui/settings")
    problem, note = page.index("type 'orphan'"), page.index("dead letters")
    assert problem < note
    assert "What to do: start a worker for this type" in page
    assert 'the oldest since <time datetime="' in page
    assert "All good" not in page


async def test_an_examination_is_not_repeated_for_whoever_loads_the_page_again(visitor: Visitor) -> None:
    await visitor.page("/ui/settings")
    await visitor.rest.dead_letter()
    assert "1 dead letter" not in await visitor.page("/ui/settings")
