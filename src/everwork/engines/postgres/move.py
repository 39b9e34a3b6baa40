"""dump and load: complete jobs, from one store to another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from everwork.core.states import Cause, State
from everwork.engines.contract.moving import Moving
from everwork.engines.postgres.connections import first
from everwork.engines.postgres.create import packed
from everwork.engines.postgres.opened import PostgresBase
from everwork.engines.postgres.read import histories, job_of
from everwork.engines.postgres.wake import ANY_TYPE
from everwork.engines.rules import rounds_in
from everwork.engines.values import JobRecord


class PostgresMoving(PostgresBase, Moving):
    """Dump and load."""

    async def dump(self, after: int, limit: int) -> list[JobRecord]:
        store = self._store
        keys = [key for (key,) in await store.connections.read(store.sql("dump")["keys"], after, limit)]
        rows = await store.connections.read(store.sql("get")["job"], keys)
        past = await histories(store, keys)
        records = {}
        for row in rows:
            history = tuple(past.get(row["key"], ()))
            records[row["key"]] = JobRecord(job_of(row), row["created_max_attempts"], row["retry"], history)
        return [records[key] for key in keys if key in records]

    async def load(self, records: Sequence[JobRecord]) -> int:
        store = self._store
        document = packed([_document(record) for record in sorted(records, key=lambda record: record.job.key)])
        loaded = first(await store.connections.fetch(store.sql("load")["load"], document, store.now_ms()))
        if loaded:
            store.notifier.notify_work([ANY_TYPE])
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
