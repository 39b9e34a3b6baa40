"""A stop in stages: what runs may finish, then it is cancelled, then killed; what has not finished is pending again."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from everwork import State
from everwork.core.leasing import Demand
from tests.app.waiting import until
from tests.manager.conftest import Start
from tests.manager.running import Manager, Outside, Said

Send = Callable[[Manager], None]


def _sigterm_to_the_manager(manager: Manager) -> None:
    manager.send(signal.SIGTERM)


def _ctrl_c(manager: Manager) -> None:
    manager.send_all(signal.SIGINT)


def _sigterm_to_everybody(manager: Manager) -> None:
    manager.send_all(signal.SIGTERM)


@pytest.mark.parametrize("engine_name", ["sqlite"])
@pytest.mark.parametrize("send", [_sigterm_to_the_manager, _sigterm_to_everybody, _ctrl_c])
async def test_one_signal_lets_running_jobs_finish_and_begins_no_more(
    start: Start, outside: Outside, said: Said, tmp_path: Path, send: Send
) -> None:
    manager = await start("Holder", "Holder")
    gate = tmp_path / "gate"
    running = await outside.push_many("hold", [{"gate": str(gate)}] * 6)
    await said.times(6, "begin")
    send(manager)
    await manager.logged("manager stopping")
    await manager.logged("draining, no new jobs will be started", 2)
    refused = await outside.push("hold", gate=str(gate))
    gate.touch()
    assert await manager.exit_code() == 0
    await outside.all_are(State.COMPLETED, running)
    assert (await outside.job(refused)).state is State.PENDING
    assert not said.lines("begin", refused)
    assert len(said.lines("shutdown", "holder")) == 2
    await until(lambda: not manager.members())


@pytest.mark.parametrize("engine_name", ["sqlite"])
async def test_ctrl_c_while_processes_start_is_a_quiet_stop(url: str, said: Said, managers: list[Manager]) -> None:
    managers.append(manager := Manager(url, said, ["Holder", "Echo"], {}))
    await manager.logged("manager started")
    _ctrl_c(manager)
    assert await manager.exit_code() == 0
    await until(lambda: not manager.members())
    assert "Traceback" not in manager.log()
    assert "ERROR" not in manager.log()


@pytest.mark.parametrize("engine_name", ["sqlite"])
async def test_a_shutdown_that_does_not_end_is_ended(start: Start, said: Said) -> None:
    manager = await start("Clinging,Holder", shutdown=0.5)
    manager.send(signal.SIGTERM)
    began = time.monotonic()
    assert await manager.exit_code() == 0
    print(f"an endless shutdown() with a timeout of 0.5 s took {time.monotonic() - began:.2f} s")
    assert len(said.lines("shutdown")) == 2
    assert "it did not stop within its shutdown_timeout of 0.5 s" in manager.log()


async def test_a_second_signal_cancels_and_every_unfinished_job_is_pending_again_uncounted(
    start: Start, outside: Outside, said: Said, tmp_path: Path
) -> None:
    manager = await start("Holder", "Holder")
    gate = tmp_path / "gate"
    keys = await outside.push_many("hold", [{"gate": str(gate)}] * 100)
    await said.times(100, "begin")
    await manager.stop_twice()
    began = time.monotonic()
    assert await manager.exit_code() == 0
    print(f"100 jobs were given back in {time.monotonic() - began:.2f} s")
    jobs = await outside.all_are(State.PENDING, keys)
    assert {job.attempts for job in jobs} == {0}
    # Whatever began was cancelled. A job that one process gave back may have reached the other before its signal did.
    begun, cancelled = ({tuple(line[2:4]) for line in said.lines(what)} for what in ("begin", "cancelled"))
    assert begun == cancelled
    assert {int(key) for key, _ in begun} == set(keys)
    assert len(said.lines("shutdown", "holder")) == 2
    # Nothing is lost or doubled: the next manager ends each of them once.
    gate.touch()
    await start("Holder")
    await outside.all_are(State.COMPLETED, keys)
    assert sorted(int(line[2]) for line in said.lines("end")) == sorted(keys)


@pytest.mark.parametrize("engine_name", ["sqlite"])
async def test_who_blocks_is_interrupted_and_who_cannot_be_is_killed_and_both_jobs_go_back(
    start: Start, outside: Outside, said: Said
) -> None:
    manager = await start("Long", "Long", shutdown=2)
    keys = [await outside.push("long", how=how, seconds=60) for how in ("block", "gil")]
    await said.times(2, "begin")
    await said.times(1, "blocked")
    await manager.stop_twice()
    began = time.monotonic()
    assert await manager.exit_code() == 0
    print(f"blocked processes were stopped in {time.monotonic() - began:.2f} s")
    jobs = await outside.all_are(State.PENDING, keys)
    assert [(job.attempts, job.attempt) for job in jobs] == [(0, 1), (0, 1)]
    assert manager.log().count("killing process") == 1
    # The one that was interrupted could still clean up.
    assert len(said.lines("shutdown", "long")) == 1
    await until(lambda: not manager.members())


@pytest.mark.parametrize("engine_name", ["sqlite"])
async def test_the_processes_of_a_killed_manager_give_back_and_go_and_a_lease_frees_the_rest(
    start: Start, outside: Outside, said: Said
) -> None:
    manager = await start("Holder", "Long", lease=2, shutdown=2)
    held = await outside.push_many("hold", [{}] * 10)
    stuck = await outside.push("long", how="gil", seconds=8)
    await said.times(11, "begin")
    os.kill(manager.pid, signal.SIGKILL)
    began = time.monotonic()
    jobs = await outside.all_are(State.PENDING, held)
    print(f"an orphan gave its jobs back in {time.monotonic() - began:.2f} s")
    assert {(job.attempts, job.attempt) for job in jobs} == {(0, 1)}

    async def is_back() -> bool:
        await outside.service._engine.sweep("outside")
        return (await outside.job(stuck)).state is State.PENDING

    await until(is_back)
    print(f"a stuck job was back in {time.monotonic() - began:.2f} s")
    job = await outside.job(stuck)
    await outside.service._engine.reschedule([stuck])
    [again] = await outside.service.activate(Demand(job.type, "another", 1, group=job.group))
    await until(lambda: not manager.members())
    print(f"all orphans were gone in {time.monotonic() - began:.2f} s")
    job = await outside.job(stuck)
    assert (job.state, job.attempt) == (State.PROCESSING, again.attempt), "a late outcome was accepted"
