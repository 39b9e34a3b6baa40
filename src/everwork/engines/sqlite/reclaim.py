"""reclaim: restore expired leases, and undo everything that their expiry counted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from everwork.core.leasing import Lease, LeaseStatus
from everwork.core.limits import HOUR_MS
from everwork.core.measures import LAPSED, OTHER_WORKERS
from everwork.core.states import State
from everwork.engines.contract.jobs import JobFlow
from everwork.engines.rules import AUTOMATIC_REQUEUE
from everwork.engines.sqlite.settle import extend
from everwork.engines.sqlite.shared import FoundJob, Pending, find_job, leave_pending
from everwork.engines.sqlite.statements import statements
from everwork.engines.sqlite.store.opened import SqliteBase
from everwork.engines.sqlite.transaction import Transaction, failed_measures, failed_work

SQL = statements("reclaim")
SHARED = statements("shared")


class SqliteReclaim(SqliteBase, JobFlow):
    """Restores expired leases."""

    async def reclaim(self, leases: Sequence[Lease], lease_ms: int) -> list[LeaseStatus]:
        return await self._store.writer.submit(lambda tx: reclaim(tx, leases, lease_ms))


class Lapsed(NamedTuple):
    """The history entry of an expired lease; the last two fields are None if another store or version recorded it."""

    worker: str
    activated_at_ms: int
    at_ms: int
    retry_at_ms: int | None
    due_at_ms: int | None
    attempts: int | None

    def leased(self, row: Pending) -> Pending:
        """The row of the job as it was before the lease expired; it may have been requeued since."""
        attempts = max(row.attempts, 1) if self.attempts is None else self.attempts
        due_at_ms = min(row.run_at_ms, self.activated_at_ms) if self.due_at_ms is None else self.due_at_ms
        return row._replace(run_at_ms=due_at_ms, attempts=attempts, max_attempts=max(row.max_attempts, attempts))


def reclaim(tx: Transaction, leases: Sequence[Lease], lease_ms: int) -> list[LeaseStatus]:
    """Restore expired leases, then extend all leases."""
    for lease in leases:
        found, row = find_job(tx, lease.key), tx.cursor.execute(SQL["lapse"], lease).fetchone()
        if found is not None and row is not None and found.attempt == lease.attempt:
            _undo_lapse(tx, found, Lapsed._make(row), tx.now_ms + lease_ms)
    return extend(tx, leases, lease_ms)


def _undo_lapse(tx: Transaction, found: FoundJob, lapsed: Lapsed, until_ms: int) -> None:
    state = State(found.state)
    if state is State.PENDING:
        leave_pending(tx, found.pending, is_ready=bool(found.is_ready))
    elif state is State.FAILED:
        tx.cursor.execute(SHARED["delete_finished"], (found.queue, found.state, found.key))
    else:
        return
    row = lapsed.leased(found.pending)
    leased = (row.key, *row[:4], *row[5:], lapsed.activated_at_ms, until_ms, lapsed.worker)
    tx.cursor.execute(SQL["insert_leased"], leased)
    tx.cursor.execute(SHARED["revise"], (row.key, row.run_at_ms, -row.sort_priority))
    tx.cursor.execute(SQL["forget_round"], (row.key, row.attempt, AUTOMATIC_REQUEUE))
    tx.cursor.execute(SQL["forget_lapse"], (row.key, row.attempt))
    tx.count(found.queue, found.lane, state, -1)
    tx.count(found.queue, found.lane, State.PROCESSING, 1)
    if lapsed.due_at_ms is not None:
        _uncount(tx, found.queue, lapsed, lapsed.due_at_ms)


def _uncount(tx: Transaction, queue: int, lapsed: Lapsed, due_at_ms: int) -> None:
    """Remove the expired lease from the statistics of its hour, unless these have been deleted."""
    tx.flush()  # The expiry may have been counted in this same transaction.
    hour = lapsed.at_ms // HOUR_MS
    is_retried = lapsed.retry_at_ms is not None
    work = failed_work(lapsed.at_ms, lapsed.activated_at_ms, due_at_ms, is_retried=is_retried, is_lapsed=True)
    less = (work.failed, work.retried, work.execution_ms, work.wait_ms)
    for worker in (lapsed.worker, OTHER_WORKERS):  # If an hour has very many workers, some are counted together.
        if tx.cursor.execute(SQL["less_hourly"], (hour, queue, worker, *less)).rowcount:
            tx.cursor.execute(SQL["forget_hourly"], (hour, queue, worker))
            break
    counted = [(hour, queue, what) for what in failed_measures(work.execution_ms, work.wait_ms, LAPSED)]
    tx.cursor.executemany(SQL["less_measure"], counted)
    tx.cursor.executemany(SQL["forget_measure"], counted)
