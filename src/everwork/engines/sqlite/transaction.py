"""One transaction: a cursor, the engine's now, and what must be written or told at its end."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from typing import NamedTuple

from everwork.codec.json import decode_policy
from everwork.core.limits import ATTEMPTS_DEFAULT, DEFAULT_GROUP
from everwork.core.states import State
from everwork.engines.sqlite.holds import Holds
from everwork.engines.sqlite.lanes import tenant_of
from everwork.engines.sqlite.statements import statements

SQL = statements("shared")


class TypeRow(NamedTuple):
    """A type inside one transaction: its queues (the default one first) and what new jobs take from its policy."""

    queues: list[tuple[int, str]]
    max_attempts: int


class Work(NamedTuple):
    """What one worker did with one queue inside one transaction, for the hourly statistics."""

    completed: int = 0
    failed: int = 0
    retried: int = 0
    execution_ms: int = 0
    wait_ms: int = 0


class Transaction:
    """Handed to every operation. Operations only run statements; begin and commit are the writer's."""

    __slots__ = (
        "_counts", "_measures", "_open_lanes", "_types", "_work", "cursor", "finished", "holds", "now_ms", "woken",
    )  # fmt: skip

    def __init__(self, cursor: sqlite3.Cursor, now_ms: int) -> None:
        self.cursor = cursor
        self.now_ms = now_ms
        self.woken = False
        self.finished = False
        self.holds = Holds(cursor)
        self._counts: defaultdict[tuple[int, str, int], int] = defaultdict(int)
        self._types: dict[str, TypeRow] = {}
        self._open_lanes: set[tuple[int, str]] = set()
        self._work: dict[tuple[int, str], Work] = {}
        self._measures: defaultdict[tuple[int, str], int] = defaultdict(int)

    def count(self, queue: int, lane: str, state: State, jobs: int) -> None:
        """Add to the number of jobs in a state."""
        self._counts[queue, tenant_of(lane), state] += jobs
        if state is State.PROCESSING:
            self.holds.left(queue, lane, -jobs)

    def move(self, queue: int, lane: str, before: State, after: State, jobs: int = 1) -> None:
        """Count jobs that went from one state to another."""
        tenant = tenant_of(lane)
        self._counts[queue, tenant, before] -= jobs
        self._counts[queue, tenant, after] += jobs
        if before is State.PROCESSING:
            self.holds.left(queue, lane, jobs)
        if after not in (State.PENDING, State.PROCESSING):
            self.finished = True

    def worked(self, queue: int, worker: str, work: Work) -> None:
        """Add to what a worker did this hour."""
        known = self._work.get((queue, worker))
        self._work[queue, worker] = work if known is None else Work(*map(sum, zip(known, work, strict=True)))

    def measured(self, queue: int, what: str, jobs: int = 1) -> None:
        """Add to the attempts that are counted this hour as `what`."""
        self._measures[queue, what] += jobs

    def type(self, name: str) -> TypeRow:
        """The type's queues; a type that was never seen is made here."""
        row = self._types.get(name)
        if row is None:
            self._types[name] = row = self._read_type(name)
        return row

    def forget_type(self, name: str) -> None:
        """Read the type anew after it was changed."""
        self._types.pop(name, None)
        self._open_lanes.clear()

    def open_lane(self, queue: int, lane: str) -> None:
        """Make a lane with ready work visible to claims; the second lane of a queue makes it fair."""
        self.woken = True
        self.holds.look_again(queue, lane)
        if (queue, lane) in self._open_lanes:
            return
        self._open_lanes.add((queue, lane))
        solo, fair = self.cursor.execute(SQL["read_queue"], (queue,)).fetchone()
        if not fair:
            if solo is None:
                self.cursor.execute(SQL["set_solo"], (lane, queue))
            elif solo != lane:
                self.cursor.execute(SQL["set_fair"], (queue,))
                self.cursor.execute(SQL["open_lane"], (queue, solo))
                fair = 1
        if fair:
            self.cursor.execute(SQL["open_lane"], (queue, lane))

    def close_lane(self, queue: int, lane: str) -> None:
        """Remember that a claim has closed this lane, so that later work opens it again."""
        self._open_lanes.discard((queue, lane))

    def flush(self) -> None:
        """Write the net counts and the statistics of this transaction."""
        if self.holds.flush():
            self.woken = True
        deltas = [(*bucket, jobs) for bucket, jobs in self._counts.items() if jobs]
        if deltas:
            self.cursor.executemany(SQL["append_delta"], deltas)
            self._counts.clear()
        if self._work:
            self._flush_statistics(self.now_ms // 3_600_000)

    def _flush_statistics(self, hour: int) -> None:
        """Whoever worked has ended attempts: there is no measure without work."""
        self.cursor.executemany(SQL["add_hourly"], [(hour, *who, *work) for who, work in self._work.items()])
        self.cursor.executemany(SQL["add_measure"], [(hour, *key, jobs) for key, jobs in self._measures.items()])
        self._work.clear()
        self._measures.clear()

    def _read_type(self, name: str) -> TypeRow:
        row = self.cursor.execute(SQL["read_type"], (name,)).fetchone()
        if row is None:
            self.cursor.execute(SQL["make_type"], (name,))
            self.cursor.execute(SQL["make_queue"], (name, DEFAULT_GROUP))
            row = (None,)
        queues: list[tuple[int, str]] = self.cursor.execute(SQL["read_queues"], (name,)).fetchall()
        return TypeRow(queues, decode_policy(row[0]).retry.max_attempts if row[0] else ATTEMPTS_DEFAULT)
