"""settle: end attempts. The join with the leased rows is the guard; the core decides what happens after a failure."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from operator import itemgetter
from typing import NamedTuple

import orjson

from everwork.codec.json import policy_of
from everwork.core.decide import Decision, Known, decide
from everwork.core.job import LeasedJob
from everwork.core.leasing import Activation, Demand, Judged, Lease, LeaseStatus, Settlement, Verdict
from everwork.core.measures import LAPSED
from everwork.core.outcome import Complete, DecidedOutcome, Lapse, Outcome, Release
from everwork.core.states import Cause, State
from everwork.engines.contract.jobs import JobFlow
from everwork.engines.rules import refused
from everwork.engines.sqlite.activate import activate
from everwork.engines.sqlite.capacity import count_failures, count_successes
from everwork.engines.sqlite.create import create
from everwork.engines.sqlite.shared import ENDED, Ended, Pending, enter_pending, find_job, record
from everwork.engines.sqlite.statements import statements
from everwork.engines.sqlite.store.opened import SqliteBase
from everwork.engines.sqlite.transaction import (
    EXECUTIONS,
    WAITS,
    Transaction,
    Work,
    failed_work,
    measure_completed,
    measure_failed,
)
from everwork.exceptions import EngineError

SQL = statements("settle")
SHARED = statements("shared")
KEY = itemgetter(Complete._fields.index("key"))
ACCEPTED = Judged(Verdict.ACCEPTED, State.PROCESSING)


class SqliteSettle(SqliteBase, JobFlow):
    """Ending attempts; extending and checking leases."""

    async def settle(self, outcomes: Sequence[Outcome], demands: Sequence[Demand] = ()) -> Settlement:
        if not outcomes:
            return Settlement([], await self.activate(demands))
        post = self._store.post_for(demands)

        def act(tx: Transaction) -> Settlement:
            judged = settle(tx, outcomes)
            return Settlement(judged, activate(tx, demands, post) if demands else Activation([], None, tx.now_ms, ()))

        return await self._store.writer.submit(act)

    def _take_back(self, jobs: Sequence[LeasedJob]) -> None:
        """Release jobs that were leased to a waiting worker and could not be sent to it."""
        releases = [Release(job.key, job.attempt) for job in jobs]
        with suppress(EngineError):  # The store is closed: their worker looks them up.
            released = self._store.writer.submit(lambda tx: settle(tx, releases))
            released.add_done_callback(lambda future: future.cancelled() or future.exception())

    async def extend(self, leases: Sequence[Lease], lease_ms: int) -> list[LeaseStatus]:
        return await self._store.writer.submit(lambda tx: extend(tx, leases, lease_ms))

    async def check(self, leases: Sequence[Lease]) -> list[LeaseStatus]:
        return await self._store.query(lambda cursor, _: check(cursor, leases))


class Leased(NamedTuple):
    """A leased row with the job's own retry policy and the policy of its type."""

    key: int
    queue: int
    lane: str
    sort_priority: int
    run_at_ms: int
    attempt: int
    attempts: int
    max_attempts: int
    activated_at_ms: int
    worker: str
    retry: str | None
    policy: str | None

    @property
    def known(self) -> Known:
        """What the core needs to know about the job."""
        return Known(self.key, self.attempt, self.attempts, self.max_attempts)

    def pending(self, run_at_ms: int, attempts: int, max_attempts: int) -> Pending:
        """The row of the job once it is pending again."""
        sort_priority, key, attempt = self.sort_priority, self.key, self.attempt
        return Pending(self.queue, self.lane, sort_priority, run_at_ms, key, attempt, attempts, max_attempts)


def settle(tx: Transaction, outcomes: Sequence[Outcome]) -> list[Judged]:
    """Judge each outcome separately; two outcomes for one job are judged one after the other."""
    first = {outcome.key: outcome for outcome in reversed(outcomes)}
    accepted = _apply(tx, outcomes if len(first) == len(outcomes) else list(first.values()))
    if len(accepted) == len(outcomes):
        return [accepted[outcome.key] for outcome in outcomes]
    judged: list[Judged] = []
    for outcome in outcomes:
        if first.get(outcome.key) is outcome:
            del first[outcome.key]
            passed = accepted
        else:
            passed = _apply(tx, [outcome])
        judged.append(passed.get(outcome.key) or _refusal(tx, outcome))
    return judged


def lapse(tx: Transaction, lapsed: Sequence[Lapse]) -> int:
    """End attempts whose lease has expired: each is a failed attempt."""
    return len(_fail(tx, lapsed))


