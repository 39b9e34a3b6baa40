"""The short lane of the fleet: servers, their clients and the store are killed, and no promise is broken."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stores import EVERYTHING, at_length
from tests.torture.fleet.campaign import Settings, storm
from tests.torture.fleet.storm import FAILOVER
from tests.torture.places import own_place


@pytest.mark.timeout(400)
@pytest.mark.parametrize("engine", ["sqlite", "postgres", "redis", "redis-cluster"] if EVERYTHING else ["redis"])
async def test_kills_of_servers_and_of_their_clients_break_no_promise(engine: str, tmp_path: Path) -> None:
    with own_place(engine) as place:
        store_kills = 1 if place.server else 0
        run = await storm(
            Settings(
                place, tmp_path, at_length(1_000, 200), at_length(20, 6), store_kills, kills_per_minute=90,
                backlog=100, is_small=True,
            )
        )  # fmt: skip
    assert run.verdict.passed, dict(run.verdict.shown)
    assert run.nemeses["unexpected exits"] == 0
    assert run.nemeses["kills: store"] == store_kills
    failovers = [run.nemeses[f"{FAILOVER}{reason}"] for reason in ("planned", "primary killed")]
    assert failovers == ([store_kills] * 2 if engine == "redis-cluster" else [0, 0])
    assert run.verdict.figures["attempts started"] > 100
