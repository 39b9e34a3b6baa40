"""Streams and pollers in the registry: one entry per server, few writes, and a list that no caller can fill."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from everwork.core.leasing import Demand
from everwork.engines.contract import Engine
from everwork.service.fleet.clients import LINGER_SECONDS, ClientWorkers
from everwork.service.fleet.entries import CLIENT_TYPES_MAX, CLIENTS_BYTES_MAX, CLIENTS_MAX, ProcessEntry
from everwork.service.fleet.fleet import Fleet
from everwork.service.fleet.live import BEAT_SECONDS, CLIENTS, FLEET_TTL_MS
from tests.stores import VirtualClock


class CountingFleet(Fleet):
    """Counts the writes."""

    writes = 0

    async def beat_clients(self, name: str, workers: Sequence[ProcessEntry], left_out: int) -> None:
        self.writes += 1
        await super().beat_clients(name, workers, left_out)


class StubStream:
    """A stream of the worker `fast`, for two types."""

    poller_key = ("k1", "fast")
    types = ("b", "a")
    running = 2
    ended_jobs = 40


class Seen:
    """The clients of one server, by a clock that the test moves; nothing is written but by the test."""

    def __init__(self, engine: Engine) -> None:
        self.now = 100.0
        self.fleet = CountingFleet(engine)
        self.clients = ClientWorkers(self.fleet, "server-1", lambda: self.now)
        self.clients._loop = object()  # type: ignore[assignment] # No loop of its own.

    def poll(self, worker: str, type: str = "mails", caller: str = "k1", group: str = "") -> None:
        """One poll, from begin to end."""
        with self.clients.polling(caller, Demand(type, worker, 1, 1_000, group)):
            pass

    async def listed(self) -> list[ProcessEntry]:
        """What is in the registry after a write."""
        await self.clients.write()
        return await self.fleet.processes()


@pytest.fixture
async def seen(engine: Engine) -> Seen:
    """A server that has seen nobody."""
    return Seen(engine)


async def test_a_poller_is_listed_with_its_types_and_polls_cost_no_write(seen: Seen) -> None:
    for _ in range(100):
        seen.poll("w1")
        seen.poll("w1", "bills", group="archive")
        await seen.clients.write()
    [found] = await seen.fleet.processes()
    assert (found.name, found.kind, found.via) == ("w1", "poller", "server-1")
    assert found.types == ("bills (group archive)", "mails")
    assert seen.fleet.writes == 1
    seen.now += BEAT_SECONDS
    await seen.clients.write()
    assert seen.fleet.writes == 2


async def test_a_poller_is_listed_while_it_waits_and_a_little_longer(seen: Seen) -> None:
    with seen.clients.polling("k1", Demand("mails", "w1", 1, 1_000)):
        seen.now += 10 * LINGER_SECONDS
        assert len(await seen.listed()) == 1
    seen.now += LINGER_SECONDS
    [quiet] = await seen.listed()
    assert quiet.quiet_ms == LINGER_SECONDS * 1000
    seen.now += 0.1
    assert await seen.listed() == []


async def test_the_feeds_of_a_stream_are_no_pollers(seen: Seen) -> None:
    stream = StubStream()
    seen.clients.add(stream)
    seen.poll("fast")
    seen.poll("fast", caller="k2")
    found = {(one.name, one.kind): one for one in await seen.listed()}
    assert found.keys() == {("fast", "stream"), ("fast", "poller")}
    one = found["fast", "stream"]
    assert (one.types, one.running, one.ended) == (("a", "b"), 2, 40)
    seen.clients.remove(stream)
    seen.clients.remove(stream)
    assert [one.kind for one in await seen.listed()] == ["poller"]


async def test_a_caller_with_many_names_gets_its_share_and_keeps_out_nobody(seen: Seen, engine: Engine) -> None:
    for at in range(20 * CLIENTS_MAX):
        seen.poll(f"{at:04}-{'x' * 200}", f"{'t' * 200}{at}")
    for at in range(3):
        seen.poll(f"mine-{at}", caller="k2")
    found = await seen.listed()
    assert len(found) <= CLIENTS_MAX
    assert sum(one.name.startswith("mine-") for one in found) == 3
    assert await seen.fleet.left_out() >= 1
    assert len(seen.clients._pollers) == CLIENTS_MAX
    [entry] = await engine.registered(CLIENTS)
    assert len(entry.body) < CLIENTS_BYTES_MAX + 100


async def test_the_types_of_one_poller_and_the_size_of_the_whole_are_bounded(seen: Seen, engine: Engine) -> None:
    for worker in range(CLIENTS_MAX):
        for at in range(CLIENT_TYPES_MAX + 5):
            seen.poll(f"w{worker:03}", f"{'ü' * 200}{at}")
    found = await seen.listed()
    assert {len(one.types) for one in found} == {CLIENT_TYPES_MAX}
    assert 0 < len(found) < CLIENTS_MAX
    assert await seen.fleet.left_out() == CLIENTS_MAX - len(found)
    [entry] = await engine.registered(CLIENTS)
    assert len(entry.body.encode()) < CLIENTS_BYTES_MAX + 100


async def test_a_server_that_dies_takes_its_list_with_it(seen: Seen, clock: VirtualClock) -> None:
    seen.poll("w1")
    assert len(await seen.listed()) == 1
    clock.advance(ms=FLEET_TTL_MS)
    assert await seen.fleet.processes() == []
    assert await seen.fleet.left_out() == 0


async def test_a_list_that_cannot_be_read_is_left_out(seen: Seen, engine: Engine) -> None:
    for name, body in {"a": "no json", "b": "[]", "c": '{"workers":[{"name":7}],"left_out":0}'}.items():
        await engine.register(CLIENTS, name, body)
    seen.poll("w1")
    assert [one.name for one in await seen.listed()] == ["w1"]
