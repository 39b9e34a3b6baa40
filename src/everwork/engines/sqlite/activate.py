"""activate: promote due jobs, then lease jobs from a single lane, or from several lanes in turn."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Sequence
from itertools import repeat
from operator import itemgetter
from typing import Any

from everwork.core.job import LeasedJob
from everwork.core.leasing import Activation, Demand
from everwork.core.limits import ASKED_EVERY_MS, PROMOTE_MAX, SWEEP_STEP_MAX
from everwork.core.states import Cause, State
from everwork.engines.contract.jobs import JobFlow
from everwork.engines.portions import Claim, claims_of, distribute
from everwork.engines.sqlite.capacity import (
    UNLIMITED,
    Capacity,
    Queue,
    capacity_of,
    earlier,
    has_ready,
    next_due_ms,
    read_queue,
)
from everwork.engines.sqlite.hand_over import SqliteHandOver
from everwork.engines.sqlite.shared import cancel_pending
from everwork.engines.sqlite.statements import (
    LANE_SEPARATOR,
    insert_rows,
    lane_of,
    leased_jobs,
    limit_key_of,
    owner_of,
    owners_of,
    statements,
    tenant_of,
)
from everwork.engines.sqlite.store.opened import SqliteBase
from everwork.engines.sqlite.transaction import Transaction

SQL = statements("activate")
SHARED = statements("shared")
Lane = tuple[str, int | None]
"""A lane, and how many jobs may start in it, if it has a limit."""
PARKED = statements("unpark")

KEY, LANE, HAS_MORE, BUSY = 0, 12, 13, 14
"""The columns of `pick_firsts` in activate.sql that `pick` does not have, and the first one."""
COLUMNS_OF_PICK = itemgetter(slice(LANE))
KEY_OF = itemgetter(KEY)
LANE_OF = itemgetter(LANE)
TENANT_OF = itemgetter(LeasedJob._fields.index("tenant"))


class SqliteActivate(SqliteBase, JobFlow):
    """Leasing jobs."""

    async def activate(self, demands: Sequence[Demand]) -> Activation:
        hand_over = self._store.hand_over_for(demands)
        return await self._store.writer.submit(
            lambda tx: activate(tx, demands, hand_over),
            lambda cursor, now_ms: nothing_to_do(cursor, demands, now_ms, hand_over),
        )

    async def unpark(self, worker: str, types: Sequence[str]) -> None:
        store, wanted = self._store, (worker, json.dumps(types))

        def nothing_is_parked(cursor: sqlite3.Cursor, _: int) -> bool | None:
            (found,) = cursor.execute(PARKED["is_parked"], wanted).fetchone()
            return None if found else True

        await store.writer.submit(lambda tx: bool(tx.cursor.execute(PARKED["unpark"], wanted)), nothing_is_parked)
        store.hand_over.forget(worker, types)


def activate(tx: Transaction, demands: Sequence[Demand], hand_over: SqliteHandOver | None = None) -> Activation:
    """Serve each claim in order, and compute when the next call may find more. `hand_over` parks unmet demands."""
    claimed: list[tuple[Claim, list[LeasedJob]]] = []
    _, more_expired = expire(tx)
    due_ms: int | None = tx.now_ms if more_expired else None
    for claim in claims_of(demands):
        was_freed, queue = _read_queue(tx, claim.demands[0])
        _record_request(tx, queue)
        if more_expired:
            continue
        capacity = capacity_of(tx.cursor, queue, tx.now_ms)
        jobs: list[LeasedJob] = []
        if capacity.jobs:
            jobs, capacity = _claim_jobs(tx, claim.combined, queue, capacity)
            claimed.append((claim, _assign(tx, claim, jobs)))
        if hand_over is not None:
            _park(tx, hand_over, queue, claim, jobs)
        if was_freed and has_ready(tx.cursor, queue):
            tx.woken = True
        due_ms = earlier(due_ms, next_due_ms(tx.cursor, queue, capacity))
    leased, shares = distribute(claimed, len(demands))
    return Activation(leased, due_ms, tx.now_ms, shares)


def _may_park(queue: Queue) -> bool:
    """Whether a create could hand over a job of this queue, so that parking is worth a write."""
    return not queue.paused and not queue.is_bound


def _park(tx: Transaction, hand_over: SqliteHandOver, queue: Queue, claim: Claim, jobs: list[LeasedJob]) -> None:
    """Park the last of these demands that can be parked, or withdraw it if it was met."""
    for demand, share in reversed(claim.shares(jobs)):
        if demand.withdraws:
            hand_over.withdraw(tx, queue.id, demand)
        elif demand.parks:
            if len(share) == demand.limit:
                hand_over.withdraw(tx, queue.id, demand)
            elif _may_park(queue):
                hand_over.park(tx, queue.id, demand)
            return


def nothing_to_do(
    cursor: sqlite3.Cursor, demands: Sequence[Demand], now_ms: int, hand_over: SqliteHandOver | None = None
) -> Activation | None:
    """An empty activation, if a read without a lock shows that there is nothing to lease or park; otherwise None."""
    if cursor.execute(SQL["expired"], (now_ms, 1)).fetchone():
        return None
    first_ms: int | None = None
    if hand_over is not None and any(demand.withdraws and hand_over.has_row(cursor, demand) for demand in demands):
        return None
    # For each queue, the last demand that can be parked, if there is one.
    ordered = demands if hand_over is None else sorted(demands, key=lambda demand: demand.parks)
    for demand in {(demand.type, demand.group): demand for demand in ordered}.values():
        queue = read_queue(cursor, demand)
        if queue is None or queue.asked_at_ms is None or not 0 <= now_ms - queue.asked_at_ms < ASKED_EVERY_MS:
            return None
        capacity = capacity_of(cursor, queue, now_ms)
        due_ms = next_due_ms(cursor, queue, capacity)
        if capacity.jobs and ((due_ms is not None and due_ms <= now_ms) or has_ready(cursor, queue)):
            return None
        parks = demand.parks and _may_park(queue)
        if hand_over and parks and not hand_over.needs_no_write(cursor, queue.id, demand, now_ms):
            return None
        first_ms = earlier(first_ms, due_ms)
    return Activation([], first_ms, now_ms, (0,) * len(demands))


def expire(tx: Transaction) -> tuple[int, bool]:
    """Cancel expired pending jobs, a bounded number per call; returns how many, and whether there may be more."""
    due = tx.cursor.execute(SQL["expired"], (tx.now_ms, SWEEP_STEP_MAX)).fetchall()
    if not due:
        return 0, False
    cancelled = cancel_pending(tx, [key for _, key in due], Cause.EXPIRE, "expired")
    tx.cursor.executemany(SQL["forget_expiry"], due)
    return cancelled, len(due) == SWEEP_STEP_MAX


def _read_queue(tx: Transaction, demand: Demand) -> tuple[bool, Queue]:
    """The queue as of this transaction, and whether lanes may have been opened because leases have ended."""
    queue = read_queue(tx.cursor, demand)
    if queue is None:
        tx.type(demand.type)
        queue = read_queue(tx.cursor, demand)
    if queue is None:
        return False, Queue(0, None, 0, 0, 1, tx.now_ms)  # A group that was never registered is an empty queue.
    if not queue.is_bound:
        return False, queue
    bounds = queue.bounds
    running = bounds.running + tx.limits.unflushed(queue.id)
    return tx.limits.open_freed_lanes(queue.id), queue._replace(bounds=bounds._replace(running=running))


def _record_request(tx: Transaction, queue: Queue) -> None:
    if queue.asked_at_ms is None or not 0 <= tx.now_ms - queue.asked_at_ms < ASKED_EVERY_MS:
        tx.cursor.execute(SQL["mark_asked"], (tx.now_ms, queue.id))


def _claim_jobs(tx: Transaction, demand: Demand, queue: Queue, capacity: Capacity) -> tuple[list[LeasedJob], Capacity]:
    """Lease as many jobs as the demand and the capacity allow; also returns the remaining capacity."""
    if _promote(tx, queue.id):
        _, queue = _read_queue(tx, demand)
    if capacity.jobs < demand.limit:
        demand = demand._replace(limit=capacity.jobs)
    jobs = _claim_in_turn(tx, demand, queue) if queue.fair else _claim_single_lane(tx, demand, queue)
    return jobs, capacity if capacity is UNLIMITED or not jobs else _use_capacity(tx, queue, demand.type, jobs)


def _use_capacity(tx: Transaction, queue: Queue, type: str, jobs: Sequence[LeasedJob]) -> Capacity:
    """Record leased jobs if the type has limits; returns the remaining capacity."""
    bounds = queue.bounds
    if bounds.max_running is not None:
        tx.limits.add_running(queue.id, len(jobs))
        bounds = bounds._replace(running=bounds.running + len(jobs))
    if bounds.rate_jobs is not None:
        since_ms, taken = bounds.window(tx.now_ms)
        bounds = bounds._replace(rate_since_ms=since_ms, rate_taken=taken + len(jobs))
        tx.cursor.execute(SQL["use_rate"], (since_ms, bounds.rate_taken, queue.id))
    if bounds.breaker_open_until_ms is not None:
        bounds = bounds._replace(breaker_probe_key=jobs[0].key, breaker_probe_attempt=jobs[0].attempt)
        tx.limits.write_breaker(type, bounds.breaker)
    return capacity_of(tx.cursor, queue._replace(bounds=bounds), tx.now_ms)


def _promote(tx: Transaction, queue: int) -> bool:
    cursor = tx.cursor
    due = cursor.execute(SQL["due"], (queue, tx.now_ms, PROMOTE_MAX)).fetchall()
    if not due:
        return False
    last = (queue, *due[-1])
    for (lane,) in cursor.execute(SQL["due_lanes"], last).fetchall():
        tx.open_lane(queue, lane)
    cursor.execute(SQL["promote"], last)
    cursor.execute(SQL["promoted"], last)
    return True


def _claim_single_lane(tx: Transaction, demand: Demand, queue: Queue) -> list[LeasedJob]:
    """Lease from a queue that has only ever had one lane, so that no lanes take turns."""
    if queue.solo is None or (demand.tenants and tenant_of(queue.solo) not in demand.tenants):
        return []
    jobs = _pick(tx, demand, (queue.id, queue.solo), demand.limit)
    if jobs:
        _lease(tx, demand, queue.id, [(queue.solo, jobs)])
    return jobs


def _claim_in_turn(tx: Transaction, demand: Demand, queue: Queue) -> list[LeasedJob]:
    """Lease in rounds over the open lanes, least recently served first, until the demand is met."""
    jobs: list[LeasedJob] = []
    turn = queue.turn
    while len(jobs) < demand.limit:
        wanted = demand.limit - len(jobs)
        if _has_lanes(tx, demand, queue, wanted):
            jobs += _round_of_firsts(tx, demand, (queue, turn), wanted)
            turn += 2 * wanted
            continue
        lanes = _next_lanes(tx, demand, queue, wanted)
        if not lanes:
            break
        jobs += _round(tx, demand, (queue, turn), lanes, wanted)
        turn += 2 * len(lanes)
    if turn != queue.turn:
        tx.cursor.execute(SQL["next_turn"], (turn, queue.id))
    return jobs


def _next_lanes(tx: Transaction, demand: Demand, queue: Queue, wanted: int) -> list[Lane]:
    """The open lanes whose turn it is, and how many jobs may start in those that have a limit."""
    condition, tenants = _tenant_condition(demand.tenants)
    lane_max = queue.bounds.lane_max_running
    sql = SQL["turn" if lane_max is None else "limited_turn"].replace("{tenants}", condition)
    rows = tx.cursor.execute(sql, (queue.id, *tenants, wanted)).fetchall()
    if lane_max is None:
        return [(lane, None) for (lane,) in rows]
    return [_with_capacity(tx, queue, lane, busy) for lane, busy in rows]


def _with_capacity(tx: Transaction, queue: Queue, lane: str, busy: int) -> Lane:
    """A lane of a queue whose lanes may have a limit."""
    lane_max = queue.bounds.lane_max_running
    if lane_max is None or not limit_key_of(lane):
        return lane, None
    return lane, max(0, lane_max - busy - tx.limits.unflushed_in(queue.id, lane))


def _round(
    tx: Transaction, demand: Demand, at: tuple[Queue, int], lanes: Sequence[Lane], wanted: int
) -> list[LeasedJob]:
    """Give every visited lane an equal share; a lane that got one job more comes after those that did not."""
    queue, turn = at
    share, extra = divmod(wanted, len(lanes))
    taken, marks = [], []
    for position, (lane, free) in enumerate(lanes):
        limit = share + (position < extra)
        if free is not None and free < limit:
            limit = free
        jobs = _pick(tx, demand, (queue.id, lane), limit + 1)  # One extra, to see whether there are more.
        is_open = len(jobs) > limit != free
        jobs = jobs[:limit]
        if jobs:
            taken.append((lane, jobs))
        behind = len(lanes) if position < extra else 0
        marks.append(_mark(tx, queue.id, (lane, free), len(jobs), turn + 1 + position + behind, is_open=is_open))
    _lease(tx, demand, queue.id, taken)
    insert_rows(tx.cursor, SQL["mark_turn"], marks, (queue.id,))
    return [job for _, jobs in taken for job in jobs]


def _has_lanes(tx: Transaction, demand: Demand, queue: Queue, wanted: int) -> bool:
    """Whether at least this many lanes are open, so that each of them may start one job.

    While texts that are not UTF-8 are read in another form, the rows of their lanes could not be found again: no.
    """
    if tx.cursor.connection.text_factory is not str:
        return False
    condition, tenants = _tenant_condition(demand.tenants)
    sql = SQL["has_lanes"].replace("{tenants}", condition)
    return tx.cursor.execute(sql, (queue.id, *tenants, wanted - 1)).fetchone() is not None


def _round_of_firsts(tx: Transaction, demand: Demand, at: tuple[Queue, int], wanted: int) -> list[LeasedJob]:
    """A round in which each visited lane may start one job: the same few statements for any number of lanes."""
    queue, turn = at
    rows = _firsts(tx, demand, queue, wanted)
    if queue.bounds.lane_max_running is None:
        taken = [row for row in rows if row[KEY] is not None]
        marks: list[tuple[object, ...]] = [
            (row[LANE], served, row[HAS_MORE], 0) for served, row in enumerate(rows, turn + 1)
        ]
        tx.close_lanes(queue.id, [row[LANE] for row in rows if not row[HAS_MORE]])
    else:
        taken, marks = _within_limits(tx, queue, rows, turn)
    jobs = leased_jobs(map(COLUMNS_OF_PICK, taken), demand, owners_of(map(LANE_OF, taken)), tx.now_ms + demand.lease_ms)
    _lease_firsts(tx, demand, queue.id, taken)
    tx.move_tenants(queue.id, Counter(map(TENANT_OF, jobs)), State.PENDING, State.PROCESSING)
    insert_rows(tx.cursor, SQL["mark_turn"], marks, (queue.id,))
    return jobs


def _firsts(tx: Transaction, demand: Demand, queue: Queue, wanted: int) -> list[tuple[Any, ...]]:
    """The rows of `pick_firsts`; the key is None if the lane is empty."""
    condition, tenants = _tenant_condition(demand.tenants)
    busy = "0" if queue.bounds.lane_max_running is None else "busy"
    sql = SQL["pick_firsts"].replace("{tenants}", condition).replace("{busy}", busy)
    rows = tx.cursor.execute(sql, (queue.id, *tenants, wanted)).fetchall()
    if all(map(KEY_OF, rows)):
        return rows
    return [row if row[KEY] is not None else _after_damaged(tx, queue.id, row) for row in rows]


def _after_damaged(tx: Transaction, queue: int, row: tuple[Any, ...]) -> tuple[Any, ...]:
    """The row of `pick_firsts` for a lane whose first row may be damaged: its first job that can be leased."""
    # One extra, to see whether there are more.
    found = tx.cursor.execute(SQL["pick"], (queue, row[LANE], 2)).fetchall()
    return (*(found[0] if found else row[:LANE]), row[LANE], len(found) > 1, row[BUSY])


def _within_limits(
    tx: Transaction, queue: Queue, rows: Sequence[tuple[Any, ...]], turn: int
) -> tuple[list[tuple[Any, ...]], list[tuple[object, ...]]]:
    """The rows whose lane has capacity, and the parameters of `mark_turn` for every lane."""
    taken, marks = [], []
    for served, row in enumerate(rows, turn + 1):
        at = _with_capacity(tx, queue, row[LANE], row[BUSY])
        _, free = at
        is_taken = row[KEY] is not None and free != 0
        if is_taken:
            taken.append(row)
        is_open = is_taken and free != 1 and bool(row[HAS_MORE])
        marks.append(_mark(tx, queue.id, at, int(is_taken), served, is_open=is_open))
    return taken, marks


def _mark(tx: Transaction, queue: int, at: Lane, jobs: int, served: int, *, is_open: bool) -> tuple[object, ...]:
    """The parameters of `mark_turn` for a lane that was visited."""
    lane, free = at
    if not is_open:
        tx.close_lanes(queue, [lane])
    busy = 0 if free is None else tx.limits.take_unflushed(queue, lane, jobs)
    return lane, served, int(is_open), busy


def _pick(tx: Transaction, demand: Demand, queue_lane: tuple[int, str], limit: int) -> list[LeasedJob]:
    """The first jobs of a lane, as they will be once they are leased."""
    queue, lane = queue_lane
    rows = tx.cursor.execute(SQL["pick"], (queue, lane, limit)).fetchall()
    return leased_jobs(rows, demand, repeat(owner_of(lane)), tx.now_ms + demand.lease_ms)


def _lease(tx: Transaction, demand: Demand, queue: int, taken: Sequence[tuple[str, list[LeasedJob]]]) -> None:
    """Move each lane's range up to the last job taken from ready to leased."""
    ends = [(queue, lane, -jobs[-1].priority, jobs[-1].run_at_ms, jobs[-1].key) for lane, jobs in taken]
    lease = (tx.now_ms, tx.now_ms + demand.lease_ms, demand.worker)
    tx.cursor.executemany(SQL["lease"], [(*end, *lease) for end in ends])
    tx.cursor.executemany(SQL["taken"], ends)
    tx.move_lanes(queue, {lane: len(jobs) for lane, jobs in taken}, State.PENDING, State.PROCESSING)


