"""One transaction: a cursor, the engine's current time, and what to write or notify at its end."""

from __future__ import annotations

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from everwork.codec.json import decode_policy
from everwork.core.breaker import CLOSED, Breaker, CircuitBreaker
from everwork.core.job import LeasedJob
from everwork.core.limits import ATTEMPTS_DEFAULT, DEFAULT_GROUP, HOUR_MS, WORKER_ROWS_MAX
from everwork.core.measures import BUCKETS, LAPSED, OTHER_WORKERS, bucket_of, execution, failure, wait
from everwork.core.states import State
from everwork.engines.sqlite.statements import limit_key_of, statements, tenant_of

SQL = statements("shared")


class TypeRow(NamedTuple):
    """A type within one transaction: its queues (default queue first) and the max_attempts of new jobs."""

    queues: list[tuple[int, str]]
    max_attempts: int


class Work(NamedTuple):
    """What one worker did in one queue within one transaction, for the hourly statistics."""

    completed: int = 0
    failed: int = 0
    retried: int = 0
    execution_ms: int = 0
    wait_ms: int = 0


def failed_work(at_ms: int, activated_at_ms: int, due_at_ms: int, *, is_retried: bool, is_lapsed: bool) -> Work:
    """What one failed attempt adds to the statistics of its worker; with an expired lease, its run time is unknown."""
    return Work(
        failed=int(not is_retried),
        retried=int(is_retried),
        execution_ms=0 if is_lapsed else max(0, at_ms - activated_at_ms),
        wait_ms=max(0, activated_at_ms - due_at_ms),
    )


class Handed(NamedTuple):
    """A job that was created for a waiting worker and is sent to it once the transaction is committed."""

    job: LeasedJob
    token: str
    message: bytes
    send: Callable[[Any], object]


