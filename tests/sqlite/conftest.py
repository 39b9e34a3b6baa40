"""A SQLite engine on a file of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from everwork.engines.sqlite.engine import SqliteEngine
from everwork.engines.sqlite.store_url import StoreUrl
from tests.stores import VirtualClock


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where the test's database is."""
    return tmp_path / "jobs.db"


@pytest.fixture
async def sqlite(file: Path, clock: VirtualClock) -> AsyncIterator[SqliteEngine]:
    """An open engine on that file."""
    engine = SqliteEngine(StoreUrl(str(file)), clock)
    await engine.open()
    yield engine
    await engine.close()
