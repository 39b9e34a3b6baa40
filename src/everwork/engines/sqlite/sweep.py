"""sweep: one bounded step of maintenance. It checks first, without a lock, and writes only if needed."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from typing import NamedTuple

from everwork.core.limits import (
    HOUR_MS,
    KEY_MAX,
    PRODUCER_KEEP_MS,
    PRODUCERS_MAX,
    STATISTICS_KEEP_HOURS,
    SWEEP_STEP_MAX,
)
from everwork.core.outcome import Lapse
from everwork.core.retention import KEEP_MS
from everwork.core.states import Cause, State
from everwork.engines.contract.lifecycle import Lifecycle
from everwork.engines.sqlite.activate import expire
from everwork.engines.sqlite.capacity import miscounted, recount
from everwork.engines.sqlite.change import remove, requeue_automatically
from everwork.engines.sqlite.registry import take_turn, turn_left_ms
from everwork.engines.sqlite.settle import lapse
from everwork.engines.sqlite.shared import cancel_pending, find_job
from everwork.engines.sqlite.statements import statements
from everwork.engines.sqlite.store.opened import START, Position, RetentionScan, SqliteBase, SweepState
from everwork.engines.sqlite.transaction import Transaction
from everwork.engines.values import Swept

SQL = statements("sweep")
FOLD_FROM_DELTAS = 500
TIDY_EVERY_MS = 3_600_000
RECOUNT_EVERY_MS = 60_000
SKIPS_MAX = 3
"""How many queues without old jobs one step skips."""
DEFAULT_KEEP_MS = {int(state): keep_ms for state, keep_ms in KEEP_MS.items()}
SWEEP_TURN = "sweep"
SWEEP_TURN_MS = 5_000


class SqliteSweep(SqliteBase, Lifecycle):
    """One bounded step of maintenance."""

    async def sweep(self, holder: str) -> Swept:
        store = self._store
        state = store.sweep_state

        def nothing_to_do(cursor: sqlite3.Cursor, now_ms: int) -> Swept | None:
            left_ms = turn_left_ms(cursor, SWEEP_TURN, holder, now_ms)
            is_mine = left_ms >= 0
            is_wrong = is_mine and has_wrong_counts(cursor, state, now_ms, took_over=left_ms == 0)
            if is_wrong or has_lapsed(cursor, now_ms):
                return None
            must_act = is_mine and (left_ms < SWEEP_TURN_MS // 2 or has_upkeep(cursor, state, now_ms))
            return None if must_act else Swept()

        def act(tx: Transaction) -> Swept:
            swept = sweep_lapsed(tx)
            if not take_turn(tx, SWEEP_TURN, holder, SWEEP_TURN_MS):
                return swept
            return sweep_finished(tx, state, swept)

        swept = await store.writer.submit(act, nothing_to_do)
        await store.checkpoint()
        await store.writer.truncate_wal()
        return swept


def has_lapsed(cursor: sqlite3.Cursor, now_ms: int) -> bool:
    """Whether a lease or a pending job has expired, or a pending job belongs to a dropped group."""
    (has_expired,) = cursor.execute(SQL["has_expired"], (now_ms,)).fetchone()
    return bool(has_expired or _lapsed(cursor, now_ms) or _stranded(cursor))


def sweep_lapsed(tx: Transaction) -> Swept:
    """End expired leases and cancel expired jobs; searched again here, under the lock."""
    lapsed = _lapsed(tx.cursor, tx.now_ms)
    lapse(tx, lapsed)
    cancel_pending(tx, _stranded(tx.cursor), Cause.CANCEL, "its group was dropped")
    expired, more_expired = expire(tx)
    return Swept(lapsed=len(lapsed), expired=expired, more=len(lapsed) == SWEEP_STEP_MAX or more_expired)


def has_wrong_counts(cursor: sqlite3.Cursor, state: SweepState, now_ms: int, *, took_over: bool) -> bool:
    """Whether a count of running jobs is wrong; checked when the turn is taken over, and about once a minute."""
    if took_over:
        state.counted_at_ms = 0
    if not _must_recount(state, now_ms):
        return False
    is_wrong = bool(miscounted(cursor))
    if not is_wrong:
        state.counted_at_ms = now_ms
    return is_wrong


def has_upkeep(cursor: sqlite3.Cursor, state: SweepState, now_ms: int) -> bool:
    """Whether the holder of the turn has anything to do; advances the scan past finished jobs that are kept."""
    if _must_fold(cursor) or _must_tidy(state, now_ms) or has_dead_letters_due(cursor, now_ms):
        return True
    old, following = _old(cursor, state.scan, now_ms)
    if not old:
        state.scan = following
    return bool(old)


def sweep_finished(tx: Transaction, state: SweepState, swept: Swept) -> Swept:
    """Recount running jobs, requeue dead letters, delete jobs past their retention, fold the counts, clean up."""
    if _must_recount(state, tx.now_ms):
        recount(tx)
        state.counted_at_ms = tx.now_ms
    requeued, more_dead = requeue_dead_letters(tx)
    if more_dead:  # A dead letter that will be requeued can also be past its retention; it must not be deleted first.
        return replace(swept, requeued=requeued, more=True)
    deleted, more_old = _delete_old(tx, state)
    _fold_and_tidy(tx, state)
    return replace(swept, requeued=requeued, deleted=deleted, more=swept.more or more_old)


def _delete_old(tx: Transaction, state: SweepState) -> tuple[int, bool]:
    old, state.scan = _old(tx.cursor, state.scan, tx.now_ms)
    remove(tx, [job for key in old if (job := find_job(tx, key)) is not None])
    is_done = (state.scan.after, state.scan.full_scan_after) == (START, START)
    return len(old), bool(old) and not is_done


def _fold_and_tidy(tx: Transaction, state: SweepState) -> None:
    if _must_fold(tx.cursor):
        tx.cursor.execute(SQL["fold"])
        tx.cursor.execute(SQL["forget_deltas"])
    if _must_tidy(state, tx.now_ms):
        _tidy(tx)
        state.tidied_at_ms = tx.now_ms


def _lapsed(cursor: sqlite3.Cursor, now_ms: int) -> list[Lapse]:
    return [Lapse._make(row) for row in cursor.execute(SQL["lapsed"], (now_ms, SWEEP_STEP_MAX)).fetchall()]


def _stranded(cursor: sqlite3.Cursor) -> list[int]:
    return [key for (key,) in cursor.execute(SQL["stranded"], (SWEEP_STEP_MAX,)).fetchall()]


def _old(cursor: sqlite3.Cursor, scan: RetentionScan, now_ms: int) -> tuple[list[int], RetentionScan]:
    """Finished jobs past their retention among the next ones, and where the scan continues."""
    for _ in range(SKIPS_MAX):
        old, after = _next_old(cursor, scan.after, now_ms)
        if old:
            return old, scan._replace(after=after)
        queue, state, _ = after
        scan = scan._replace(after=after if after == START else (queue, state, KEY_MAX))
        if after == START:
            break
    if scan.is_full_scan_done(now_ms):
        return [], scan
    since_ms = now_ms if scan.full_scan_after == START else scan.full_scan_since_ms
    old, after = _next_old(cursor, scan.full_scan_after, now_ms)
    return old, scan._replace(full_scan_after=after, full_scan_since_ms=since_ms)


def _next_old(cursor: sqlite3.Cursor, after: Position, now_ms: int) -> tuple[list[int], Position]:
    rows = cursor.execute(SQL["finished"], (*after, SWEEP_STEP_MAX)).fetchall()
    if len(rows) == SWEEP_STEP_MAX:
        queue, state, key, _ = rows[-1]
        after = (queue, state, key)
    else:
        after = START
    keeps = _keeps(cursor)
    old = [
        key
        for queue, state, key, finished_at_ms in rows
        if finished_at_ms + keeps.get((queue, state), DEFAULT_KEEP_MS[state]) <= now_ms
    ]
    return old, after


def _keeps(cursor: sqlite3.Cursor) -> dict[tuple[int, int], int]:
    """How long the jobs of a queue and state are kept, if the type's policy sets it."""
    keeps: dict[tuple[int, int], int] = {}
    for queue, completed_ms, failed_ms in cursor.execute(SQL["keeps"]).fetchall():
        for state in DEFAULT_KEEP_MS:
            keep_ms = failed_ms if state == State.FAILED else completed_ms
            if keep_ms is not None:
                keeps[queue, state] = keep_ms
    return keeps


