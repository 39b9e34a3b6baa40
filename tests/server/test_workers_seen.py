"""Programs that work through a server are listed as workers: streams while they are open, pollers while they poll."""

from __future__ import annotations

import asyncio
from pathlib import Path

from everwork.client import Client
from everwork.core.leasing import Demand
from everwork.engines.open import open_engine
from everwork.service.fleet.entries import ProcessEntry
from everwork.service.fleet.fleet import Fleet
from everwork.service.fleet.live import CLIENTS
from everwork.service.service import JobService
from tests.app.waiting import until
from tests.server.whole import TYPE, Whole
from tests.stores import url_of


async def listed(service: JobService) -> dict[str, ProcessEntry]:
    """What is listed by now, by kind."""
    service.clients.note_change()
    await service.clients.write()
    return {one.kind: one for one in await service.fleet.processes()}


async def test_a_stream_and_a_poller_are_listed_while_idle_and_end_with_the_server(sqlite_whole: Whole) -> None:
    service = sqlite_whole.service
    async with sqlite_whole.worker("fast") as worker:
        await worker.grant(3)
        poll = asyncio.ensure_future(service.activate(Demand("bills", "node-7", 1, 1_000), 60_000, "k7"))
        await until(lambda: service.waiting("bills") + service.waiting(TYPE) == 2)
        found = await listed(service)
        assert {kind: (one.name, one.types) for kind, one in found.items()} == {
            "stream": ("fast", (TYPE,)),
            "poller": ("node-7", ("bills",)),
        }
        assert {"bills", TYPE} <= await service.fleet.served_types()
        await sqlite_whole.create(1)
        await worker.got(1)
        held = (await listed(service))["stream"]
        assert (held.running, held.via) == (1, service.holder)
    await until(lambda: is_gone(service))
    service.end_polls()
    assert await poll == []
    await service.clients.close()
    assert await service._engine.registered(CLIENTS) == []


async def is_gone(service: JobService) -> bool:
    """Whether no stream is listed."""
    return "stream" not in await listed(service)


async def test_a_client_that_works_on_a_store_in_process_is_listed_as_a_stream(tmp_path: Path) -> None:
    url, stop = url_of("sqlite", tmp_path), asyncio.Event()
    engine = open_engine(url)
    async with Client(url) as client:
        working = asyncio.ensure_future(client.work({"sms": print}, worker="phone", stop=stop))
        await client.open()
        await engine.open()
        fleet = Fleet(engine)
        await until(lambda: takes_sms(fleet))
        stop.set()
        await working
    assert await fleet.processes() == []
    await engine.close()


async def takes_sms(fleet: Fleet) -> bool:
    """Whether the stream is listed with its type."""
    found = [(one.name, one.kind, one.types) for one in await fleet.processes()]
    return found == [("phone", "stream", ("sms",))]
