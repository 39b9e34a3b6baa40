"""An application on a fresh store, with a clock that stands still."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from everwork import Everwork
from tests.stores import VirtualClock, url_of


@pytest.fixture
def url(engine_name: str, tmp_path: Path) -> str:
    """An empty store that this process has not opened yet."""
    return url_of(engine_name, tmp_path, reuse=True)


@pytest.fixture
async def app(url: str, clock: VirtualClock) -> AsyncIterator[Everwork]:
    """An application that opens itself when it is used."""
    made = Everwork(url, worker="w1", clock=clock)
    yield made
    await made.close()
