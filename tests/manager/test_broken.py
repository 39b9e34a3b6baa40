"""One broken worker, or a process that cannot even start, does not stop the others."""

from __future__ import annotations

import asyncio
import os
import resource
import signal

import pytest

from everwork import AbstractWorker, State
from everwork.app.settings import id_of
from everwork.logs import get_logger
from everwork.manager import worker_pool
from everwork.manager.worker_pool import WorkerPool, WorkerSpec
from everwork.service.fleet.fleet import Fleet
from tests.app.waiting import until
from tests.manager.conftest import Start
from tests.manager.running import LATE_S, Outside, Said
from tests.manager.workers import LOG, Echo, Endless


@pytest.mark.parametrize("engine_name", ["sqlite"])
async def test_a_worker_that_cannot_start_is_shown_as_broken_and_tried_again_while_others_serve(
    start: Start, outside: Outside, said: Said
) -> None:
    manager = await start("Echo,BrokenInit,BrokenStartup", "fragile.Fragile")
    never, later = await outside.push("broken"), await outside.push("later")
    await outside.all_are(State.COMPLETED, [await outside.push("echo"), later])
    await manager.logged("process died", 3)
    await outside.all_are(State.COMPLETED, [await outside.push("echo")])
    assert (await outside.job(never)).state is State.PENDING
    fleet = Fleet(outside.service._engine)

    async def is_shown() -> bool:
        broken = [one.broken for one in await fleet.processes() if id_of("echo") in one.workers]
        return broken == [{id_of("broken-init"): "RuntimeError: no such thing as me"}]

    await until(is_shown, LATE_S)
    assert len(set(said.pids("startup", "echo"))) == 1


async def test_a_worker_whose_startup_does_not_end_is_shown_as_broken_and_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, said: Said
) -> None:
    monkeypatch.setenv(LOG, str(said.path))
    monkeypatch.setattr(worker_pool, "RUNNING_SECONDS", 0.05)
    classes: list[type[AbstractWorker]] = [Endless, Echo]
    specs = [
        WorkerSpec(worker=worker, queues=(), index=index, id=worker.__name__, is_final=True)
        for index, worker in enumerate(classes)
    ]
    told: dict[str, list[str | None]] = {spec.id: [] for spec in specs}
    ready: list[str] = []
    workers = WorkerPool(specs, get_logger("test"))
    starting = asyncio.ensure_future(
        workers.start(lambda handler: ready.append(handler.name), lambda worker, problem: told[worker].append(problem))
    )
    await workers.wait_first_round(0.05)
    await until(
        lambda: told["Endless"][:2] == [f"startup() has been running for {seconds} s" for seconds in (0.05, 0.1)]
    )
    assert (ready, told["Echo"]) == (["Echo"], [None])
    starting.cancel()


class Polling(Echo):
    """Waits in the end for what it has cancelled itself."""

    async def startup(self) -> None:
        """Begin to poll."""
        self.polling = asyncio.ensure_future(asyncio.Event().wait())

    async def shutdown(self) -> None:
        """Stop polling."""
        self.polling.cancel()
        await self.polling


class CancelledStart(Echo):
    """Lets a cancellation of its own out."""

    async def startup(self) -> None:
        """Fail in an odd way."""
        raise asyncio.CancelledError


async def test_a_cancellation_of_a_workers_own_is_neither_a_stop_nor_its_neighbours_concern(
    monkeypatch: pytest.MonkeyPatch, said: Said
) -> None:
    monkeypatch.setenv(LOG, str(said.path))
    classes: list[type[AbstractWorker]] = [Polling, CancelledStart, Echo]
    specs = [
        WorkerSpec(worker=worker, queues=(), index=index, id=worker.__name__, is_final=True)
        for index, worker in enumerate(classes)
    ]
    told: dict[str, str | None] = {}
    workers = WorkerPool(specs, get_logger("test"))
    starting = asyncio.ensure_future(
        workers.start(lambda _: None, lambda worker, problem: told.update({worker: problem}))
    )
    await until(lambda: len(told) == len(specs))
    starting.cancel()
    await workers.shutdown()
    assert told == {"Polling": None, "CancelledStart": "CancelledError: ", "Echo": None}
    assert said.pids("shutdown", "echo") == [os.getpid()]


@pytest.mark.parametrize("engine_name", ["sqlite"])
async def test_a_process_that_there_is_no_room_for_is_started_when_there_is(
    start: Start, outside: Outside, said: Said
) -> None:
    manager = await start("Echo", "Holder")
    limits = resource.prlimit(manager.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(manager.pid, resource.RLIMIT_NOFILE, (3, limits[1]))
    os.kill(said.pids("startup", "echo")[0], signal.SIGKILL)
    await manager.logged("process could not be started, trying again", 2)
    resource.prlimit(manager.pid, resource.RLIMIT_NOFILE, limits)
    await outside.all_are(State.COMPLETED, [await outside.push("echo")])
