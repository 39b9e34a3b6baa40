"""The public views of a schema: after every upgrade, beside the user's own tables, for a role that only reads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import psycopg
import pytest

from everwork.engines.postgres import migrate
from everwork.engines.postgres.statements import filled
from tests.conformance.observe import every_job
from tests.factories import a_dead_letter, a_pending_job
from tests.postgres.big_store import FINISHED, made
from tests.postgres.conftest import opened, schema_of, without_options
from tests.stores import HOUR_MS, START_MS, VirtualClock, drop_store, url_of
from tests.views import COLUMNS, ask_server, shown_by_views, without_readable_instants

NEWEST: Final = len(migrate.migrations())
ROWS: Final = f"""
SELECT setval('job_key', 5);
INSERT INTO type (name) VALUES ('t');
INSERT INTO queue (type, grp) VALUES ('t', '');
INSERT INTO lane (queue_id, tenant, limit_key) VALUES (1, 'acme', 'k');
INSERT INTO job (key, created_at_ms, queue_id, lane_id, max_attempts, variables)
  SELECT k, {START_MS}, 1, 1, 2, '{{}}' FROM generate_series(1, 5) k;
INSERT INTO live (key, run_at_ms, activated_at_ms, lease_until_ms, queue_id, lane_id, attempt, state, rank, attempts,
  max_attempts, worker)
  VALUES (1, {START_MS}, {START_MS}, {START_MS + HOUR_MS}, 1, 1, 1, 2, 0, 1, 2, 'w0'),
    (3, {START_MS}, NULL, NULL, 1, 1, 0, 1, 0, 0, 2, NULL),
    (4, {START_MS + HOUR_MS}, NULL, NULL, 1, 1, 0, 0, -7, 0, 2, NULL);
INSERT INTO finished (key, run_at_ms, finished_at_ms, activated_at_ms, queue_id, lane_id, attempt, state, rank,
  attempts, max_attempts, worker, kind, error)
  VALUES (2, {START_MS}, {START_MS + 9}, {START_MS}, 1, 1, 2, 4, 0, 2, 2, 'w0', 'fail', 'boom'),
    (5, {START_MS}, {START_MS + 9}, {START_MS}, 1, 1, 1, 3, 0, 1, 2, 'w0', NULL, NULL);
