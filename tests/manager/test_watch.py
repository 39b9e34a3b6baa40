"""What the watch takes for a hang or for silence, and what a dead process leaves behind, told by its table."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from everwork.core.ending import TIMEOUT_CLASSES
from everwork.core.job import NewJob
from everwork.core.leasing import Demand
from everwork.core.outcome import Complete, Failed, Outcome, Release
from everwork.core.states import State
from everwork.engines.open import open_engine
from everwork.logs import get_logger
from everwork.manager.cleanup import clean_up, outcome_of
from everwork.manager.process_handle import ProcessHandle
from everwork.manager.watchdog import AWAKE_SECONDS, HUNG_SECONDS, SILENT_SECONDS, Watchdog, is_sole
from everwork.runtime.ledger import Phase
from everwork.service.service import JobService
from everwork.spool.file import SpoolFile
from tests.manager.spawning import a_process
from tests.spool.kit import deliver, offline_in, the_store

TIMEOUT = 10.0


async def killed(process: ProcessHandle) -> ProcessHandle:
    """It, when it has ended."""
    process.kill("was killed")
    await process.ended.wait()
    return process


@pytest.fixture
async def process(tmp_path: Path) -> AsyncIterator[ProcessHandle]:
    """A process that was killed, so that nobody but the test writes into its table."""
    process = await killed(a_process(tmp_path))
    yield process
    process.close()


def a_call(process: ProcessHandle, begun_at: float) -> int:
    """A call that has begun; its slot."""
    slot = process.ledger.enter(len(process.entries()) + 1, 1, leased_at=begun_at, timeout=TIMEOUT, worker=0)
    process.ledger.begin(slot, begun_at)
    return slot


def ends_of(process: ProcessHandle) -> list[Outcome | None]:
    """How its attempts end with it, in their order."""
    return [outcome_of(process, entry) for entry in sorted(process.entries(), key=lambda entry: entry.key)]


async def test_what_the_watch_itself_has_lost_is_not_taken_for_a_hang(process: ProcessHandle) -> None:
    watch, attentive, gap = Watchdog([], get_logger("test")), Watchdog([], get_logger("test")), 60.0
    a_call(process, 100.0)
    entries, judged_at = process.entries(), 100.0 + TIMEOUT + HUNG_SECONDS
    watch._gaps.turn(104.0)
    watch._gaps.turn(104.0 + gap)
    assert attentive._overdue(process, entries, judged_at + 0.1) == entries
    assert watch._overdue(process, entries, judged_at + gap - 0.1) == []
    assert watch._overdue(process, entries, judged_at + gap + 0.1) == entries
    watch._gaps.turn(judged_at + 2 * gap)
    assert watch._overdue(process, entries, judged_at + 2 * gap + AWAKE_SECONDS - 0.1) == []


async def test_who_was_stopped_together_with_the_watch_is_not_taken_for_silent(process: ProcessHandle) -> None:
    watch, gap = Watchdog([], get_logger("test")), SILENT_SECONDS + 1
    process.ledger.enter_phase(Phase.RUNNING)
    process.ledger.turn_engine(100.0)
    process.ledger.turn_handlers(100.0)
    watch._gaps.turn(100.0)
    watch._note_running([process], 100.0)
    assert watch._silence(process, [], 100.0 + gap) is not None
    watch._gaps.turn(100.0 + gap)
    assert watch._silence(process, [], 100.0 + gap) is None
    assert watch._silence(process, [], 100.0 + gap + SILENT_SECONDS + 0.1) is not None


async def test_calls_that_are_cancelled_with_their_process_have_its_time_to_clean_up(process: ProcessHandle) -> None:
    watch, now = Watchdog([], get_logger("test")), time.monotonic()
    a_call(process, now - TIMEOUT - HUNG_SECONDS)
    a_call(process, now)
    late, _ = entries = process.entries()
    assert watch._overdue(process, entries, now + 0.1) == [late]
    process.cancel()
    assert watch._overdue(process, entries, now + 2 * TIMEOUT) == []


async def test_nobody_is_replaced_while_a_predecessor_waits_for_it(process: ProcessHandle, tmp_path: Path) -> None:
    before = a_process(tmp_path)
    assert is_sole(process, [process])
    assert not is_sole(process, [before, process])
    before.stop_softly()
    assert is_sole(process, [before, process])
    await killed(before)
    before.close()


async def test_a_dead_process_s_attempts_end_as_its_table_tells(process: ProcessHandle) -> None:
    process.ledger.enter(1, 1, leased_at=100.0, timeout=TIMEOUT, worker=0)
    a_call(process, 100.0)
    process.ledger.mark_hung(a_call(process, 100.0))
    process.ledger.end(a_call(process, 100.0))
    assert ends_of(process) == [
        Release(1, 1),
        Failed(2, 1, "its process was killed"),
        Failed(3, 1, "timed out after 10 s", retries=0, final=True, classes=TIMEOUT_CLASSES),
        Failed(4, 1, "its process was killed before its outcome was stored"),
    ]


async def test_attempts_that_a_stop_has_cut_off_go_back_but_for_those_past_their_time(process: ProcessHandle) -> None:
    now = time.monotonic()
    a_call(process, now - TIMEOUT - 1)
    a_call(process, now)
    process.ledger.end(a_call(process, now))
    process.cancel()
    late = Failed(1, 1, "timed out after 10 s", retries=0, final=True, classes=TIMEOUT_CLASSES)
    assert ends_of(process) == [late, Release(2, 1), Release(3, 1)]


async def test_what_a_dead_process_had_leased_without_knowing_goes_back(process: ProcessHandle, tmp_path: Path) -> None:
    service = JobService(open_engine(f"sqlite:///{tmp_path}/jobs.db"), "manager")
    await service.open(upkeep=False)
    keys = [created.key for created in await service.create([NewJob("echo"), NewJob("echo")])]
    known, _ = await service.activate(Demand("echo", process.name, 2))
    await service.create([NewJob("echo")])
    (of_another,) = await service.activate(Demand("echo", "another", 1))
    process.ledger.enter(known.key, known.attempt, leased_at=100.0, timeout=TIMEOUT, worker=0)
    await clean_up(service, process, get_logger("test"))
    jobs = [await service.get(key) for key in keys]
    assert [(job.state, job.attempts) for job in jobs] == [(State.PENDING, 0)] * 2
    assert (await service.get(of_another.key)).state is State.PROCESSING
    await service.close()


async def test_what_a_dead_process_has_left_in_its_spool_is_neither_failed_nor_released(
    process: ProcessHandle, tmp_path: Path
) -> None:
    process.offline = offline = offline_in(tmp_path)
    async with the_store(offline) as store:
        service = JobService(store._engine, "manager")
        await service.create([NewJob("echo"), NewJob("echo")])
        done, lost = await service.activate(Demand("echo", process.name, 2))
        for job in (done, lost):
            slot = process.ledger.enter(job.key, job.attempt, leased_at=100.0, timeout=TIMEOUT, worker=0)
            process.ledger.end(slot)
        file = SpoolFile(*offline)
        file.keep_outcomes([Complete(done.key, done.attempt, "42")])
        file.close()
        await clean_up(service, process, get_logger("test"))
        assert (await service.get(lost.key)).state is State.PENDING
        await deliver(offline)
        assert (await service.get(done.key)).result == "42"