def _lease_firsts(tx: Transaction, demand: Demand, queue: int, taken: Sequence[tuple[Any, ...]]) -> None:
    """Move one job of each lane from ready to leased."""
    leases = [
        (key, attempt, attempts, max_attempts, -priority, run_at_ms, lane)
        for key, attempt, attempts, max_attempts, _, _, priority, run_at_ms, _, _, _, _, lane, _, _ in taken
    ]
    lease = (queue, tx.now_ms, tx.now_ms + demand.lease_ms, demand.worker)
    insert_rows(tx.cursor, SQL["lease_firsts"], leases, lease)
    keys = ",".join([str(row[KEY]) for row in taken])
    tx.cursor.execute(SQL["taken_firsts"], (queue, f"[{keys}]"))


def _assign(tx: Transaction, claim: Claim, jobs: list[LeasedJob]) -> list[LeasedJob]:
    """Write the workers and deadlines of the other demands: so far, all jobs are leased for the first demand."""
    if len(claim.demands) == 1:
        return jobs
    others = [
        (demand.worker, tx.now_ms + demand.lease_ms, job.key)
        for demand, share in claim.shares(jobs)[1:]
        for job in share
    ]
    tx.cursor.executemany(SQL["hand_on"], others)
    return claim.with_deadlines(jobs, tx.now_ms)


def _tenant_condition(tenants: tuple[str, ...]) -> tuple[str, list[str]]:
    if not tenants:
        return "", []
    parameters: list[str] = []
    for tenant in tenants:
        prefix = tenant + LANE_SEPARATOR
        parameters += [lane_of(tenant, None), prefix, tenant + chr(ord(LANE_SEPARATOR) + 1)]
    clause = " OR ".join(["lane = ? OR (lane >= ? AND lane < ?)"] * len(tenants))
    return f"AND ({clause})", parameters
