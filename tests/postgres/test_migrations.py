"""The schema: made once, by whoever comes first; brought up to date once; kept apart from its neighbours."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import asyncpg
import psycopg
import pytest

from everwork.core.outcome import Failed
from everwork.core.states import State
from everwork.engines.postgres import migrate
from everwork.engines.postgres import opened as opening
from everwork.engines.postgres.engine import PostgresEngine
from everwork.engines.values import Schema
from everwork.exceptions import BadConfiguration, EngineUnavailable, SchemaMismatch
from tests.conformance.observe import count_of, every_job
from tests.factories import TYPE, a_new_job, a_pending_job, a_policy, a_processing_job, leased_keys
from tests.factories import asked as asked_for
from tests.postgres.conftest import opened, pretend_old, schema_of, without_options
from tests.stores import VirtualClock, url_of

STARTER = """import asyncio, json, sys
from everwork.core.job import NewJob
from everwork.engines.open import open_engine

async def start():
    engine = open_engine(sys.argv[1])
    print("ready", flush=True)
    sys.stdin.readline()
    await engine.open()
    [created] = await engine.create([NewJob("started", dedupe_key="once")])
    await engine.close()
    print(json.dumps(created.key))

asyncio.run(start())
"""


@pytest.fixture
def own(url: str) -> Iterator[psycopg.Connection]:
    """A connection beside the engine's, by the superuser."""
    with psycopg.connect(without_options(url), autocommit=True) as connection:
        yield connection


def asked(own: psycopg.Connection, sql: str) -> object:
    """The only value of the only row."""
    row = own.execute(sql.encode()).fetchone()
    assert row is not None
    return row[0]


