"""The checker over offline mode: jobs kept in spools, the order of producers, completions that are reported late."""

from __future__ import annotations

from everwork.core.job import HistoryEntry
from tests.torture.test_checker import SmallRun
from tests.torture.verdict import Spooled

KEPT = -1
"""The key of a job that is in a spool."""


def test_a_kept_job_that_was_delivered_is_sound() -> None:
    run = SmallRun()
    run.create("b", answer=[KEPT, False])
    run.add_job(7, "b")
    assert run.violations() == set()


def test_a_kept_job_that_is_missing_is_v1() -> None:
    run = SmallRun()
    run.create("b", answer=[KEPT, False])
    assert run.violations() == {"V1"}


def test_a_kept_job_that_was_delivered_twice_is_v2() -> None:
    run = SmallRun()
    run.create("b", answer=[KEPT, False])
    run.add_job(7, "b")
    run.add_job(8, "b")
    assert run.violations() == {"V2"}


def test_what_waits_in_a_spool_after_the_drain_is_v13() -> None:
    run = SmallRun()
    run.spooled = [Spooled("worker.spool", 1, 2, None)]
    assert run.violations() == {"V13"}


def test_a_job_that_was_set_aside_is_v13() -> None:
    run = SmallRun()
    run.spooled = [Spooled("producer.spool", 5, 0, "priority: must be a whole number")]
    assert run.violations() == {"V13"}


def test_an_outcome_that_came_after_another_attempt_may_be_set_aside() -> None:
    run = SmallRun()
    run.spooled = [Spooled("worker.spool", 1, 1, "another attempt of the job has started")]
    assert run.violations() == set()


def test_an_outcome_of_the_last_attempt_that_was_set_aside_is_v13() -> None:
    run = SmallRun()
    run.spooled = [Spooled("worker.spool", 1, 2, "another attempt of the job has started")]
    assert run.violations() == {"V13"}


def kept_first_attempt(*, leased_ms: int, arrived: str | None) -> set[str]:
    """What is said of a job whose first attempt completed into a spool, and whose second one was leased then."""
    run = SmallRun()
    item = {"k": 1, "a": 1, "o": "complete", "fields": [], "result": None, "events": []}
    run.call("keep", [item], ["kept"])
    if arrived is not None:
        run.settle(1, 1, "complete", arrived)
    for call in run.histories.calls:
        call.answered_t = call.answered_m
    run.events = [
        HistoryEntry(1, "lapse", 40, activated_at_ms=5, retry_at_ms=50),
        HistoryEntry(2, "complete", 99_000, activated_at_ms=leased_ms),
    ]
    return run.violations() & {"V15"}


def test_a_completed_job_that_had_been_leased_when_the_store_was_told_may_run_again() -> None:
    assert kept_first_attempt(leased_ms=60, arrived="lease lost") == set()


def test_a_completed_job_that_is_leased_after_the_store_was_told_is_v15() -> None:
    assert kept_first_attempt(leased_ms=500, arrived="lease lost") == {"V15"}


def test_a_completed_job_that_runs_again_because_the_store_was_never_told_is_v15() -> None:
    assert kept_first_attempt(leased_ms=500, arrived=None) == {"V15"}


def test_jobs_in_another_order_than_they_were_acknowledged_are_v17() -> None:
    run = SmallRun()
    run.create("b", answer=[9, False])
    run.create("c", answer=[KEPT, False])
    run.add_job(9, "b")
    run.add_job(7, "c")
    assert run.violations() == {"V17"}


def test_a_deduplicated_job_is_in_nobodys_order() -> None:
    run = SmallRun()
    run.create("b", answer=[9, False])
    run.create("c", answer=[1, True])
    run.add_job(9, "b")
    assert run.violations() == set()


def test_an_old_lease_that_is_reclaimed_while_another_attempt_runs_is_v6() -> None:
    run = SmallRun()
    run.call("reclaim", [[1, 1, 1_000]], ["held"])
    assert run.violations() == {"V6"}


def test_a_lapse_that_was_undone_and_stays_in_the_statistics_is_v10() -> None:
    run = SmallRun()
    run.call("reclaim", [[1, 2, 1_000]], ["held"])
    assert run.violations() == set()
    run.lapses_counted = 1
    assert run.violations() == {"V10"}


def test_a_lapse_that_is_undone_twice_in_the_statistics_is_v10() -> None:
    run = SmallRun()
    run.call("reclaim", [[1, 2, 1_000]], ["held"])
    run.lapses_counted = -1
    assert run.violations() == {"V10"}
