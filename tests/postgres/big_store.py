"""A store with a past and a future, and connections that tell what each call has read of it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import asyncpg
import psycopg

from everwork.engines.postgres.connections import Connections
from everwork.engines.postgres.engine import PostgresEngine
from tests.factories import TYPE, a_new_job, a_policy
from tests.postgres.conftest import schema_of, without_options
from tests.stores import START_MS, VirtualClock

T = TypeVar("T")
Counters = dict[str, tuple[int, int]]

FINISHED: Final = range(1, 20_001)
FUTURE: Final = range(20_001, 40_001)
READY: Final = range(40_001, 42_001)
BUSY: Final = range(42_001, 42_501)
LAPSED: Final = BUSY[:20]
EXPIRED: Final = READY[:10]
FAIR: Final = range(50_001, 51_001)
FAIR_LANES: Final = 20
DUE: Final = range(60_001, 63_001)
CAPPED: Final = range(70_001, 74_001)
CAPPED_BUSY: Final = range(80_001, 80_011)
CAPPED_FAILED: Final = range(90_001, 93_001)
CAPPED_LANES: Final = 20
AUDITED: Final = 1_000

_LIVE: Final = """INSERT INTO live (key, run_at_ms, expires_at_ms, activated_at_ms, lease_until_ms, queue_id, lane_id,
  attempt, state, rank, attempts, max_attempts, worker)
SELECT k, {at}, {expires}, {begun}, {lease}, q.id, x.id, {attempt}, {state}, 0, {attempt}, 5, {worker}
FROM generate_series({first}, {last}) k JOIN queue q ON q.type = '{type}'
JOIN LATERAL (SELECT id, row_number() OVER (ORDER BY id) - 1 AS n FROM lane WHERE queue_id = q.id) x
ON x.n = k % {lanes}"""
_FINISHED: Final = """INSERT INTO finished (key, run_at_ms, finished_at_ms, activated_at_ms, queue_id, lane_id,
  attempt, state, rank, attempts, max_attempts)
SELECT k, {at}, {at}, {at}, q.id, x.id, 1, 3, 0, 1, 5
FROM generate_series({first}, {last}) k JOIN queue q ON q.type = '{type}' JOIN lane x ON x.queue_id = q.id"""
_FAILED: Final = """INSERT INTO finished (key, run_at_ms, finished_at_ms, activated_at_ms, queue_id, lane_id,
  attempt, state, rank, attempts, max_attempts, kind)
