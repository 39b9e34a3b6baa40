"""Fixtures for every test that needs a store of jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.stores import ENGINES, VirtualClock, open_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from everwork.engines.base import Engine


@pytest.fixture
def clock() -> VirtualClock:
    """The clock of the test's engine."""
    return VirtualClock()


@pytest.fixture(params=ENGINES)
def engine_name(request: pytest.FixtureRequest) -> str:
    """Which engine the test runs on."""
    return str(request.param)


@pytest.fixture
async def engine(engine_name: str, tmp_path: Path, clock: VirtualClock) -> AsyncIterator[Engine]:
    """An open engine on a fresh store."""
    opened = await open_store(engine_name, tmp_path, clock)
    yield opened
    await opened.close()
