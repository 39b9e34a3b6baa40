"""Steps that several operations share: into pending, out of pending, into the finished ones, into the history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from everwork.core.limits import HISTORY_ENTRIES_MAX
from everwork.core.states import Cause, State
from everwork.engines.sqlite.statements import statements
from everwork.engines.sqlite.transaction import Transaction

SQL = statements("shared")
GET = statements("get")

ENDED, REQUEUED = 0, 1
"""The two steps that the history may record of one attempt number, in their order."""


class Pending(NamedTuple):
    """A job's row in ew_ready or ew_future."""

    queue: int
    lane: str
    urgency: int
    run_at_ms: int
    key: int
    attempt: int
    attempts: int
    max_attempts: int


class Where(NamedTuple):
    """Where a job is: its state and the columns that every place has."""

    key: int
    queue: int
    lane: str
    state: int
    is_ready: int
    urgency: int
    run_at_ms: int
    attempt: int
    attempts: int
    max_attempts: int
    activated_at_ms: int | None
    worker: str | None
    kind: str | None

    @property
    def pending(self) -> Pending:
        """The row as it stands in the pending places."""
        return Pending(
            self.queue,
            self.lane,
            self.urgency,
            self.run_at_ms,
            self.key,
            self.attempt,
            self.attempts,
            self.max_attempts,
        )


def where(tx: Transaction, key: int) -> Where | None:
    """Find a job in whatever place it is."""
    row = tx.cursor.execute(GET["where"], (key,)).fetchone()
    return Where._make(row) if row else None


def enter_pending(tx: Transaction, rows: Sequence[Pending], *, rearm: bool = True) -> None:
    """Put jobs back among the ready or the scheduled ones; their place is remembered for those who look for them."""
    if not rows:
        return
    cursor = tx.cursor
    ready = [row for row in rows if row.run_at_ms <= tx.now_ms]
    future = [row for row in rows if row.run_at_ms > tx.now_ms]
    cursor.executemany(SQL["insert_ready"], ready)
    cursor.executemany(SQL["insert_future"], future)
    cursor.executemany(SQL["revise"], [(row.key, row.run_at_ms, -row.urgency) for row in rows])
    if rearm:
        cursor.executemany(SQL["rearm_expiry"], [(row.key,) for row in rows])
    for queue, lane in {row[:2] for row in ready}:
        tx.open_lane(queue, lane)
    tx.woken = True


def leave_pending(tx: Transaction, row: Pending, *, is_ready: bool) -> None:
    """Take a job out of the ready or the scheduled ones."""
    if is_ready:
        tx.cursor.execute(SQL["delete_ready"], row[:5])
    else:
        tx.cursor.execute(SQL["delete_future"], (row.queue, row.run_at_ms, row.key))


def cancel_pending(tx: Transaction, keys: Sequence[int], cause: Cause, reason: str) -> int:
    """Cancel those of the jobs that are pending; how many they were."""
    cancelled = 0
    for key in keys:
        found = where(tx, key)
        if found is not None and found.state == State.PENDING:
            leave_pending(tx, found.pending, is_ready=bool(found.is_ready))
            finish_cancelled(tx, found, cause, reason)
            cancelled += 1
    return cancelled


def finish_cancelled(tx: Transaction, found: Where, cause: Cause, reason: str) -> None:
    """Write a job that has left its place among the finished ones, as cancelled."""
    state = State(found.state)
    tx.cursor.execute(
        SQL["insert_finished"],
        (
            found.key, found.queue, State.CANCELLED, found.attempt, found.attempts, found.max_attempts, tx.now_ms,
            found.activated_at_ms, found.worker, cause.value, reason or None, None,
        ),
    )  # fmt: skip
    tx.move(found.queue, found.lane, state, State.CANCELLED)


class Ended(NamedTuple):
    """One entry to be written into the history."""

    key: int
    attempt: int
    step: int
    kind: str
    at_ms: int
    worker: str | None = None
    error: str | None = None
    activated_at_ms: int | None = None
    retry_at_ms: int | None = None


def record(tx: Transaction, entries: Sequence[Ended]) -> None:
    """Write history, and keep no more of it per job than the limit."""
    tx.cursor.executemany(SQL["append_history"], entries)
    old = [(e.key, e.attempt - HISTORY_ENTRIES_MAX) for e in entries if e.attempt > HISTORY_ENTRIES_MAX]
    if old:
        tx.cursor.executemany(SQL["trim_history"], old)
