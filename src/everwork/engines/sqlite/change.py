"""cancel, requeue, set_retries, reschedule, set_priority, delete: each finds the job, checks its state, and acts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence

from everwork.core.leasing import Judged, Verdict
from everwork.core.limits import DEFAULT_TENANT
from everwork.core.retry import raised_attempts, remaining_retries
from everwork.core.states import FINISHED_STATES, Cause, State, is_allowed
from everwork.engines.contract.changes import Changes
from everwork.engines.rules import AUTOMATIC_REQUEUE, CHANGED_ARGUMENTS
from everwork.engines.sqlite.shared import (
    REQUEUED,
    Ended,
    FoundJob,
    enter_pending,
    find_job,
    finish_cancelled,
    leave_pending,
    record,
)
from everwork.engines.sqlite.statements import statements
from everwork.engines.sqlite.store.opened import SqliteBase
from everwork.engines.sqlite.transaction import Transaction

SHARED = statements("shared")
RETRIES = statements("set_retries")
DELETE = statements("delete")
REQUEUE = statements("requeue")


class SqliteChanges(SqliteBase, Changes):
    """Changes to jobs, by key."""

    async def cancel(self, keys: Sequence[int], reason: str = "") -> list[Judged]:
        return await self._store.writer.submit(lambda tx: cancel(tx, keys, reason))

    async def requeue(
        self, keys: Sequence[int], *, waiting: bool = False, variables: str | None = None
    ) -> list[Judged]:
        return await self._store.writer.submit(lambda tx: requeue(tx, keys, waiting=waiting, variables=variables))

    async def set_retries(self, key: int, retries: int) -> Judged:
        return await self._store.writer.submit(lambda tx: set_retries(tx, key, retries))

    async def reschedule(self, keys: Sequence[int], *, run_at_ms: int | None = None, delay_ms: int = 0) -> list[Judged]:
        return await self._store.writer.submit(lambda tx: reschedule(tx, keys, run_at_ms, delay_ms))

    async def set_priority(self, keys: Sequence[int], priority: int) -> list[Judged]:
        return await self._store.writer.submit(lambda tx: set_priority(tx, keys, priority))

    async def delete(self, keys: Sequence[int], attempts: Sequence[int] | None = None) -> list[Judged]:
        return await self._store.writer.submit(lambda tx: delete(tx, keys, attempts))


def cancel(tx: Transaction, keys: Sequence[int], reason: str) -> list[Judged]:
    """Cancel pending and processing jobs."""
    return [_judge(tx, key, lambda found: _cancel(tx, found, reason)) for key in keys]


def requeue(tx: Transaction, keys: Sequence[int], *, waiting: bool, variables: str | None = None) -> list[Judged]:
    """Make dead letters pending again, with the max_attempts they were created with."""
    act = _requeue_any if waiting else _requeue
    note = None if variables is None else CHANGED_ARGUMENTS

    def requeue_one(found: FoundJob) -> Verdict:
        verdict = act(tx, found, note=note)
        if verdict is Verdict.ACCEPTED and variables is not None:
            tx.cursor.execute(SHARED["set_variables"], (variables, found.key))
        return verdict

    return [_judge(tx, key, requeue_one) for key in keys]


def requeue_automatically(tx: Transaction, key: int) -> None:
    """Requeue a dead letter automatically, according to its type's policy."""
    _judge(tx, key, lambda found: _requeue(tx, found, note=AUTOMATIC_REQUEUE))


def set_retries(tx: Transaction, key: int, retries: int) -> Judged:
    """Change how many attempts are left; returns the previous number."""
    return _judge(tx, key, lambda found: _set_retries(tx, found, retries))


def reschedule(tx: Transaction, keys: Sequence[int], run_at_ms: int | None, delay_ms: int) -> list[Judged]:
    """Change when pending jobs run."""
    at_ms = tx.now_ms + delay_ms if run_at_ms is None else run_at_ms
    return [_judge(tx, key, lambda found: _move_pending(tx, found, run_at_ms=at_ms)) for key in keys]


def set_priority(tx: Transaction, keys: Sequence[int], priority: int) -> list[Judged]:
    """Change the priority of pending jobs."""
    return [_judge(tx, key, lambda found: _move_pending(tx, found, sort_priority=-priority)) for key in keys]


def delete(tx: Transaction, keys: Sequence[int], attempts: Sequence[int] | None = None) -> list[Judged]:
    """Delete finished jobs, unless they have had another attempt since."""
    seen = {} if attempts is None else dict(zip(keys, attempts, strict=True))
    found = {key: find_job(tx, key) for key in keys}
    finished = {
        job.key: job
        for job in found.values()
        if job is not None and State(job.state) in FINISHED_STATES and seen.get(job.key, job.attempt) == job.attempt
    }
    remove(tx, list(finished.values()))
    judged = []
    for key in keys:
        job = found.pop(key, None)
        state = State(job.state) if job else None
        refused = Verdict.NOT_FOUND if state is None else Verdict.WRONG_STATE
        judged.append(Judged(Verdict.ACCEPTED if job and key in finished else refused, state))
    return judged


