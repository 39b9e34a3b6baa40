"""Attempts in a job's history are numbered as the job counts them."""

from __future__ import annotations

import pytest

from everwork.core.job import HistoryEntry, StoredJob, attempt_numbers
from everwork.core.states import State


def numbers(kinds: str, attempts: int, state: State = State.FAILED) -> list[int]:
    """The numbers of entries of these kinds, of a job that has this many counted attempts."""
    job = StoredJob(key=1, type="t", state=state, variables="{}", attempts=attempts, max_attempts=5)
    entries = [HistoryEntry(at + 1, kind, at, activated_at_ms=at) for at, kind in enumerate(kinds.split())]
    return attempt_numbers(job, entries)


@pytest.mark.parametrize(
    ("kinds", "attempts", "state", "expected"),
    [
        ("", 0, State.PENDING, []),
        ("fail retry lapse", 3, State.FAILED, [1, 2, 3]),
        ("release release complete", 1, State.COMPLETED, [1, 1, 1]),
        ("fail release fail", 2, State.PENDING, [1, 2, 2]),
        ("fail cancel", 2, State.CANCELLED, [1, 2]),
        ("fail fail requeue fail fail", 2, State.FAILED, [1, 2, 3, 1, 2]),
        ("fail fail requeue fail", 2, State.PROCESSING, [1, 2, 3, 1]),
        ("fail fail", 9, State.FAILED, [8, 9]),
        ("fail fail", 10, State.PROCESSING, [8, 9]),
        ("fail fail", 1, State.FAILED, [1, 2]),
    ],
    ids=[
        "nothing has happened", "one after the other", "hand-backs do not count", "hand-backs between failures",
        "cancelled while it ran", "a requeue starts at 1", "one is running", "the oldest are forgotten",
        "the oldest are forgotten, one is running", "a count that is lower than the history",
    ],
)  # fmt: skip
def test_attempts_are_numbered_as_the_job_counts_them(
    kinds: str, attempts: int, state: State, expected: list[int]
) -> None:
    assert numbers(kinds, attempts, state) == expected


def test_a_job_that_was_cancelled_before_it_ran_has_no_attempt() -> None:
    job = StoredJob(key=1, type="t", state=State.CANCELLED, variables="{}", attempts=1, max_attempts=5)
    assert attempt_numbers(job, [HistoryEntry(1, "fail", 1, activated_at_ms=0), HistoryEntry(1, "cancel", 2)]) == [1, 2]
