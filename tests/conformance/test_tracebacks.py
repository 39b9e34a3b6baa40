"""The traceback of a failed attempt is kept with it in the job's history."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from everwork.core.job import HistoryEntry
from everwork.core.leasing import Lease, LeaseStatus
from everwork.core.limits import TRACEBACK_CHARS_MAX
from everwork.core.outcome import Complete, Failed, Outcome, Reject, Release, Retry, Throw
from tests.conformance.observe import kinds
from tests.factories import a_dead_letter, a_processing_job, activated, settled, the_job
from tests.stores import SECOND_MS, open_store

if TYPE_CHECKING:
    from pathlib import Path

    from everwork.core.job import StoredJob
    from everwork.engines.contract import Engine
    from tests.stores import VirtualClock

TRACE = 'Traceback (most recent call last):\n  File "ä.py", line 1, in send\n    f\'{"a"}\'\nValueError: \\ 🦉'
FAILURES: list[Outcome] = [
    Failed(0, 1, "boom", backoff_ms=0, traceback=TRACE),
    Failed(0, 1, "boom", final=True, traceback=TRACE),
    Failed(0, 1, "", final=True, traceback=TRACE),
    Retry(0, 1, "later", delay_ms=0, traceback=TRACE),
    Reject(0, 1, "nonsense", traceback=TRACE),
    Throw(0, 1, "E42", "no money", traceback=TRACE),
]


async def tracebacks(engine: Engine, key: int) -> list[str | None]:
    """The traceback of each entry of a job's history."""
    return [entry.traceback for entry in await engine.history(key)]


async def a_traced_retry(engine: Engine) -> StoredJob:
    """A job whose first attempt has failed with a traceback."""
    job = await a_processing_job(engine)
    return await settled(engine, Failed(job.key, 1, "boom", backoff_ms=0, traceback=TRACE))


@pytest.mark.parametrize("outcome", FAILURES, ids=str)
async def test_the_history_has_the_traceback_beside_the_error_and_not_in_it(engine: Engine, outcome: Outcome) -> None:
    job = await a_processing_job(engine)
    after = await settled(engine, outcome._replace(key=job.key))
    [entry] = await engine.history(job.key)
    assert (entry.traceback, entry.error) == (TRACE, after.last_error)
    assert TRACE not in str(after)


@pytest.mark.parametrize("given", [None, ""])
async def test_a_failure_without_a_traceback_has_none(engine: Engine, given: str | None) -> None:
    job = await a_processing_job(engine)
    await settled(engine, Failed(job.key, 1, "boom", traceback=given))
    assert await tracebacks(engine, job.key) == [None]


async def test_each_attempt_keeps_its_own_traceback(engine: Engine, clock: VirtualClock) -> None:
    job = await a_traced_retry(engine)
    await activated(engine, job)
    await settled(engine, Release(job.key, 2))
    await activated(engine, job, lease_ms=SECOND_MS)
    clock.advance(seconds=2)
    await engine.sweep("s")
    clock.advance(seconds=60)
    await activated(engine, job)
    await settled(engine, Failed(job.key, 4, "again", backoff_ms=0, traceback="another"))
    await activated(engine, job)
    await settled(engine, Complete(job.key, 5))
    assert [kind for _, kind in await kinds(engine, job.key)] == ["fail", "release", "lapse", "fail", "complete"]
    assert await tracebacks(engine, job.key) == [TRACE, None, None, "another", None]


async def test_a_requeue_keeps_the_tracebacks_and_has_none(engine: Engine) -> None:
    job = await a_processing_job(engine, max_attempts=1)
    await settled(engine, Failed(job.key, 1, "boom", traceback=TRACE))
    await engine.requeue([job.key])
    assert await tracebacks(engine, job.key) == [TRACE, None]
    assert (await the_job(engine, job.key)).last_error is None


async def test_a_lapse_that_is_undone_brings_back_the_error_before_it_without_its_traceback(
    engine: Engine, clock: VirtualClock
) -> None:
    job = await a_traced_retry(engine)
    await activated(engine, job, lease_ms=SECOND_MS)
    clock.advance(seconds=2)
    await engine.sweep("s")
    assert await engine.reclaim([Lease(job.key, 2)], SECOND_MS) == [LeaseStatus.HELD]
    assert (await the_job(engine, job.key)).last_error == "boom"
    assert await tracebacks(engine, job.key) == [TRACE]


async def test_a_long_traceback_is_cut_between_its_first_line_and_its_end(engine: Engine) -> None:
    job = await a_processing_job(engine)
    await settled(engine, Failed(job.key, 1, "boom", traceback="first\n" + "middle\n" * 1_500_000 + "last\n"))
    [kept] = await tracebacks(engine, job.key)
    assert kept is not None
    assert kept.startswith("first\n  [10,49")
    assert kept.endswith(" characters left out]\n" + "middle\n" * kept.count("middle") + "last\n")
    assert TRACEBACK_CHARS_MAX * 0.9 < len(kept) <= TRACEBACK_CHARS_MAX


async def test_a_traceback_without_lines_and_with_what_no_store_takes_is_kept_too(engine: Engine) -> None:
    job = await a_processing_job(engine)
    await settled(engine, Failed(job.key, 1, "boom", traceback="\0\ud800" * 10_000))
    [kept] = await tracebacks(engine, job.key)
    assert kept is not None
    assert kept.startswith("\ufffd?")
    assert kept.endswith("\ufffd?")
    assert len(kept) <= TRACEBACK_CHARS_MAX


async def test_a_traceback_moves_to_another_store_and_goes_with_its_job(
    engine: Engine, engine_name: str, tmp_path: Path, clock: VirtualClock
) -> None:
    job = await a_dead_letter(engine)
    await engine.requeue([job.key])
    await activated(engine, job)
    await settled(engine, Failed(job.key, 2, "", final=True, traceback=TRACE))
    other = await open_store("sqlite" if engine_name.startswith("redis") else "redis", tmp_path, clock)
    assert await other.load(await engine.dump(0, 10)) == 1
    assert await other.history(job.key) == await engine.history(job.key)
    assert (await engine.history(job.key))[-1] == HistoryEntry(
        2, "fail", clock.now_ms, "w1", "", clock.now_ms, None, TRACE
    )
    await other.delete([job.key])
    assert await other.history(job.key) == []
    await other.close()
