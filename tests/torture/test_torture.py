"""The short lane: ten processes and the server killed under load, and nothing lost, doubled or taken twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stores import at_length
from tests.torture.controller import torture
from tests.torture.nemesis import Settings
from tests.torture.places import own_place


@pytest.mark.timeout(400)
async def test_kills_of_processes_and_servers_under_load_break_no_promise(engine_name: str, tmp_path: Path) -> None:
    with own_place(engine_name) as place:
        server_kills = at_length(3, 2) if place.server else 0
        run = await torture(
            Settings(
                place, tmp_path, kills=at_length(20, 7), server_kills=server_kills, workers=2, producers=1, managers=1
            )
        )
    assert run.verdict.passed, dict(run.verdict.shown)
    assert run.nemeses["unexpected exits"] == 0
    assert run.nemeses["kills of the server"] == server_kills
    assert run.verdict.figures["acknowledged"] > 100
    assert run.verdict.figures["scheduled times fired by managers"] > 10
