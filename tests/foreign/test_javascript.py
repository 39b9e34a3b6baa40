"""What JavaScript users meet who load the .proto file in the loader's default way."""

from __future__ import annotations

import pytest

from everwork.client import Client
from tests.client.server import ServerProcess
from tests.foreign.program import PROTO, node


@pytest.fixture
def job_type(request: pytest.FixtureRequest) -> str:
    """A type of the test's own."""
    return f"http-request-{request.node.name}"


async def test_without_keep_case_the_loader_has_camel_case_names(
    client: Client, server: ServerProcess, job_type: str
) -> None:
    program = node("camel.js", str(PROTO), server.address, job_type)
    assert program.wait() == 0
    [said] = program.events
    assert said["activated"] == [[said["created"], True]]
    assert (said["completed"], said["state"]) == (True, "COMPLETED")
    # INVALID_ARGUMENT: the snake_case field was dropped, so no key came at all; the message names the field.
    assert said["unnamed"]["code"] == 3
    assert "job_key" in said["unnamed"]["details"]
