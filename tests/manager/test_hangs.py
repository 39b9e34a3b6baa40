"""Calls that never end and processes that die: noticed, told on the job, replaced; the others do not stop working."""

from __future__ import annotations

import asyncio
import fcntl
import time
from pathlib import Path

import pytest

from everwork import State
from everwork.core.job import HistoryEntry
from everwork.manager.watchdog import HUNG_SECONDS
from tests.app.waiting import until
from tests.manager.conftest import Start
from tests.manager.running import Outside, Said

ENDS = {
    "block": ("timed out after 1 s and blocked its process, which was killed", "block_the_loop"),
    "ignore": ("timed out after 1 s; it ignored cancellation", "ignore_cancellation"),
    "stop": ("timed out after 1 s and blocked its process, which was killed", ""),
    "exit": ("its process ended with exit code 3", ""),
    "kill": ("its process was killed by SIGKILL", ""),
}
"""The error of a job, and which function its stack shows, for each way to get stuck."""
DEATHS = ("exit", "kill")


async def test_whoever_hangs_or_dies_is_told_on_its_job_and_replaced_while_others_work(
    start: Start, outside: Outside, said: Said
) -> None:
    # A worker that never comes up beside them keeps nobody from finding out.
    manager = await start("Echo", "Patient", "Thread", *["Stuck,Endless"] * len(ENDS))
    patient = await outside.push("patient", how="block")
    keys = {how: await outside.push("stuck", how=how) for how in ENDS}
    thread = await outside.push("thread", seconds=3600)
    ending = asyncio.gather(*(outside.ends(key) for key in [*keys.values(), patient, thread]))
    echoes = await _echo_until(ending, outside)
    *ends, patients_end, threads_end = await ending
    for how, end in zip(keys, ends, strict=True):
        await _check(how, end, keys[how], outside)
    # Whoever has a policy is tried again, in a new process.
    assert patients_end.error == ENDS["block"][0]
    await said.times(1, "begin", patient, 2)
    assert threads_end.error == "timed out after 1 s; its thread is still running"
    assert "wait_in_a_thread" in str(threads_end.traceback)
    await said.times(2, "startup", "thread")
    await manager.logged("a handler in it ignores its timeout", 2)
    await said.times(2 * len(ENDS), "startup", "stuck")
    assert len(set(said.pids("startup", "stuck"))) >= 2 * len(ENDS)
    assert len(said.lines("echo")) == echoes
    assert len(said.lines("startup", "echo")) == 1


@pytest.mark.parametrize("engine_name", ["sqlite"])
async def test_a_call_that_hangs_in_a_process_that_is_being_replaced_is_found_as_well(
    start: Start, outside: Outside, said: Said
) -> None:
    manager = await start("Stuck,Echo", recycle=1)
    await outside.all_are(State.COMPLETED, [await outside.push("echo")])
    key = await outside.push("stuck", how="block")
    await manager.logged("replacing process")
    end = await outside.ends(key)  # It is interrupted, as by any stop; on a busy machine it may be killed first.
    ends = (" until it was interrupted", ", which was killed")
    assert end.error in [f"timed out after 1 s and blocked its process{one}" for one in ends]
    assert "block_the_loop" in str(end.traceback)


@pytest.mark.parametrize("engine_name", ["sqlite"])
async def test_a_call_that_ended_in_time_is_not_taken_for_hung_while_the_store_is_held_by_another(
    start: Start, outside: Outside, said: Said, tmp_path: Path
) -> None:
    manager = await start("Stuck")
    key = await outside.push("stuck", how="ignore", seconds=0.5)
    await said.times(1, "begin", key)
    with next(tmp_path.glob("*.lock")).open("a") as lock:  # noqa: ASYNC240
        fcntl.flock(lock, fcntl.LOCK_EX)
        held_at = time.monotonic()
        await said.times(1, "end", key)
        await until(lambda: time.monotonic() > held_at + 1 + HUNG_SECONDS + 0.5)
    assert (await outside.all_are(State.COMPLETED, [key]))[0].attempts == 1
    assert "killing process" not in manager.log()


async def _echo_until(ending: asyncio.Future[list[HistoryEntry]], outside: Outside) -> int:
    """Let another worker do something, one after the other; how much it did."""
    echoes = 0
    while not ending.done():
        await outside.all_are(State.COMPLETED, [await outside.push("echo")])
        echoes += 1
    return echoes


async def _check(how: str, end: HistoryEntry, key: int, outside: Outside) -> None:
    error, place = ENDS[how]
    assert (end.kind, end.attempt, end.error) == ("fail", 1, error)
    assert (place in str(end.traceback)) if place else (end.traceback is None)
    assert (end.retry_at_ms is not None) == (how in DEATHS)
    job = await outside.job(key)
    assert (job.state, job.attempts) == (State.PENDING if how in DEATHS else State.FAILED, 1)
    print(f"{how}: ended after {(end.at_ms - (end.activated_at_ms or 0)) / 1000} s")
