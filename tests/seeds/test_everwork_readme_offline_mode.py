"""Offline mode: operations are kept locally while the store is away, and delivered once it is back, whoever dies."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from everwork import Event, State
from everwork.spool.contents import entries
from everwork.spool.file import SpoolFile
from everwork.spool.settings import Spool
from tests.app.waiting import until
from tests.manager.program import sides_of
from tests.manager.running import LATE_S, Manager, Outside, Said
from tests.outages import Store, own_server, store_on
from tests.stores import ENGINES

LEASE_S = 3_600
"""Never lapses here: what happens to lapsed leases is the business of the contract."""


@pytest.fixture(params=ENGINES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with own_server(request.param) as server:
        yield store_on(server, tmp_path)


@pytest.fixture
def said(tmp_path: Path) -> Said:
    return Said(tmp_path / "said")


async def test_a_shop_goes_on_while_its_store_is_away_and_all_of_it_is_killed(
    store: Store, said: Said, tmp_path: Path
) -> None:
    path, gate = str(tmp_path / "spool.db"), tmp_path / "gate"
    settings = {"offline": path, "lease": LEASE_S}
    managers = [Manager(store.url, said, ["Echo,Holder"], settings)]
    try:
        await said.times(2, "startup")
        outside = Outside(store.url)
        await outside.service.open(upkeep=False)
        held = await outside.push("hold", gate=str(gate))
        await outside.service.close()
        await said.times(1, "begin", held)

        store.leave()
        gate.touch()  # The work is done, and cannot be reported.
        _, broker = sides_of(store.url, path)
        orders = [await broker.push(Event(source="echo", kwargs={"text": f"order-{n}"})) for n in range(3)]
        assert all(order.is_spooled for order in orders)
        file = SpoolFile(Spool(path), None)
        await until(lambda: sum(entry.is_outcome for entry in entries(file, 10)) == 1, LATE_S)
        await broker.close()
        managers[0].send_all(signal.SIGKILL)
        await managers[0].exit_code()

        store.come_back()
        managers.append(Manager(store.url, said, ["Echo,Holder"], settings))
        await said.times(3, "echo")
        await until(lambda: not file.has_waiting(), LATE_S)
        file.close()
        outside = Outside(store.url)
        await outside.service.open(upkeep=False)
        job = await outside.job(held)
        assert (job.state, job.attempt) == (State.COMPLETED, 1)
        assert [order.variables for order in reversed(await outside.jobs("echo"))] == [
            {"text": f"order-{n}"} for n in range(3)
        ]
        await outside.service.close()
    finally:
        for manager in managers:
            manager.end()
    assert len(said.lines("begin", held)) == 1
