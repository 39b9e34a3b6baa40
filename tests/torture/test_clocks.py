"""The clocks of a torture run: jumps must reach the store, otherwise the run would test nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from everwork.aio import clocks as product
from everwork.engines.open import open_engine
from tests.torture import clocks

HOUR_MS = 3_600_000


@pytest.fixture
def followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process uses both clocks until the test ends."""
    monkeypatch.setitem(vars(product), "time", vars(product)["time"])
    for name in (clocks.HOST, clocks.OWN):
        monkeypatch.setenv(name, str(tmp_path / name))
    clocks.follow()


@pytest.mark.parametrize("name", [clocks.HOST, clocks.OWN])
def test_a_jump_reaches_what_reads_the_time(name: str, tmp_path: Path, followed: None) -> None:
    before_ms = product.host_clock_ms()
    clocks.clock_at(str(tmp_path / name)).jump(HOUR_MS)
    assert product.host_clock_ms() - before_ms >= HOUR_MS


async def test_a_jump_of_the_host_reaches_a_store_in_a_file(tmp_path: Path, followed: None) -> None:
    engine = open_engine(f"sqlite:///{tmp_path / 'jobs.db'}")
    await engine.open()
    try:
        before_ms = await engine.now()
        clocks.clock_at(str(tmp_path / clocks.HOST)).jump(HOUR_MS)
        assert await engine.now() - before_ms >= HOUR_MS
    finally:
        await engine.close()
