"""settle: end attempts. The guard is the join with the leased rows; what must be decided, the core decides."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import NamedTuple

from everwork.codec.json import policy_of
from everwork.core.decide import Decision, Known, decide
from everwork.core.leasing import Judged, Lease, LeaseStatus, Verdict
from everwork.core.outcome import Complete, DecidedOutcome, Lapse, Outcome, Release
from everwork.core.states import Cause, State
from everwork.engines.rules import refused
from everwork.engines.sqlite.capacity import count_failures, count_successes
from everwork.engines.sqlite.create import create
from everwork.engines.sqlite.shared import ENDED, Ended, Pending, enter_pending, record, where
from everwork.engines.sqlite.statements import statements
from everwork.engines.sqlite.transaction import EXECUTIONS, WAITS, Transaction, Work, measure_completed, measure_failed

SQL = statements("settle")
SHARED = statements("shared")
ACCEPTED = Judged(Verdict.ACCEPTED, State.PROCESSING)


class Leased(NamedTuple):
    """A leased row with the retries of the job's own and the policy of its type."""

    key: int
    queue: int
    lane: str
    urgency: int
    run_at_ms: int
    attempt: int
    attempts: int
    max_attempts: int
    activated_at_ms: int
    worker: str
    retry: str | None
    policy: str | None


def settle(tx: Transaction, outcomes: Sequence[Outcome]) -> list[Judged]:
    """Judge each outcome by itself; two outcomes for one job are judged one after the other."""
    first = {outcome[0]: outcome for outcome in reversed(outcomes)}
    accepted = _apply(tx, outcomes if len(first) == len(outcomes) else list(first.values()))
    if len(accepted) == len(outcomes):
        return [ACCEPTED] * len(outcomes)
    judged: list[Judged] = []
    for outcome in outcomes:
        if first.get(outcome.key) is outcome:
            del first[outcome.key]
            judged.append(ACCEPTED if outcome.key in accepted else _refusal(tx, outcome))
        else:
            judged.append(ACCEPTED if _apply(tx, [outcome]) else _refusal(tx, outcome))
    return judged


def lapse(tx: Transaction, lapsed: Sequence[Lapse]) -> int:
    """Take leases away that ran out: each is a failed attempt."""
    return len(_fail(tx, lapsed))


def _apply(tx: Transaction, outcomes: Sequence[Outcome]) -> set[int]:
    """Apply outcomes of different jobs; the keys of those that passed the guard."""
    completions = [o for o in outcomes if type(o) is Complete]
    if len(completions) == len(outcomes):
        return _complete(tx, completions)
    releases = [o for o in outcomes if isinstance(o, Release)]
    failures: list[DecidedOutcome] = [o for o in outcomes if not isinstance(o, Complete | Release)]
    return _complete(tx, completions) | _release(tx, releases) | _fail(tx, failures)


def _guard(outcomes: Sequence[Outcome | Lapse]) -> str:
    return "{" + ",".join([f'"{o[0]}":{o[1]}' for o in outcomes]) + "}"


def _complete(tx: Transaction, outcomes: Sequence[Complete]) -> set[int]:
    if not outcomes:
        return set()
    guard = (_guard(outcomes), tx.now_ms)
    passed = tx.cursor.execute(SQL["complete"], guard).rowcount
    if passed == len(outcomes):
        # The usual case: the sums are taken in the store, no row comes here.
        accepted = {outcome[0] for outcome in outcomes}
        sums = tx.cursor.execute(SQL["completed_sums"], guard).fetchall()
        tx.cursor.execute(SQL["completed_all"], guard[:1])
    else:
        rows = tx.cursor.execute(SQL["completed_some"], guard).fetchall()
        accepted = {row[0] for row in rows}
        sums = [row[1:] for row in rows]
    for queue, lane, worker, jobs, executions_ms, waits_ms, is_held in sums:
        if not is_held:
            tx.holds.know_free(queue)
        tx.move(queue, lane, State.PROCESSING, State.COMPLETED, jobs)
        execution_ms = measure_completed(tx, queue, EXECUTIONS, executions_ms)
        wait_ms = measure_completed(tx, queue, WAITS, waits_ms)
        tx.worked(queue, worker, Work(completed=jobs, execution_ms=execution_ms, wait_ms=wait_ms))
    count_successes(tx, {row[0] for row in sums}, accepted)
    results = [(o.key, o.result) for o in outcomes if o.result is not None and o.key in accepted]
    if results:
        tx.cursor.executemany(SQL["insert_result"], results)
    events = [event for o in outcomes if o.events and o.key in accepted for event in o.events]
    if events:
        create(tx, events)
    return accepted


def _read(tx: Transaction, outcomes: Sequence[Outcome | Lapse]) -> list[Leased]:
    return [Leased._make(row) for row in tx.cursor.execute(SQL["read_leased"], (_guard(outcomes),)).fetchall()]


def _release(tx: Transaction, outcomes: Sequence[Release]) -> set[int]:
    """Back to where the job came from; the attempt is not counted, and its number is spent."""
    if not outcomes:
        return set()
    rows = _read(tx, outcomes)
    tx.cursor.executemany(SHARED["delete_leased"], [(row.key,) for row in rows])
    enter_pending(
        tx,
        [
            Pending(r.queue, r.lane, r.urgency, r.run_at_ms, r.key, r.attempt, r.attempts - 1, r.max_attempts)
            for r in rows
        ],
    )
    record(
        tx,
        [
            Ended(r.key, r.attempt, ENDED, Cause.RELEASE.value, tx.now_ms, r.worker, None, r.activated_at_ms)
            for r in rows
        ],
    )
    for row in rows:
        tx.move(row.queue, row.lane, State.PROCESSING, State.PENDING)
    return {row.key for row in rows}


