"""One transaction: a cursor, the engine's now, and what must be written or told at its end."""

from __future__ import annotations

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from everwork.codec.json import decode_policy
from everwork.core.breaker import CLOSED, Breaker, CircuitBreaker
from everwork.core.limits import ATTEMPTS_DEFAULT, DEFAULT_GROUP
from everwork.core.measures import BUCKETS, bucket_of, execution, failure, wait
from everwork.core.states import State
from everwork.engines.sqlite.statements import limit_key_of, statements, tenant_of

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
        self.holds = RunningCounts(cursor)
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


class RunningCount(NamedTuple):
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


class RunningCounts:
    """Reads what holds for a queue once; counts what runs, for limited queues only, and writes it at the end."""

    __slots__ = ("_breakers", "_busy", "_cursor", "_free", "_held", "_looked_at", "_running")

    def __init__(self, cursor: sqlite3.Cursor) -> None:
        self._cursor = cursor
        self._held: dict[int, RunningCount] = {}
        self._breakers: dict[str, Breaker] = {}
        self._free: set[int] = set()
        self._running: dict[int, int] = {}
        self._busy: dict[tuple[int, str], int] = {}
        self._looked_at: set[tuple[int, str]] = set()

    def of(self, queue: int) -> RunningCount:
        """What holds for a queue."""
        held = self._held.get(queue)
        if held is None:
            *numbers, failures, until_ms, key, attempt = self._cursor.execute(SQL["held"], (queue,)).fetchone()
            self._held[queue] = held = RunningCount._make(numbers)
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


EXECUTIONS: Final = tuple(execution(bucket) for bucket in range(BUCKETS))
WAITS: Final = tuple(wait(bucket) for bucket in range(BUCKETS))


def measure_completed(tx: Transaction, queue: int, names: Sequence[str], durations_ms: str) -> int:
    """Count completed attempts by durations that the store has put together with commas; the sum of these."""
    sum_ms, found = 0, dict[int, int]()
    for text, jobs in _counted(durations_ms):
        duration_ms = int(text)
        if duration_ms > 0:
            sum_ms += duration_ms * jobs
        bucket = bucket_of(duration_ms)
        found[bucket] = found.get(bucket, 0) + jobs
    for bucket, jobs in found.items():
        tx.measured(queue, names[bucket], jobs)
    return sum_ms


def _counted(texts: str) -> Iterable[tuple[str, int]]:
    """Each text with how often it stands there."""
    first, jobs = texts.partition(",")[0], texts.count(",") + 1
    if texts == ",".join([first] * jobs):  # A batch that came and went together: not even taken apart.
        return ((first, jobs),)
    return Counter(texts.split(",")).items()


def measure_failed(tx: Transaction, queue: int, execution_ms: int, wait_ms: int, sort: str) -> None:
    """Count an attempt that failed by its duration, its wait, and the sort of its failure."""
    tx.measured(queue, EXECUTIONS[bucket_of(execution_ms)])
    tx.measured(queue, WAITS[bucket_of(wait_ms)])
    tx.measured(queue, failure(sort))
