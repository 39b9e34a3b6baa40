"""Steps that several operations share: entering and leaving pending, finishing, recording history."""

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
"""The two events that the history can record for one attempt number, in order."""


class Pending(NamedTuple):
    """A job's row in ew_ready or ew_future. `sort_priority` (`urgency`) is the negated priority: indexes ascend."""

    queue: int
    lane: str
    sort_priority: int
    run_at_ms: int
    key: int
    attempt: int
    attempts: int
    max_attempts: int

    @property
    def ready_key(self) -> tuple[int, str, int, int, int]:
        """The primary key of the row in ew_ready."""
        return self.queue, self.lane, self.sort_priority, self.run_at_ms, self.key

    @property
    def future_key(self) -> tuple[int, int, int]:
        """The primary key of the row in ew_future."""
        return self.queue, self.run_at_ms, self.key


class FoundJob(NamedTuple):
    """A job that was looked up: its state, and the columns that the tables of all states share."""

    key: int
    queue: int
    lane: str
    state: int
    is_ready: int
    sort_priority: int
    run_at_ms: int
    attempt: int
    attempts: int
    max_attempts: int
    activated_at_ms: int | None
    worker: str | None
    kind: str | None

    @property
    def pending(self) -> Pending:
        """The row of the job while it is pending."""
        return Pending(
            self.queue,
            self.lane,
            self.sort_priority,
            self.run_at_ms,
            self.key,
            self.attempt,
            self.attempts,
            self.max_attempts,
        )


def find_job(tx: Transaction, key: int) -> FoundJob | None:
    """Look up a job, whatever its state."""
    row = tx.cursor.execute(GET["where"], (key,)).fetchone()
    return FoundJob._make(row) if row else None


def enter_pending(tx: Transaction, rows: Sequence[Pending], *, rearm: bool = True) -> None:
    """Insert jobs as ready or scheduled, and record run_at and priority, which lookups use to find the row."""
    if not rows:
        return
    cursor = tx.cursor
    ready = [row for row in rows if row.run_at_ms <= tx.now_ms]
    future = [row for row in rows if row.run_at_ms > tx.now_ms]
    cursor.executemany(SQL["insert_ready"], ready)
    cursor.executemany(SQL["insert_future"], future)
    cursor.executemany(SQL["revise"], [(row.key, row.run_at_ms, -row.sort_priority) for row in rows])
    if rearm:
        cursor.executemany(SQL["rearm_expiry"], [(row.key,) for row in rows])
    for queue, lane in {(row.queue, row.lane) for row in ready}:
        tx.open_lane(queue, lane)
    tx.woken = True


def leave_pending(tx: Transaction, row: Pending, *, is_ready: bool) -> None:
    """Delete the row of a job that is ready or scheduled."""
    if is_ready:
        tx.cursor.execute(SQL["delete_ready"], row.ready_key)
    else:
        tx.cursor.execute(SQL["delete_future"], row.future_key)


def cancel_pending(tx: Transaction, keys: Sequence[int], cause: Cause, reason: str) -> int:
    """Cancel the jobs that are pending; returns how many."""
    cancelled = 0
    for key in keys:
        found = find_job(tx, key)
        if found is not None and found.state == State.PENDING:
            leave_pending(tx, found.pending, is_ready=bool(found.is_ready))
            finish_cancelled(tx, found, cause, reason)
            cancelled += 1
    return cancelled


def finish_cancelled(tx: Transaction, found: FoundJob, cause: Cause, reason: str) -> None:
    """Insert the finished row of a cancelled job, whose earlier row has been deleted."""
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
    """A history entry to insert. For an expired lease, the last two fields hold what reclaim needs to undo it."""

    key: int
    attempt: int
    step: int
    kind: str
    at_ms: int
    worker: str | None = None
    error: str | None = None
    activated_at_ms: int | None = None
    retry_at_ms: int | None = None
    traceback: str | None = None
    due_at_ms: int | None = None
    attempts: int | None = None


def record(tx: Transaction, entries: Sequence[Ended]) -> None:
    """Insert history entries, and delete those over the limit per job."""
    tx.cursor.executemany(SQL["append_history"], entries)
    old = [(entry.key, entry.attempt - HISTORY_ENTRIES_MAX) for entry in entries if entry.attempt > HISTORY_ENTRIES_MAX]
    if old:
        tx.cursor.executemany(SQL["trim_history"], old)
