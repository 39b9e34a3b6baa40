"""create: accept jobs, all or none, with dedupe and a copy per group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from everwork.core.job import NewJob
from everwork.core.leasing import Created
from everwork.core.states import State
from everwork.engines.sqlite.statements import lane_of, statements
from everwork.engines.sqlite.transaction import Transaction, TypeRow

SQL = statements("create")
NOTHING_RARE = (None,) * 7


def create(tx: Transaction, jobs: Sequence[NewJob]) -> list[Created]:
    """Write jobs that nobody has named before; answer the first key for those that somebody has."""
    if not jobs:
        return []
    types = {name: tx.type(name) for name in {job.type for job in jobs}}
    fresh, answers = _with_keys(tx, jobs, types)
    if fresh:
        _write(tx, fresh, types)
    return answers


_Fresh = list[tuple[int, NewJob]]
_Place = tuple[int, str, int, int, int, int]


def _with_keys(tx: Transaction, jobs: Sequence[NewJob], types: dict[str, TypeRow]) -> tuple[_Fresh, list[Created]]:
    """Give each job as many keys as its type has groups, and find those that exist already."""
    needed = sum(len(types[job.type].queues) for job in jobs)
    (last,) = tx.cursor.execute(SQL["take_keys"], (needed,)).fetchone()
    key = last - needed + 1
    fresh: _Fresh = []
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
    """The key that owns the job's dedupe key: its own, or that of the first writer."""
    name = (job.type, job.tenant, job.dedupe_key)
    if tx.cursor.execute(SQL["claim_dedupe"], (*name, key)).rowcount == 1:
        return key
    (first,) = tx.cursor.execute(SQL["read_dedupe"], name).fetchone()
    return int(first)


def _write(tx: Transaction, fresh: _Fresh, types: dict[str, TypeRow]) -> None:
    plain, rich, expiries = [], [], []
    ready: list[_Place] = []
    future: list[_Place] = []
    now_ms = tx.now_ms
    for first, job in fresh:
        lane = lane_of(job.tenant, job.limit_key)
        at_ms = now_ms + job.delay_ms if job.run_at_ms is None else job.run_at_ms
        known = types[job.type]
        allowed = known.max_attempts if job.max_attempts is None else job.max_attempts
        rare = _rare(job)
        for key, (queue, _) in enumerate(known.queues, first):
            row = (key, queue, lane, job.priority, at_ms, now_ms, allowed, job.variables)
            if rare == NOTHING_RARE and key == first:
                plain.append(row)
            else:
                rich.append((*row, *(rare if key == first else (None, *rare[1:])), None if key == first else first))
            (ready if at_ms <= now_ms else future).append((queue, lane, -job.priority, at_ms, key, allowed))
            if job.expires_at_ms is not None:
                expiries.append((job.expires_at_ms, key))
    _insert(tx, insert_plain_job=plain, insert_job=rich, insert_ready=ready, insert_future=future, arm_expiry=expiries)
    for queue, lane in {row[:2] for row in ready}:
        tx.open_lane(queue, lane)
    for (queue, lane), jobs in Counter([row[:2] for row in (*ready, *future)]).items():
        tx.count(queue, lane, State.PENDING, jobs)
    tx.woken = True


def _rare(job: NewJob) -> tuple[object, ...]:
    """The columns that most jobs leave empty."""
    return job.dedupe_key, job.correlation_id, job.expires_at_ms, job.timeout_ms, job.headers, job.retry, job.extra


def _insert(tx: Transaction, **rows: Sequence[tuple[object, ...]]) -> None:
    for name, some in rows.items():
        if some:
            tx.cursor.executemany(SQL[name], some)
