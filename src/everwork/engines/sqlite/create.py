"""create: accept jobs, all or none, with dedupe and a copy per group; hand a single job to a waiting worker."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from everwork.core.job import LeasedJob, NewJob
from everwork.core.leasing import Created, Stamp
from everwork.core.limits import DEFAULT_GROUP
from everwork.core.states import State
from everwork.engines.contract.jobs import JobFlow
from everwork.engines.rules import outdated
from everwork.engines.sqlite.hand_over import Parked, SqliteHandOver
from everwork.engines.sqlite.statements import NOTHING_RARE, insert_rows, lane_of, rare_columns, statements
from everwork.engines.sqlite.store.loop_writer import CallerWriter
from everwork.engines.sqlite.store.opened import SqliteBase
from everwork.engines.sqlite.transaction import Transaction, TypeRow, attempts_of

SQL = statements("create")
ACTIVATE = statements("activate")
PARKED = statements("unpark")
SHARED = statements("shared")


class SqliteCreate(SqliteBase, JobFlow):
    """Creating jobs."""

    async def create(self, jobs: Sequence[NewJob], stamp: Stamp | None = None) -> list[Created]:
        writer = self._store.writer
        if stamp is None:
            hand_over = self._store.hand_over
            return await writer.submit(lambda tx: create(tx, jobs, hand_over))
        try:
            return await writer.submit(lambda tx: create_stamped(tx, jobs, stamp))
        except Repeated as repeated:
            if repeated.number > stamp.number:
                raise outdated(stamp) from None
            return [Created(abs(key), key < 0) for key in json.loads(repeated.keys)]

    async def create_alone(self, jobs: Sequence[NewJob]) -> list[Created] | None:
        store = self._store
        writer, hand_over = store.writer, store.hand_over
        if not isinstance(writer, CallerWriter):
            return None
        if writer.must_pass:
            await asyncio.sleep(0)
        done = writer.do_now(lambda tx: create(tx, jobs, hand_over))
        return done[0] if done else None


class Repeated(Exception):
    """Rolls back a create whose number is not above its producer's last; holds that last number and its result."""

    def __init__(self, number: int, keys: str) -> None:
        super().__init__(number)
        self.number = number
        self.keys = keys


def create(tx: Transaction, jobs: Sequence[NewJob], hand_over: SqliteHandOver | None = None) -> list[Created]:
    """Write the jobs that are new; for a job whose dedupe key already exists, return the first job's key.

    `hand_over`: hands a single job over to a waiting worker, if there is one.
    """
    if not jobs:
        return []
    if len(jobs) == 1:
        key = _create_plain(tx, jobs[0], hand_over) if jobs[0].is_plain else None
        if key is not None:
            return [Created(key)]
    return create_any(tx, jobs)


def create_any(tx: Transaction, jobs: Sequence[NewJob]) -> list[Created]:
    """`create` for any number of jobs of any kind."""
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


class PlainQueue(NamedTuple):
    """The only queue of a type without groups, with everything that is needed to create one plain job."""

    id: int
    group: str
    solo: str | None
    fair: int
    turn: int
    policy: str | None
    is_free: int
    """Whether no pause, limit, rate or breaker may hold a job back."""
    worker: str | None
    lease_ms: int | None
    socket: str | None
    token: str | None
    has_work: int

    @property
    def parked(self) -> Parked | None:
        """The demand that a worker has parked, if a job that is created now would be the first to be leased."""
        if self.worker is None or self.lease_ms is None or self.socket is None or self.token is None:
            return None
        return (
            Parked(self.worker, self.lease_ms, self.socket, self.token) if self.is_free and not self.has_work else None
        )


def _create_plain(tx: Transaction, job: NewJob, hand_over: SqliteHandOver | None) -> int | None:
    """Write a plain job of a known type without groups, in few statements; None if its type is new or has groups."""
    cursor, now_ms = tx.cursor, tx.now_ms
    rows = cursor.execute(SQL["read_queues"], (job.type, now_ms)).fetchall()
    if len(rows) != 1 or rows[0][1] != DEFAULT_GROUP:
        return None
    queue = PlainQueue._make(rows[0])
    cursor.execute(SQL["add_key"])
    (key,) = cursor.execute(SQL["last_key"]).fetchone()
    lane, max_attempts = lane_of(job.tenant, job.limit_key), job.max_attempts
    if max_attempts is None:
        max_attempts = attempts_of(queue.policy)
    row = (key, queue.id, lane, job.priority, now_ms, now_ms, max_attempts, job.variables)
    rare = rare_columns(job, None)
    if rare == NOTHING_RARE:
        cursor.execute(SQL["insert_plain_job"], row)
    else:
        cursor.execute(SQL["insert_job"], (*row, None, *rare, None))
    if hand_over is None or not _lease_to_waiting(tx, hand_over, queue, (job, lane), (key, max_attempts)):
        cursor.execute(SQL["insert_ready"], (queue.id, lane, -job.priority, now_ms, key, max_attempts))
        tx.open_lane(queue.id, lane, (queue.solo, queue.fair))
        tx.count(queue.id, lane, State.PENDING, 1)
    return int(key)


def _lease_to_waiting(
    tx: Transaction, hand_over: SqliteHandOver, queue: PlainQueue, created: tuple[NewJob, str], numbers: tuple[int, int]
) -> bool:
    """Lease a job that is being created to the worker that waits for it, as if the worker had activated it."""
    parked, (job, lane), (key, max_attempts), now_ms = queue.parked, created, numbers, tx.now_ms
    # The second lane of a queue has to be opened for turns, with the first one: see `Transaction.open_lane`.
    if parked is None or not (queue.fair or queue.solo in (None, lane)):
        return False
    until_ms = now_ms + parked.lease_ms
    leased = LeasedJob(
        key, 1, 1, max_attempts, job.type, queue.group, job.tenant, until_ms, job.variables, job.headers, job.priority,
        now_ms, now_ms, job.timeout_ms, job.correlation_id, job.limit_key, job.extra,
    )  # fmt: skip
    if not hand_over.send_after_commit(tx, parked, leased):
        return False
    cursor = tx.cursor
    place = (key, queue.id, lane, -job.priority, now_ms, max_attempts)
    cursor.execute(SQL["insert_leased"], (*place, now_ms, until_ms, parked.worker))
    cursor.execute(PARKED["use"], (queue.id,))
    if queue.fair:
        cursor.execute(SQL["take_turn"], (queue.id, lane, queue.turn + 1))
        cursor.execute(ACTIVATE["next_turn"], (queue.turn + 2, queue.id))
    elif queue.solo is None:
        cursor.execute(SHARED["set_solo"], (lane, queue.id))
    tx.limits.mark_unlimited(queue.id)
    tx.count(queue.id, lane, State.PROCESSING, 1)
    return True


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
