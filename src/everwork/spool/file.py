"""The file of a spool: a small SQLite database that several processes can share."""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from everwork.codec.local_file import create_private, identity, require_local_file, require_same_file
from everwork.codec.new_job import require_valid
from everwork.core.job import NewJob
from everwork.core.leasing import Created, Spooled, Stamp
from everwork.core.outcome import Outcome, kind_of
from everwork.core.texts import error_text
from everwork.exceptions import BadConfiguration, EngineUnavailable, InvalidInput, SchemaMismatch, SpoolFull
from everwork.logs import get_logger
from everwork.spool.database import ASIDE, DELIVERED, SCHEMA, VERSION, WAITING, connect, errors, rebind, use_wal
from everwork.spool.entries import (
    Moment,
    SpooledBatch,
    SpooledJob,
    due_outcome,
    job_from,
    job_text,
    outcome_from,
    outcome_text,
)
from everwork.spool.settings import Spool

log = get_logger("everwork")

DELIVERED_KEEP: Final = 10_000
"""How many delivered jobs a spool remembers, so that callers can look up their keys."""
_SIZE: Final = 200
"""Bytes that an entry takes in addition to its text."""
_DIGITS: Final = 18
MAY_EXIST: Final = "it may have been created"


class SpoolCounts(NamedTuple):
    """Counts and sizes of a spool's contents; `oldest_ms` is the age of the oldest waiting entry, if there is one."""

    jobs: int = 0
    outcomes: int = 0
    aside: int = 0
    bytes: int = 0
    oldest_ms: int | None = None


