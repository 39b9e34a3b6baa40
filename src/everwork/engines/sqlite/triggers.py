"""Triggers: where they stand, and time points that pass once."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence

from everwork.engines.sqlite.create import create
from everwork.engines.sqlite.statements import statements
from everwork.engines.sqlite.transaction import Transaction
from everwork.engines.triggers import fired, jobs_of, mark_text, marks_of, marks_passed, passages
from everwork.engines.values import Fire, Fired, TriggerMark, TriggerMarks

SQL = statements("fire")
REGISTRY = statements("registry")


def known_marks(cursor: sqlite3.Cursor, triggers: Sequence[str], now_ms: int) -> TriggerMarks | None:
    """Where triggers stand; None if one of them has not begun."""
    marks = _marks(cursor, triggers)
    if not all(trigger in marks for trigger in triggers):
        return None
    return TriggerMarks(now_ms, [marks[trigger] for trigger in triggers])


def begun_marks(tx: Transaction, triggers: Sequence[str]) -> TriggerMarks:
    """Where triggers stand; those that have not begun do so now."""
    body = mark_text(TriggerMark(tx.now_ms, tx.now_ms))
    known = _marks(tx.cursor, triggers)
    tx.cursor.executemany(SQL["put_mark"], [(trigger, body) for trigger in triggers if trigger not in known])
    marks = _marks(tx.cursor, triggers)
    return TriggerMarks(tx.now_ms, [marks[trigger] for trigger in triggers])


def fire(tx: Transaction, fires: Sequence[Fire]) -> list[Fired]:
    """Let time points pass that have not, and create their jobs."""
    judged = passages(fires, _marks(tx.cursor, {fire.trigger for fire in fires}))
    tx.cursor.executemany(SQL["put_mark"], list(marks_passed(fires, judged).items()))
    return fired(fires, judged, create(tx, jobs_of(fires, judged)))


def _marks(cursor: sqlite3.Cursor, triggers: Iterable[str]) -> dict[str, TriggerMark]:
    return marks_of(cursor.execute(REGISTRY["marks"], (json.dumps(list(triggers)),)).fetchall())
