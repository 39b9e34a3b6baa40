"""activate: promote what is due, then lease: straight down one lane, or by turns."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import NamedTuple

from everwork.core.job import LeasedJob
from everwork.core.limits import ASKED_EVERY_MS, PROMOTE_MAX, SWEEP_STEP_MAX
from everwork.core.states import Cause, State
from everwork.engines.claims import Claim, claims_of, shared_out
from everwork.engines.sqlite.finish import cancel_pending
from everwork.engines.sqlite.statements import statements
from everwork.engines.sqlite.transaction import LANE_SEPARATOR, Transaction, lane_of, limit_key_of, tenant_of
from everwork.engines.values import Activation, Demand

SQL = statements("activate")


class Queue(NamedTuple):
    """A queue as a claim finds it."""

    id: int
    solo: str | None
    fair: int
    turn: int
    paused: int
    breaker_open_until_ms: int | None
    asked_at_ms: int | None

    def is_closed(self, now_ms: int) -> bool:
        """Whether nothing of this type may start now."""
        return bool(self.paused) or (self.breaker_open_until_ms or 0) > now_ms


def activate(tx: Transaction, demands: Sequence[Demand]) -> Activation:
    """Answer each claim in turn; say when asking again may find more."""
    claimed: list[tuple[Claim, list[LeasedJob]]] = []
    _, more_expired = expire(tx)
    next_due_ms: int | None = tx.now_ms if more_expired else None
    for claim in claims_of(demands):
        demand = claim.whole
        queue = _read_queue(tx, demand)
        _remember_asked(tx, queue)
        if queue.is_closed(tx.now_ms) or more_expired:
            continue
        if _promote(tx, queue.id):
            queue = _read_queue(tx, demand)
        jobs = _by_turns(tx, demand, queue) if queue.fair else _straight(tx, demand, queue)
        claimed.append((claim, _handed_on(tx, claim, jobs)))
        due_ms = _next_future(tx.cursor, queue.id)
        if due_ms is not None and (next_due_ms is None or due_ms < next_due_ms):
            next_due_ms = due_ms
    jobs, shares = shared_out(claimed, len(demands))
    return Activation(jobs, next_due_ms, tx.now_ms, shares)


def nothing_to_do(cursor: sqlite3.Cursor, demands: Sequence[Demand], now_ms: int) -> Activation | None:
    """The empty answer, if a look without any lock shows that it would be the answer; else None."""
    if cursor.execute(SQL["expired"], (now_ms, 1)).fetchone():
        return None
    next_due_ms: int | None = None
    for asked in {(demand.type, demand.group) for demand in demands}:
        row = cursor.execute(SQL["read_queue"], asked).fetchone()
        if row is None:
            return None
        queue = Queue._make(row)
        if queue.asked_at_ms is None or not 0 <= now_ms - queue.asked_at_ms < ASKED_EVERY_MS:
            return None
        if queue.is_closed(now_ms):
            continue
        due_ms = _next_future(cursor, queue.id)
        if due_ms is not None and due_ms <= now_ms:
            return None
        if cursor.execute(SQL["has_ready"], (queue.id,)).fetchone()[0]:
            return None
        if due_ms is not None and (next_due_ms is None or due_ms < next_due_ms):
            next_due_ms = due_ms
    return Activation([], next_due_ms, now_ms, (0,) * len(demands))


def expire(tx: Transaction) -> tuple[int, bool]:
    """Cancel pending jobs whose time is over, a bounded number at once: how many, and whether more are waiting."""
    due = tx.cursor.execute(SQL["expired"], (tx.now_ms, SWEEP_STEP_MAX)).fetchall()
    if not due:
        return 0, False
    cancelled = cancel_pending(tx, [key for _, key in due], Cause.EXPIRE, "expired")
    tx.cursor.executemany(SQL["forget_expiry"], due)
    return cancelled, len(due) == SWEEP_STEP_MAX


def _read_queue(tx: Transaction, demand: Demand) -> Queue:
    row = tx.cursor.execute(SQL["read_queue"], (demand.type, demand.group)).fetchone()
    if row is None:
        tx.type(demand.type)
        row = tx.cursor.execute(SQL["read_queue"], (demand.type, demand.group)).fetchone()
    # A group that nobody has registered is an empty queue.
    return Queue._make(row) if row else Queue(0, None, 0, 0, 1, None, tx.now_ms)


def _remember_asked(tx: Transaction, queue: Queue) -> None:
    if queue.asked_at_ms is None or not 0 <= tx.now_ms - queue.asked_at_ms < ASKED_EVERY_MS:
        tx.cursor.execute(SQL["mark_asked"], (tx.now_ms, queue.id))


def _next_future(cursor: sqlite3.Cursor, queue: int) -> int | None:
    row = cursor.execute(SQL["next_future"], (queue,)).fetchone()
    return row[0] if row else None


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


def _straight(tx: Transaction, demand: Demand, queue: Queue) -> list[LeasedJob]:
    """One lane was ever seen: no turns to take."""
    if queue.solo is None or (demand.tenants and tenant_of(queue.solo) not in demand.tenants):
        return []
    jobs = _pick(tx, demand, (queue.id, queue.solo), demand.limit)
    if jobs:
        _lease(tx, demand, queue.id, [(queue.solo, jobs)])
    return jobs


def _by_turns(tx: Transaction, demand: Demand, queue: Queue) -> list[LeasedJob]:
    """Rounds over the open lanes, least recently served first, until the demand is met."""
    where, tenants = _only_tenants(demand.tenants)
    sql = SQL["turn"].replace("{tenants}", where)
    jobs: list[LeasedJob] = []
    turn = queue.turn
    while len(jobs) < demand.limit:
        wanted = demand.limit - len(jobs)
        lanes = [lane for (lane,) in tx.cursor.execute(sql, (queue.id, *tenants, wanted)).fetchall()]
        if not lanes:
            break
        jobs += _round(tx, demand, (queue.id, turn), lanes, wanted)
        turn += 2 * len(lanes)
    if turn != queue.turn:
        tx.cursor.execute(SQL["next_turn"], (turn, queue.id))
    return jobs


def _round(tx: Transaction, demand: Demand, at: tuple[int, int], lanes: list[str], wanted: int) -> list[LeasedJob]:
    """Every lane visited gets an equal share; who got one more stands behind who did not."""
    queue, turn = at
    share, extra = divmod(wanted, len(lanes))
    taken, marks = [], []
    for place, lane in enumerate(lanes):
        limit = share + (place < extra)
        jobs = _pick(tx, demand, (queue, lane), limit + 1)  # One more, to see whether any stays.
        is_open = len(jobs) > limit
        if not is_open:
            tx.close_lane(queue, lane)
        if jobs:
            taken.append((lane, jobs[:limit]))
        behind = len(lanes) if place < extra else 0
        marks.append((turn + 1 + place + behind, int(is_open), queue, lane))
    _lease(tx, demand, queue, taken)
    tx.cursor.executemany(SQL["mark_turn"], marks)
    return [job for _, jobs in taken for job in jobs]


def _pick(tx: Transaction, demand: Demand, where: tuple[int, str], limit: int) -> list[LeasedJob]:
    """The first jobs of a lane, as they will be once they are leased."""
    rows = tx.cursor.execute(SQL["pick"], (*where, limit)).fetchall()
    lane, until_ms = where[1], tx.now_ms + demand.lease_ms
    type, group, tenant, limit_key = demand.type, demand.group, tenant_of(lane), limit_key_of(lane)
    return [
        # A tuple made directly: the named way costs a third of a microsecond more, per job.
        tuple.__new__(LeasedJob, (
            key, attempt, attempts, max_attempts, type, group, tenant, until_ms, variables, headers, priority,
            run_at_ms, created_at_ms, timeout_ms, correlation_id, limit_key, extra,
        ))
        for (
            key, attempt, attempts, max_attempts, variables, headers, priority, run_at_ms,
            created_at_ms, timeout_ms, correlation_id, extra,
        ) in rows
    ]  # fmt: skip


def _lease(tx: Transaction, demand: Demand, queue: int, taken: Sequence[tuple[str, list[LeasedJob]]]) -> None:
    """Copy to the leased ones, and delete, each lane's range up to the last job taken."""
    ends = [(queue, lane, -jobs[-1].priority, jobs[-1].run_at_ms, jobs[-1].key) for lane, jobs in taken]
    lease = (tx.now_ms, tx.now_ms + demand.lease_ms, demand.worker)
    tx.cursor.executemany(SQL["lease"], [(*end, *lease) for end in ends])
    tx.cursor.executemany(SQL["taken"], ends)
    for lane, jobs in taken:
        tx.move(queue, lane, State.PENDING, State.PROCESSING, len(jobs))


def _handed_on(tx: Transaction, claim: Claim, jobs: list[LeasedJob]) -> list[LeasedJob]:
    """All are leased as the first demand wants it: write the names and deadlines of the others."""
    if len(claim.demands) == 1:
        return jobs
    others = [
        (demand.worker, tx.now_ms + demand.lease_ms, job.key)
        for demand, share in claim.parted(jobs)[1:]
        for job in share
    ]
    tx.cursor.executemany(SQL["hand_on"], others)
    return claim.dated(jobs, tx.now_ms)


def _only_tenants(tenants: tuple[str, ...]) -> tuple[str, list[str]]:
    if not tenants:
        return "", []
    parameters: list[str] = []
    for tenant in tenants:
        alone = lane_of(tenant, None)
        prefix = tenant + LANE_SEPARATOR
        parameters += [alone, prefix, tenant + chr(ord(LANE_SEPARATOR) + 1)]
    clause = " OR ".join(["lane = ? OR (lane >= ? AND lane < ?)"] * len(tenants))
    return f"AND ({clause})", parameters