def _apply(tx: Transaction, outcomes: Sequence[Outcome]) -> dict[int, Judged]:
    """Apply outcomes of different jobs; returns those that passed the guard, by key."""
    completions = [outcome for outcome in outcomes if type(outcome) is Complete]
    if len(completions) == len(outcomes):
        return dict.fromkeys(_complete(tx, completions), ACCEPTED)
    releases = [outcome for outcome in outcomes if isinstance(outcome, Release)]
    failures: list[DecidedOutcome] = [outcome for outcome in outcomes if not isinstance(outcome, Complete | Release)]
    return dict.fromkeys(_complete(tx, completions) | _release(tx, releases), ACCEPTED) | _fail(tx, failures)


def _guard(outcomes: Sequence[Outcome | Lapse | Lease]) -> str:
    """The attempts that must be live, as JSON: {"key": attempt, ...}."""
    return "{" + ",".join([f'"{outcome.key}":{outcome.attempt}' for outcome in outcomes]) + "}"


def _counted(lanes: list[str]) -> Mapping[str, int]:
    """How many jobs each lane has; usually, there is only one lane."""
    first = lanes[0]
    return {first: len(lanes)} if lanes.count(first) == len(lanes) else Counter(lanes)


def _complete(tx: Transaction, outcomes: Sequence[Complete]) -> set[int]:
    if not outcomes:
        return set()
    guard = _guard(sorted(outcomes, key=KEY))  # Rows are inserted and deleted faster in the order of their keys.
    passed = tx.cursor.execute(SQL["complete"], (guard, tx.now_ms)).rowcount
    sums: list[tuple[int, Mapping[str, int], str, int, str, str, int]]
    if passed == len(outcomes) and tx.cursor.connection.text_factory is str:
        # The usual case: SQLite computes the sums, and no row is read. A lane that is not UTF-8 would be invalid JSON.
        accepted = {outcome.key for outcome in outcomes}
        rows = tx.cursor.execute(SQL["completed_sums"], (guard, tx.now_ms)).fetchall()
        sums = [(queue, _counted(orjson.loads(lanes)), *rest) for queue, lanes, *rest in rows]
        tx.cursor.execute(SQL["completed_all"], (guard,))
    else:
        rows = tx.cursor.execute(SQL["completed_some"], (guard, tx.now_ms)).fetchall()
        accepted = {key for key, *_ in rows}
        sums = [(queue, {lane: 1}, *rest) for _, queue, lane, *rest in rows]
    queues = set[int]()
    for queue, lanes, worker, jobs, executions_ms, waits_ms, is_limited in sums:
        queues.add(queue)
        if not is_limited:
            tx.limits.mark_unlimited(queue)
        tx.move_lanes(queue, lanes, State.PROCESSING, State.COMPLETED)
        execution_ms = measure_completed(tx, queue, EXECUTIONS, executions_ms)
        wait_ms = measure_completed(tx, queue, WAITS, waits_ms)
        tx.worked(queue, worker, Work(completed=jobs, execution_ms=execution_ms, wait_ms=wait_ms))
    count_successes(tx, queues, accepted)
    _write_results(tx, outcomes, accepted)
    return accepted


def _write_results(tx: Transaction, outcomes: Sequence[Complete], accepted: set[int]) -> None:
    results = [
        (outcome.key, outcome.result) for outcome in outcomes if outcome.result is not None and outcome.key in accepted
    ]
    if results:
        tx.cursor.executemany(SQL["insert_result"], results)
    events = [event for outcome in outcomes if outcome.events and outcome.key in accepted for event in outcome.events]
    if events:
        create(tx, events)


def _read(tx: Transaction, outcomes: Sequence[Outcome | Lapse]) -> list[Leased]:
    return [Leased._make(row) for row in tx.cursor.execute(SQL["read_leased"], (_guard(outcomes),)).fetchall()]


def _release(tx: Transaction, outcomes: Sequence[Release]) -> set[int]:
    """Make the job pending again as it was; the attempt is not counted, and its number is not used again."""
    if not outcomes:
        return set()
    rows = _read(tx, outcomes)
    tx.cursor.executemany(SHARED["delete_leased"], [(row.key,) for row in rows])
    enter_pending(tx, [row.pending(row.run_at_ms, row.attempts - 1, row.max_attempts) for row in rows])
    kind = Cause.RELEASE.value
    record(
        tx,
        [Ended(row.key, row.attempt, ENDED, kind, tx.now_ms, row.worker, None, row.activated_at_ms) for row in rows],
    )
    for row in rows:
        tx.move(row.queue, row.lane, State.PROCESSING, State.PENDING)
    return {row.key for row in rows}


