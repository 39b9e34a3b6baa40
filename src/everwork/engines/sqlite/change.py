"""cancel, requeue, set_retries, reschedule, set_priority, delete: each finds the job, checks its state, and acts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence

from everwork.core.leasing import Judged, Verdict
from everwork.core.limits import DEFAULT_TENANT
from everwork.core.retry import raised_attempts, remaining_retries
from everwork.core.states import FINISHED_STATES, Cause, State, is_allowed
from everwork.engines.rules import BY_ITSELF
from everwork.engines.sqlite.shared import (
    REQUEUED,
    Ended,
    Pending,
    Where,
    enter_pending,
    finish_cancelled,
    leave_pending,
    record,
    where,
)
from everwork.engines.sqlite.statements import statements
from everwork.engines.sqlite.transaction import Transaction

SHARED = statements("shared")
RETRIES = statements("set_retries")
DELETE = statements("delete")


def cancel(tx: Transaction, keys: Sequence[int], reason: str) -> list[Judged]:
    """Cancel what is pending or processing."""
    return [_judge(tx, key, lambda found: _cancel(tx, found, reason)) for key in keys]


def requeue(tx: Transaction, keys: Sequence[int]) -> list[Judged]:
    """Bring dead letters back, with the attempts they were created with."""
    return [_judge(tx, key, lambda found: _requeue(tx, found, None)) for key in keys]


def requeue_by_itself(tx: Transaction, key: int) -> None:
    """Bring a dead letter back because its type's policy says so."""
    _judge(tx, key, lambda found: _requeue(tx, found, None, BY_ITSELF))


def set_retries(tx: Transaction, key: int, retries: int) -> Judged:
    """Change how many attempts are left; the previous number is answered."""
    return _judge(tx, key, lambda found: _set_retries(tx, found, retries))


def reschedule(tx: Transaction, keys: Sequence[int], run_at_ms: int | None, delay_ms: int) -> list[Judged]:
    """Let pending jobs run at another time."""
    at_ms = tx.now_ms + delay_ms if run_at_ms is None else run_at_ms
    return [_judge(tx, key, lambda found: _move_pending(tx, found, run_at_ms=at_ms)) for key in keys]


def set_priority(tx: Transaction, keys: Sequence[int], priority: int) -> list[Judged]:
    """Change the priority of pending jobs."""
    return [_judge(tx, key, lambda found: _move_pending(tx, found, urgency=-priority)) for key in keys]


def delete(tx: Transaction, keys: Sequence[int]) -> list[Judged]:
    """Remove finished jobs."""
    found = {key: where(tx, key) for key in keys}
    gone = [job for job in found.values() if job is not None and State(job.state) in FINISHED_STATES]
    remove(tx, gone)
    judged = []
    for key in keys:
        job = found.pop(key, None)
        state = State(job.state) if job else None
        refused = Verdict.NOT_FOUND if state is None else Verdict.WRONG_STATE
        judged.append(Judged(Verdict.ACCEPTED if state in FINISHED_STATES else refused, state))
    return judged


def remove(tx: Transaction, gone: Sequence[Where]) -> None:
    """Delete finished jobs with all that belongs to them."""
    if not gone:
        return
    keys = json.dumps([job.key for job in gone])
    tx.cursor.execute(DELETE["dedupe"], (keys, DEFAULT_TENANT))
    for part in ("expiry", "back", "history", "result", "revision", "job"):
        tx.cursor.execute(DELETE[part], (keys,))
    tx.cursor.executemany(SHARED["delete_finished"], [(job.queue, job.state, job.key) for job in gone])
    for (queue, lane, state), jobs in Counter((job.queue, job.lane, job.state) for job in gone).items():
        tx.count(queue, lane, State(state), -jobs)


def _judge(tx: Transaction, key: int, act: Callable[[Where], Verdict]) -> Judged:
    found = where(tx, key)
    if found is None:
        return Judged(Verdict.NOT_FOUND)
    state = State(found.state)
    return Judged(act(found), state, remaining_retries(state, found.attempts, found.max_attempts))


def _cancel(tx: Transaction, found: Where, reason: str) -> Verdict:
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


def _requeue(tx: Transaction, found: Where, max_attempts: int | None, why: str | None = None) -> Verdict:
    if not is_allowed(State(found.state), Cause.REQUEUE):
        return Verdict.WRONG_STATE
    if max_attempts is None:
        sql = statements("requeue")["created_with"]
        (max_attempts,) = tx.cursor.execute(sql, (found.key,)).fetchone()
    tx.cursor.execute(SHARED["delete_finished"], (found.queue, found.state, found.key))
    again = found.pending._replace(run_at_ms=tx.now_ms, attempts=0, max_attempts=max_attempts)
    enter_pending(tx, [again])
    record(tx, [Ended(found.key, found.attempt, REQUEUED, Cause.REQUEUE.value, tx.now_ms, error=why)])
    tx.move(found.queue, found.lane, State.FAILED, State.PENDING)
    return Verdict.ACCEPTED


def _set_retries(tx: Transaction, found: Where, retries: int) -> Verdict:
    match State(found.state):
        case State.PENDING if retries > 0:
            allowed = raised_attempts(found.attempts, retries)
            name, place = ("ready", found.pending[:5]) if found.is_ready else ("future", _future_place(found.pending))
            tx.cursor.execute(RETRIES[name], (allowed, *place))
            return Verdict.ACCEPTED
        case State.PROCESSING:
            allowed = raised_attempts(found.attempts, max(retries, 1) - 1)
            tx.cursor.execute(RETRIES["leased"], (allowed, found.key))
            return Verdict.ACCEPTED
        case State.FAILED:
            return _requeue(tx, found, retries) if retries > 0 else Verdict.REPEATED
        case _:
            return Verdict.WRONG_STATE


def _move_pending(
    tx: Transaction, found: Where, *, run_at_ms: int | None = None, urgency: int | None = None
) -> Verdict:
    if found.state != State.PENDING:
        return Verdict.WRONG_STATE
    row = found.pending
    leave_pending(tx, row, is_ready=bool(found.is_ready))
    moved = row._replace(
        run_at_ms=row.run_at_ms if run_at_ms is None else run_at_ms, urgency=row.urgency if urgency is None else urgency
    )
    enter_pending(tx, [moved], rearm=False)
    return Verdict.ACCEPTED


def _future_place(row: Pending) -> tuple[int, int, int]:
    return row.queue, row.run_at_ms, row.key
