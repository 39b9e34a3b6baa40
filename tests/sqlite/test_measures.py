"""What this engine has ways of its own for: durations put together as text, and work looked for lane by lane."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from itertools import count
from typing import TYPE_CHECKING

from everwork.core import limits, measures
from everwork.core.outcome import Complete
from everwork.core.queries import Oldest
from everwork.engines.sqlite.read import oldest
from tests.factories import TYPE, a_completed_job, a_new_job, a_pending_job, activated, asked
from tests.stores import HOUR_MS, SECOND_MS, START_MS

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from everwork.engines.sqlite.engine import SqliteEngine
    from tests.stores import VirtualClock


async def counted_as(engine: SqliteEngine) -> dict[str, int]:
    return {measure.name: measure.jobs for measure in await engine.measures(2 * limits.STATISTICS_KEEP_HOURS)}


async def test_what_is_accepted_beside_a_refused_completion_is_measured(
    sqlite: SqliteEngine, clock: VirtualClock
) -> None:
    for _ in range(2):
        await sqlite.create([a_new_job(), a_new_job()])
        clock.advance(ms=20)
    jobs = (await asked(sqlite)).jobs
    clock.advance(ms=7)
    await sqlite.settle([Complete(999_999, 1), *(Complete(job.key, job.attempt) for job in jobs)])
    assert await counted_as(sqlite) == {measures.execution(1): 4, measures.wait(2): 2, measures.wait(3): 2}
    [hour] = (await sqlite.stats(1)).hours
    assert (hour.completed, hour.execution_ms, hour.wait_ms) == (4, 4 * 7, 2 * 20 + 2 * 40)


async def test_a_completion_in_the_callers_transaction_is_measured_if_that_commits(
    sqlite: SqliteEngine, file: Path
) -> None:
    job = await a_pending_job(sqlite)
    await activated(sqlite, job)
    with closing(sqlite3.connect(file)) as connection:
        await sqlite.complete_in(connection, [Complete(job.key, 1)])
        connection.rollback()
        assert await counted_as(sqlite) == {}
        await sqlite.complete_in(connection, [Complete(job.key, 1)])
        connection.commit()
    assert await counted_as(sqlite) == {measures.execution(0): 1, measures.wait(0): 1}


async def test_a_duration_before_its_beginning_is_none(sqlite: SqliteEngine, clock: VirtualClock) -> None:
    """The host's clock was put back."""
    job = await a_pending_job(sqlite)
    await activated(sqlite, job)
    clock.advance(ms=-5 * SECOND_MS)
    await sqlite.settle([Complete(job.key, 1)])
    assert await counted_as(sqlite) == {measures.execution(0): 1, measures.wait(0): 1}
    [hour] = (await sqlite.stats(2)).hours
    assert hour.execution_ms == 0


async def test_measures_are_forgotten_with_their_hours(sqlite: SqliteEngine, clock: VirtualClock) -> None:
    await a_completed_job(sqlite)
    clock.advance(ms=limits.STATISTICS_KEEP_HOURS * HOUR_MS)
    await sqlite.sweep("s")
    assert await counted_as(sqlite) != {}
    clock.advance(ms=HOUR_MS)
    await sqlite.sweep("s")
    assert await counted_as(sqlite) == {}


def steps_of_oldest(file: Path, now_ms: int) -> int:
    """How many steps SQLite takes to find the longest waiting jobs."""
    steps = count()
    with closing(sqlite3.connect(file)) as connection:
        connection.set_progress_handler(lambda: next(steps) < 0, 1)
        assert oldest(connection.cursor(), now_ms) == [Oldest(TYPE, "", START_MS)]
    return next(steps)


async def test_more_waiting_jobs_do_not_make_the_search_for_the_longest_waiting_one_longer(
    sqlite: SqliteEngine, file: Path, clock: VirtualClock
) -> None:
    few = [a_new_job(priority=priority, limit_key=lane) for priority in (0, 5) for lane in ("a", "b")]
    await sqlite.create(few)
    clock.advance(ms=SECOND_MS)
    steps = [steps_of_oldest(file, clock.now_ms)]
    for times in (1, 100):  # Each call adds one count, which is summed up later, regardless of the number of jobs.
        await sqlite.create(few * times)
        steps.append(steps_of_oldest(file, clock.now_ms))
    assert steps[2] - steps[1] == steps[1] - steps[0]


async def test_the_search_for_the_longest_waiting_job_ends_after_so_many_lanes_and_priorities(
    sqlite: SqliteEngine, file: Path, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("everwork.engines.sqlite.read.OLDEST_SCAN_MAX", 3)
    await sqlite.create([a_new_job(limit_key=f"k{number}") for number in range(3)])
    first = steps_of_oldest(file, clock.now_ms)
    await sqlite.create([a_new_job(limit_key="k0")])
    before = steps_of_oldest(file, clock.now_ms)
    await sqlite.create([a_new_job(limit_key=f"k{number}") for number in range(3, 50)])
    assert steps_of_oldest(file, clock.now_ms) - before <= before - first  # One more count, as above.
