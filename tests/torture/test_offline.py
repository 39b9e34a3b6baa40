"""The short lane of offline mode: the store is away for a moment, producers and workers are killed, nothing is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from tests.stores import at_length
from tests.torture.offline.ordeal import Ordeal, endure
from tests.torture.places import own_place

SHORT: Final[dict[str, Any]] = {
    "away_seconds": 1.5,
    "acknowledged": 100,
    "producers": 3,
    "workers": 2,
    "lease_ms": 1_500,
}


@pytest.mark.timeout(400)
async def test_an_outage_and_kills_lose_and_double_nothing(engine_name: str, tmp_path: Path) -> None:
    with own_place(engine_name) as place:
        outages = at_length(3, 1)
        run = await endure(Ordeal(place, tmp_path, outages, kills=4 * outages, **SHORT))
    assert run.verdict.passed, dict(run.verdict.shown)
    assert run.nemeses["unexpected exits"] == 0
    assert sum(times for name, times in run.nemeses.items() if name.startswith("outages")) == outages
    assert run.verdict.figures["jobs acknowledged by a spool"] > 0
