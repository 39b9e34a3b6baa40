"""The SQLite database of a spool: its tables, its connections, its errors."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from everwork.codec.local_file import unavailable
from everwork.exceptions import EngineUnavailable

VERSION: Final = 1
WAITING, ASIDE, DELIVERED = 0, 1, 2
"""The states of an entry: waiting; set aside, kept with the reason; delivered, kept for the job's key."""
BUSY_SECONDS: Final = 10.0
_DAMAGED: Final = "move it away to start with an empty spool"
SCHEMA: Final = """
-- The limits of the process that opened it last; commands use them.
CREATE TABLE spool (
  version INTEGER NOT NULL, id TEXT NOT NULL, store TEXT NOT NULL, max_bytes INTEGER NOT NULL, max_age REAL NOT NULL
);
-- In the order of delivery. producer and number: the stamp under which the job was sent, or may have been.
CREATE TABLE job (
  id INTEGER PRIMARY KEY AUTOINCREMENT, state INTEGER NOT NULL, type TEXT NOT NULL, body TEXT NOT NULL,
  producer TEXT, number INTEGER, boot TEXT NOT NULL, boot_ms INTEGER NOT NULL, wall_ms INTEGER NOT NULL,
  key INTEGER, deduplicated INTEGER, reason TEXT
);
CREATE INDEX job_state ON job (state, id);
CREATE TABLE outcome (
  key INTEGER NOT NULL, attempt INTEGER NOT NULL, state INTEGER NOT NULL, kind TEXT NOT NULL, body TEXT NOT NULL,
  boot TEXT NOT NULL, boot_ms INTEGER NOT NULL, wall_ms INTEGER NOT NULL, reason TEXT, PRIMARY KEY (key, attempt)
);
"""


def connect(path: str) -> sqlite3.Connection:
    """A connection whose commits are durable."""
    db = sqlite3.connect(path, isolation_level=None, timeout=BUSY_SECONDS, check_same_thread=False)
    # A damaged text must not prevent the others from being read; it is not valid JSON, so it is set aside later.
    db.text_factory = lambda text: text.decode("utf-8", "backslashreplace")
    db.execute("PRAGMA synchronous = FULL")
    return db


def use_wal(db: sqlite3.Connection) -> None:
    """Enable WAL, with retries: processes that create the file at the same time conflict, and SQLite does not wait."""
    until = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
            time.sleep(0.01)
        else:
            return


def rebind(db: sqlite3.Connection, store: str) -> None:
    """Assign the entries of a spool to another store, which has received none of them yet."""
    db.execute("UPDATE spool SET store = ?", (store,))
    db.execute("UPDATE job SET producer = NULL, number = NULL WHERE state <= ?", (ASIDE,))


@contextmanager
def errors(path: str) -> Iterator[None]:
    """Translates SQLite errors in the block into messages for operators."""
    try:
        yield
    except sqlite3.Error as error:
        raise EngineUnavailable(f"spool: {unavailable(path, error, _DAMAGED)}") from error
