"""Whole servers for tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.server.whole import Whole, running
from tests.stores import url_of


@pytest.fixture
async def whole(engine_name: str, tmp_path: Path) -> AsyncIterator[Whole]:
    """A server on each engine."""
    async with running(url_of(engine_name, tmp_path)) as opened:
        yield opened


@pytest.fixture
async def sqlite_whole(tmp_path: Path) -> AsyncIterator[Whole]:
    """A server for what has nothing to do with the engine."""
    async with running(url_of("sqlite", tmp_path)) as opened:
        yield opened
