"""A process that has served long enough is replaced without a job being lost, doubled or kept waiting."""

from __future__ import annotations

import pytest

from everwork import State
from tests.manager.conftest import Start
from tests.manager.running import Outside, Said

JOBS = 20


@pytest.mark.parametrize("engine_name", ["sqlite"])
async def test_a_process_is_replaced_after_its_number_of_jobs_while_they_go_on(
    start: Start, outside: Outside, said: Said
) -> None:
    manager = await start("Echo", recycle=JOBS)
    keys: list[int] = []
    while len(set(said.pids("echo"))) < 3:
        keys += await outside.push_many("echo", [{}] * 5)
        await outside.all_are(State.COMPLETED, keys[-1:])
    jobs = await outside.all_are(State.COMPLETED, keys)
    assert {job.attempts for job in jobs} == {1}
    assert sorted(int(line[2]) for line in said.lines("echo")) == sorted(keys)
    first = said.pids("echo")[0]
    assert said.pids("echo").count(first) >= JOBS
    await said.times(2, "shutdown", "echo")
    assert "process died" not in manager.log()
