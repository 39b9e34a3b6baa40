"""One connection: it is given up when nothing comes through it any more, also while nobody asks anything."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from everwork.aio.loops import new_loop
from everwork.engines.redis import connection as connections
from everwork.engines.redis import wire as wires
from everwork.engines.redis.connection import Connection
from everwork.engines.redis.store_url import StoreUrl
from tests.app.waiting import until
from tests.factories import TYPE
from tests.redis.conftest import opened
from tests.servers import RedisServer
from tests.torture.proxy import Proxy

DEADLINE_S = 30.0


@pytest.fixture
def often_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection is tried every quarter of a second."""
    for name in ("PING_SECONDS", "_CHECK_SECONDS"):
        monkeypatch.setattr(wires, name, getattr(wires, name) / 60)


@pytest.fixture
def impatient(often_tried: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A silence of half a second is enough."""
    monkeypatch.setattr(wires, "SILENCE_SECONDS", wires.SILENCE_SECONDS / 60)


@pytest.fixture
async def proxy(server: RedisServer) -> AsyncIterator[Proxy]:
    """A way to the server that may swallow everything."""
    proxy = Proxy(server.port)
    yield proxy
    await proxy.close()


def pings_at(server: RedisServer) -> int:
    return int(server.ask("INFO", "commandstats").split("cmdstat_ping:calls=")[1].split(",")[0])


def swallow_everything(proxy: Proxy) -> None:
    """Pass nothing on, and close nothing."""
    for link in proxy._links:
        link._flows.clear()


@pytest.mark.usefixtures("impatient")
async def test_a_connection_that_only_listens_is_given_up_when_nothing_comes_through(proxy: Proxy) -> None:
    connection = Connection(StoreUrl.from_url(f"redis://127.0.0.1:{await proxy.start()}"), None)
    wire = await connection.connect(lambda _: None)
    swallow_everything(proxy)
    await asyncio.wait_for(wire.ended, DEADLINE_S)


@pytest.mark.usefixtures("often_tried")
async def test_a_connection_that_only_listens_is_kept_while_the_server_answers(server: RedisServer) -> None:
    wire = await Connection(StoreUrl.from_url(server.url), None).connect(lambda _: None)
    before = pings_at(server)
    await until(lambda: pings_at(server) >= before + 3)
    assert wire.is_open
    wire.close()


@pytest.mark.usefixtures("impatient")
async def test_an_engine_listens_again_after_its_network_has_swallowed_everything(proxy: Proxy) -> None:
    async with opened(f"redis://127.0.0.1:{await proxy.start()}") as engine:
        await engine.wait([TYPE], 1)
        deaf = engine._store.wakeups._wire
        waiter = asyncio.ensure_future(engine.wait([TYPE], 600_000, engine.mark()))
        swallow_everything(proxy)
        assert await asyncio.wait_for(waiter, DEADLINE_S)
        await engine.wait([TYPE], 1)
        assert engine._store.wakeups._wire is not deaf


def test_a_connection_whose_opening_is_cancelled_when_it_is_made_is_watched_no_longer(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    openings: list[asyncio.Future[wires.Wire]] = []
    checks: list[wires.Wire] = []

    class CancelsItsOpening(wires.Wire):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            openings[0].cancel()

        def _check(self) -> None:
            checks.append(self)
            super()._check()

    async def cancelled_opening() -> None:
        openings.append(asyncio.ensure_future(Connection(StoreUrl.from_url(server.url), None).connect()))
        await asyncio.wait(openings)
        checks.clear()
        for _ in range(100):
            await asyncio.sleep(0)

    monkeypatch.setattr(connections, "Wire", CancelsItsOpening)
    monkeypatch.setattr(wires, "_CHECK_SECONDS", 0.0)
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(cancelled_opening())
    assert openings[0].cancelled()
    assert not checks
