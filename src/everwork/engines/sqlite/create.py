"""create: accept jobs, all or none, with dedupe and a copy per group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from everwork.core.job import NewJob
from everwork.core.states import State
from everwork.engines.sqlite.statements import statements
from everwork.engines.sqlite.transaction import Transaction, TypeRow, lane_of
from everwork.engines.values import Created

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
    now_ms = tx.now_ms
    plain: list[tuple[object, ...]] = []
    rich: list[tuple[object, ...]] = []
    ready: list[tuple[int, str, int, int, int, int]] = []
    future: list[tuple[int, str, int, int, int, int]] = []
    expiries: list[tuple[int, int]] = []
    for first, job in fresh:
        (
            name, variables, tenant, priority, delay_ms, run_at_ms, max_attempts, dedupe_key, limit_key,
            correlation_id, expires_at_ms, timeout_ms, headers, retry, extra,
        ) = job  # fmt: skip
        known = types[name]
        lane = lane_of(tenant, limit_key)
        at_ms = now_ms + delay_ms if run_at_ms is None else run_at_ms
        allowed = known.max_attempts if max_attempts is None else max_attempts
        place = ready if at_ms <= now_ms else future
        rare = (dedupe_key, correlation_id, expires_at_ms, timeout_ms, headers, retry, extra)
        for key, (queue, _) in enumerate(known.queues, first):
            row = (key, queue, lane, priority, at_ms, now_ms, allowed, variables)
            if key != first:
                rich.append((*row, None, *rare[1:], first))
            elif rare == NOTHING_RARE:
                plain.append(row)
            else:
                rich.append((*row, *rare, None))
            place.append((queue, lane, -priority, at_ms, key, allowed))
            if expires_at_ms is not None:
                expiries.append((expires_at_ms, key))
    cursor = tx.cursor
    if plain:
        cursor.executemany(SQL["insert_plain_job"], plain)
    if rich:
        cursor.executemany(SQL["insert_job"], rich)
    if ready:
        cursor.executemany(SQL["insert_ready"], ready)
    if future:
        cursor.executemany(SQL["insert_future"], future)
    if expiries:
        cursor.executemany(SQL["arm_expiry"], expiries)
    for queue, lane in {row[:2] for row in ready}:
        tx.open_lane(queue, lane)
    for (queue, lane), jobs in Counter([row[:2] for row in (*ready, *future)]).items():
        tx.count(queue, lane, State.PENDING, jobs)
    tx.woken = True