def _fail(tx: Transaction, outcomes: Sequence[DecidedOutcome]) -> dict[int, Judged]:
    if not outcomes:
        return {}
    rows = _read(tx, outcomes)
    by_key = {outcome.key: outcome for outcome in outcomes}
    decided = [(row, decide(row.known, by_key[row.key], policy_of(row.retry, row.policy))) for row in rows]
    tx.cursor.executemany(SHARED["delete_leased"], [(row.key,) for row in rows])
    _retry(tx, [(row, decision) for row, decision in decided if decision.state is State.PENDING])
    _bury(tx, [(row, decision) for row, decision in decided if decision.state is State.FAILED])
    changed = [(decision.variables, row.key) for row, decision in decided if decision.variables is not None]
    if changed:
        tx.cursor.executemany(SHARED["set_variables"], changed)
    for row, decision in decided:
        tx.move(row.queue, row.lane, State.PROCESSING, decision.state)
        work = _work(tx, row, decision)
        tx.worked(row.queue, row.worker, work)
        measure_failed(tx, row.queue, work.execution_ms, work.wait_ms, decision.category)
    count_failures(tx, [(row.queue, row.key, row.attempt) for row, decision in decided if decision.is_counted])
    return {row.key: decision.accepted(row.known) for row, decision in decided}


def _retry(tx: Transaction, decided: Sequence[tuple[Leased, Decision]]) -> None:
    now_ms = tx.now_ms
    again = [
        row.pending(now_ms + decision.backoff_ms, row.attempts, decision.max_attempts) for row, decision in decided
    ]
    enter_pending(tx, again)
    record(tx, [_ended(tx, row, decision, now_ms + decision.backoff_ms) for row, decision in decided])


def _bury(tx: Transaction, decided: Sequence[tuple[Leased, Decision]]) -> None:
    tx.cursor.executemany(
        SHARED["insert_finished"],
        [
            (
                row.key, row.queue, State.FAILED, row.attempt, row.attempts, decision.max_attempts, tx.now_ms,
                row.activated_at_ms, row.worker, decision.kind, decision.error, decision.code,
            )
            for row, decision in decided
        ],
    )  # fmt: skip
    record(tx, [_ended(tx, row, decision, None) for row, decision in decided])


def _ended(tx: Transaction, row: Leased, decision: Decision, retry_at_ms: int | None) -> Ended:
    ended = Ended(
        row.key,
        row.attempt,
        ENDED,
        decision.kind,
        tx.now_ms,
        row.worker,
        decision.error,
        row.activated_at_ms,
        retry_at_ms,
        decision.traceback,
    )
    if decision.kind == Cause.LAPSE.value:
        return ended._replace(due_at_ms=row.run_at_ms, attempts=row.attempts)
    return ended


def _work(tx: Transaction, row: Leased, decision: Decision) -> Work:
    is_retried, is_lapsed = decision.state is State.PENDING, decision.category == LAPSED
    return failed_work(tx.now_ms, row.activated_at_ms, row.run_at_ms, is_retried=is_retried, is_lapsed=is_lapsed)


def _refusal(tx: Transaction, outcome: Outcome) -> Judged:
    """Find out how the attempt that the outcome names ended; the verdict is the same on every engine."""
    found = find_job(tx, outcome.key)
    if found is None:
        return Judged(Verdict.NOT_FOUND)
    last_end = found.kind if outcome.attempt == found.attempt else None
    (ended,) = tx.cursor.execute(SQL["past_end"], (outcome.key, outcome.attempt)).fetchone() or (last_end,)
    return refused(outcome, State(found.state), found.attempt, ended)


EXTEND = statements("extend")
CHECK = statements("check")


def extend(tx: Transaction, leases: Sequence[Lease], lease_ms: int) -> list[LeaseStatus]:
    """Extend live leases to `lease_ms` from now."""
    rows = tx.cursor.execute(EXTEND["extend"], (_guard(leases), tx.now_ms + lease_ms)).fetchall()
    return _statuses(tx.cursor, leases, set(rows))


def check(cursor: sqlite3.Cursor, leases: Sequence[Lease]) -> list[LeaseStatus]:
    """Which leases are still held; changes nothing."""
    rows = cursor.execute(CHECK["held"], (_guard(leases),)).fetchall()
    return _statuses(cursor, leases, set(rows))


def _statuses(cursor: sqlite3.Cursor, leases: Sequence[Lease], held: set[tuple[int, int]]) -> list[LeaseStatus]:
    gone = [lease for lease in leases if lease not in held]
    cancelled: set[tuple[int, int]] = set()
    if gone:
        cancelled = set(cursor.execute(CHECK["cancelled"], (_guard(gone),)).fetchall())
    return [
        LeaseStatus.HELD if lease in held else LeaseStatus.CANCELLED if lease in cancelled else LeaseStatus.LOST
        for lease in leases
    ]
