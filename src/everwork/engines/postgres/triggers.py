"""Triggers: where they stand, and time points that pass once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import asyncpg

from everwork.core.job import NewJob
from everwork.core.leasing import Created
from everwork.engines.postgres.create import create_document, created_of
from everwork.engines.postgres.parts import Parts
from everwork.engines.triggers import Passage, before, fired, jobs_of, mark_text, marks_of, marks_passed, passages
from everwork.engines.values import Fire, Fired, TriggerMark, TriggerMarks


async def trigger_marks(parts: Parts, triggers: Sequence[str]) -> TriggerMarks:
    """Where triggers stand; those that have not begun do so now."""
    sql = parts.sql("registry")
    rows = await parts.connections.look(sql["marks"], list(triggers), parts.now_ms())
    marks = _marks(rows)
    if not marks.keys() >= set(triggers):
        rows = await parts.connections.rows(sql["begin_marks"], list(triggers), parts.now_ms())
        marks = _marks(rows)
    return TriggerMarks(rows[0][0], [marks[trigger] for trigger in triggers])


async def fire(parts: Parts, fires: Sequence[Fire]) -> list[Fired]:
    """Let time points pass that have not, and create their jobs."""
    if not fires:
        return []

    async def act(connection: asyncpg.Connection) -> tuple[list[Fired], bool]:
        judged = await _pass(parts, connection, fires)
        created, is_awaited = await _create(parts, connection, jobs_of(fires, judged))
        return fired(fires, judged, created), is_awaited

    answer, is_awaited = await parts.connections.run(act, in_transaction=True)
    types = {fire.job.type for fire, one in zip(fires, answer, strict=True) if fire.job and one.created}
    if types:
        parts.notifier.tell_work(types, everybody=is_awaited)
    return answer


def _marks(rows: Sequence[Any]) -> dict[str, TriggerMark]:
    return marks_of((name, body) for _, name, body in rows if name is not None)


async def _pass(parts: Parts, connection: asyncpg.Connection, fires: Sequence[Fire]) -> list[Passage]:
    """Take the marks of the triggers for this transaction, judge, and move those that have points to pass."""
    sql = parts.sql("fire")
    first = {fire.trigger: mark_text(before(fire.point_ms)) for fire in reversed(fires)}
    await connection.execute(sql["take_marks"], list(first), list(first.values()))
    rows = await connection.fetch(sql["taken_marks"], list(first))
    judged = passages(fires, marks_of((name, body) for name, body in rows))
    marks = marks_passed(fires, judged)
    if marks:
        await connection.execute(sql["put_marks"], list(marks), list(marks.values()))
    return judged


async def _create(parts: Parts, connection: asyncpg.Connection, jobs: Sequence[NewJob]) -> tuple[list[Created], bool]:
    if not jobs:
        return [], False
    document = create_document(jobs, parts.now_ms())
    fresh, keys, is_awaited = await connection.fetchrow(parts.sql("create")["create"], document)
    return created_of(fresh, keys), is_awaited
