"""Managers whose store is away: waited for as long as the strategy says, and come back to by itself."""

from __future__ import annotations

import pytest

from everwork import Process, ProcessManager, Reconnect, State
from everwork.exceptions import EngineUnavailable
from tests.app.waiting import stubbornly
from tests.manager.program import sides_of
from tests.manager.running import Manager, Outside, Said
from tests.manager.workers import Echo
from tests.servers import LOOPBACK, RedisServer, free_port


@pytest.mark.parametrize("scheme", ["redis", "postgresql"])
async def test_a_manager_whose_store_stays_away_gives_up_when_it_was_told_to(scheme: str) -> None:
    backend, broker = sides_of(f"{scheme}://{LOOPBACK}:{free_port()}/0")
    reconnect = Reconnect(delays=(0.1,), give_up_after=0.5)
    manager = ProcessManager(
        uuid="away",
        processes=[Process(workers=[Echo])],
        backend=backend,
        broker=broker,
        reconnect=reconnect,
        log_format=None,
    )
    with pytest.raises(EngineUnavailable):
        await manager.run()


async def test_a_manager_goes_on_by_itself_when_its_killed_store_is_back(said: Said, managers: list[Manager]) -> None:
    with RedisServer("--appendfsync", "always") as server:
        managers.append(manager := Manager(server.url, said, ["Echo", "Holder"], {"lease": 5}))
        await said.times(2, "startup")
        outside = Outside(server.url)
        await outside.service.open(upkeep=False)
        held = await outside.push("hold")
        await said.times(1, "begin", held)
        server.kill()
        await manager.logged("the engine is unavailable")
        server.start()
        key = await stubbornly(lambda: outside.push("echo"))
        await said.times(1, "echo", key)
        job = await outside.job(held)
        assert (job.state, job.attempt) == (State.PROCESSING, 1)
        assert "process died" not in manager.log()
        await outside.service.close()


async def test_a_manager_whose_processes_have_all_given_up_ends_with_an_error(
    said: Said, managers: list[Manager]
) -> None:
    with RedisServer() as server:
        managers.append(manager := Manager(server.url, said, ["Echo", "Holder"], {"give_up": 0.5}))
        await said.times(2, "startup")
        server.kill()
        assert await manager.exit_code() == 1
    assert "EngineUnavailable: every process has exited" in manager.log()
    assert len(said.lines("startup")) == 2
