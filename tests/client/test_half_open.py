"""A server that vanished without a word: whoever waits for it is told before leases lapse."""

from __future__ import annotations

import asyncio
from typing import Final

import pytest

from everwork.client import Client, remote
from everwork.exceptions import EngineUnavailable
from tests.client.server import KEY, ServerProcess
from tests.server.grpc.test_half_open import cable_to

NOTICED_SECONDS: Final = 30.0
"""5 s for the answer to a ping, and much patience with a slow machine; gRPC's own patience is a minute."""


async def test_a_line_that_is_dead_without_saying_so_is_noticed(
    shared_server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The first ping comes sooner than in earnest: the wait for its answer is what this is about.
    monkeypatch.setattr(remote, "OPTIONS", (*_without_keepalive(), ("grpc.keepalive_time_ms", 500)))
    async with cable_to(int(shared_server.facts["grpc_port"])) as (cable, port), a_client(port) as client:
        await client.page()
        cable.cut()
        with pytest.raises(EngineUnavailable):  # A create without a dedupe key is not repeated.
            await asyncio.wait_for(client.create("a"), NOTICED_SECONDS)


def a_client(port: int) -> Client:
    return Client(f"grpc://127.0.0.1:{port}", key=KEY, timeout=300)


def _without_keepalive() -> list[tuple[str, int]]:
    return [(name, value) for name, value in dict[str, int](remote.OPTIONS).items() if name != "grpc.keepalive_time_ms"]