def _must_fold(cursor: sqlite3.Cursor) -> bool:
    (deltas,) = cursor.execute(SQL["deltas"]).fetchone()
    return bool(deltas >= FOLD_FROM_DELTAS)


def _must_tidy(state: SweepState, now_ms: int) -> bool:
    return not 0 <= now_ms - state.tidied_at_ms < TIDY_EVERY_MS


def _must_recount(state: SweepState, now_ms: int) -> bool:
    return not 0 <= now_ms - state.counted_at_ms < RECOUNT_EVERY_MS


def _tidy(tx: Transaction) -> None:
    tx.cursor.execute(SQL["forget_zeros"])
    tx.cursor.execute(SQL["forget_lanes"])
    first_hour = tx.now_ms // HOUR_MS - STATISTICS_KEEP_HOURS
    tx.cursor.execute(SQL["forget_hours"], (first_hour,))
    tx.cursor.execute(SQL["forget_measures"], (first_hour,))
    tx.cursor.execute(SQL["forget_producers"], (tx.now_ms - PRODUCER_KEEP_MS,))
    tx.cursor.execute(SQL["forget_more_producers"], (PRODUCERS_MAX,))
    tx.cursor.execute(SQL["forget_registered"], (tx.now_ms,))


class RequeueMark(NamedTuple):
    """A queue whose dead letters are requeued automatically, and the last one checked, in the order of failure."""

    queue: int
    delay_ms: int
    rounds: int
    failed_at_ms: int
    key: int


