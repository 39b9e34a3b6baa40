"""The short lane: twenty processes killed under load, and nothing lost, doubled or taken twice."""

from __future__ import annotations

from pathlib import Path

from tests.torture.controller import Settings, torture
from tests.torture.urls import fresh_url


async def test_twenty_kills_under_load_break_no_promise(engine_name: str, tmp_path: Path) -> None:
    run = await torture(Settings(fresh_url(engine_name, tmp_path), tmp_path, kills=20, workers=3, producers=1))
    assert run.verdict.passed, dict(run.verdict.shown)
    assert run.nemeses["unexpected ends"] == 0
    assert run.verdict.figures["acknowledged"] > 100