INSERT INTO history (key, at_ms, attempt, step, kind, error) VALUES (2, {START_MS + 9}, 2, 0, 'fail', 'boom');
"""
"""What every version could write: a job that runs, one that is dead, two that wait, one that is completed."""


@pytest.mark.parametrize("version", range(1, NEWEST))
async def test_a_store_of_every_earlier_version_gets_the_same_views_with_its_jobs(
    url: str, monkeypatch: pytest.MonkeyPatch, clock: VirtualClock, version: int
) -> None:
    texts = migrate.migrations()[:version]
    with monkeypatch.context() as older:
        older.setattr(migrate, "migrations", lambda: texts)
        older.setattr(migrate, "functions", lambda _: [])
        with psycopg.connect(without_options(url), autocommit=True) as own:
            for text in (f"CREATE SCHEMA {schema_of(url)}", *(filled(text, schema_of(url)) for text in texts)):
                own.execute(text.encode())
            own.execute(f"SET search_path = {schema_of(url)}; UPDATE store SET version = {version}; {ROWS}".encode())
    async with opened(url, clock) as engine:
        rows = ask_server(without_options(url), schema_of(url), "SELECT * FROM jobs ORDER BY key DESC")
        assert [list(row) for row in rows] == [COLUMNS] * 5
        assert without_readable_instants(rows) == await shown_by_views(engine, await every_job(engine))


@pytest.mark.parametrize(
    ("own", "kept"),
    [
        ("CREATE TABLE {0}.jobs AS SELECT 7 AS mine", "SELECT mine FROM jobs"),
        ("CREATE SEQUENCE {0}.jobs START 7", "SELECT last_value AS mine FROM jobs"),
        ("CREATE TYPE {0}.jobs AS (mine int)", "SELECT ((ROW(7)::jobs).mine)"),
    ],
)
async def test_a_users_own_table_sequence_or_type_keeps_its_name(url: str, own: str, kept: str) -> None:
    with psycopg.connect(without_options(url), autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema_of(url)}; {own.format(schema_of(url))}".encode())
    async with opened(url) as engine:
        dead = await a_dead_letter(engine)
    place = without_options(url), schema_of(url)
    assert ask_server(*place, kept) == [{"mine": 7}]
    assert ask_server(*place, "SELECT key FROM ew_jobs") == [{"key": dead.key}]
    assert ask_server(*place, "SELECT key FROM dead_letters") == [{"key": dead.key}]


GRANTS: Final = """GRANT USAGE ON SCHEMA {0} TO {1}; GRANT SELECT ON {0}.jobs, {0}.dead_letters, {0}.ew_views TO {1}"""


async def test_a_role_that_may_only_read_the_views_reads_them_and_nothing_else(url: str) -> None:
    schema = schema_of(url)
    role = f"reader_{schema}"
    async with opened(url) as engine:
        job = await a_pending_job(engine)
    with psycopg.connect(without_options(url), autocommit=True) as own:
        own.execute(f"CREATE ROLE {role}; {GRANTS.format(schema, role)}; SET ROLE {role}".encode())
        assert own.execute(f"SELECT key, state FROM {schema}.jobs".encode()).fetchall() == [(job.key, "pending")]
        for refused in ("SELECT * FROM {0}.job", "SELECT * FROM {0}.result", "DELETE FROM {0}.live"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                own.execute(refused.format(schema).encode())
        own.execute(f"RESET ROLE; DROP OWNED BY {role}; DROP ROLE {role}".encode())


# Plans ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["analysed", "statistics of empty tables"])
def big(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[psycopg.Connection]:
    """A connection to a store with tens of thousands of jobs."""
    url = f"{url_of('postgres', tmp_path_factory.mktemp('big'))}_views"
    made(url, analyse=request.param == "analysed")
    with psycopg.connect(without_options(url), autocommit=True, options=f"-c search_path={schema_of(url)}") as own:
        own.execute(f"UPDATE job SET correlation_id = 'c' || key WHERE key < {FINISHED[100]}".encode())
        yield own
    drop_store(url)


def nodes_of(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The nodes of a plan that were run."""
    if plan.get("Actual Loops"):
        yield plan
    for child in plan.get("Plans", ()):
        yield from nodes_of(child)


def rows_read(own: psycopg.Connection, sql: str) -> dict[str, int]:
    """How many rows a query reads of each table, kept or thrown away."""
    found = own.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}".encode()).fetchone()
    assert found is not None
    document = found[0] if isinstance(found[0], list) else json.loads(found[0])
    read: dict[str, int] = {}
    for node in nodes_of(document[0]["Plan"]):
        if table := node.get("Relation Name"):
            rows = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
            read[table] = read.get(table, 0) + int(rows * node["Actual Loops"])
    return read


FEW: Final = 600
"""Small tables may be read from end to end: types, queues, lanes."""


@pytest.mark.parametrize("where", ["key = 7", "correlation_id = 'c7'"])
def test_a_question_by_key_or_correlation_id_reads_few_rows(big: psycopg.Connection, where: str) -> None:
    read = rows_read(big, f"SELECT * FROM jobs WHERE {where}")
    assert {table: rows for table, rows in read.items() if rows > FEW} == {}


@pytest.mark.parametrize("state", ["failed", "cancelled", "processing"])
def test_a_question_by_state_reads_nothing_of_jobs_that_wait_or_are_completed(
    big: psycopg.Connection, state: str
) -> None:
    text = "\n".join(row for (row,) in big.execute(f"EXPLAIN SELECT key FROM jobs WHERE state = '{state}'".encode()))
    assert ("live" in text, "finished" in text) == (state == "processing", state != "processing")