class DeadLetter(NamedTuple):
    """A dead letter that has waited long enough to be requeued."""

    failed_at_ms: int
    key: int
    kind: str | None
    rounds: int
    has_expired: int


def has_dead_letters_due(cursor: sqlite3.Cursor, now_ms: int) -> bool:
    """Whether a dead letter is due to be checked."""
    return any(_dead(cursor, mark, now_ms, 1) for mark in _marks(cursor))


def requeue_dead_letters(tx: Transaction) -> tuple[int, bool]:
    """Check the next dead letters and requeue those that qualify; returns how many, and whether there may be more."""
    requeued, left = 0, SWEEP_STEP_MAX
    for mark in _marks(tx.cursor):
        dead = _dead(tx.cursor, mark, tx.now_ms, left) if left else []
        if dead:
            requeued += _requeue(tx, [letter.key for letter in dead if _may_requeue(letter, mark)])
            last = dead[-1]
            tx.cursor.execute(SQL["looked_back"], (last.failed_at_ms, last.key, mark.queue))
            left -= len(dead)
    return requeued, not left


def _marks(cursor: sqlite3.Cursor) -> list[RequeueMark]:
    return [RequeueMark._make(row) for row in cursor.execute(SQL["marks_back"]).fetchall()]


def _dead(cursor: sqlite3.Cursor, mark: RequeueMark, now_ms: int, limit: int) -> list[DeadLetter]:
    parameters = (mark.queue, mark.failed_at_ms, mark.key, now_ms - mark.delay_ms, limit, now_ms)
    return [DeadLetter._make(row) for row in cursor.execute(SQL["dead"], parameters).fetchall()]


def _may_requeue(dead: DeadLetter, mark: RequeueMark) -> bool:
    return dead.kind != Cause.REJECT.value and dead.rounds < mark.rounds and not dead.has_expired


def _requeue(tx: Transaction, keys: list[int]) -> int:
    for key in keys:
        requeue_automatically(tx, key)
    tx.cursor.executemany(SQL["count_round"], [(key,) for key in keys])
    return len(keys)
