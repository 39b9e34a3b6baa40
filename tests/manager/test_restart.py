"""Somebody wishes that a process be replaced: another takes over, and what runs is finished where it runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from everwork import State
from everwork.service.fleet.fleet import Fleet
from everwork.service.fleet.running import running_jobs
from tests.app.waiting import until
from tests.manager.conftest import Start
from tests.manager.running import LATE_S, Outside, Said


@pytest.mark.parametrize("engine_name", ["sqlite"])
async def test_a_process_that_is_to_be_restarted_finishes_its_work_while_another_serves(
    start: Start, outside: Outside, said: Said, tmp_path: Path
) -> None:
    manager = await start("Echo,Holder")
    engine, fleet = outside.service._engine, Fleet(outside.service._engine)
    held = await outside.push("hold", gate=str(tmp_path / "gate"))
    await said.times(1, "begin", held)
    await until(fleet.processes, LATE_S)
    [process] = await fleet.processes()
    [running] = (await running_jobs(engine, {process.name: process}, 10)).jobs
    assert (running.key, running.process) == (held, process.name)

    await fleet.restart(process.name)

    await said.times(2, "startup", "holder")
    [old, new] = said.pids("startup", "holder")
    assert (process.pid == old, new != old) == (True, True)

    async def is_leaving() -> bool:
        return [one.state for one in await fleet.processes() if one.pid == old] == ["stopping"]

    await until(is_leaving, LATE_S)
    assert await fleet.restarts() == set()
    await outside.all_are(State.COMPLETED, [await outside.push("echo", text="meanwhile")])
    assert said.pids("echo") == [new]
    (tmp_path / "gate").touch()
    [job] = await outside.all_are(State.COMPLETED, [held])
    assert (job.attempt, said.pids("end", held)) == (1, [old])
    await said.times(1, "shutdown", "holder")
    assert said.pids("shutdown", "holder") == [old]
    assert "process died" not in manager.log()
