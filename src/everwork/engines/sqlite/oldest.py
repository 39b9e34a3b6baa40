"""oldest: since when the longest waiting job of each queue could have been running."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from itertools import islice
from typing import Final

from everwork.core.limits import OLDEST_LOOK_MAX
from everwork.core.queries import Oldest
from everwork.engines.sqlite.statements import statements

SQL = statements("oldest")
PAST_EVERY_MS: Final = 2**63 - 1


def oldest(cursor: sqlite3.Cursor, now_ms: int) -> list[Oldest]:
    """The queues in which work waits, by type and group, and since when."""
    queues = cursor.execute(SQL["queues"]).fetchall()
    since = [(type, group, _since_ms(cursor, queue, now_ms)) for queue, type, group in queues]
    return [Oldest(type, group, since_ms) for type, group, since_ms in since if since_ms is not None]


def _since_ms(cursor: sqlite3.Cursor, queue: int, now_ms: int) -> int | None:
    due = cursor.execute(SQL["due"], (queue, now_ms)).fetchone()
    ready = [run_at_ms for run_at_ms in islice(_ready(cursor, queue), OLDEST_LOOK_MAX) if run_at_ms <= now_ms]
    return min([*ready, *(due or ())], default=None)


def _ready(cursor: sqlite3.Cursor, queue: int) -> Iterator[int]:
    """The earliest instant of each lane and priority."""
    row = cursor.execute(SQL["first_ready"], (queue,)).fetchone()
    while row is not None:
        lane, urgency, run_at_ms = row
        yield run_at_ms
        row = cursor.execute(SQL["next_ready"], (queue, lane, urgency, PAST_EVERY_MS)).fetchone()
