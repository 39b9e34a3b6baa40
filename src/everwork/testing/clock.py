"""A clock that moves only when a test moves it."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from everwork.codec.new_job import instant
from everwork.core import checks
from everwork.core.job import StoredJob
from everwork.core.leasing import Demand
from everwork.core.limits import INSTANT_MS_MAX, LEASE_MS_DEFAULT, LIST_LIMIT_MAX
from everwork.core.queries import JobFilter
from everwork.core.schedule import next_point
from everwork.engines.sqlite.capacity import capacity_of, next_due_ms, read_queue
from everwork.exceptions import InvalidInput
from everwork.runtime.handler import QueueKey
from everwork.service.service import JobService
from everwork.service.triggers.loop import Scheduled
from everwork.testing.store import RehearsalEngine

START: Final = datetime(2026, 1, 5, tzinfo=UTC)
"""When every rehearsal starts, so that all test runs are the same: on a Monday, at midnight."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class VirtualClock:
    """A clock that moves only when a test moves it, and never backward. `stage.clock` is a virtual clock.

    `Everwork(url, clock=VirtualClock())` uses a virtual clock with any store.
    """

    def __init__(self, start: datetime = START) -> None:
        self.start_ms = self.now_ms = instant("start", start)

    def __call__(self) -> int:
        """Return the current time in milliseconds since 1970, UTC, as engines need it."""
        return self.now_ms

    def now(self) -> datetime:
        """Return the current time as a datetime in UTC, for `run_at` and for code under test that takes a clock."""
        return _EPOCH + timedelta(milliseconds=self.now_ms)

    def advance(self, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0) -> None:
        """Move the clock and nothing else. `Stage.advance` also expires leases and fires triggers."""
        self.move_to(self.now_ms + span_ms(days=days, hours=hours, minutes=minutes, seconds=seconds))

    def move_to(self, instant_ms: int) -> None:
        """Move the clock to a time, in milliseconds since 1970, UTC."""
        if not self.now_ms <= instant_ms <= INSTANT_MS_MAX:
            raise InvalidInput("clock", "cannot be moved backward or beyond the year 9999")
        self.now_ms = instant_ms


def span_ms(*, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0) -> int:
    """A duration in milliseconds; negative durations are refused."""
    given = {"days": days, "hours": hours, "minutes": minutes, "seconds": seconds}
    for name, value in given.items():
        checks.number(name, value, 0, INSTANT_MS_MAX / 1000)
    return round(((days * 24 + hours) * 60 + minutes) * 60_000 + seconds * 1000)


LEASE_OF_QUEUE: Final = "SELECT min(lease_until_ms) FROM ew_leased WHERE lease_until_ms > ? AND queue = ?"
LEASE_OR_EXPIRY: Final = """
SELECT min(lease_until_ms) FROM ew_leased WHERE lease_until_ms > ?1
UNION ALL SELECT min(expires_at_ms) FROM ew_expiry WHERE expires_at_ms > ?1"""
DEAD_LETTERS: Final = """
SELECT t.back_ms + (SELECT finished_at_ms FROM ew_finished f INDEXED BY ew_failed
  WHERE f.queue = q.id AND f.state = 4 AND f.finished_at_ms > ?1 - t.back_ms ORDER BY f.finished_at_ms LIMIT 1)
FROM ew_type t CROSS JOIN ew_queue q ON q.type = t.name WHERE t.back_ms IS NOT NULL AND q.dropped = 0"""


class Instants(NamedTuple):
    """When the next existing job can run here, and when anything happens next."""

    work_ms: int | None
    any_ms: int | None


async def next_instants(engine: RehearsalEngine, queues: Sequence[QueueKey], triggers: Sequence[Scheduled]) -> Instants:
    """When something happens next, by the engine's clock. The store returns only the earliest time of each kind."""
    marks = await engine.trigger_marks([one.name for one in triggers])
    points = [
        next_point(one.plan, mark.began_ms, mark.last_ms, marks.now_ms)
        for one, mark in zip(triggers, marks.marks, strict=True)
    ]
    work_ms, other_ms = await engine.query(lambda cursor, now_ms: _next_of_jobs(cursor, queues, now_ms))
    return Instants(work_ms, _first([*points, work_ms, other_ms], marks.now_ms))


async def all_jobs(service: JobService, wanted: JobFilter) -> AsyncIterator[StoredJob]:
    """Every job that matches a filter, newest first."""
    cursor: int | None = None
    while True:
        page = await service.find(wanted, LIST_LIMIT_MAX, cursor)
        for job in page.jobs:
            yield job
        cursor = page.next
        if cursor is None:
            return


def _next_of_jobs(cursor: sqlite3.Cursor, queues: Collection[QueueKey], now_ms: int) -> tuple[int | None, int | None]:
    """When the next job can run, and when the next event that needs no worker happens."""
    work = [instant for queue_key in queues for instant in _of_queue(cursor, queue_key, now_ms)]
    rows = cursor.execute(LEASE_OR_EXPIRY, (now_ms,)).fetchall() + cursor.execute(DEAD_LETTERS, (now_ms,)).fetchall()
    return _first(work, now_ms), _first([instant for (instant,) in rows], now_ms)


def _of_queue(cursor: sqlite3.Cursor, queue_key: QueueKey, now_ms: int) -> Iterator[int | None]:
    """When a queue's next job is due and within its limits, and when a job whose lease expires can run again."""
    queue = read_queue(cursor, Demand(queue_key.type, "", 1, LEASE_MS_DEFAULT, queue_key.group))
    if queue is None or queue.paused:
        return
    yield next_due_ms(cursor, queue, capacity_of(cursor, queue, now_ms))
    yield cursor.execute(LEASE_OF_QUEUE, (now_ms, queue.id)).fetchone()[0]


def _first(instants: Iterable[int | None], now_ms: int) -> int | None:
    return min((one for one in instants if one is not None and one > now_ms), default=None)
