"""What holds the jobs of a type back, inside one transaction: its breaker, and how many of them run."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import NamedTuple

from everwork.core.breaker import CLOSED, Breaker, CircuitBreaker
from everwork.engines.sqlite.lanes import limit_key_of
from everwork.engines.sqlite.statements import statements

SQL = statements("shared")


class Held(NamedTuple):
    """The numbers of its type's policy that hold for a queue; None: no such rule."""

    type: str
    max_running: int | None
    lane_max_running: int | None
    breaker_max: int | None
    breaker_open_ms: int | None

    @property
    def rule(self) -> CircuitBreaker | None:
        """When the breaker opens, and for how long."""
        if self.breaker_max is None or self.breaker_open_ms is None:
            return None
        return CircuitBreaker(self.breaker_max, self.breaker_open_ms / 1000)


class Holds:
    """Reads what holds for a queue once; counts what runs, for limited queues only, and writes it at the end."""

    __slots__ = ("_breakers", "_busy", "_cursor", "_free", "_held", "_looked_at", "_running")

    def __init__(self, cursor: sqlite3.Cursor) -> None:
        self._cursor = cursor
        self._held: dict[int, Held] = {}
        self._breakers: dict[str, Breaker] = {}
        self._free: set[int] = set()
        self._running: dict[int, int] = {}
        self._busy: dict[tuple[int, str], int] = {}
        self._looked_at: set[tuple[int, str]] = set()

    def of(self, queue: int) -> Held:
        """What holds for a queue."""
        held = self._held.get(queue)
        if held is None:
            *numbers, failures, until_ms, key, attempt = self._cursor.execute(SQL["held"], (queue,)).fetchone()
            self._held[queue] = held = Held._make(numbers)
            is_usual = not failures and until_ms is None
            self._breakers[held.type] = CLOSED if is_usual else Breaker(failures, until_ms, key, attempt)
        return held

    def know_free(self, queue: int) -> None:
        """Somebody has seen that nothing holds a queue back, and that its breaker has nothing to remember."""
        self._free.add(queue)

    def breaker(self, queue: int) -> Breaker:
        """The breaker of a queue's type; one that has nothing to remember is CLOSED itself."""
        return CLOSED if queue in self._free else self._breakers[self.of(queue).type]

    def write_breaker(self, type: str, breaker: Breaker) -> None:
        """Let a type's breaker stand so from now on."""
        self._cursor.execute(SQL["write_breaker"], (*breaker, type))
        self._breakers[type] = breaker
        self._free.clear()

    def forget(self) -> None:
        """Read everything anew after a policy was changed."""
        self._held.clear()
        self._free.clear()

    def took(self, queue: int, jobs: int) -> None:
        """Jobs of a queue with a limit were leased; the claim itself has written it down for their lanes."""
        self._running[queue] = self._running.get(queue, 0) + jobs

    def left(self, queue: int, lane: str, jobs: int) -> None:
        """Leases have ended."""
        if queue in self._free:
            return
        held = self.of(queue)
        if held.max_running is not None:
            self.took(queue, -jobs)
        if held.lane_max_running is not None and limit_key_of(lane):
            self._busy[queue, lane] = self._busy.get((queue, lane), 0) - jobs
            self._looked_at.discard((queue, lane))

    def look_again(self, queue: int, lane: str) -> None:
        """A lane got work: it may have room that the store does not know of."""
        self._looked_at.discard((queue, lane))

    def unwritten(self, queue: int) -> int:
        """How many more run in a queue than the store says."""
        return self._running.get(queue, 0)

    def open_freed(self, queue: int) -> bool:
        """Open the lanes of a queue in which leases have ended, if they have room and work; whether there are any."""
        if not self._busy:
            return False
        places = [place for place in self._busy if place[0] == queue]
        self._open(places)
        return bool(places)

    def unwritten_in(self, queue: int, lane: str) -> int:
        """How many more run in a lane than the store says."""
        return self._busy.get((queue, lane), 0)

    def write_with(self, queue: int, lane: str, jobs: int) -> int:
        """The change in a lane that a claim will write: the jobs it took, and what was not written before."""
        return jobs + self._busy.pop((queue, lane), 0)

    def flush(self) -> bool:
        """Write what is not written; whether there is room now where there was none."""
        if not self._running and not self._busy:
            return False
        has_room = any(jobs < 0 for jobs in self._busy.values())
        for queue, jobs in self._running.items():
            if jobs:
                (running,) = self._cursor.execute(SQL["add_running"], (jobs, queue)).fetchone()
                has_room |= running < (self.of(queue).max_running or 0) <= running - jobs
        self._open(list(self._busy))
        rows = [(*place, jobs, self.of(place[0]).lane_max_running) for place, jobs in self._busy.items() if jobs]
        self._cursor.executemany(SQL["less_busy"], [row[:3] for row in rows if row[2] < 0])
        self._cursor.executemany(SQL["more_busy"], [row for row in rows if row[2] > 0])
        self._running.clear()
        self._busy.clear()
        self._looked_at.clear()
        return has_room

    def _open(self, places: Sequence[tuple[int, str]]) -> None:
        """Open lanes if they have room and work; those that were looked at need no second look."""
        rows = [
            (*place, self._busy[place], self.of(place[0]).lane_max_running)
            for place in places
            if self._busy[place] < 0 and place not in self._looked_at
        ]
        self._cursor.executemany(SQL["open_freed"], rows)
        self._looked_at.update(places)
