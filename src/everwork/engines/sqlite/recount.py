"""What runs of queues with limits, counted anew: whoever does not keep the counts must not stop a type for ever."""

from __future__ import annotations

import sqlite3
from typing import NamedTuple

from everwork.core.limits import KEY_MAX
from everwork.engines.sqlite.lanes import limit_key_of
from everwork.engines.sqlite.statements import statements
from everwork.engines.sqlite.transaction import Transaction

SQL = statements("recount")
SHARED = statements("shared")


class Limited(NamedTuple):
    """A queue, the only lane it ever had if so, and the limits of its type."""

    queue: int
    solo: str | None
    type: str
    max_running: int | None
    lane_max_running: int | None


def miscounted(cursor: sqlite3.Cursor) -> list[Limited]:
    """Queues with limits of which the store says what is not so: an engine of an old version keeps no counts."""
    return [Limited._make(row) for row in cursor.execute(SQL["miscounted"]).fetchall()]


def recount(tx: Transaction) -> None:
    """Mend what is said of queues with limits."""
    tx.flush()  # What is counted anew must not be added once more.
    for wrong in miscounted(tx.cursor):
        count_anew(tx, wrong)
        tx.forget_type(wrong.type)
        tx.woken = True


def count_anew(tx: Transaction, limited: Limited) -> None:
    """Count what runs; open and close lanes as the limits that hold now want it."""
    queue, solo, _, most, per_key = limited
    tx.cursor.execute(SQL["count_running"], (queue, most is not None))
    tx.cursor.execute(SQL["forget_busy"], (queue,))
    if per_key is not None:
        if solo is not None:
            tx.cursor.execute(SHARED["open_lane"], (queue, solo))
        tx.cursor.execute(SHARED["set_fair"], (queue,))
        tx.cursor.execute(SQL["name_lanes"], (queue,))
        _count_lanes(tx, queue)
    tx.cursor.execute(SQL["open_lanes"], (queue, KEY_MAX if per_key is None else per_key))


def _count_lanes(tx: Transaction, queue: int) -> None:
    leased = tx.cursor.execute(SQL["leased_lanes"], (queue,)).fetchall()
    tx.cursor.executemany(SQL["count_busy"], [(queue, lane, jobs) for lane, jobs in leased if limit_key_of(lane)])
