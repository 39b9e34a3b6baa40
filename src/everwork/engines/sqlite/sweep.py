"""sweep: one bounded step of upkeep. It looks first, without a lock, and writes only if there is something to do."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from everwork.core.limits import KEY_MAX, STATISTICS_KEEP_HOURS, SWEEP_STEP_MAX
from everwork.core.outcome import Lapse
from everwork.core.retention import KEEP_MS
from everwork.core.states import Cause, State
from everwork.engines.sqlite.activate import expire
from everwork.engines.sqlite.capacity import miscounted, recount
from everwork.engines.sqlite.change import remove, requeue_by_itself
from everwork.engines.sqlite.settle import lapse
from everwork.engines.sqlite.shared import cancel_pending, where
from everwork.engines.sqlite.statements import statements
from everwork.engines.sqlite.transaction import Transaction
from everwork.engines.values import Swept

SQL = statements("sweep")
FOLD_FROM_DELTAS = 500
TIDY_EVERY_MS = 3_600_000
LOOK_THROUGH_EVERY_MS = 3_600_000
RECOUNT_EVERY_MS = 60_000
JUMPS_MAX = 3
"""How many queues full of jobs that stay one step jumps over."""
START = (0, 0, 0)
USUAL_KEEP_MS = {int(state): keep_ms for state, keep_ms in KEEP_MS.items()}
Position = tuple[int, int, int]
"""A finished job: queue, state, key."""


class Round(NamedTuple):
    """How far the search for old jobs has come.

    Keys grow about as jobs age, so the first jobs of a queue in a state tell whether any is old: `after` jumps over the
    others. A job may finish long after younger ones, though: `through` passes by every job, slowly, once an hour.
    """

    after: Position = START
    through: Position = START
    through_since_ms: int = 0

    def is_through(self, now_ms: int) -> bool:
        """Whether every job was looked at lately."""
        return self.through == START and 0 <= now_ms - self.through_since_ms < LOOK_THROUGH_EVERY_MS


@dataclass(slots=True)
class SweepState:
    """Where the sweep stands, when it tidied last, and when it last looked at the counts of what runs."""

    round: Round = field(default_factory=Round)
    tidied_at_ms: int = 0
    counted_at_ms: int = 0


def has_lapsed(cursor: sqlite3.Cursor, now_ms: int) -> bool:
    """Whether a lease has run out, a pending job has expired, or one waits for a group that was dropped."""
    has_expired = cursor.execute(SQL["has_expired"], (now_ms,)).fetchone()[0]
    return bool(has_expired or _lapsed(cursor, now_ms) or _stranded(cursor))


def sweep_lapsed(tx: Transaction) -> Swept:
    """Take lapsed leases away and cancel what has expired; found again here, under the lock."""
    lapsed = _lapsed(tx.cursor, tx.now_ms)
    lapse(tx, lapsed)
    cancel_pending(tx, _stranded(tx.cursor), Cause.CANCEL, "its group was dropped")
    expired, more_expired = expire(tx)
    return Swept(lapsed=len(lapsed), expired=expired, more=len(lapsed) == SWEEP_STEP_MAX or more_expired)


def look_at_counts(cursor: sqlite3.Cursor, broom: SweepState, now_ms: int, *, took_over: bool) -> bool:
    """Whether a count of what runs is wrong; looked at when the turn is taken over, and about once a minute."""
    if took_over:
        broom.counted_at_ms = 0
    if not _must_recount(broom, now_ms):
        return False
    is_wrong = bool(miscounted(cursor))
    if not is_wrong:
        broom.counted_at_ms = now_ms
    return is_wrong


def look(cursor: sqlite3.Cursor, broom: SweepState, now_ms: int) -> bool:
    """Whether the holder of the turn has anything to do; moves the broom past finished jobs that stay."""
    if _must_fold(cursor) or _must_tidy(broom, now_ms) or has_back(cursor, now_ms):
        return True
    old, following = _old(cursor, broom.round, now_ms)
    if not old:
        broom.round = following
    return bool(old)


def sweep_finished(tx: Transaction, broom: SweepState, swept: Swept) -> Swept:
    """Count anew what runs, bring dead letters back, delete what is past its retention, fold the counts, tidy up."""
    if _must_recount(broom, tx.now_ms):
        recount(tx)
        broom.counted_at_ms = tx.now_ms
    requeued, more_back = bring_back(tx)
    if more_back:  # What is to come back may be past its retention, too: it must not be deleted before it is looked at.
        return replace(swept, requeued=requeued, more=True)
    deleted, more_old = _delete_old(tx, broom)
    _fold_and_tidy(tx, broom)
    return replace(swept, requeued=requeued, deleted=deleted, more=swept.more or more_old)


def _delete_old(tx: Transaction, broom: SweepState) -> tuple[int, bool]:
    old, broom.round = _old(tx.cursor, broom.round, tx.now_ms)
    remove(tx, [job for key in old if (job := where(tx, key)) is not None])
    return len(old), bool(old) and broom.round[:2] != (START, START)


def _fold_and_tidy(tx: Transaction, broom: SweepState) -> None:
    if _must_fold(tx.cursor):
        tx.cursor.execute(SQL["fold"])
        tx.cursor.execute(SQL["forget_deltas"])
    if _must_tidy(broom, tx.now_ms):
        _tidy(tx)
        broom.tidied_at_ms = tx.now_ms


def _lapsed(cursor: sqlite3.Cursor, now_ms: int) -> list[Lapse]:
    return [Lapse._make(row) for row in cursor.execute(SQL["lapsed"], (now_ms, SWEEP_STEP_MAX)).fetchall()]


def _stranded(cursor: sqlite3.Cursor) -> list[int]:
    return [key for (key,) in cursor.execute(SQL["stranded"], (SWEEP_STEP_MAX,)).fetchall()]


def _old(cursor: sqlite3.Cursor, at: Round, now_ms: int) -> tuple[list[int], Round]:
    """Finished jobs past their retention among the next ones, and where to go on."""
    for _ in range(JUMPS_MAX):
        old, after = _next_old(cursor, at.after, now_ms)
        if old:
            return old, at._replace(after=after)
        at = at._replace(after=after if after == START else (*after[:2], KEY_MAX))
        if after == START:
            break
    if at.is_through(now_ms):
        return [], at
    since_ms = now_ms if at.through == START else at.through_since_ms
    old, through = _next_old(cursor, at.through, now_ms)
    return old, at._replace(through=through, through_since_ms=since_ms)


def _next_old(cursor: sqlite3.Cursor, after: Position, now_ms: int) -> tuple[list[int], Position]:
    rows = cursor.execute(SQL["finished"], (*after, SWEEP_STEP_MAX)).fetchall()
    keeps = _keeps(cursor)
    old = [
        key for queue, state, key, at_ms in rows if at_ms + keeps.get((queue, state), USUAL_KEEP_MS[state]) <= now_ms
    ]
    return old, rows[-1][:3] if len(rows) == SWEEP_STEP_MAX else START


def _keeps(cursor: sqlite3.Cursor) -> dict[tuple[int, int], int]:
    """How long a queue's jobs in a state are kept where its type's policy says so."""
    keeps: dict[tuple[int, int], int] = {}
    for queue, completed_ms, failed_ms in cursor.execute(SQL["keeps"]).fetchall():
        for state in USUAL_KEEP_MS:
            keep_ms = failed_ms if state == State.FAILED else completed_ms
            if keep_ms is not None:
                keeps[queue, state] = keep_ms
    return keeps


def _must_fold(cursor: sqlite3.Cursor) -> bool:
    return bool(cursor.execute(SQL["deltas"]).fetchone()[0] >= FOLD_FROM_DELTAS)


def _must_tidy(broom: SweepState, now_ms: int) -> bool:
    return not 0 <= now_ms - broom.tidied_at_ms < TIDY_EVERY_MS


def _must_recount(broom: SweepState, now_ms: int) -> bool:
    return not 0 <= now_ms - broom.counted_at_ms < RECOUNT_EVERY_MS


def _tidy(tx: Transaction) -> None:
    tx.cursor.execute(SQL["forget_zeros"])
    tx.cursor.execute(SQL["forget_lanes"])
    first_hour = tx.now_ms // 3_600_000 - STATISTICS_KEEP_HOURS
    tx.cursor.execute(SQL["forget_hours"], (first_hour,))
    tx.cursor.execute(SQL["forget_measures"], (first_hour,))
    tx.cursor.execute(SQL["forget_registered"], (tx.now_ms,))


class Mark(NamedTuple):
    """A queue whose dead letters come back, and the last of them that was looked at: they stand as they failed."""

    queue: int
    back_ms: int
    rounds: int
    at_ms: int
    key: int


class Dead(NamedTuple):
    """A dead letter whose time has come."""

    at_ms: int
    key: int
    kind: str | None
    rounds: int
    has_expired: int


def has_back(cursor: sqlite3.Cursor, now_ms: int) -> bool:
    """Whether a dead letter is to be looked at."""
    return any(_dead(cursor, mark, now_ms, 1) for mark in _marks(cursor))


def bring_back(tx: Transaction) -> tuple[int, bool]:
    """Look at the next dead letters and requeue those that may come back: how many, and whether more are waiting."""
    requeued, left = 0, SWEEP_STEP_MAX
    for mark in _marks(tx.cursor):
        dead = _dead(tx.cursor, mark, tx.now_ms, left) if left else []
        if dead:
            requeued += _requeue(tx, [one.key for one in dead if _may_come_back(one, mark)])
            tx.cursor.execute(SQL["looked_back"], (dead[-1].at_ms, dead[-1].key, mark.queue))
            left -= len(dead)
    return requeued, not left


def _marks(cursor: sqlite3.Cursor) -> list[Mark]:
    return [Mark._make(row) for row in cursor.execute(SQL["marks_back"]).fetchall()]


def _dead(cursor: sqlite3.Cursor, mark: Mark, now_ms: int, limit: int) -> list[Dead]:
    where = (mark.queue, mark.at_ms, mark.key, now_ms - mark.back_ms, limit, now_ms)
    return [Dead._make(row) for row in cursor.execute(SQL["dead"], where).fetchall()]


def _may_come_back(dead: Dead, mark: Mark) -> bool:
    return dead.kind != Cause.REJECT.value and dead.rounds < mark.rounds and not dead.has_expired


def _requeue(tx: Transaction, keys: list[int]) -> int:
    for key in keys:
        requeue_by_itself(tx, key)
    tx.cursor.executemany(SQL["count_round"], [(key,) for key in keys])
    return len(keys)
