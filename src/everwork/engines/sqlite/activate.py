"""activate: promote what is due, then lease: straight down one lane, or by turns."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from everwork.core.job import LeasedJob
from everwork.core.leasing import Activation, Demand
from everwork.core.limits import ASKED_EVERY_MS, PROMOTE_MAX, SWEEP_STEP_MAX
from everwork.core.states import Cause, State
from everwork.engines.portions import Claim, claims_of, shared_out
from everwork.engines.sqlite.capacity import FREE, Capacity, Queue, earlier, has_ready, next_due_ms, read_queue, room_of
from everwork.engines.sqlite.shared import cancel_pending
from everwork.engines.sqlite.statements import LANE_SEPARATOR, lane_of, limit_key_of, statements, tenant_of
from everwork.engines.sqlite.transaction import Transaction

SQL = statements("activate")


def activate(tx: Transaction, demands: Sequence[Demand]) -> Activation:
    """Answer each claim in turn; say when asking again may find more."""
    claimed: list[tuple[Claim, list[LeasedJob]]] = []
    _, more_expired = expire(tx)
    due_ms: int | None = tx.now_ms if more_expired else None
    for claim in claims_of(demands):
        was_freed, queue = _read_queue(tx, claim.demands[0])
        _remember_asked(tx, queue)
        if more_expired:
            continue
        room = room_of(tx.cursor, queue, tx.now_ms)
        if room.jobs:
            jobs, room = _claimed(tx, claim.whole, queue, room)
            claimed.append((claim, _handed_on(tx, claim, jobs)))
        if was_freed and has_ready(tx.cursor, queue):
            tx.woken = True
        due_ms = earlier(due_ms, next_due_ms(tx.cursor, queue, room))
    jobs, shares = shared_out(claimed, len(demands))
    return Activation(jobs, due_ms, tx.now_ms, shares)


def nothing_to_do(cursor: sqlite3.Cursor, demands: Sequence[Demand], now_ms: int) -> Activation | None:
    """The empty answer, if a look without any lock shows that it would be the answer; else None."""
    if cursor.execute(SQL["expired"], (now_ms, 1)).fetchone():
        return None
    first_ms: int | None = None
    for demand in {(demand.type, demand.group): demand for demand in demands}.values():
        queue = read_queue(cursor, demand)
        if queue is None or queue.asked_at_ms is None or not 0 <= now_ms - queue.asked_at_ms < ASKED_EVERY_MS:
            return None
        room = room_of(cursor, queue, now_ms)
        due_ms = next_due_ms(cursor, queue, room)
        if room.jobs and ((due_ms is not None and due_ms <= now_ms) or has_ready(cursor, queue)):
            return None
        first_ms = earlier(first_ms, due_ms)
    return Activation([], first_ms, now_ms, (0,) * len(demands))


def expire(tx: Transaction) -> tuple[int, bool]:
    """Cancel pending jobs whose time is over, a bounded number at once: how many, and whether more are waiting."""
    due = tx.cursor.execute(SQL["expired"], (tx.now_ms, SWEEP_STEP_MAX)).fetchall()
    if not due:
        return 0, False
    cancelled = cancel_pending(tx, [key for _, key in due], Cause.EXPIRE, "expired")
    tx.cursor.executemany(SQL["forget_expiry"], due)
    return cancelled, len(due) == SWEEP_STEP_MAX


def _read_queue(tx: Transaction, demand: Demand) -> tuple[bool, Queue]:
    """The queue as it stands in this transaction, and whether lanes may have been opened because leases have ended."""
    queue = read_queue(tx.cursor, demand)
    if queue is None:
        tx.type(demand.type)
        queue = read_queue(tx.cursor, demand)
    if queue is None:
        return False, Queue(0, None, 0, 0, 1, tx.now_ms)  # A group that nobody has registered is an empty queue.
    if not queue.is_bound:
        return False, queue
    bounds = queue.bounds
    running = bounds.running + tx.holds.unwritten(queue.id)
    return tx.holds.open_freed(queue.id), queue._replace(bounds=bounds._replace(running=running))


def _remember_asked(tx: Transaction, queue: Queue) -> None:
    if queue.asked_at_ms is None or not 0 <= tx.now_ms - queue.asked_at_ms < ASKED_EVERY_MS:
        tx.cursor.execute(SQL["mark_asked"], (tx.now_ms, queue.id))


def _claimed(tx: Transaction, demand: Demand, queue: Queue, room: Capacity) -> tuple[list[LeasedJob], Capacity]:
    """Lease as many jobs as are wanted and have room; the room that is left."""
    if _promote(tx, queue.id):
        _, queue = _read_queue(tx, demand)
    if room.jobs < demand.limit:
        demand = demand._replace(limit=room.jobs)
    jobs = _by_turns(tx, demand, queue) if queue.fair else _straight(tx, demand, queue)
    return jobs, room if room is FREE or not jobs else _used(tx, queue, demand.type, jobs)


def _used(tx: Transaction, queue: Queue, type: str, jobs: Sequence[LeasedJob]) -> Capacity:
    """Write down that jobs were leased where that has bounds; the room that is left."""
    bounds = queue.bounds
    if bounds.max_running is not None:
        tx.holds.took(queue.id, len(jobs))
        bounds = bounds._replace(running=bounds.running + len(jobs))
    if bounds.rate_jobs is not None:
        since_ms, taken = bounds.window(tx.now_ms)
        bounds = bounds._replace(rate_since_ms=since_ms, rate_taken=taken + len(jobs))
        tx.cursor.execute(SQL["use_rate"], (since_ms, bounds.rate_taken, queue.id))
    if bounds.breaker_open_until_ms is not None:
        bounds = bounds._replace(breaker_probe_key=jobs[0].key, breaker_probe_attempt=jobs[0].attempt)
        tx.holds.write_breaker(type, bounds.breaker)
    return room_of(tx.cursor, queue._replace(bounds=bounds), tx.now_ms)


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
    jobs: list[LeasedJob] = []
    turn = queue.turn
    while len(jobs) < demand.limit:
        wanted = demand.limit - len(jobs)
        lanes = _next_lanes(tx, demand, queue, wanted)
        if not lanes:
            break
        jobs += _round(tx, demand, (queue, turn), lanes, wanted)
        turn += 2 * len(lanes)
    if turn != queue.turn:
        tx.cursor.execute(SQL["next_turn"], (turn, queue.id))
    return jobs


def _next_lanes(tx: Transaction, demand: Demand, queue: Queue, wanted: int) -> list[tuple[str, int | None]]:
    """The open lanes whose turn it is, and how many jobs may start in those that have a limit."""
    where, tenants = _only_tenants(demand.tenants)
    most = queue.bounds.lane_max_running
    sql = SQL["turn" if most is None else "limited_turn"].replace("{tenants}", where)
    rows = tx.cursor.execute(sql, (queue.id, *tenants, wanted)).fetchall()
    if most is None:
        return [(lane, None) for (lane,) in rows]
    unwritten = tx.holds.unwritten_in
    return [
        (lane, max(0, most - busy - unwritten(queue.id, lane)) if limit_key_of(lane) else None) for lane, busy in rows
    ]


def _round(
    tx: Transaction, demand: Demand, at: tuple[Queue, int], lanes: Sequence[tuple[str, int | None]], wanted: int
) -> list[LeasedJob]:
    """Every lane visited gets an equal share; who got one more stands behind who did not."""
    queue, turn = at
    share, extra = divmod(wanted, len(lanes))
    taken, marks = [], []
    for place, (lane, room) in enumerate(lanes):
        limit = share + (place < extra)
        if room is not None and room < limit:
            limit = room
        jobs = _pick(tx, demand, (queue.id, lane), limit + 1)  # One more, to see whether any stays.
        is_open = len(jobs) > limit != room
        jobs = jobs[:limit]
        if not is_open:
            tx.close_lane(queue.id, lane)
        if jobs:
            taken.append((lane, jobs))
        behind = len(lanes) if place < extra else 0
        busy = 0 if room is None else tx.holds.write_with(queue.id, lane, len(jobs))
        marks.append((turn + 1 + place + behind, int(is_open), busy, queue.id, lane))
    _lease(tx, demand, queue.id, taken)
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
