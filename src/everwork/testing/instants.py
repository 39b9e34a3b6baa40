"""When something happens next: the instants between which a clock may jump without missing anything."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from everwork.core.job import Job
from everwork.core.leasing import Demand
from everwork.core.limits import LEASE_MS_DEFAULT, LIST_LIMIT_MAX
from everwork.core.queries import JobFilter
from everwork.core.schedule import next_point
from everwork.engines.base import Engine
from everwork.engines.sqlite.room import next_due_ms, read_queue, room_of
from everwork.runtime.handler import Place
from everwork.service.triggers.loop import Scheduled
from everwork.testing.store import RehearsalEngine

LEASE_OF_QUEUE: Final = "SELECT min(lease_until_ms) FROM ew_leased WHERE lease_until_ms > ? AND queue = ?"
LEASE_OR_EXPIRY: Final = """
SELECT min(lease_until_ms) FROM ew_leased WHERE lease_until_ms > ?1
UNION ALL SELECT min(expires_at_ms) FROM ew_expiry WHERE expires_at_ms > ?1"""
DEAD_LETTERS: Final = """
SELECT t.back_ms + (SELECT finished_at_ms FROM ew_finished f INDEXED BY ew_failed
  WHERE f.queue = q.id AND f.state = 4 AND f.finished_at_ms > ?1 - t.back_ms ORDER BY f.finished_at_ms LIMIT 1)
FROM ew_type t CROSS JOIN ew_queue q ON q.type = t.name WHERE t.back_ms IS NOT NULL AND q.dropped = 0"""


class Instants(NamedTuple):
    """When the next job may run here that is there already, and when anything at all happens next."""

    work_ms: int | None
    any_ms: int | None


async def next_instants(engine: RehearsalEngine, places: Sequence[Place], triggers: Sequence[Scheduled]) -> Instants:
    """What lies ahead, by the engine's clock. The store is asked for the first of each kind, never for every job."""
    marks = await engine.trigger_marks([one.name for one in triggers])
    points = [
        next_point(one.plan, mark.began_ms, mark.last_ms, marks.now_ms)
        for one, mark in zip(triggers, marks.marks, strict=True)
    ]
    work_ms, other_ms = await engine.look(lambda cursor, now_ms: _ahead(cursor, places, now_ms))
    return Instants(work_ms, _first([*points, work_ms, other_ms], marks.now_ms))


async def every(engine: Engine, wanted: JobFilter) -> AsyncIterator[Job]:
    """Every job that a filter shows, newest first."""
    cursor: int | None = None
    while True:
        page = await engine.list(wanted, LIST_LIMIT_MAX, cursor)
        for job in page.jobs:
            yield job
        cursor = page.next
        if cursor is None:
            return


def _ahead(cursor: sqlite3.Cursor, places: Collection[Place], now_ms: int) -> tuple[int | None, int | None]:
    """When the next job may run, and when something ends that needs no worker."""
    work = [instant for place in places for instant in _of_place(cursor, place, now_ms)]
    rows = cursor.execute(LEASE_OR_EXPIRY, (now_ms,)).fetchall() + cursor.execute(DEAD_LETTERS, (now_ms,)).fetchall()
    return _first(work, now_ms), _first([instant for (instant,) in rows], now_ms)


def _of_place(cursor: sqlite3.Cursor, place: Place, now_ms: int) -> Iterator[int | None]:
    """When a job is due here, when what holds it back ends, when one whose worker is gone may run again."""
    queue = read_queue(cursor, Demand(place.type, "", 1, LEASE_MS_DEFAULT, place.group))
    if queue is None or queue.paused:
        return
    yield next_due_ms(cursor, queue, room_of(cursor, queue, now_ms))
    yield cursor.execute(LEASE_OF_QUEUE, (now_ms, queue.id)).fetchone()[0]


def _first(instants: Iterable[int | None], now_ms: int) -> int | None:
    return min((one for one in instants if one is not None and one > now_ms), default=None)
