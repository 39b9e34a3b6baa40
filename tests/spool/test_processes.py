"""Several processes on one spool: killed, stopped, forked, or at work at the same time."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from pathlib import Path

import pytest

from everwork.spool.file import SpoolFile
from everwork.spool.settings import Offline
from tests.spool.kit import counts, courier, deliver, kept, line, numbered, offline_in, program, texts, the_store
from tests.spool.kit import variables as created

JOBS = 1_200
"""More than two batches."""


@pytest.fixture
def offline(tmp_path: Path) -> Offline:
    return offline_in(tmp_path)


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()


async def test_what_was_acknowledged_survives_the_kill_of_its_producer(offline: Offline, tmp_path: Path) -> None:
    (tmp_path / "jobs.db").mkdir()  # The store is away.
    with program("produce", tmp_path, 20) as producer:
        spool_id = line(producer)
        end(producer)
    (tmp_path / "jobs.db").rmdir()
    await deliver(offline)
    assert await created(offline) == texts(numbered(1, 20))
    file = SpoolFile(*offline)
    found = file.find(spool_id)
    assert found is not None
    assert found.created is not None


async def test_a_courier_that_is_killed_in_the_middle_leaves_nothing_undelivered_or_doubled(
    offline: Offline, tmp_path: Path
) -> None:
    kept(offline, numbered(1, JOBS))
    with program("deliver_in_silence", tmp_path) as first:
        assert line(first) == "sent"
        end(first)
    assert len(await created(offline)) == 1_000
    assert counts(offline)[0] == JOBS - 500  # The second batch is in doubt.
    await deliver(offline)
    assert await created(offline) == texts(numbered(1, JOBS))


async def test_while_a_courier_is_stopped_others_wait_and_when_it_is_killed_they_take_over(
    offline: Offline, tmp_path: Path
) -> None:
    kept(offline, numbered(1, JOBS))
    with program("deliver_in_silence", tmp_path) as first:
        assert line(first) == "sent"
        os.kill(first.pid, signal.SIGSTOP)
        async with the_store(offline) as store, courier(offline, store) as other:
            assert not await other.deliver()
            end(first)
            assert await other.deliver()
    assert await created(offline) == texts(numbered(1, JOBS))


async def test_a_courier_that_was_stopped_goes_on(offline: Offline, tmp_path: Path) -> None:
    kept(offline, numbered(1, JOBS))
    with program("deliver_in_silence", tmp_path) as first:
        assert line(first) == "sent"
        os.kill(first.pid, signal.SIGSTOP)
        os.kill(first.pid, signal.SIGCONT)
        assert first.stdin is not None
        first.stdin.write("\n")
        first.stdin.flush()
        assert line(first) == str(JOBS)
    assert await created(offline) == texts(numbered(1, JOBS))


async def test_processes_that_deliver_at_the_same_time_deliver_everything_once(
    offline: Offline, tmp_path: Path
) -> None:
    kept(offline, numbered(1, JOBS))
    programs = [program("deliver", tmp_path) for _ in range(3)]
    for one in programs:
        assert line(one) == "ready"
    for one in programs:
        assert one.stdin is not None
        one.stdin.write("\n")
        one.stdin.flush()
    assert sum(int(line(one)) for one in programs) == JOBS
    for one in programs:
        one.communicate()
    assert await created(offline) == texts(numbered(1, JOBS))


async def test_processes_that_open_a_new_spool_at_the_same_time_agree_on_one(offline: Offline, tmp_path: Path) -> None:
    (tmp_path / "jobs.db").mkdir()
    producers = [program("produce", tmp_path, 1) for _ in range(4)]
    assert len({line(one).rpartition("-")[0] for one in producers}) == 1
    for one in producers:
        end(one)
        one.communicate()
    assert counts(offline) == (4, 0, 0)


async def test_a_fork_uses_the_spool_on_its_own(offline: Offline, tmp_path: Path) -> None:
    (tmp_path / "jobs.db").mkdir()
    with program("fork", tmp_path) as forking:
        assert line(forking) == "0"
    (tmp_path / "jobs.db").rmdir()
    await deliver(offline)
    assert await created(offline) == texts(numbered(1, 3))


def test_a_fork_does_not_keep_the_right_to_deliver(offline: Offline, tmp_path: Path) -> None:
    """Its parent is killed in the middle of a delivery, and the child lives on."""
    kept(offline, numbered(1, 1))
    with program("hold_turn_and_fork", tmp_path) as holder:
        child = int(line(holder))
        end(holder)
    try:
        asyncio.run(deliver(offline))
        assert counts(offline) == (0, 0, 0)
    finally:
        os.kill(child, signal.SIGKILL)
