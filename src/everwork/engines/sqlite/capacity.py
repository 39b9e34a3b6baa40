"""How many jobs of a queue may start now, given pause, breaker, rate and limits; the breakers; recounts."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from everwork.core.breaker import CLOSED, Breaker, BreakerState, CircuitBreaker, after_failures, after_success, opened
from everwork.core.leasing import Demand
from everwork.core.limits import KEY_MAX
from everwork.engines.sqlite.shared import find_job
from everwork.engines.sqlite.statements import limit_key_of, statements
from everwork.engines.sqlite.transaction import Transaction

SQL = statements("activate")


class Bounds(NamedTuple):
    """The limits of a queue's type, and how much of them is used."""

    max_running: int | None = None
    lane_max_running: int | None = None
    running: int = 0
    rate_jobs: int | None = None
    rate_ms: int = 0
    rate_since_ms: int | None = None
    rate_taken: int = 0
    breaker_failures: int = 0
    breaker_open_until_ms: int | None = None
    breaker_probe_key: int | None = None
    breaker_probe_attempt: int = 0

    @property
    def breaker(self) -> Breaker:
        """The breaker of the type."""
        return Breaker(
            self.breaker_failures, self.breaker_open_until_ms, self.breaker_probe_key, self.breaker_probe_attempt
        )

    def window(self, now_ms: int) -> tuple[int, int]:
        """The start of the current rate window, and how many jobs were leased in it; after its end a new one starts.

        A clock that was set back by more than a window also starts a new one: nothing waits for the old one.
        """
        since_ms = self.rate_since_ms
        return (
            (now_ms, 0) if since_ms is None or abs(now_ms - since_ms) >= self.rate_ms else (since_ms, self.rate_taken)
        )


NO_BOUNDS: Final = Bounds()


class Queue(NamedTuple):
    """A queue as a claim reads it. `solo`: its only lane so far; `fair`: it has several, which take turns."""

    id: int
    solo: str | None
    fair: int
    turn: int
    paused: int
    asked_at_ms: int | None
    is_bound: int = 0
    bounds: Bounds = NO_BOUNDS


class Capacity(NamedTuple):
    """How many jobs may start; if none, when more may start, provided that this depends only on time."""

    jobs: int
    until_ms: int | None = None


UNLIMITED: Final = Capacity(KEY_MAX)
NONE: Final = Capacity(0)


def read_queue(cursor: sqlite3.Cursor, demand: Demand) -> Queue | None:
    """The queue of a demand, as stored; None if it does not exist."""
    row = cursor.execute(SQL["read_queue"], (demand.type, demand.group)).fetchone()
    if row is None:
        return None
    queue = Queue(*row)
    if not queue.is_bound:
        return queue
    return queue._replace(bounds=Bounds._make(cursor.execute(SQL["read_bounds"], (queue.id,)).fetchone()))


def capacity_of(cursor: sqlite3.Cursor, queue: Queue, now_ms: int) -> Capacity:
    """How many jobs of a queue may start now."""
    if queue.paused:
        return NONE
    if queue.bounds is NO_BOUNDS:
        return UNLIMITED
    breaker = queue.bounds.breaker
    match breaker.state(now_ms):
        case BreakerState.OPEN:
            return Capacity(0, breaker.open_until_ms)
        case BreakerState.HALF_OPEN if is_probe_live(cursor, breaker):
            return NONE
        case BreakerState.HALF_OPEN:
            return _limited(queue.bounds, now_ms, 1)
        case _:
            return _limited(queue.bounds, now_ms, KEY_MAX)


def next_due_ms(cursor: sqlite3.Cursor, queue: Queue, capacity: Capacity) -> int | None:
    """When the next call may find more: when a scheduled job is due, or the breaker or rate allows jobs again."""
    if capacity.jobs:
        return _next_future(cursor, queue.id)
    if capacity.until_ms is None or not (has_ready(cursor, queue) or _next_future(cursor, queue.id) is not None):
        return None
    return capacity.until_ms


def has_ready(cursor: sqlite3.Cursor, queue: Queue) -> bool:
    """Whether a claim would find a job: a lane is open only while it has ready work and capacity."""
    (found,) = cursor.execute(SQL["has_open" if queue.fair else "has_ready"], (queue.id,)).fetchone()
    return bool(found)


def earlier(one_ms: int | None, other_ms: int | None) -> int | None:
    """The earlier of two instants; None means never."""
    if one_ms is None or other_ms is None:
        return other_ms if one_ms is None else one_ms
    return min(one_ms, other_ms)


def _limited(bounds: Bounds, now_ms: int, jobs: int) -> Capacity:
    if bounds.rate_jobs is not None:
        since_ms, taken = bounds.window(now_ms)
        if taken >= bounds.rate_jobs:
            return Capacity(0, since_ms + bounds.rate_ms)
        jobs = min(jobs, bounds.rate_jobs - taken)
    if bounds.max_running is not None:
        jobs = min(jobs, max(0, bounds.max_running - bounds.running))
    return Capacity(jobs)


