"""A real gRPC server in the test's own process, on a free port, and clients of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.server.grpc.running import RunningServer, running_server
from tests.stores import url_of

OpenServer = Callable[..., Awaitable[RunningServer]]


@pytest.fixture
async def server(engine_name: str, tmp_path: Path) -> AsyncIterator[RunningServer]:
    """A server on a fresh store of each engine, whose caller may do everything."""
    async with running_server(url_of(engine_name, tmp_path)) as opened:
        yield opened


@pytest.fixture
async def sqlite_server(tmp_path: Path) -> AsyncIterator[RunningServer]:
    """The same for what has nothing to do with the engine."""
    async with running_server(url_of("sqlite", tmp_path)) as opened:
        yield opened


@pytest.fixture
async def open_server(tmp_path: Path) -> AsyncIterator[OpenServer]:
    """Opens a server with settings of the test's own, on SQLite."""
    async with AsyncExitStack() as stack:

        async def open_one(**settings: object) -> RunningServer:
            return await stack.enter_async_context(running_server(url_of("sqlite", tmp_path), **settings))

        yield open_one
