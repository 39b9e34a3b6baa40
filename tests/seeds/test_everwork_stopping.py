"""One SIGTERM stops a manager in four stages, also when a call blocks its process."""

from __future__ import annotations

import signal

import pytest

from everwork import Job, State
from tests.app.waiting import until
from tests.manager.conftest import Start
from tests.manager.running import Manager, Outside, Said

INTERRUPTED = "timed out after 1 s and blocked its process until it was interrupted"


async def _stopped_while_blocked(start: Start, outside: Outside, said: Said, way: str) -> tuple[Manager, Job]:
    """A manager that got one SIGTERM while a call blocked its process, and the call's job."""
    manager = await start("Blocking", shutdown=2)
    key = await outside.push("blocking", when_interrupted=way)
    await said.times(1, "begin", key)
    manager.send(signal.SIGTERM)
    assert await manager.exit_code() == 0
    await until(lambda: not manager.members())
    return manager, await outside.job(key)


@pytest.mark.parametrize("way", ["raise", "return"])
async def test_a_blocking_call_is_interrupted_after_its_execution_timeout_and_shutdown_runs(
    start: Start, outside: Outside, said: Said, way: str
) -> None:
    manager, job = await _stopped_while_blocked(start, outside, said, way)
    assert len(said.lines("interrupted", job.key)) == 1
    assert len(said.lines("shutdown", "blocking")) == 1
    assert "killing process" not in manager.log()
    # Its time was over: the attempt has failed, and its policy says what follows.
    assert (job.state, job.attempts) == (State.PENDING, 1)
    assert str(job.last_error).startswith(INTERRUPTED if way == "raise" else "timed out after 1 s")
    assert "time.sleep(3600)" in str((await outside.ends(job.key)).traceback) or way == "return"


async def test_a_call_that_ignores_the_interruption_is_killed_after_shutdown_timeout(
    start: Start, outside: Outside, said: Said
) -> None:
    manager, job = await _stopped_while_blocked(start, outside, said, "ignore")
    assert len(said.lines("interrupted", job.key)) == 1
    assert not said.lines("shutdown", "blocking")
    assert "it did not stop within its shutdown_timeout of 2 s" in manager.log()
    assert (job.state, job.attempts) == (State.PENDING, 1)
    assert str(job.last_error).startswith("timed out after 1 s and blocked its process, which was killed")


async def test_a_call_that_is_interrupted_within_its_time_is_handed_back(
    start: Start, outside: Outside, said: Said
) -> None:
    manager = await start("Long", shutdown=2)
    key = await outside.push("long", how="block", seconds=3600)
    await said.times(1, "begin", key)
    await manager.stop_twice()  # At once: its process cannot know yet that it is blocked.
    assert await manager.exit_code() == 0
    job = await outside.job(key)
    assert (job.state, job.attempts, job.last_error) == (State.PENDING, 0, None)
    assert len(said.lines("shutdown", "long")) == 1
    assert "killing process" not in manager.log()


async def test_a_third_signal_ends_at_once(start: Start, outside: Outside, said: Said) -> None:
    manager = await start("Clinging,Long", shutdown=3600)
    key = await outside.push("long", how="wait", seconds=3600)
    await said.times(1, "begin", key)
    await manager.stop_twice()
    await said.times(1, "shutdown", "clinging")  # Which takes an hour.
    manager.send(signal.SIGTERM)
    assert await manager.exit_code() == 0
    await until(lambda: not manager.members())
    assert "was killed: a third stop was requested" in manager.log()
    job = await outside.job(key)
    assert (job.state, job.attempts) == (State.PENDING, 0)