def _fail(tx: Transaction, outcomes: Sequence[DecidedOutcome]) -> set[int]:
    if not outcomes:
        return set()
    rows = _read(tx, outcomes)
    by_key = {outcome.key: outcome for outcome in outcomes}
    decided = [
        (
            row,
            decide(
                Known(row.key, row.attempt, row.attempts, row.max_attempts),
                by_key[row.key],
                policy_of(row.retry, row.policy),
            ),
        )
        for row in rows
    ]
    tx.cursor.executemany(SHARED["delete_leased"], [(row.key,) for row in rows])
    _retry(tx, [pair for pair in decided if pair[1].state is State.PENDING])
    _rest(tx, [pair for pair in decided if pair[1].state is State.FAILED])
    changed = [(decision.variables, row.key) for row, decision in decided if decision.variables is not None]
    if changed:
        tx.cursor.executemany(SQL["set_variables"], changed)
    for row, decision in decided:
        tx.move(row.queue, row.lane, State.PROCESSING, decision.state)
        work = _work(tx, row, decision)
        tx.worked(row.queue, row.worker, work)
        measure_failed(tx, row.queue, work.execution_ms, work.wait_ms, decision.sort)
    count_failures(tx, [(row.queue, row.key, row.attempt) for row, decision in decided if decision.is_counted])
    return {row.key for row in rows}


def _retry(tx: Transaction, decided: Sequence[tuple[Leased, Decision]]) -> None:
    again = [
        Pending(r.queue, r.lane, r.urgency, tx.now_ms + d.backoff_ms, r.key, r.attempt, r.attempts, d.max_attempts)
        for r, d in decided
    ]
    enter_pending(tx, again)
    record(tx, [_ended(tx, r, d, tx.now_ms + d.backoff_ms) for r, d in decided])


def _rest(tx: Transaction, decided: Sequence[tuple[Leased, Decision]]) -> None:
    tx.cursor.executemany(
        SHARED["insert_finished"],
        [
            (
                r.key, r.queue, State.FAILED, r.attempt, r.attempts, d.max_attempts, tx.now_ms, r.activated_at_ms,
                r.worker, d.kind, d.error, d.code,
            )
            for r, d in decided
        ],
    )  # fmt: skip
    record(tx, [_ended(tx, r, d, None) for r, d in decided])


def _ended(tx: Transaction, row: Leased, decision: Decision, retry_at_ms: int | None) -> Ended:
    return Ended(
        row.key,
        row.attempt,
        ENDED,
        decision.kind,
        tx.now_ms,
        row.worker,
        decision.error,
        row.activated_at_ms,
        retry_at_ms,
    )


def _work(tx: Transaction, row: Leased, decision: Decision) -> Work:
    retried = int(decision.state is State.PENDING)
    return Work(
        failed=1 - retried,
        retried=retried,
        execution_ms=max(0, tx.now_ms - row.activated_at_ms),
        wait_ms=max(0, row.activated_at_ms - row.run_at_ms),
    )


def _refusal(tx: Transaction, outcome: Outcome) -> Judged:
    """Find out how the attempt ended that this outcome names; what follows is the same on every engine."""
    found = where(tx, outcome.key)
    if found is None:
        return Judged(Verdict.NOT_FOUND)
    row = tx.cursor.execute(SQL["past_end"], (outcome.key, outcome.attempt)).fetchone()
    ended = row[0] if row else found.kind if outcome.attempt == found.attempt else None
    return refused(outcome, State(found.state), found.attempt, ended)


EXTEND = statements("extend")
CHECK = statements("check")


def extend(tx: Transaction, leases: Sequence[Lease], lease_ms: int) -> list[LeaseStatus]:
    """Let live leases end `lease_ms` from now."""
    rows = tx.cursor.execute(EXTEND["extend"], (_document(leases), tx.now_ms + lease_ms)).fetchall()
    return _statuses(tx.cursor, leases, set(rows))


def check(cursor: sqlite3.Cursor, leases: Sequence[Lease]) -> list[LeaseStatus]:
    """Look which leases hold, and change nothing."""
    rows = cursor.execute(CHECK["held"], (_document(leases),)).fetchall()
    return _statuses(cursor, leases, set(rows))


def _statuses(cursor: sqlite3.Cursor, leases: Sequence[Lease], held: set[tuple[int, int]]) -> list[LeaseStatus]:
    gone = [lease for lease in leases if lease not in held]
    cancelled: set[tuple[int, int]] = set()
    if gone:
        cancelled = set(cursor.execute(CHECK["cancelled"], (_document(gone),)).fetchall())
    return [
        LeaseStatus.HELD if lease in held else LeaseStatus.CANCELLED if lease in cancelled else LeaseStatus.LOST
        for lease in leases
    ]


def _document(leases: Sequence[Lease]) -> str:
    return "{" + ",".join([f'"{lease.key}":{lease.attempt}' for lease in leases]) + "}"