def remove(tx: Transaction, finished: Sequence[FoundJob]) -> None:
    """Delete finished jobs with everything that belongs to them."""
    if not finished:
        return
    keys = json.dumps([job.key for job in finished])
    tx.cursor.execute(DELETE["dedupe"], (keys, DEFAULT_TENANT))
    for table in ("expiry", "back", "history", "result", "revision", "job"):
        tx.cursor.execute(DELETE[table], (keys,))
    tx.cursor.executemany(SHARED["delete_finished"], [(job.queue, job.state, job.key) for job in finished])
    for (queue, lane, state), jobs in Counter((job.queue, job.lane, job.state) for job in finished).items():
        tx.count(queue, lane, State(state), -jobs)


def _judge(tx: Transaction, key: int, act: Callable[[FoundJob], Verdict]) -> Judged:
    found = find_job(tx, key)
    if found is None:
        return Judged(Verdict.NOT_FOUND)
    state = State(found.state)
    return Judged(act(found), state, remaining_retries(state, found.attempts, found.max_attempts))


def _cancel(tx: Transaction, found: FoundJob, reason: str) -> Verdict:
    state = State(found.state)
    if state is State.CANCELLED:
        return Verdict.REPEATED
    if not is_allowed(state, Cause.CANCEL):
        return Verdict.WRONG_STATE
    if state is State.PENDING:
        leave_pending(tx, found.pending, is_ready=bool(found.is_ready))
    else:
        tx.cursor.execute(SHARED["delete_leased"], (found.key,))
    finish_cancelled(tx, found, Cause.CANCEL, reason)
    return Verdict.ACCEPTED


def _requeue_any(tx: Transaction, found: FoundJob, *, note: str | None) -> Verdict:
    if found.state != State.PENDING:
        return _requeue(tx, found, note=note)
    if not tx.cursor.execute(REQUEUE["is_tried"], (found.key, found.attempt)).fetchone()[0]:
        return Verdict.WRONG_STATE
    leave_pending(tx, found.pending, is_ready=bool(found.is_ready))
    _enter_again(tx, found, min(found.run_at_ms, tx.now_ms), note=note)
    return Verdict.ACCEPTED


def _requeue(tx: Transaction, found: FoundJob, max_attempts: int | None = None, *, note: str | None = None) -> Verdict:
    if not is_allowed(State(found.state), Cause.REQUEUE):
        return Verdict.WRONG_STATE
    tx.cursor.execute(SHARED["delete_finished"], (found.queue, found.state, found.key))
    _enter_again(tx, found, tx.now_ms, max_attempts, note)
    tx.move(found.queue, found.lane, State.FAILED, State.PENDING)
    return Verdict.ACCEPTED


def _enter_again(
    tx: Transaction, found: FoundJob, run_at_ms: int, max_attempts: int | None = None, note: str | None = None
) -> None:
    if max_attempts is None:
        (max_attempts,) = tx.cursor.execute(REQUEUE["created_with"], (found.key,)).fetchone()
    again = found.pending._replace(run_at_ms=run_at_ms, attempts=0, max_attempts=max_attempts)
    enter_pending(tx, [again])
    record(tx, [Ended(found.key, found.attempt, REQUEUED, Cause.REQUEUE.value, tx.now_ms, error=note)])


def _set_retries(tx: Transaction, found: FoundJob, retries: int) -> Verdict:
    match State(found.state):
        case State.PENDING if retries > 0:
            max_attempts = raised_attempts(found.attempts, retries)
            if found.is_ready:
                tx.cursor.execute(RETRIES["ready"], (max_attempts, *found.pending.ready_key))
            else:
                tx.cursor.execute(RETRIES["future"], (max_attempts, *found.pending.future_key))
            return Verdict.ACCEPTED
        case State.PROCESSING:
            max_attempts = raised_attempts(found.attempts, max(retries, 1) - 1)
            tx.cursor.execute(RETRIES["leased"], (max_attempts, found.key))
            return Verdict.ACCEPTED
        case State.FAILED:
            return _requeue(tx, found, retries) if retries > 0 else Verdict.REPEATED
        case _:
            return Verdict.WRONG_STATE


def _move_pending(
    tx: Transaction, found: FoundJob, *, run_at_ms: int | None = None, sort_priority: int | None = None
) -> Verdict:
    if found.state != State.PENDING:
        return Verdict.WRONG_STATE
    row = found.pending
    leave_pending(tx, row, is_ready=bool(found.is_ready))
    moved = row._replace(
        run_at_ms=row.run_at_ms if run_at_ms is None else run_at_ms,
        sort_priority=row.sort_priority if sort_priority is None else sort_priority,
    )
    enter_pending(tx, [moved], rearm=False)
    return Verdict.ACCEPTED
