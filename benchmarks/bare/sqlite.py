"""SQLite alone: one table, one index, no thread between caller and connection; the settings are the engine's own."""

from __future__ import annotations

import json
import sqlite3

from benchmarks.bench import BATCH, Bench, Timing, check_all

SCHEMA = """
CREATE TABLE job (
  id INTEGER PRIMARY KEY, queue TEXT NOT NULL DEFAULT 'q', state INTEGER NOT NULL DEFAULT 0,
  priority INTEGER NOT NULL DEFAULT 0, run_at REAL NOT NULL DEFAULT 0, attempt INTEGER NOT NULL DEFAULT 0,
  worker TEXT, lease REAL, payload TEXT NOT NULL
);
CREATE INDEX job_ready ON job (priority, id) WHERE state = 0;
"""
INSERT = "INSERT INTO job (payload) VALUES (?)"
CLAIM = """
UPDATE job SET state = 1, attempt = attempt + 1, worker = 'w', lease = 1.0
WHERE id IN (SELECT id FROM job WHERE state = 0 ORDER BY priority, id LIMIT ?) RETURNING id, payload
"""
FINISH = "DELETE FROM job WHERE id = ?"


async def drain(bench: Bench, jobs: int) -> Timing:
    """Claim 100 in one transaction, delete the 100 in the next, until nothing is left."""
    with bench.store() as url:
        connection = _connect(url)
        _insert(connection, jobs, 1000)
        done = 0
        with bench.timing(jobs) as timing:
            while ids := _claim(connection):
                connection.execute("BEGIN IMMEDIATE")
                connection.executemany(FINISH, ids)
                connection.execute("COMMIT")
                done += len(ids)
        connection.close()
    check_all(done, jobs)
    return timing


async def insert(bench: Bench, jobs: int, batch: int) -> Timing:
    """Insert in transactions of one size."""
    with bench.store() as url:
        connection = _connect(url)
        with bench.timing(jobs) as timing:
            _insert(connection, jobs, batch)
        connection.close()
    return timing


def _claim(connection: sqlite3.Connection) -> list[tuple[int]]:
    connection.execute("BEGIN IMMEDIATE")
    rows = connection.execute(CLAIM, (BATCH,)).fetchall()
    connection.execute("COMMIT")
    ids = []
    for id, payload in rows:
        json.loads(payload)
        ids.append((id,))
    return ids


def _insert(connection: sqlite3.Connection, jobs: int, batch: int) -> None:
    for low in range(0, jobs, batch):
        rows = [(json.dumps({"n": n}),) for n in range(low, min(low + batch, jobs))]
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(INSERT, rows)
        connection.execute("COMMIT")


def _connect(url: str) -> sqlite3.Connection:
    connection = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA cache_size = -65536")
    connection.executescript(SCHEMA)
    return connection
