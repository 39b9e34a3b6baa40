"""PostgreSQL alone: one table, one index, one connection; claims skip locked rows."""

from __future__ import annotations

import json

import asyncpg

from benchmarks.bench import BATCH, Bench, Timing, check_all

SCHEMA = """
CREATE TABLE job (
  id bigserial PRIMARY KEY, queue text NOT NULL DEFAULT 'q', state smallint NOT NULL DEFAULT 0,
  priority smallint NOT NULL DEFAULT 0, run_at timestamptz NOT NULL DEFAULT now(), attempt int NOT NULL DEFAULT 0,
  worker text, lease timestamptz, payload jsonb NOT NULL
) WITH (fillfactor = 70);
CREATE INDEX job_ready ON job (priority, id) WHERE state = 0;
"""
INSERT = "INSERT INTO job (payload) SELECT x::jsonb FROM unnest($1::text[]) x"
CLAIM = """
UPDATE job SET state = 1, attempt = attempt + 1, worker = 'w', lease = now() + interval '30 s'
WHERE id = ANY(ARRAY(SELECT id FROM job WHERE state = 0 ORDER BY priority, id LIMIT $1 FOR UPDATE SKIP LOCKED))
RETURNING id, payload
"""
FINISH = "DELETE FROM job WHERE id = ANY($1::bigint[])"


async def drain(bench: Bench, jobs: int) -> Timing:
    """Claim 100 in one transaction, delete the 100 in the next, until nothing is left."""
    with bench.store() as url:
        connection = await _connect(url)
        await _insert(connection, jobs, 1000)
        bench.host.loaded(url)
        done = 0
        with bench.timing(jobs) as timing:
            while rows := await connection.fetch(CLAIM, BATCH):
                for row in rows:
                    json.loads(row[1])
                await connection.execute(FINISH, [row[0] for row in rows])
                done += len(rows)
        await connection.close()
    check_all(done, jobs)
    return timing


async def insert(bench: Bench, jobs: int, batch: int) -> Timing:
    """Insert in transactions of one size."""
    with bench.store() as url:
        connection = await _connect(url)
        with bench.timing(jobs) as timing:
            await _insert(connection, jobs, batch)
        await connection.close()
    return timing


async def _insert(connection: asyncpg.Connection, jobs: int, batch: int) -> None:
    for low in range(0, jobs, batch):
        await connection.execute(INSERT, [json.dumps({"n": n}) for n in range(low, min(low + batch, jobs))])


async def _connect(url: str) -> asyncpg.Connection:
    connection = await asyncpg.connect(url)
    await connection.execute(SCHEMA)
    return connection