class SpoolFile:
    """One connection to a spool; used by one thread at a time, and only by the process that opened it."""

    def __init__(self, spool: Spool, store: str | None) -> None:
        """Open the file; if no store is given, the file must exist, and its entries can belong to any store."""
        self.spool = spool
        self.id = self.store = ""
        try:
            require_local_file(Path(spool.path), "a local disk")
            if store is None and not Path(spool.path).exists():
                raise EngineUnavailable(f"no such file: {spool.path}")
            self._open(store)
        except EngineUnavailable as error:
            raise BadConfiguration(f"spool: {str(error).removeprefix('spool: ')}") from None

    def _open(self, store: str | None) -> None:
        with errors(self.spool.path):
            if store is not None:
                create_private(self.spool.path)
            self._db = connect(self.spool.path)
            try:
                self._require_spool(self._db)
                use_wal(self._db)
                with self.transaction() as db:
                    self._prepare(db, store)
                self._identity = identity(self.spool.path)
            except BaseException:
                self._db.close()
                raise

    def _require_spool(self, db: sqlite3.Connection) -> None:
        """Refuse a database that belongs to another program, before changing it."""
        names = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if names and not names >= {"spool", "job", "outcome"}:
            raise self._not_a_spool()

    def _not_a_spool(self) -> BadConfiguration:
        return BadConfiguration(f"spool: {self.spool.path} is not a spool; choose another path")

    def _prepare(self, db: sqlite3.Connection, store: str | None) -> None:
        if store is not None and not db.execute("SELECT 1 FROM sqlite_master").fetchone():
            for statement in SCHEMA.split(";\n"):
                db.execute(statement)
            bounds = (self.spool.max_bytes, self.spool.max_age)
            db.execute("INSERT INTO spool VALUES (?, ?, ?, ?, ?)", (VERSION, secrets.token_hex(8), store, *bounds))
        try:
            version = db.execute("SELECT version FROM spool").fetchone()[0]
            is_newer = version > VERSION
        except (sqlite3.OperationalError, TypeError, ValueError):
            raise self._not_a_spool() from None
        if is_newer:
            raise SchemaMismatch(
                f"spool: {self.spool.path} has version {version}, but this Everwork reads up to {VERSION}; upgrade it"
            )
        self.id, self.store, *bounds = db.execute("SELECT id, store, max_bytes, max_age FROM spool").fetchone()
        self._take_bounds(db, store, *bounds)
        if store not in (None, self.store):
            if self.has_waiting() or self.counts().aside:
                raise BadConfiguration(
                    f"spool: {self.spool.path} holds entries for another engine, {self.store}; deliver them with"
                    " `everwork spool flush`, delete them with `everwork spool drop`, or choose another path"
                )
            rebind(db, store or "")
            self.store = store or ""

    def _take_bounds(self, db: sqlite3.Connection, store: str | None, max_bytes: int, max_age: float) -> None:
        """Store the limits of a process that uses the spool; commands use the stored ones."""
        if store is None:
            self.spool = replace(self.spool, max_bytes=max_bytes, max_age=max_age)
        elif (max_bytes, max_age) != (self.spool.max_bytes, self.spool.max_age):
            db.execute("UPDATE spool SET max_bytes = ?, max_age = ?", (self.spool.max_bytes, self.spool.max_age))

    def close(self) -> None:
        """Close the connection."""
        self._db.close()

    # Keep ---------------------------------------------------------------------------------------

    def keep_jobs(self, jobs: Sequence[NewJob], stamp: Stamp | None = None) -> list[Created]:
        """Write jobs durably, all or none; pass the `stamp` if they may already have been created with it."""
        texts = [job_text(job) for job in jobs]
        producer, number = stamp or (None, None)
        now = Moment.now()
        with self._keeping() as db:
            self._require_space(sum(len(text.encode()) for text in texts) + _SIZE * len(texts))
            ids = [
                db.execute(
                    "INSERT INTO job (state, type, body, producer, number, boot, boot_ms, wall_ms)"
                    " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                    (WAITING, job.type, text, producer, number, *now),
                ).lastrowid
                for job, text in zip(jobs, texts, strict=True)
            ]
        return [Created(-id, spool_id=f"{self.id}-{id}") for id in ids if id is not None]

    def keep_outcomes(self, outcomes: Sequence[Outcome]) -> None:
        """Write outcomes durably. They are kept even if the spool is full: the work is done."""
        now = Moment.now()
        rows = [(o.key, o.attempt, WAITING, kind_of(o), outcome_text(o), *now) for o in outcomes]
        with self._keeping() as db:
            db.executemany(
                "INSERT INTO outcome (key, attempt, state, kind, body, boot, boot_ms, wall_ms)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
                rows,
            )

    def size(self) -> int:
        """How many bytes of the file are in use."""
        pages, free, page = (
            self.query(f"PRAGMA {name}")[0][0] for name in ("page_count", "freelist_count", "page_size")
        )
        return int((pages - free) * page)

    def _require_space(self, more: int) -> None:
        size = self.size()
        if size + more > self.spool.max_bytes:
            raise SpoolFull(
                f"the engine is unavailable and the spool {self.spool.path} is full: {size + more:,} bytes would exceed"
                f" its max_bytes of {self.spool.max_bytes:,}"
            )

    # Deliver ------------------------------------------------------------------------------------

    def next_batch(self, fresh: Stamp, jobs_max: int, bytes_max: int) -> SpooledBatch | None:
        """The jobs to deliver next, with their existing stamp or a new one.

        The stamp is written first, so that after a crash the same jobs are sent again with the same stamp. Returns None
        if nothing is waiting, or if the next jobs cannot be read and were set aside.
        """
        with self.transaction() as db:
            first = db.execute(
                "SELECT producer, number FROM job WHERE state = ? ORDER BY id LIMIT 1", (WAITING,)
            ).fetchone()
            if first is None:
                return None
            stamp = Stamp(*first)
            if first[0] is None:
                stamp = fresh
                self._stamp_next(db, fresh, jobs_max, bytes_max)
            rows = db.execute(
                "SELECT id, body, boot, boot_ms, wall_ms FROM job"
                " WHERE state = ? AND producer = ? AND number = ? ORDER BY id",
                (WAITING, *stamp),
            ).fetchall()
        try:
            return SpooledBatch(stamp, [SpooledJob(id, job_from(body), Moment(*since)) for id, body, *since in rows])
        except ValueError as error:
            # Without all of its jobs the batch cannot be repeated; sending the others separately could duplicate them.
            self.set_aside([row[0] for row in rows], f"a job of its batch {error}; {MAY_EXIST}", in_doubt=True)
            return None

    def _stamp_next(self, db: sqlite3.Connection, stamp: Stamp, jobs_max: int, bytes_max: int) -> None:
        """Stamp the first jobs that have no stamp, up to the next job that has one."""
        rows = db.execute(
            "SELECT id, length(CAST(body AS BLOB)), producer FROM job WHERE state = ? ORDER BY id LIMIT ?",
            (WAITING, jobs_max),
        )
        last, size = 0, 0
        for id, length, producer in rows:
            size += length
            if producer is not None or (last and size > bytes_max):
                break
            last = id
        db.execute("UPDATE job SET producer = ?, number = ? WHERE state = ? AND id <= ?", (*stamp, WAITING, last))

    def unstamp(self, batch: SpooledBatch) -> None:
        """Remove the stamp of a batch that the store refused, so that its jobs are sent in other batches."""
        with self.transaction() as db:
            db.execute(
                "UPDATE job SET producer = NULL, number = NULL WHERE state = ? AND producer = ? AND number = ?",
                (WAITING, *batch.stamp),
            )

    def set_unfit_aside(self, limit: int) -> int:
        """Set aside jobs that are too old or invalid, unless they were already sent; returns how many."""
        sql = "SELECT id, body, boot, boot_ms, wall_ms FROM job WHERE state = ? AND producer IS NULL ORDER BY id"
        now, unfit = Moment.now(), []
        with errors(self.spool.path), closing(self._db.execute(f"{sql} LIMIT ?", (WAITING, limit))) as rows:
            for id, body, *since in rows:  # Read one by one, because they can be large.
                if (reason := self._unfit(body, Moment(*since).elapsed_ms(now))) is not None:
                    unfit.append((id, reason))
        for id, reason in unfit:
            self.set_aside([id], reason)
        return len(unfit)

    def _unfit(self, body: str, age_ms: int) -> str | None:
        if age_ms > self.spool.max_age * 1000:
            return f"not delivered within {self.spool.max_age:g} s"
        try:
            require_valid(job_from(body))
        except (InvalidInput, ValueError, TypeError) as error:
            return error_text(str(error))
        return None

    def delivered(self, batch: SpooledBatch, created: Sequence[Created]) -> None:
        """Store the keys of delivered jobs and drop their contents."""
        rows = [(DELIVERED, one.key, one.deduplicated, job.id) for job, one in zip(batch.jobs, created, strict=True)]
        with self.transaction() as db:
            db.executemany("UPDATE job SET state = ?, body = '', key = ?, deduplicated = ? WHERE id = ?", rows)
            db.execute(
                "DELETE FROM job WHERE state = ? AND id <= (SELECT max(id) FROM job) - ?", (DELIVERED, DELIVERED_KEEP)
            )

    def set_aside(self, ids: Sequence[int], reason: str, *, in_doubt: bool = False) -> None:
        """Set aside jobs that cannot be delivered, so that they do not block the others.

        Jobs in doubt, which may have been created, keep their stamp, so that a retry does not create them twice.
        """
        with self.transaction() as db:
            rows = [(ASIDE, reason, id) for id in ids]
            db.executemany("UPDATE job SET state = ?, reason = ? WHERE id = ?", rows)
            if not in_doubt:
                db.executemany("UPDATE job SET producer = NULL, number = NULL WHERE id = ?", [(id,) for id in ids])
        log.error("spooled jobs were set aside", spool=self.spool.path, jobs=len(ids), first=ids[0], reason=reason)

    def waiting_outcomes(self, limit: int, bytes_max: int) -> list[Outcome]:
        """The outcomes to report next, oldest first; unreadable ones are set aside."""
        now, found = Moment.now(), []
        for key, attempt, body, *since in self._outcome_rows(limit, bytes_max):
            try:
                found.append(due_outcome(outcome_from(body), Moment(*since), now))
            except ValueError as error:
                self.set_outcome_aside(key, attempt, error_text(str(error)))
        return found

    def _outcome_rows(self, limit: int, bytes_max: int) -> list[Any]:
        sql = "SELECT key, attempt, body, boot, boot_ms, wall_ms FROM outcome WHERE state = ? ORDER BY wall_ms LIMIT ?"
        found: list[Any] = []
        size = 0
        with errors(self.spool.path), closing(self._db.execute(sql, (WAITING, limit))) as rows:
            for row in rows:
                size += len(row[2])
                if found and size > bytes_max:
                    break
                found.append(row)
        return found

    def forget_outcomes(self, outcomes: Sequence[Outcome]) -> None:
        """Delete outcomes that the store has received."""
        with self.transaction() as db:
            db.executemany("DELETE FROM outcome WHERE key = ? AND attempt = ?", [(o.key, o.attempt) for o in outcomes])

    def set_outcome_aside(self, key: int, attempt: int, reason: str) -> None:
        """Set aside an outcome that cannot be reported."""
        with self.transaction() as db:
            db.execute(
                "UPDATE outcome SET state = ?, reason = ? WHERE key = ? AND attempt = ?",
                (ASIDE, reason, key, attempt),
            )
        facts = {"spool": self.spool.path, "job": key, "attempt": attempt, "reason": reason}
        log.error("a spooled outcome was set aside", **facts)

    # Queries ---------------------------------------------------------------------------------------

    def require_store(self) -> None:
        """Refuse to deliver to a store that the entries no longer belong to."""
        [(store,)] = self.query("SELECT store FROM spool")
        if store != self.store:
            raise EngineUnavailable(
                f"spool: {self.spool.path} now belongs to {store}; restart this process with the URL of that engine"
            )

    def is_drained(self, last_id: int) -> bool:
        """Whether no job up to and including this one is waiting."""
        return not self.query("SELECT 1 FROM job WHERE state = ? AND id <= ? LIMIT 1", WAITING, last_id)

    def has_waiting(self) -> bool:
        """Whether a job or an outcome is waiting for delivery."""
        return bool(self.query("SELECT 1 FROM job WHERE state = ? LIMIT 1", WAITING)) or self.has_outcomes()

    def has_outcomes(self) -> bool:
        """Whether an outcome is waiting for delivery."""
        return bool(self.query("SELECT 1 FROM outcome WHERE state = ? LIMIT 1", WAITING))

    def last_id(self) -> int:
        """The id of the last job that was written."""
        return int(self.query("SELECT coalesce(max(id), 0) FROM job")[0][0])

    def find(self, spool_id: str) -> Spooled | None:
        """The status of a job; None if it is no longer in the spool."""
        owner, _, id = spool_id.rpartition("-")
        if owner != self.id or not id.isdecimal() or len(id) > _DIGITS:
            return None
        rows = self.query("SELECT key, deduplicated, reason FROM job WHERE id = ?", int(id))
        if not rows:
            return None
        key, deduplicated, reason = rows[0]
        return Spooled(None if key is None else Created(key, bool(deduplicated)), reason)

    def tenant_of(self, spool_id: str) -> str | None:
        """The tenant of an undelivered job."""
        rows = self.query(
            "SELECT body FROM job WHERE id = ? AND state <> ?", int(spool_id.rpartition("-")[2]), DELIVERED
        )
        try:
            return job_from(rows[0][0]).tenant if rows else None
        except ValueError:
            return ""  # An unreadable job belongs to no tenant.

    def counts(self) -> SpoolCounts:
        """The number of entries and their size."""
        number = "SELECT count(*) FILTER (WHERE state = 0), count(*) FILTER (WHERE state = 1) FROM"
        [(jobs, aside)] = self.query(f"{number} job WHERE state < 2")
        [(outcomes, refused)] = self.query(f"{number} outcome")
        since = "SELECT boot, boot_ms, wall_ms FROM"
        oldest = self.query(f"{since} job WHERE state = 0 ORDER BY id LIMIT 1")
        oldest += self.query(f"{since} outcome WHERE state = 0 ORDER BY wall_ms LIMIT 1")
        now = Moment.now()
        age_ms = max((Moment(*row).elapsed_ms(now) for row in oldest), default=None)
        return SpoolCounts(jobs, outcomes, aside + refused, self.size(), age_ms)

    # Internals -------------------------------------------------------------------------------------

    def query(self, sql: str, *values: object) -> list[Any]:
        """The rows of a statement that only reads."""
        with errors(self.spool.path), closing(self._db.execute(sql, values)) as cursor:
            return cursor.fetchall()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """A transaction that is written durably or not at all."""
        with errors(self.spool.path):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    @contextmanager
    def _keeping(self) -> Iterator[sqlite3.Connection]:
        """A transaction for new entries. Refuses a moved or deleted file, which the next process would not find."""
        with self.transaction() as db:
            require_same_file(self.spool.path, self._identity)
            yield db
