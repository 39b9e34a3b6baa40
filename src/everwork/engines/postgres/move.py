"""dump and load: jobs with all that is known of them, out of one store and into another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from everwork.core.states import Cause, State
from everwork.engines.postgres.connections import first
from everwork.engines.postgres.create import packed
from everwork.engines.postgres.opened import OpenStore
from everwork.engines.postgres.read import histories, job_of
from everwork.engines.postgres.wake import ANY_TYPE
from everwork.engines.rules import rounds_in
from everwork.engines.values import JobRecord


async def dump(parts: OpenStore, after: int, limit: int) -> list[JobRecord]:
    """The next jobs over a key."""
    keys = [key for (key,) in await parts.connections.look(parts.sql("dump")["keys"], after, limit)]
    rows = {row[0]: row for row in await parts.connections.look(parts.sql("get")["job"], keys)}
    past = await histories(parts, keys)
    return [
        JobRecord(job_of(rows[key]), rows[key][28], rows[key][29], tuple(past.get(key, ())))
        for key in keys
        if key in rows
    ]


async def load(parts: OpenStore, records: Sequence[JobRecord]) -> int:
    """Write the jobs whose keys are free."""
    document = packed([_document(record) for record in sorted(records, key=lambda record: record.job.key)])
    loaded = first(await parts.connections.rows(parts.sql("load")["load"], document, parts.now_ms()))
    if loaded:
        parts.notifier.tell_work([ANY_TYPE])
    return int(loaded)


def _document(record: JobRecord) -> dict[str, Any]:
    """A record as load.sql reads it."""
    end = record.history[-1].kind if record.history else None
    return {
        "job": asdict(record.job),
        "created_max_attempts": record.created_max_attempts,
        "retry": record.retry,
        "kind": None if record.job.state is State.COMPLETED else end,
        "rounds": rounds_in(record.past) or None,
        "history": [{**entry._asdict(), "step": int(entry.kind == Cause.REQUEUE.value)} for entry in record.past],
    }
