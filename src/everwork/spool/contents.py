"""The entries of a spool, for operators: list, delete, retry, deliver to another store."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from everwork.core import checks
from everwork.exceptions import InvalidInput
from everwork.spool.database import ASIDE, WAITING, rebind
from everwork.spool.entries import Moment, SpooledJob, job_from, job_text
from everwork.spool.file import SpoolCounts, SpoolFile
from everwork.spool.settings import Offline, Spool

_ID: Final = re.compile(r"(?P<owner>[0-9a-f]+)-(?P<number>[0-9]{1,19})|(?P<key>[0-9]{1,19})/(?P<attempt>[0-9]{1,19})")
"""The id of a job or an outcome. Numbers are passed to SQLite as text, because they can be too large for an integer."""


class Entry(NamedTuple):
    """An entry: `what` is a job's type or the kind of an outcome, `id` is the argument of `spool drop`.

    An entry is in doubt if it was sent but the answer was lost.
    """

    id: str
    is_outcome: bool
    is_aside: bool
    what: str
    since: Moment
    body: str
    reason: str | None
    is_in_doubt: bool


class SpoolStatus(NamedTuple):
    """The status of a spool. The last three fields describe one process that has it open."""

    path: str
    store: str
    counts: SpoolCounts
    max_bytes: int
    max_age: float
    is_away: bool = False
    delivered: int = 0
    reported: int = 0

    @property
    def waiting(self) -> int:
        """Entries waiting for delivery."""
        return self.counts.jobs + self.counts.outcomes


def status(file: SpoolFile) -> SpoolStatus:
    """The status of a spool."""
    return SpoolStatus(file.spool.path, file.store, file.counts(), file.spool.max_bytes, file.spool.max_age)


def status_of(path: str) -> SpoolStatus:
    """The status of the spool in a file."""
    file = SpoolFile(Spool(path), None)
    try:
        return status(file)
    finally:
        file.close()


def kept_attempts(file: SpoolFile, attempts: Iterable[tuple[int, int]]) -> set[tuple[int, int]]:
    """The attempts, by key and number, whose outcomes are waiting in a spool."""
    sql = "SELECT 1 FROM outcome WHERE key = ? AND attempt = ? AND state = ?"
    return {one for one in attempts if file.query(sql, *one, WAITING)}


def kept_attempts_in(offline: Offline, attempts: Iterable[tuple[int, int]]) -> set[tuple[int, int]]:
    """Like `kept_attempts`, for a spool that is not open."""
    file = SpoolFile(*offline)
    try:
        return kept_attempts(file, attempts)
    finally:
        file.close()


def entries(file: SpoolFile, limit: int) -> list[Entry]:
    """Entries that are waiting or set aside: outcomes, then jobs, each in the order of delivery."""
    outcomes = file.query(
        "SELECT key || '/' || attempt, 1, state, kind, boot, boot_ms, wall_ms, body, reason, 0 FROM outcome"
        " ORDER BY wall_ms LIMIT ?",
        limit,
    )
    jobs = file.query(
        "SELECT ? || '-' || id, 0, state, type, boot, boot_ms, wall_ms, body, reason, producer IS NOT NULL FROM job"
        " WHERE state < 2 ORDER BY id LIMIT ?",
        file.id,
        limit,
    )
    return [
        Entry(id, bool(is_outcome), state == ASIDE, what, Moment(*since), body, reason, bool(in_doubt))
        for id, is_outcome, state, what, *since, body, reason, in_doubt in (*outcomes, *jobs)
    ][:limit]


def drop(file: SpoolFile, ids: Sequence[str]) -> list[str]:
    """Delete entries by id; returns those that were found. Deleting part of a batch in doubt is refused."""
    with file.transaction() as db:
        jobs: dict[str, str] = {}
        found = []
        for id in dict.fromkeys(ids):
            match = _ID.fullmatch(id)
            if match is None:
                raise InvalidInput("id", f"must be an entry id as shown by everwork spool list, not {checks.shown(id)}")
            if match["key"] is not None:
                values = (match["key"], match["attempt"])
                if db.execute("DELETE FROM outcome WHERE key = ? AND attempt = ?", values).rowcount:
                    found.append(id)
            elif match["owner"] == file.id:
                jobs[match["number"]] = id
        stamps = set()
        for number, id in jobs.items():
            sql = "DELETE FROM job WHERE id = ? AND state <= ? RETURNING producer, number"
            for stamp in db.execute(sql, (number, ASIDE)).fetchall():
                found.append(id)
                stamps.add(stamp)
        for stamp in stamps:
            left = "SELECT count(*) FROM job WHERE state <= ? AND producer = ? AND number = ?"
            if others := db.execute(left, (ASIDE, *stamp)).fetchone()[0]:
                raise InvalidInput("id", f"is part of a batch in doubt: {_BATCH.format(others)}")
    return found


_BATCH: Final = "its jobs may have been created; deliver the batch, or also delete its other {} jobs"


def drop_all(file: SpoolFile, *, waiting: bool) -> int:
    """Delete every entry that was set aside, and optionally waiting ones too; returns how many."""
    states = (WAITING, ASIDE) if waiting else (ASIDE, ASIDE)
    with file.transaction() as db:
        jobs = db.execute("DELETE FROM job WHERE state IN (?, ?)", states).rowcount
        return jobs + db.execute("DELETE FROM outcome WHERE state IN (?, ?)", states).rowcount


def retry_aside(file: SpoolFile) -> int:
    """Retry entries that were set aside, with their age reset to zero; returns how many.

    Jobs in doubt keep their age, because the store remembers stamps only for a limited time.
    """
    now = Moment.now()
    with file.transaction() as db:
        sql = "SELECT id, body, boot, boot_ms, wall_ms FROM job WHERE state = ? AND producer IS NULL"
        fresh = []
        for id, body, *since in db.execute(sql, (ASIDE,)):
            with suppress(ValueError):  # Unreadable entries will be set aside again.
                job = SpooledJob(id, job_from(body), Moment(*since)).due(now)
                fresh.append((job_text(job), *now, id))
        db.executemany("UPDATE job SET body = ?, boot = ?, boot_ms = ?, wall_ms = ? WHERE id = ?", fresh)
        jobs = db.execute("UPDATE job SET state = ?, reason = NULL WHERE state = ?", (WAITING, ASIDE)).rowcount
        sql = "UPDATE outcome SET state = ?, reason = NULL WHERE state = ?"
        return jobs + db.execute(sql, (WAITING, ASIDE)).rowcount


def move_to(file: SpoolFile, store: str) -> None:
    """Have the entries delivered to another store from now on."""
    with file.transaction() as db:
        rebind(db, store)
    file.store = store
