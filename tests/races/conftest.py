"""The stores that the races run on: shared by processes, on the engine's real clock."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from everwork.engines.contract import Engine
from everwork.engines.open import open_engine
from tests.stores import url_of


@pytest.fixture
def url(engine_name: str, tmp_path: Path) -> str:
    """A store that nobody has opened yet."""
    return url_of(engine_name, tmp_path)


@pytest.fixture
async def engine(url: str) -> AsyncIterator[Engine]:
    """The test's own engine on that store."""
    engine = open_engine(url)
    await engine.open()
    yield engine
    await engine.close()