SELECT k, {at}, {at}, {at}, q.id, x.id, 1, 4, 0, 1, 5, 'fail'
FROM generate_series({first}, {last}) k JOIN queue q ON q.type = 'capped'
JOIN LATERAL (SELECT min(id) AS id FROM lane WHERE queue_id = q.id) x ON true"""
_JOBS: Final = """INSERT INTO job (key, created_at_ms, queue_id, lane_id, max_attempts, variables)
SELECT key, {at}, queue_id, lane_id, 5, '{{}}'
FROM (SELECT key, queue_id, lane_id FROM live UNION ALL SELECT key, queue_id, lane_id FROM finished) p"""

_AUDIT: Final = """INSERT INTO registry (kind, name, body)
SELECT 'audit', lpad(k::text, 9, '0'), repeat('x', 200) FROM generate_series(1, {last}) k"""


async def make_empty(url: str) -> None:
    """The schema with its types and lanes, and statistics of empty tables that nobody will bring up to date."""
    engine = PostgresEngine.from_url(url, clock=VirtualClock())
    await engine.open()
    lanes = [a_new_job(type="fair", limit_key=f"lane-{n}") for n in range(FAIR_LANES)]
    lanes += [a_new_job(type="capped", limit_key=f"lane-{n}") for n in range(CAPPED_LANES)]
    created = await engine.create([a_new_job(), a_new_job(type="due"), *lanes])
    await a_policy(engine, type="capped", max_running=1_000, max_running_per_key=1, failed_job_retry_hours=1)
    await engine.cancel([job.key for job in created])
    await engine.delete([job.key for job in created])
    await engine.close()
    with in_schema(url) as connection:
        for table in ("live", "job", "finished"):
            connection.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)".encode())
            connection.execute(f"VACUUM ANALYZE {table}".encode())


def fill(url: str, *, analyse: bool = False) -> None:
    """Write the jobs, without asking the engine."""
    with in_schema(url) as connection:
        for sql in _fillings():
            connection.execute(sql.encode())
        if analyse:
            connection.execute("VACUUM ANALYZE live, job, finished")


def _fillings() -> Iterator[str]:
    live = {"at": START_MS, "expires": "NULL", "begun": "NULL", "lease": "NULL", "attempt": 0, "worker": "NULL"}
    lease = f"CASE WHEN k <= {LAPSED[-1]} THEN {START_MS} - 1 ELSE {START_MS} + 30000 END"
    expires = f"CASE WHEN k <= {EXPIRED[-1]} THEN {START_MS} - 1 END"
    held = {"begun": START_MS, "lease": lease, "attempt": 1, "worker": "'w'"}
    solo = {"type": TYPE, "lanes": 1}
    yield _FINISHED.format(at=START_MS, type=TYPE, first=FINISHED[0], last=FINISHED[-1])
    yield _live(FUTURE, {**live, **solo, "at": f"{START_MS} + 1000000 + k", "state": 0})
    yield _live(READY, {**live, **solo, "expires": expires, "state": 1})
    yield _live(BUSY, {**live, **solo, **held, "state": 2})
    yield _live(FAIR, {**live, "type": "fair", "lanes": FAIR_LANES, "state": 1})
    yield _live(DUE, {**live, "type": "due", "lanes": 1, "state": 0})
    yield _live(CAPPED, {**live, "type": "capped", "lanes": CAPPED_LANES, "state": 1})
    yield _live(CAPPED_BUSY, {**live, **held, "type": "capped", "lanes": CAPPED_LANES, "state": 2})
    yield _FAILED.format(at=START_MS, first=CAPPED_FAILED[0], last=CAPPED_FAILED[-1])
    yield _JOBS.format(at=START_MS)
    yield "SELECT setval('job_key', 100000)"
    yield _AUDIT.format(last=AUDITED)


def _live(keys: range, values: dict[str, Any]) -> str:
    return _LIVE.format(first=keys[0], last=keys[-1], **values)


@contextmanager
def in_schema(url: str) -> Iterator[psycopg.Connection]:
    """A connection that finds the store's tables."""
    options = f"-c search_path={schema_of(url)}"
    with psycopg.connect(without_options(url), autocommit=True, options=options) as connection:
        yield connection


class Watched(Connections):
    """Notes what each statement has read, and takes back what it has written, unless told to keep it."""

    keeps = False
    scans: Counter[str]
    """How often each index was used; tables: how often they were read from end to end."""
    entries: Counter[str]
    """How many entries of each index, and rows of each table, were read."""

    async def run(self, act: Callable[[asyncpg.Connection], Awaitable[T]], *, in_transaction: bool = False) -> T:
        """One statement, and the server's own counters before and after it."""

        async def watched(connection: asyncpg.Connection) -> T:
            await connection.execute("BEGIN" if self._url.notify else "SAVEPOINT s")
            before = await self._counters(connection)
            answer = await act(connection)
            after = await self._counters(connection)
            await connection.execute(self._end())
            self._note(before, after)
            return answer

        return await super().run(watched)

    def _end(self) -> str:
        if self.keeps:
            return "COMMIT"
        return "ROLLBACK" if self._url.notify else "ROLLBACK TO s"

    def _note(self, before: Counters, after: Counters) -> None:
        for name, (scans, entries) in after.items():
            self.scans[name] += scans - before[name][0]
            self.entries[name] += entries - before[name][1]

    async def _counters(self, connection: asyncpg.Connection) -> Counters:
        rows = await connection.fetch(_COUNTERS, self._url.schema)
        return {name: (scans, entries) for name, scans, entries in rows}


_COUNTERS: Final = """SELECT c.relname::text, pg_stat_get_xact_numscans(c.oid), pg_stat_get_xact_tuples_returned(c.oid)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relkind IN ('r', 'i')"""


def watch(engine: PostgresEngine) -> Watched:
    """Let an open engine run its statements on connections that tell."""
    watched = Watched(engine._url)
    watched.scans, watched.entries = Counter(), Counter()
    engine._store.connections = watched
    return watched


def made(url: str, *, analyse: bool) -> str:
    """A filled store, for fixtures outside any event loop."""
    asyncio.run(make_empty(url))
    fill(url, analyse=analyse)
    return url