# Starters -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("starters", [2, 8])
def test_processes_that_start_at_once_make_one_schema(url: str, own: psycopg.Connection, starters: int) -> None:
    processes = [
        subprocess.Popen([sys.executable, "-c", STARTER, url], stdin=-1, stdout=-1, stderr=-1, text=True)
        for _ in range(starters)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    with ThreadPoolExecutor(starters) as pool:
        answers = list(pool.map(lambda process: process.communicate("go\n", timeout=60), processes))
    assert [error for _, error in answers if error] == []
    assert {json.loads(out) for out, _ in answers} == {1}
    assert asked(own, f"SELECT count(*) FROM {schema_of(url)}.store") == 1


async def test_engines_that_start_at_once_in_one_process_share_the_store(url: str) -> None:
    engines = [PostgresEngine.from_url(url) for _ in range(10)]
    await asyncio.gather(*(engine.open() for engine in engines))
    await asyncio.gather(*(engine.create([a_new_job()]) for engine in engines))
    assert await count_of(engines[0], State.PENDING) == 10
    await asyncio.gather(*(engine.close() for engine in engines))


NEWEST = len(migrate.migrations())

# Versions ---------------------------------------------------------------------------------------------------


def know_a_next_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a later version of this program would: one more migration, and it counts how often it is run."""
    texts = [*migrate.migrations(), "CREATE TABLE {schema}.second (id int); ALTER TABLE {schema}.job ADD second int;"]
    monkeypatch.setattr(migrate, "migrations", lambda: texts)
    monkeypatch.setattr(opening, "migrations", lambda: texts)


async def test_a_store_of_an_older_version_is_brought_up_to_date_once_with_its_jobs(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(url) as old:
        job, running = await a_pending_job(old, type="other"), await a_processing_job(old)
        know_a_next_version(monkeypatch)
        engines = [PostgresEngine.from_url(url) for _ in range(4)]
        assert await engines[0].schema() == Schema(NEWEST, NEWEST + 1)
        await asyncio.gather(*(engine.open() for engine in engines))
        assert {(await engine.health()).schema_version for engine in engines} == {NEWEST + 1}
        assert await every_job(engines[0]) == [running, job]
        assert await leased_keys(engines[0], type="other") == [job.key]
        await asyncio.gather(*(engine.close() for engine in engines))


OLD_FUNCTIONS = """SET search_path = {schema};
DROP FUNCTION complete_jobs;
CREATE FUNCTION complete_jobs(done jsonb, at_ms bigint) RETURNS bigint[] LANGUAGE sql AS 'SELECT NULL::bigint[]';
DROP FUNCTION end_attempts;
CREATE FUNCTION end_attempts(ended jsonb, lapsed boolean, at_ms bigint) RETURNS bigint[]
LANGUAGE sql AS 'SELECT NULL::bigint[]';
CREATE FUNCTION claim_by_turns(queue int, t text, g text, w text[], l bigint[], whom int[], n int, tenants text[],
  visited int, number smallint, at_ms bigint) RETURNS SETOF leased LANGUAGE sql AS 'SELECT NULL::leased LIMIT 0'"""
"""What version 1 had under the same names, with other answers or inputs."""


async def test_a_store_of_version_1_knows_breakers_limits_and_rounds_after_it_is_brought_up_to_date(
    url: str, own: psycopg.Connection, monkeypatch: pytest.MonkeyPatch, clock: VirtualClock
) -> None:
    with monkeypatch.context() as patched:
        pretend_old(patched, 1, ".gate")
        async with opened(url, clock) as engine:
            dead, _ = await a_processing_job(engine), await engine.create([a_new_job(tenant=t) for t in "ab"])
    own.execute(OLD_FUNCTIONS.format(schema=schema_of(url)).encode())
    policy = '{"retry": {"max_attempts": 7, "base_seconds": 2.0}}'
    own.execute(f"UPDATE {schema_of(url)}.type SET policy = %s, max_attempts = 7".encode(), [policy])
    async with opened(url, clock) as engine:
        assert [info.policy for info in await engine.types()] == [policy]
        await engine.settle([Failed(dead.key, 1, "boom", final=True)])
        await a_policy(engine, max_running=1, breaker_failures=1, failed_job_retry_hours=1)
        assert len((await asked_for(engine, 10)).jobs) == 1
        clock.advance(seconds=3_600)
        assert (await engine.sweep("s")).requeued == 1
        assert (await engine.types())[0].breaker_failures == 1  # The lease that lapsed meanwhile.


async def test_a_migration_gives_way_to_who_is_at_work_and_tries_again(
    url: str, own: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(url):
        own.execute(f"BEGIN; SELECT count(*) FROM {schema_of(url)}.lane".encode())
    run, tries = migrate._run_missing, 0

    async def run_missing(connection: asyncpg.Connection, schema: str) -> None:
        nonlocal tries
        tries += 1
        if tries == 2:
            own.execute("COMMIT")
        await run(connection, schema)

    know_a_next_version(monkeypatch)
    monkeypatch.setattr(migrate, "_run_missing", run_missing)
    monkeypatch.setattr(migrate, "PAUSE_SECONDS", 0)
    async with opened(url) as engine:
        assert ((await engine.health()).schema_version, tries) == (NEWEST + 1, 2)


async def test_functions_are_written_anew_when_the_version_rises(
    url: str, own: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(url):
        own.execute(
            f"CREATE OR REPLACE FUNCTION {schema_of(url)}.now_ms(given bigint) RETURNS bigint LANGUAGE sql STABLE"
            " AS 'SELECT 7::bigint'".encode()
        )
    async with opened(url):
        assert asked(own, f"SELECT {schema_of(url)}.now_ms(5)") == 7
    know_a_next_version(monkeypatch)
    async with opened(url):
        assert asked(own, f"SELECT {schema_of(url)}.now_ms(5)") == 5


async def test_a_migration_that_fails_leaves_the_store_as_it_was(
    url: str, own: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(url) as engine:
        job = await a_pending_job(engine)
    texts = [*migrate.migrations(), "CREATE TABLE {schema}.second (id int); SELECT 1 / 0"]
    monkeypatch.setattr(migrate, "migrations", lambda: texts)
    with pytest.raises(EngineUnavailable, match="division by zero"):
        await PostgresEngine.from_url(url).open()
    monkeypatch.undo()
    assert asked(own, f"SELECT to_regclass('{schema_of(url)}.second') IS NULL")
    async with opened(url) as engine:
        assert await every_job(engine) == [job]


async def test_a_store_of_a_newer_version_is_refused_and_left_alone(url: str, own: psycopg.Connection) -> None:
    async with opened(url):
        own.execute(f"UPDATE {schema_of(url)}.store SET version = 99".encode())
    with pytest.raises(SchemaMismatch, match=rf"has version 99.*supports up to {NEWEST}; upgrade Everwork") as caught:
        await PostgresEngine.from_url(url).open()
    assert "\n" not in str(caught.value)
    assert asked(own, f"SELECT version FROM {schema_of(url)}.store") == 99


# Schemas ------------------------------------------------------------------------------------------------------


async def test_a_schema_that_exists_and_is_empty_is_filled(url: str, own: psycopg.Connection) -> None:
    own.execute(f"CREATE SCHEMA {schema_of(url)}".encode())
    async with opened(url) as engine:
        assert (await a_pending_job(engine)).key == 1


async def test_without_create_a_database_that_never_held_jobs_is_left_as_it_is(
    url: str, own: psycopg.Connection
) -> None:
    with pytest.raises(EngineUnavailable, match="holds no jobs in schema"):
        await PostgresEngine.from_url(url).open(create=False)
    assert asked(own, f"SELECT to_regnamespace('{schema_of(url)}') IS NULL")
    assert await PostgresEngine.from_url(url).schema() == Schema(None, NEWEST)


async def test_a_schema_that_holds_something_else_is_told_and_left_alone(url: str, own: psycopg.Connection) -> None:
    schema = schema_of(url)
    own.execute(
        f"CREATE SCHEMA {schema}; CREATE TABLE {schema}.job (mine int); INSERT INTO {schema}.job VALUES (1)".encode()
    )
    with pytest.raises(EngineUnavailable, match=r"^[^\n]*already exists[^\n]*$"):
        await PostgresEngine.from_url(url).open()
    assert asked(own, f"SELECT mine FROM {schema}.job") == 1
    assert asked(own, f"SELECT to_regclass('{schema}.store') IS NULL")


async def test_a_schema_that_is_emptied_under_an_open_engine_is_told(url: str, own: psycopg.Connection) -> None:
    async with opened(url) as engine:
        own.execute(f"DROP SCHEMA {schema_of(url)} CASCADE".encode())
        with pytest.raises(EngineUnavailable, match=r"holds no jobs in schema .*; run `everwork migrate`"):
            await engine.get([1])


async def test_two_schemas_of_one_database_do_not_see_each_other(url: str, tmp_path: Path) -> None:
    async with opened(url) as first, opened(url_of("postgres", tmp_path / "other")) as second:
        job = await a_pending_job(first, dedupe_key="d")
        assert not (await second.create([a_new_job(dedupe_key="d")]))[0].deduplicated
        await second.pause(TYPE, True)
        assert await leased_keys(first) == [job.key]
        assert [one.state for one in await every_job(second)] == [State.PENDING]


# Roles --------------------------------------------------------------------------------------------------------

GRANTS = (
    "GRANT USAGE ON SCHEMA {schema} TO {role}",
    "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role}",
    "GRANT USAGE, SELECT, UPDATE ON ALL SEQUENCES IN SCHEMA {schema} TO {role}",
)
"""What docs/reference/postgres.md tells to grant."""


@pytest.fixture
def worker_role(url: str, own: psycopg.Connection) -> Iterator[str]:
    """A role that owns nothing."""
    role = f"worker_{schema_of(url)}"
    own.execute(f"CREATE ROLE {role} LOGIN".encode())
    yield role
    own.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())


async def test_a_schema_of_somebody_else_is_told_with_what_to_grant(url: str, worker_role: str) -> None:
    async with opened(url):
        pass
    with pytest.raises(BadConfiguration, match="grant this user"):
        await PostgresEngine.from_url(url.replace("postgres@", f"{worker_role}@")).open()


async def test_a_role_with_the_documented_grants_can_work(url: str, own: psycopg.Connection, worker_role: str) -> None:
    async with opened(url):
        for grant in GRANTS:
            own.execute(grant.format(schema=schema_of(url), role=worker_role).encode())
    async with opened(url.replace("postgres@", f"{worker_role}@")) as engine:
        await a_processing_job(engine)
        assert not (await engine.sweep("s")).more
        assert await count_of(engine, State.PROCESSING) == 1
    page = (Path(__file__).parents[2] / "docs" / "reference" / "postgres.md").read_text()
    assert all(grant.format(schema="everwork", role="app") in page for grant in GRANTS)
