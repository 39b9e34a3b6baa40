"""Dead letters that come back by themselves, as the policies of their types want it; each is looked at once."""

from __future__ import annotations

import sqlite3
from typing import NamedTuple

from everwork.core.limits import SWEEP_STEP_MAX
from everwork.core.states import Cause
from everwork.engines.sqlite.change import requeue_by_itself
from everwork.engines.sqlite.statements import statements
from everwork.engines.sqlite.transaction import Transaction

SQL = statements("sweep")


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
