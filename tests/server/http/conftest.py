"""Servers for the tests of REST."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.server.http.serving import Rest, serving
from tests.stores import url_of


@pytest.fixture
async def rest(engine_name: str, tmp_path: Path) -> AsyncIterator[Rest]:
    """A server on each engine."""
    async with serving(url_of(engine_name, tmp_path)) as server:
        yield server


@pytest.fixture
async def local(tmp_path: Path) -> AsyncIterator[Rest]:
    """A server on SQLite, for what no engine has a part in."""
    async with serving(url_of("sqlite", tmp_path)) as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def unchanged(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rest]:
    """One server on SQLite for all tests of a module that get nothing but refusals."""
    async with serving(url_of("sqlite", tmp_path_factory.mktemp("unchanged"))) as server:
        yield server