def _next_future(cursor: sqlite3.Cursor, queue: int) -> int | None:
    (run_at_ms,) = cursor.execute(SQL["next_future"], (queue,)).fetchone() or (None,)
    return run_at_ms


SHARED = statements("shared")
DEFAULT_RULE = CircuitBreaker()

Attempt = tuple[int, int, int]
"""queue, key, attempt"""


def count_successes(tx: Transaction, queues: Iterable[int], completed: set[int]) -> None:
    """Report completed jobs to the breakers of their queues."""
    for queue in queues:
        breaker = tx.limits.breaker(queue)
        if breaker is not CLOSED:
            is_probe = breaker.probe_key in completed and _is_probe(tx, breaker)
            _change(tx, queue, after_success(breaker, is_probe=is_probe))


def count_failures(tx: Transaction, counted: Sequence[Attempt]) -> None:
    """Report failed attempts to the breakers of their types, grouped by type."""
    by_type: dict[str, list[Attempt]] = {}
    for attempt in counted:
        queue, _, _ = attempt
        by_type.setdefault(tx.limits.of(queue).type, []).append(attempt)
    for attempts in by_type.values():
        queue, _, _ = attempts[0]
        rule, breaker = tx.limits.of(queue).rule, tx.limits.breaker(queue)
        if rule is None and breaker.open_until_ms is None:
            continue
        is_probe = any(breaker.is_probe(key, attempt) for _, key, attempt in attempts)
        rule = rule or DEFAULT_RULE
        _change(tx, queue, after_failures(breaker, len(attempts), is_probe=is_probe, rule=rule, now_ms=tx.now_ms))


def open_breaker(tx: Transaction, type: str, open_ms: int) -> None:
    """Open a type's breaker for `open_ms` from now."""
    queue, _ = tx.type(type).queues[0]
    _change(tx, queue, opened(tx.limits.breaker(queue), open_ms, tx.now_ms))


def reset_breaker(tx: Transaction, type: str) -> bool:
    """Close a type's breaker and reset its failures; returns whether it was open or half-open."""
    row = tx.cursor.execute(SHARED["breaker"], (type,)).fetchone()
    if row is None:
        return False
    tx.limits.write_breaker(type, CLOSED)
    tx.woken = True
    return Breaker._make(row).state(tx.now_ms) is not BreakerState.CLOSED


def is_probe_live(cursor: sqlite3.Cursor, breaker: Breaker) -> bool:
    """Whether the probe of a half-open breaker is still leased for that attempt."""
    if breaker.probe_key is None:
        return False
    (is_leased,) = cursor.execute(SHARED["probe"], (breaker.probe_key, breaker.probe_attempt)).fetchone()
    return bool(is_leased)


def _is_probe(tx: Transaction, breaker: Breaker) -> bool:
    """Whether the probe's job was completed by the probe's attempt: the outcome does not have to name the attempt."""
    found = None if breaker.probe_key is None else find_job(tx, breaker.probe_key)
    return found is not None and found.attempt == breaker.probe_attempt


def _change(tx: Transaction, queue: int, breaker: Breaker) -> None:
    before = tx.limits.breaker(queue)
    if breaker != before:
        tx.limits.write_breaker(tx.limits.of(queue).type, breaker)
        if before.open_until_ms is not None and breaker.open_until_ms is None:
            tx.woken = True


RECOUNT = statements("recount")


class Limited(NamedTuple):
    """A queue, its only lane if it never had another, and the limits of its type."""

    queue: int
    solo: str | None
    type: str
    max_running: int | None
    lane_max_running: int | None


def miscounted(cursor: sqlite3.Cursor) -> list[Limited]:
    """Queues with limits whose stored counts are wrong, because an engine of an old version keeps no counts."""
    return [Limited._make(row) for row in cursor.execute(RECOUNT["miscounted"]).fetchall()]


def recount(tx: Transaction) -> None:
    """Correct the counts of queues with limits."""
    tx.flush()  # Recounted jobs must not be added again.
    for wrong in miscounted(tx.cursor):
        recount_queue(tx, wrong)
        tx.forget_type(wrong.type)
        tx.woken = True


def recount_queue(tx: Transaction, limited: Limited) -> None:
    """Count running jobs again; open and close lanes according to the current limits."""
    queue, solo, _, max_running, per_key = limited
    tx.cursor.execute(RECOUNT["count_running"], (queue, max_running is not None))
    tx.cursor.execute(RECOUNT["forget_busy"], (queue,))
    if per_key is not None:
        if solo is not None:
            tx.cursor.execute(SHARED["open_lane"], (queue, solo))
        tx.cursor.execute(SHARED["set_fair"], (queue,))
        tx.cursor.execute(RECOUNT["name_lanes"], (queue,))
        _count_lanes(tx, queue)
    tx.cursor.execute(RECOUNT["open_lanes"], (queue, KEY_MAX if per_key is None else per_key))


def _count_lanes(tx: Transaction, queue: int) -> None:
    leased = tx.cursor.execute(RECOUNT["leased_lanes"], (queue,)).fetchall()
    tx.cursor.executemany(RECOUNT["count_busy"], [(queue, lane, jobs) for lane, jobs in leased if limit_key_of(lane)])
