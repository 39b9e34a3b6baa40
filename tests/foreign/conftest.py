"""One server and one set of stubs for all programs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from everwork.client import Client
from tests.client.server import KEY, ServerProcess
from tests.foreign.program import generated_stubs
from tests.stores import url_of
from tools.node import find_packages

collect_ignore = [] if find_packages() else ["test_javascript.py"]
"""Without the packages nothing runs in JavaScript; the end of the run says so, see tests/conftest.py."""


@pytest.fixture(scope="session")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stubs of the jobs API as a user generates them."""
    return generated_stubs(tmp_path_factory.mktemp("stubs"))


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server for all programs; each test has job types of its own."""
    folder = tmp_path_factory.mktemp("server")
    process = ServerProcess(url_of("sqlite", folder), folder).start()
    yield process
    process.stop()


@pytest.fixture
async def client(server: ServerProcess) -> AsyncIterator[Client]:
    """The test's own eyes and hands."""
    async with Client(server.grpc_url, key=KEY) as made:
        yield made
