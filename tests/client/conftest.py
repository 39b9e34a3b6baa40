"""Clients of every kind, on fresh stores and real servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from everwork.client import Client
from everwork.core.job import StoredJob
from everwork.core.states import LIVE_STATES
from tests.client.server import KEY, ServerProcess
from tests.stores import url_of

WAYS = ["in process", "remote"]


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A fresh store."""
    return url_of("sqlite", tmp_path)


@pytest.fixture
def server(url: str, tmp_path: Path) -> Iterator[ServerProcess]:
    """A server on that store, for tests that stop or kill it."""
    process = ServerProcess(url, tmp_path).start()
    yield process
    process.stop()


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server for many tests: starting one takes longer than most of them."""
    folder = tmp_path_factory.mktemp("server")
    process = ServerProcess(url_of("sqlite", folder), folder).start()
    yield process
    process.stop()


@pytest.fixture
async def remote(shared_server: ServerProcess) -> AsyncIterator[Client]:
    """A client of that server; what a test leaves behind is removed."""
    async with Client(shared_server.grpc_url, key=KEY) as client:
        yield client
        await emptied(client)


@pytest.fixture(params=WAYS)
async def client(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Client]:
    """A client that finds no jobs: in process on a fresh store, or of a server."""
    if request.param == "remote":
        address = request.getfixturevalue("shared_server").grpc_url
        async with Client(address, key=KEY) as made:
            yield made
            await emptied(made)
    else:
        async with Client(url_of("sqlite", tmp_path)) as made:
            yield made


async def emptied(client: Client) -> None:
    """Remove every job."""

    async def remove(job: StoredJob) -> None:
        if job.state in LIVE_STATES:
            await client.cancel(job.key)
        await client.delete(job.key)

    await asyncio.gather(*[remove(job) async for job in client.list()])