class Transaction:
    """The transaction passed to every operation. Operations only run statements; the writer begins and commits.

    `woken`: work may be ready; `finished`: a job has finished.
    """

    __slots__ = (
        "_counts", "_measures", "_open_lanes", "_types", "_work", "cursor", "finished", "handed", "limits", "now_ms",
        "woken",
    )  # fmt: skip

    def __init__(self, cursor: sqlite3.Cursor, now_ms: int) -> None:
        self.cursor = cursor
        self.now_ms = now_ms
        self.woken = False
        self.finished = False
        self.handed: list[Handed] = []
        self.limits = LimitTracker(cursor)
        self._counts: defaultdict[tuple[int, str, int], int] = defaultdict(int)
        self._types: dict[str, TypeRow] = {}
        self._open_lanes: set[tuple[int, str]] = set()
        self._work: dict[tuple[int, str], Work] = {}
        self._measures: defaultdict[tuple[int, str], int] = defaultdict(int)

    def count(self, queue: int, lane: str, state: State, jobs: int) -> None:
        """Add to the number of jobs in a state."""
        self._counts[queue, tenant_of(lane), state] += jobs
        if state is State.PROCESSING:
            self.limits.end_leases(queue, {lane: -jobs})

    def move(self, queue: int, lane: str, before: State, after: State, jobs: int = 1) -> None:
        """Count jobs that changed state."""
        self.move_lanes(queue, {lane: jobs}, before, after)

    def move_lanes(self, queue: int, lanes: Mapping[str, int], before: State, after: State) -> None:
        """Count jobs of several lanes that changed state."""
        tenants: defaultdict[str, int] = defaultdict(int)
        for lane, jobs in lanes.items():
            tenants[tenant_of(lane)] += jobs
        self.move_tenants(queue, tenants, before, after)
        if before is State.PROCESSING:
            self.limits.end_leases(queue, lanes)

    def move_tenants(self, queue: int, tenants: Mapping[str, int], before: State, after: State) -> None:
        """Count jobs of several tenants that changed state, if no limit of their lanes can be affected."""
        for tenant, jobs in tenants.items():
            self._counts[queue, tenant, before] -= jobs
            self._counts[queue, tenant, after] += jobs
        if after not in (State.PENDING, State.PROCESSING):
            self.finished = True

    def worked(self, queue: int, worker: str, work: Work) -> None:
        """Add to what a worker did this hour."""
        before = self._work.get((queue, worker))
        self._work[queue, worker] = work if before is None else Work(*map(sum, zip(before, work, strict=True)))

    def measured(self, queue: int, what: str, jobs: int = 1) -> None:
        """Add to the attempts that are counted as `what` this hour."""
        self._measures[queue, what] += jobs

    def type(self, name: str) -> TypeRow:
        """The type's queues; a new type is created."""
        row = self._types.get(name)
        if row is None:
            self._types[name] = row = self._read_type(name)
        return row

    def forget_type(self, name: str) -> None:
        """Read the type again after it was changed."""
        self._types.pop(name, None)
        self._open_lanes.clear()

    def open_lane(self, queue: int, lane: str, known: tuple[str | None, int] | None = None) -> None:
        """Make a lane with ready work visible to claims; from its second lane on, a queue takes turns (`fair`).

        `known`: the queue's only lane so far and whether it is fair, as this transaction has just read them.
        """
        self.woken = True
        self.limits.recheck(queue, lane)
        if (queue, lane) in self._open_lanes:
            return
        self._open_lanes.add((queue, lane))
        solo, fair = known or self.cursor.execute(SQL["read_queue"], (queue,)).fetchone()
        if not fair:
            if solo is None:
                self.cursor.execute(SQL["set_solo"], (lane, queue))
            elif solo != lane:
                self._take_turns(queue, solo)
                fair = 1
        if fair:
            self.cursor.execute(SQL["open_lane"], (queue, lane))

    def _take_turns(self, queue: int, solo: str) -> None:
        """Let a queue's lanes take turns, from the second lane on; if jobs of the first have run, it has had a turn."""
        self.cursor.execute(SQL["set_fair"], (queue,))
        self.cursor.execute(SQL["open_lane"], (queue, solo))
        self.cursor.execute(SQL["had_turn"], (queue, solo))

    def close_lanes(self, queue: int, lanes: Iterable[str]) -> None:
        """Note that a claim has closed these lanes, so that later work opens them again."""
        if self._open_lanes:
            self._open_lanes.difference_update((queue, lane) for lane in lanes)

    def flush(self) -> None:
        """Write the net counts and the statistics of this transaction."""
        if self.limits.flush():
            self.woken = True
        deltas = [(queue, tenant, state, jobs) for (queue, tenant, state), jobs in self._counts.items() if jobs]
        if len(deltas) == 1:
            self.cursor.execute(SQL["append_delta"], deltas[0])
        elif deltas:
            self.cursor.executemany(SQL["append_delta"], deltas)
        self._counts.clear()
        if self._work:
            self._flush_statistics(self.now_ms // HOUR_MS)

    def _flush_statistics(self, hour: int) -> None:
        """Write the statistics. Measures count finished attempts: without work there are none."""
        bound = (WORKER_ROWS_MAX, OTHER_WORKERS)
        hourly = [(hour, queue, worker, *work, *bound) for (queue, worker), work in self._work.items()]
        self.cursor.executemany(SQL["add_hourly"], hourly)
        measures = [(hour, queue, what, jobs) for (queue, what), jobs in self._measures.items()]
        self.cursor.executemany(SQL["add_measure"], measures)
        self._work.clear()
        self._measures.clear()

    def _read_type(self, name: str) -> TypeRow:
        row = self.cursor.execute(SQL["read_type"], (name,)).fetchone()
        if row is None:
            self.cursor.execute(SQL["make_type"], (name,))
            self.cursor.execute(SQL["make_queue"], (name, DEFAULT_GROUP))
        (policy,) = row or (None,)
        queues: list[tuple[int, str]] = self.cursor.execute(SQL["read_queues"], (name,)).fetchall()
        return TypeRow(queues, attempts_of(policy))


def attempts_of(policy: str | None) -> int:
    """The max_attempts of new jobs under a type's stored policy."""
    return decode_policy(policy).retry.max_attempts if policy else ATTEMPTS_DEFAULT


class QueueLimits(NamedTuple):
    """The limits that the policy of a type sets for a queue; None: no such limit."""

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


class LimitTracker:
    """Limits and breakers of queues, read once per transaction; counts running jobs of limited queues."""

    __slots__ = ("_breakers", "_busy", "_checked", "_cursor", "_queues", "_running", "_unlimited")

    def __init__(self, cursor: sqlite3.Cursor) -> None:
        self._cursor = cursor
        self._queues: dict[int, QueueLimits] = {}
        self._breakers: dict[str, Breaker] = {}
        self._unlimited: set[int] = set()
        self._running: dict[int, int] = {}
        self._busy: dict[tuple[int, str], int] = {}
        self._checked: set[tuple[int, str]] = set()

    def of(self, queue: int) -> QueueLimits:
        """The limits of a queue."""
        limits = self._queues.get(queue)
        if limits is None:
            *numbers, failures, until_ms, key, attempt = self._cursor.execute(SQL["held"], (queue,)).fetchone()
            self._queues[queue] = limits = QueueLimits._make(numbers)
            is_default = not failures and until_ms is None
            self._breakers[limits.type] = CLOSED if is_default else Breaker(failures, until_ms, key, attempt)
        return limits

    def mark_unlimited(self, queue: int) -> None:
        """Skip a queue that was found to have no limits and a closed breaker without failures."""
        self._unlimited.add(queue)

    def breaker(self, queue: int) -> Breaker:
        """The breaker of a queue's type; a closed one without failures is the constant CLOSED."""
        return CLOSED if queue in self._unlimited else self._breakers[self.of(queue).type]

    def write_breaker(self, type: str, breaker: Breaker) -> None:
        """Store the new state of a type's breaker."""
        self._cursor.execute(SQL["write_breaker"], (*breaker, type))
        self._breakers[type] = breaker
        self._unlimited.clear()

    def forget(self) -> None:
        """Read everything again after a policy was changed."""
        self._queues.clear()
        self._unlimited.clear()

    def add_running(self, queue: int, jobs: int) -> None:
        """Count leased jobs of a queue with a limit; the claim itself writes the counts of their lanes."""
        self._running[queue] = self._running.get(queue, 0) + jobs

    def end_leases(self, queue: int, lanes: Mapping[str, int]) -> None:
        """Count leases that have ended."""
        if queue in self._unlimited:
            return
        limits = self.of(queue)
        if limits.max_running is not None:
            self.add_running(queue, -sum(lanes.values()))
        if limits.lane_max_running is None:
            return
        for lane, jobs in lanes.items():
            if limit_key_of(lane):
                self._busy[queue, lane] = self._busy.get((queue, lane), 0) - jobs
                self._checked.discard((queue, lane))

    def recheck(self, queue: int, lane: str) -> None:
        """Have a lane with work checked again: ended leases may not have been flushed yet."""
        self._checked.discard((queue, lane))

    def unflushed(self, queue: int) -> int:
        """How many more jobs of a queue are running than the stored count says."""
        return self._running.get(queue, 0)

    def open_freed_lanes(self, queue: int) -> bool:
        """Open lanes where leases have ended, if they have capacity and work; returns whether any were checked."""
        if not self._busy:
            return False
        lanes = [(owner, lane) for owner, lane in self._busy if owner == queue]
        self._open(lanes)
        return bool(lanes)

    def unflushed_in(self, queue: int, lane: str) -> int:
        """How many more jobs of a lane are running than the stored count says."""
        return self._busy.get((queue, lane), 0)

    def take_unflushed(self, queue: int, lane: str, jobs: int) -> int:
        """The change to a lane's count that a claim writes: the jobs it leased, and what was not flushed yet."""
        return jobs + self._busy.pop((queue, lane), 0)

    def flush(self) -> bool:
        """Write the counts; returns whether a queue or lane has capacity again."""
        if not self._running and not self._busy:
            return False
        has_capacity = any(jobs < 0 for jobs in self._busy.values())
        for queue, jobs in self._running.items():
            if jobs:
                (running,) = self._cursor.execute(SQL["add_running"], (jobs, queue)).fetchone()
                has_capacity |= running < (self.of(queue).max_running or 0) <= running - jobs
        self._open(list(self._busy))
        less = [(queue, lane, jobs) for (queue, lane), jobs in self._busy.items() if jobs < 0]
        more = [
            (queue, lane, jobs, self.of(queue).lane_max_running)
            for (queue, lane), jobs in self._busy.items()
            if jobs > 0
        ]
        self._cursor.executemany(SQL["less_busy"], less)
        self._cursor.executemany(SQL["more_busy"], more)
        self._running.clear()
        self._busy.clear()
        self._checked.clear()
        return has_capacity

    def _open(self, lanes: Sequence[tuple[int, str]]) -> None:
        """Open lanes if they have capacity and work; those that were checked need no second check."""
        rows = [
            (queue, lane, self._busy[queue, lane], self.of(queue).lane_max_running)
            for queue, lane in lanes
            if self._busy[queue, lane] < 0 and (queue, lane) not in self._checked
        ]
        self._cursor.executemany(SQL["open_freed"], rows)
        self._checked.update(lanes)


EXECUTIONS: Final = tuple(execution(bucket) for bucket in range(BUCKETS))
WAITS: Final = tuple(wait(bucket) for bucket in range(BUCKETS))


def measure_completed(tx: Transaction, queue: int, names: Sequence[str], durations_ms: str) -> int:
    """Count completed attempts by their durations, which SQLite has joined with commas; returns the sum."""
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
    """Each string and how often it occurs."""
    (first, _, _), jobs = texts.partition(","), texts.count(",") + 1
    if texts == ",".join([first] * jobs):  # A batch that was leased and completed together needs no split.
        return ((first, jobs),)
    return Counter(texts.split(",")).items()


def measure_failed(tx: Transaction, queue: int, execution_ms: int, wait_ms: int, category: str) -> None:
    """Count a failed attempt by its duration, its wait, and the category of its failure."""
    for what in failed_measures(execution_ms, wait_ms, category):
        tx.measured(queue, what)


def failed_measures(execution_ms: int, wait_ms: int, category: str) -> tuple[str, ...]:
    """The names under which a failed attempt is counted; one with an expired lease has no run time."""
    always = WAITS[bucket_of(wait_ms)], failure(category)
    return always if category == LAPSED else (EXECUTIONS[bucket_of(execution_ms)], *always)
