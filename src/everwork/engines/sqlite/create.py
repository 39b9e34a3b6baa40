"""create: accept jobs, all or none, with dedupe and a copy per group."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

from everwork.core.job import NewJob
from everwork.core.leasing import Created, Stamp
from everwork.core.states import State
from everwork.engines.contract.jobs import JobFlow
from everwork.engines.rules import outdated
from everwork.engines.sqlite.statements import NOTHING_RARE, insert_rows, lane_of, rare_columns, statements
from everwork.engines.sqlite.store.opened import SqliteBase
from everwork.engines.sqlite.transaction import Transaction, TypeRow

SQL = statements("create")


class SqliteCreate(SqliteBase, JobFlow):
    """Creating jobs."""

    async def create(self, jobs: Sequence[NewJob], stamp: Stamp | None = None) -> list[Created]:
        writer = self._store.writer
        if stamp is None:
            return await writer.submit(lambda tx: create(tx, jobs))
        try:
            return await writer.submit(lambda tx: create_stamped(tx, jobs, stamp))
        except Repeated as repeated:
            if repeated.number > stamp.number:
                raise outdated(stamp) from None
            return [Created(abs(key), key < 0) for key in json.loads(repeated.keys)]


class Repeated(Exception):
    """Rolls back a create whose number is not above its producer's last; holds that last number and its result."""

    def __init__(self, number: int, keys: str) -> None:
        super().__init__(number)
        self.number = number
        self.keys = keys


def create(tx: Transaction, jobs: Sequence[NewJob]) -> list[Created]:
    """Write the jobs that are new; for a job whose dedupe key already exists, return the first job's key."""
    if not jobs:
        return []
    types = {name: tx.type(name) for name in {job.type for job in jobs}}
    fresh, answers = _with_keys(tx, jobs, types)
    if fresh:
        _write(tx, fresh, types)
    return answers


def create_stamped(tx: Transaction, jobs: Sequence[NewJob], stamp: Stamp) -> list[Created]:
    """`create`, unless the producer has already used this number or a higher one: then it raises, to roll back."""
    created = create(tx, jobs)
    cursor = tx.cursor
    keys = f"[{','.join([str(-one.key if one.deduplicated else one.key) for one in created])}]"
    # In nearly every call this is the only statement: the producer's row exists, and the number is the next one.
    if cursor.execute(SQL["advance_producer"], (stamp.number, keys, tx.now_ms, stamp.producer)).rowcount == 1:
        return created
    if cursor.execute(SQL["insert_producer"], (stamp.producer, stamp.number, keys, tx.now_ms)).rowcount == 1:
        return created
    raise Repeated(*cursor.execute(SQL["read_producer"], (stamp.producer,)).fetchone())


_Keyed = list[tuple[int, NewJob]]
"""New jobs, each with the key of its default copy."""
_PendingRow = tuple[int, str, int, int, int, int]
"""queue, lane, sort_priority, run_at_ms, key, max_attempts"""


def _with_keys(tx: Transaction, jobs: Sequence[NewJob], types: dict[str, TypeRow]) -> tuple[_Keyed, list[Created]]:
    """Assign each job as many keys as its type has groups; resolve jobs that already exist."""
    needed = sum(len(types[job.type].queues) for job in jobs)
    (last,) = tx.cursor.execute(SQL["take_keys"], (needed,)).fetchone()
    key = last - needed + 1
    fresh: _Keyed = []
    answers: list[Created] = []
    for job in jobs:
        first = key if job.dedupe_key is None else _claim_dedupe(tx, job, key)
        if first == key:
            fresh.append((key, job))
            answers.append(Created(key))
        else:
            answers.append(Created(first, True))
        key += len(types[job.type].queues)
    return fresh, answers


def _claim_dedupe(tx: Transaction, job: NewJob, key: int) -> int:
    """The key that owns the job's dedupe key: the job's own key, or the key of the first writer."""
    name = (job.type, job.tenant, job.dedupe_key)
    if tx.cursor.execute(SQL["claim_dedupe"], (*name, key)).rowcount == 1:
        return key
    (first,) = tx.cursor.execute(SQL["read_dedupe"], name).fetchone()
    return int(first)


def _write(tx: Transaction, fresh: _Keyed, types: dict[str, TypeRow]) -> None:
    plain, full, expiries = [], [], []
    ready: list[_PendingRow] = []
    future: list[_PendingRow] = []
    now_ms = tx.now_ms
    for first, job in fresh:
        lane = lane_of(job.tenant, job.limit_key)
        at_ms = now_ms + job.delay_ms if job.run_at_ms is None else job.run_at_ms
        type_row = types[job.type]
        max_attempts = type_row.max_attempts if job.max_attempts is None else job.max_attempts
        rare = rare_columns(job, job.retry)
        for key, (queue, _) in enumerate(type_row.queues, first):
            row = (key, queue, lane, job.priority, at_ms, now_ms, max_attempts, job.variables)
            if key != first:
                full.append((*row, None, *rare, first))
            elif rare == NOTHING_RARE and job.dedupe_key is None:
                plain.append(row)
            else:
                full.append((*row, job.dedupe_key, *rare, None))
            (ready if at_ms <= now_ms else future).append((queue, lane, -job.priority, at_ms, key, max_attempts))
            if job.expires_at_ms is not None:
                expiries.append((job.expires_at_ms, key))
    _insert(tx, insert_plain_job=plain, insert_job=full, insert_ready=ready, insert_future=future, arm_expiry=expiries)
    for queue, lane in {(queue, lane) for queue, lane, _, _, _, _ in ready}:
        tx.open_lane(queue, lane)
    for (queue, lane), jobs in Counter([(queue, lane) for queue, lane, _, _, _, _ in (*ready, *future)]).items():
        tx.count(queue, lane, State.PENDING, jobs)
    tx.woken = True


def _insert(tx: Transaction, **rows: Sequence[tuple[object, ...]]) -> None:
    for statement, values in rows.items():
        insert_rows(tx.cursor, SQL[statement], values)
