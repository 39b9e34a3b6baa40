"""dump and load: complete jobs, from one store to another."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence

from everwork.core.job import HistoryEntry, StoredJob
from everwork.core.limits import HISTORY_ENTRIES_MAX
from everwork.core.states import Cause, State
from everwork.engines.contract.moving import Moving
from everwork.engines.rules import rounds_in
from everwork.engines.sqlite.read import get
from everwork.engines.sqlite.registry import add_group
from everwork.engines.sqlite.shared import ENDED, REQUEUED, Ended, Pending, enter_pending, record
from everwork.engines.sqlite.statements import lane_of, rare_columns, statements
from everwork.engines.sqlite.store.opened import SqliteBase
from everwork.engines.sqlite.transaction import Transaction
from everwork.engines.values import JobRecord

CREATE = statements("create")
DUMP = statements("dump")
LOAD = statements("load")
SETTLE = statements("settle")
SHARED = statements("shared")


class SqliteMoving(SqliteBase, Moving):
    """Dump and load."""

    async def dump(self, after: int, limit: int) -> list[JobRecord]:
        return await self._store.scan(lambda cursor, _: dump(cursor, after, limit))

    async def load(self, records: Sequence[JobRecord]) -> int:
        return await self._store.writer.submit(lambda tx: load(tx, records))


def dump(cursor: sqlite3.Cursor, after: int, limit: int) -> list[JobRecord]:
    """The next jobs after a key, from one snapshot."""
    rows = cursor.execute(DUMP["created_with"], (after, limit)).fetchall()
    keys = [key for key, _, _ in rows]
    histories = _histories(cursor, keys)
    return [
        JobRecord(job, max_attempts, retry, tuple(histories[key][-HISTORY_ENTRIES_MAX:]))
        for job, (key, max_attempts, retry) in zip(get(cursor, keys), rows, strict=True)
        if job is not None
    ]


def load(tx: Transaction, records: Sequence[JobRecord]) -> int:
    """Insert the jobs whose keys do not exist yet."""
    keys = json.dumps([record.job.key for record in records])
    existing = {key for (key,) in tx.cursor.execute(LOAD["existing"], (keys,)).fetchall()}
    fresh = {record.job.key: record for record in records if record.job.key not in existing}
    for new in fresh.values():
        _load(tx, new)
    if fresh:
        tx.cursor.execute(LOAD["raise_keys"], (max(fresh),))
        tx.woken = True
    return len(fresh)


def _histories(cursor: sqlite3.Cursor, keys: Sequence[int]) -> dict[int, list[HistoryEntry]]:
    """The stored history of each job, including endings that are stored with the finished jobs."""
    histories: dict[int, list[HistoryEntry]] = {key: [] for key in keys}
    parameters = (json.dumps(list(keys)),)
    for name in ("histories", "ends"):
        for key, *entry in cursor.execute(DUMP[name], parameters).fetchall():
            histories[key].append(HistoryEntry(*entry))
    return histories


def _load(tx: Transaction, loaded: JobRecord) -> None:
    job = loaded.job
    queue, lane = _queue(tx, job.type, job.group), lane_of(job.tenant, job.limit_key)
    _insert_job(tx, loaded, queue, lane)
    if job.state is State.PENDING:
        enter_pending(tx, [_pending(job, queue, lane)])
    elif job.state is State.PROCESSING:
        row = (job.key, queue, lane, -job.priority, job.run_at_ms, job.attempt, job.attempts, job.max_attempts)
        tx.cursor.execute(LOAD["insert_leased"], (*row, job.activated_at_ms, job.lease_until_ms, job.worker))
    else:
        _insert_finished(tx, loaded, queue)
    record(tx, [_ended(job.key, entry) for entry in loaded.past])
    rounds = rounds_in(loaded.past)
    if rounds:
        tx.cursor.execute(LOAD["insert_rounds"], (job.key, rounds))
    tx.count(queue, lane, job.state, 1)


def _queue(tx: Transaction, type: str, group: str) -> int:
    """The queue of a group; a group that is new or was dropped is registered."""
    if group not in (known for _, known in tx.type(type).queues):
        add_group(tx, type, group)
    return next(queue for queue, known in tx.type(type).queues if known == group)


def _insert_job(tx: Transaction, loaded: JobRecord, queue: int, lane: str) -> None:
    job = loaded.job
    first = (job.key, queue, lane, job.priority, job.run_at_ms, job.created_at_ms, loaded.created_max_attempts)
    rare = rare_columns(job, loaded.retry)
    tx.cursor.execute(CREATE["insert_job"], (*first, job.variables, job.dedupe_key, *rare, job.copy_of))
    if job.dedupe_key is not None:
        tx.cursor.execute(CREATE["claim_dedupe"], (job.type, job.tenant, job.dedupe_key, job.key))
    if job.result is not None:
        tx.cursor.execute(SETTLE["insert_result"], (job.key, job.result))


def _insert_finished(tx: Transaction, loaded: JobRecord, queue: int) -> None:
    job = loaded.job
    end = loaded.history[-1].kind if loaded.history else None
    kind = None if job.state is State.COMPLETED else end
    tx.cursor.execute(
        SHARED["insert_finished"],
        (
            job.key, queue, job.state, job.attempt, job.attempts, job.max_attempts, job.finished_at_ms,
            job.activated_at_ms, job.worker, kind, job.last_error, job.error_code,
        ),
    )  # fmt: skip
    tx.finished = True
    if job.state is State.FAILED:
        tx.cursor.execute(LOAD["look_back"], (queue, job.finished_at_ms))


def _ended(key: int, entry: HistoryEntry) -> Ended:
    step = REQUEUED if entry.kind == Cause.REQUEUE.value else ENDED
    return Ended(key, entry.attempt, step, *entry[1:])


def _pending(job: StoredJob, queue: int, lane: str) -> Pending:
    return Pending(queue, lane, -job.priority, job.run_at_ms, job.key, job.attempt, job.attempts, job.max_attempts)
