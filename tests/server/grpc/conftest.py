"""A real gRPC server in the test's own process, on a free port, and clients of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.server.grpc.place import Place, opened_place
from tests.stores import url_of

OpenPlace = Callable[..., Awaitable[Place]]


@pytest.fixture
async def place(engine_name: str, tmp_path: Path) -> AsyncIterator[Place]:
    """A server on a fresh store of each engine, whose caller may do everything."""
    async with opened_place(url_of(engine_name, tmp_path)) as opened:
        yield opened


@pytest.fixture
async def sqlite_place(tmp_path: Path) -> AsyncIterator[Place]:
    """The same for what has nothing to do with the engine."""
    async with opened_place(url_of("sqlite", tmp_path)) as opened:
        yield opened


@pytest.fixture
async def open_place(tmp_path: Path) -> AsyncIterator[OpenPlace]:
    """Opens a server with settings of the test's own, on SQLite."""
    async with AsyncExitStack() as stack:

        async def open_one(**settings: object) -> Place:
            return await stack.enter_async_context(opened_place(url_of("sqlite", tmp_path), **settings))

        yield open_one
