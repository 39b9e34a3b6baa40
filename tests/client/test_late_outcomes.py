"""Streams in process: attempts that outlive an outage in which their leases have lapsed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from everwork import Spool
from everwork.client import Client
from everwork.client.local import LocalTransport
from everwork.core.states import State
from everwork.service.service import JobService
from everwork.spool.file import SpoolFile
from everwork.spool.settings import Offline
from tests.app.waiting import until
from tests.outages import Outage, a_later_engine
from tests.stores import url_of

AGAIN_S = 60.0
"""Reached only by a defect."""

pytestmark = pytest.mark.every_engine


@pytest.fixture
def store_url(engine_name: str, tmp_path: Path) -> str:
    return url_of(engine_name, tmp_path)


@pytest.fixture
async def client(store_url: str) -> AsyncIterator[Client]:
    async with Client(store_url) as made:
        yield made


def service_of(client: Client) -> JobService:
    assert isinstance(client.transport, LocalTransport)
    return client.transport.service


async def is_in(client: Client, key: int, state: State) -> bool:
    return (await client.get(key)).state is state


async def test_a_stream_keeps_its_jobs_through_an_outage_in_which_their_leases_lapse(
    client: Client, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    created = await client.create("work")
    outage = Outage(service_of(client)._engine, monkeypatch)
    async with client.stream() as stream, a_later_engine(store_url) as later, asyncio.timeout(AGAIN_S):
        stream.grant("work", 1)
        [job] = await anext(stream)
        outage.fail("check")
        await until(lambda: outage.failed)
        assert (await later.sweep("later")).lapsed == 1
        outage.end()
        await until(lambda: is_in(client, created.key, State.PROCESSING))
        assert not job.is_lost
        stream.complete(job)
        await until(lambda: is_in(client, created.key, State.COMPLETED))


async def test_a_completion_counts_although_its_lease_was_not_taken_back_yet(
    client: Client, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    created = await client.create("work")
    outage = Outage(service_of(client)._engine, monkeypatch)
    async with client.stream() as stream, a_later_engine(store_url) as later, asyncio.timeout(AGAIN_S):
        stream.grant("work", 1)
        [job] = await anext(stream)
        outage.fail("check")
        await until(lambda: outage.failed)
        assert (await later.sweep("later")).lapsed == 1
        stream.complete(job)
        await until(lambda: is_in(client, created.key, State.COMPLETED))


@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "patience is over"])
async def test_an_outcome_that_gets_no_answer_is_in_the_spool(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_closed: bool
) -> None:
    spool = Spool(str(tmp_path / "spool.db"), patience=AGAIN_S)
    async with Client(store_url, offline=spool) as client, asyncio.timeout(AGAIN_S):
        created = await client.create("work")
        outage = Outage(service_of(client)._engine, monkeypatch)
        if not is_closed:
            monkeypatch.setattr(service_of(client).outbox, "patience", 0.01)
        async with client.stream() as stream:
            stream.grant("work", 1)
            [job] = await anext(stream)
            outage.silence("settle")
            stream.complete(job)
            await until(lambda: outage.silent)
            if is_closed:
                await stream.close(0)
            await until(lambda: outcomes_in(spool, store_url) == 1)
            outage.end()
            await until(lambda: is_in(client, created.key, State.COMPLETED))
            await until(lambda: outcomes_in(spool, store_url) == 0)


def outcomes_in(spool: Spool, store_url: str) -> int:
    offline = Offline.of(spool, store_url)
    assert offline is not None
    file = SpoolFile(*offline)
    try:
        return file.counts().outcomes
    finally:
        file.close()
