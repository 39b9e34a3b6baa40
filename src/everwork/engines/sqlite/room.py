"""How many jobs of a queue may start now: what its type's switches, breaker, rate and limit leave."""

from __future__ import annotations

import sqlite3
from typing import Final, NamedTuple

from everwork.core.breaker import Breaker, BreakerState
from everwork.core.leasing import Demand
from everwork.core.limits import KEY_MAX
from everwork.engines.sqlite.breaker import is_probe_live
from everwork.engines.sqlite.statements import statements

SQL = statements("activate")


class Bounds(NamedTuple):
    """What a queue's type allows, and what of it is used."""

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
        return Breaker._make(self[-4:])

    def window(self, now_ms: int) -> tuple[int, int]:
        """Since when the rate's window lasts, and how many were leased in it; one that is over is followed by another.

        A clock that was set back by more than a window begins one, too: nothing may wait for the old one.
        """
        since_ms = self.rate_since_ms
        return (
            (now_ms, 0) if since_ms is None or abs(now_ms - since_ms) >= self.rate_ms else (since_ms, self.rate_taken)
        )


UNBOUND: Final = Bounds()


class Queue(NamedTuple):
    """A queue as a claim finds it."""

    id: int
    solo: str | None
    fair: int
    turn: int
    paused: int
    asked_at_ms: int | None
    is_bound: int = 0
    bounds: Bounds = UNBOUND


class Room(NamedTuple):
    """How many jobs may start; if none, until when, as far as the clock decides it."""

    jobs: int
    until_ms: int | None = None


FREE: Final = Room(KEY_MAX)
NONE: Final = Room(0)


def read_queue(cursor: sqlite3.Cursor, demand: Demand) -> Queue | None:
    """The queue that a demand names, as the store has it."""
    row = cursor.execute(SQL["read_queue"], (demand.type, demand.group)).fetchone()
    if row is None:
        return None
    queue = Queue(*row)
    if not queue.is_bound:
        return queue
    return queue._replace(bounds=Bounds._make(cursor.execute(SQL["read_bounds"], (queue.id,)).fetchone()))


def room_of(cursor: sqlite3.Cursor, queue: Queue, now_ms: int) -> Room:
    """The room that a queue has now."""
    if queue.paused:
        return NONE
    if queue.bounds is UNBOUND:
        return FREE
    breaker = queue.bounds.breaker
    match breaker.state(now_ms):
        case BreakerState.OPEN:
            return Room(0, breaker.open_until_ms)
        case BreakerState.HALF_OPEN if is_probe_live(cursor, breaker):
            return NONE
        case BreakerState.HALF_OPEN:
            return _limited(queue.bounds, now_ms, 1)
        case _:
            return _limited(queue.bounds, now_ms, KEY_MAX)


def next_due_ms(cursor: sqlite3.Cursor, queue: Queue, room: Room) -> int | None:
    """When asking again may find more: at once if work is overdue, when the clock gives room, or when a job is due."""
    if room.jobs:
        return _next_future(cursor, queue.id)
    if room.until_ms is None or not (has_ready(cursor, queue) or _next_future(cursor, queue.id) is not None):
        return None
    return room.until_ms


def has_ready(cursor: sqlite3.Cursor, queue: Queue) -> bool:
    """Whether a claim would find a job: of the lanes, only those are open that have ready work and room."""
    return bool(cursor.execute(SQL["has_open" if queue.fair else "has_ready"], (queue.id,)).fetchone()[0])


def earlier(one_ms: int | None, other_ms: int | None) -> int | None:
    """The earlier of two instants; None never comes."""
    if one_ms is None or other_ms is None:
        return other_ms if one_ms is None else one_ms
    return min(one_ms, other_ms)


def _limited(bounds: Bounds, now_ms: int, jobs: int) -> Room:
    if bounds.rate_jobs is not None:
        since_ms, taken = bounds.window(now_ms)
        if taken >= bounds.rate_jobs:
            return Room(0, since_ms + bounds.rate_ms)
        jobs = min(jobs, bounds.rate_jobs - taken)
    if bounds.max_running is not None:
        jobs = min(jobs, max(0, bounds.max_running - bounds.running))
    return Room(jobs)


def _next_future(cursor: sqlite3.Cursor, queue: int) -> int | None:
    row = cursor.execute(SQL["next_future"], (queue,)).fetchone()
    return row[0] if row else None
