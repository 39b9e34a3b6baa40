"""The user's own transaction, in detail: isolation levels, codecs, row factories, savepoints, sessions, pools."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy
from psycopg import rows
from sqlalchemy import orm
from sqlalchemy.ext import asyncio as sqlalchemy_async

from everwork.core.leasing import Created, Verdict
from everwork.core.outcome import Complete
from everwork.core.states import State
from everwork.engines.postgres.engine import PostgresEngine
from everwork.exceptions import InvalidInput
from tests.app.waiting import until
from tests.conformance.observe import counted, every_job
from tests.conformance.own_transactions import OPENINGS
from tests.factories import TYPE, a_new_job, a_pending_job, a_processing_job, the_job, the_state
from tests.postgres.conftest import opened, without_options
from tests.stores import url_of

DEADLINE_S = 10.0


@pytest.fixture
async def own(url: str) -> AsyncIterator[asyncpg.Connection]:
    """The user's own connection."""
    connection = await asyncpg.connect(without_options(url))
    yield connection
    await connection.close()


# Isolation levels -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["read_committed", "repeatable_read", "serializable"])
async def test_jobs_are_created_and_completed_at_every_isolation_level(
    engine: PostgresEngine, own: asyncpg.Connection, level: str
) -> None:
    job = await a_processing_job(engine)
    async with own.transaction(isolation=level):
        [created] = await engine.create_in(own, [a_new_job(type="next", dedupe_key="d")])
        [again] = await engine.create_in(own, [a_new_job(type="next", dedupe_key="d")])
        [judged] = await engine.complete_in(own, [Complete(job.key, 1)])
    assert again == Created(created.key, True)
    assert judged.verdict is Verdict.ACCEPTED
    assert [await the_state(engine, key) for key in (created.key, job.key)] == [State.PENDING, State.COMPLETED]


@pytest.mark.parametrize("level", ["repeatable_read", "serializable"])
async def test_what_a_snapshot_cannot_see_is_the_drivers_own_serialization_error_and_creates_nothing(
    engine: PostgresEngine, own: asyncpg.Connection, level: str
) -> None:
    transaction = own.transaction(isolation=level)
    await transaction.start()
    await own.fetchval("SELECT 1")
    job = await a_pending_job(engine, dedupe_key="d")
    with pytest.raises(asyncpg.SerializationError):
        await engine.create_in(own, [a_new_job(dedupe_key="d"), a_new_job()])
    await transaction.rollback()
    assert await every_job(engine) == [job]


async def test_an_attempt_that_ended_after_the_snapshot_is_a_serialization_error_too(
    engine: PostgresEngine, own: asyncpg.Connection
) -> None:
    job = await a_processing_job(engine)
    transaction = own.transaction(isolation="repeatable_read")
    await transaction.start()
    await own.fetchval("SELECT 1")
    await engine.settle([Complete(job.key, 1, '"first"')])
    with pytest.raises(asyncpg.SerializationError):
        await engine.complete_in(own, [Complete(job.key, 1, '"second"')])
    await transaction.rollback()
    assert (await the_job(engine, job.key)).result == '"first"'


# asyncpg ----------------------------------------------------------------------------------------------------


async def test_a_connection_that_writes_jsonb_in_its_own_way_will_do(
    engine: PostgresEngine, own: asyncpg.Connection
) -> None:
    for name in ("json", "jsonb"):
        await own.set_type_codec(name, encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
    async with own.transaction():
        [created] = await engine.create_in(own, [a_new_job(variables='{"to":"Zoë"}')])
        assert await own.fetchval("SELECT $1::jsonb", {"a": 1}) == {"a": 1}
    assert (await the_job(engine, created.key)).variables == '{"to":"Zoë"}'


async def test_a_connection_with_its_own_records_and_search_path_will_do(engine: PostgresEngine, url: str) -> None:
    class Row(asyncpg.Record):  # type: ignore[misc]
        def __getattr__(self, name: str) -> Any:
            return self[name]

    own = await asyncpg.connect(
        without_options(url), record_class=Row, server_settings={"search_path": "pg_temp"}, statement_cache_size=0
    )
    job = await a_processing_job(engine)
    async with own.transaction():
        [created] = await engine.create_in(own, [a_new_job()])
        [judged] = await engine.complete_in(own, [Complete(job.key, 1)])
    await own.close()
    assert judged.ok
    assert await the_state(engine, created.key) is State.PENDING


async def test_what_is_rolled_back_to_a_savepoint_was_never_created(
    engine: PostgresEngine, own: asyncpg.Connection
) -> None:
    async with own.transaction():
        [kept] = await engine.create_in(own, [a_new_job(dedupe_key="kept")])
        inner = own.transaction()
        await inner.start()
        await engine.create_in(own, [a_new_job(dedupe_key="lost"), a_new_job(type="never seen")])
        await inner.rollback()
        [last] = await engine.create_in(own, [a_new_job(dedupe_key="lost")])
    assert not last.deduplicated
    assert sorted(job.key for job in await every_job(engine)) == [kept.key, last.key]
    assert sum((await counted(engine)).values()) == 2


async def test_a_transaction_that_has_failed_creates_nothing(engine: PostgresEngine, own: asyncpg.Connection) -> None:
    transaction = own.transaction()
    await transaction.start()
    with pytest.raises(asyncpg.DivisionByZeroError):
        await own.execute("SELECT 1 / 0")
    with pytest.raises(asyncpg.InFailedSQLTransactionError):
        await engine.create_in(own, [a_new_job()])
    await transaction.rollback()
    assert await counted(engine) == {}


async def test_a_connection_that_is_closed_or_back_in_its_pool_is_refused(engine: PostgresEngine, url: str) -> None:
    own = await asyncpg.connect(without_options(url))
    await own.close()
    with pytest.raises(InvalidInput, match=r"^tx: must be an open connection"):
        await engine.create_in(own, [a_new_job()])
    async with asyncpg.create_pool(without_options(url), min_size=1, max_size=1) as pool:
        async with pool.acquire() as borrowed:
            pass
        with pytest.raises((InvalidInput, asyncpg.InterfaceError)):
            await engine.create_in(borrowed, [a_new_job()])


# psycopg ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "factory", [rows.dict_row, rows.namedtuple_row, rows.scalar_row], ids=["dict", "named", "scalar"]
)
async def test_a_psycopg_connection_keeps_its_row_factory(engine: PostgresEngine, url: str, factory: Any) -> None:
    job = await a_processing_job(engine)
    with psycopg.connect(without_options(url), row_factory=factory) as own:
        [created] = await engine.create_in(own, [a_new_job(type="next")])
        refused, judged = await engine.complete_in(own, [Complete(created.key, 1), Complete(job.key, 1)])
        assert own.row_factory is factory
    assert (refused.verdict, judged.verdict) == (Verdict.LEASE_LOST, Verdict.ACCEPTED)


async def test_a_psycopg_connection_in_autocommit_may_begin_a_block(engine: PostgresEngine, url: str) -> None:
    with psycopg.connect(without_options(url), autocommit=True) as own, own.transaction():
        [created] = await engine.create_in(own, [a_new_job()])
        assert await engine.get([created.key]) == [None]
    assert await the_state(engine, created.key) is State.PENDING


async def test_a_psycopg_connection_that_prepares_everything_will_do(engine: PostgresEngine, url: str) -> None:
    with psycopg.connect(without_options(url), prepare_threshold=0, cursor_factory=psycopg.ClientCursor) as own:
        created = [(await engine.create_in(own, [a_new_job(variables='{"p":"100 %s ::"}')]))[0] for _ in range(3)]
    assert [(await the_job(engine, one.key)).variables for one in created] == ['{"p":"100 %s ::"}'] * 3


# SQLAlchemy ---------------------------------------------------------------------------------------------------


class Base(orm.DeclarativeBase):
    """The user's tables."""


class Order(Base):
    """Something of the user's."""

    __tablename__ = "orders_of_the_user"
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    text: orm.Mapped[str]


def sqlalchemy_url(url: str, driver: str) -> str:
    return without_options(url).replace("://", f"+{driver}://", 1)


@pytest.mark.parametrize("commits", [True, False])
async def test_pending_objects_of_a_session_and_the_job_are_one_step(
    engine: PostgresEngine, url: str, commits: bool
) -> None:
    own = sqlalchemy.create_engine(sqlalchemy_url(url, "psycopg"))
    Base.metadata.create_all(own)
    with orm.Session(own) as session:
        session.add(Order(id=1, text="not flushed yet"))
        [created] = await engine.create_in(session, [a_new_job()])
        session.commit() if commits else session.rollback()
        orders = session.scalar(sqlalchemy.select(sqlalchemy.func.count()).select_from(Order))
    Base.metadata.drop_all(own)
    own.dispose()
    assert (orders, await engine.get([created.key]) != [None]) == ((1, True) if commits else (0, False))


async def test_pending_objects_of_an_async_session_and_the_job_are_one_step(engine: PostgresEngine, url: str) -> None:
    own = sqlalchemy_async.create_async_engine(sqlalchemy_url(url, "asyncpg"))
    async with own.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    async with sqlalchemy_async.async_sessionmaker(own)() as session, session.begin():
        session.add(Order(id=1, text="not flushed yet"))
        [created] = await engine.create_in(session, [a_new_job()])
        async with session.begin_nested() as savepoint:
            await engine.create_in(session, [a_new_job()])
            await savepoint.rollback()
    async with own.begin() as connection:
        await connection.run_sync(Base.metadata.drop_all)
    await own.dispose()
    assert [job.key for job in await every_job(engine)] == [created.key]


@pytest.mark.parametrize("where", ["engine", "connection", "execution options"])
async def test_a_sqlalchemy_connection_that_commits_every_statement_is_refused(
    engine: PostgresEngine, url: str, where: str
) -> None:
    level: dict[str, Any] = {"isolation_level": "AUTOCOMMIT"}
    own = sqlalchemy.create_engine(sqlalchemy_url(url, "psycopg"), **(level if where == "engine" else {}))
    used = own.execution_options(**level) if where == "execution options" else own
    with used.connect() as connection:
        tx = connection.execution_options(**level) if where == "connection" else connection
        with pytest.raises(InvalidInput, match=r"^tx: must be in a transaction.*AUTOCOMMIT"):
            await engine.create_in(tx, [a_new_job()])
    own.dispose()
    assert await counted(engine) == {}


async def test_an_async_session_that_commits_every_statement_is_refused(engine: PostgresEngine, url: str) -> None:
    own = sqlalchemy_async.create_async_engine(sqlalchemy_url(url, "asyncpg"))
    async with sqlalchemy_async.AsyncSession(own) as session:
        await session.connection(execution_options={"isolation_level": "AUTOCOMMIT"})
        with pytest.raises(InvalidInput, match=r"^tx: must be in a transaction.*AUTOCOMMIT"):
            await engine.create_in(session, [a_new_job()])
    await own.dispose()


async def test_an_async_connection_that_was_never_opened_is_refused(engine: PostgresEngine, url: str) -> None:
    own = sqlalchemy_async.create_async_engine(sqlalchemy_url(url, "asyncpg"))
    with pytest.raises(InvalidInput, match=r"^tx: must be an open connection"):
        await engine.create_in(own.connect(), [a_new_job()])
    await own.dispose()


async def test_a_session_on_another_kind_of_database_is_refused(engine: PostgresEngine) -> None:
    own = sqlalchemy.create_engine("sqlite://")
    with own.connect() as connection, pytest.raises(InvalidInput, match=r"^tx: must be a connection to PostgreSQL"):
        await engine.create_in(connection, [a_new_job()])


async def test_a_session_with_a_name_for_our_schema_leaves_it_alone(engine: PostgresEngine, url: str) -> None:
    own = sqlalchemy.create_engine(sqlalchemy_url(url, "psycopg"))
    with own.connect().execution_options(schema_translate_map={None: "elsewhere"}) as connection:
        [created] = await engine.create_in(connection, [a_new_job()])
        connection.commit()
    own.dispose()
    assert await the_state(engine, created.key) is State.PENDING


# Stores -----------------------------------------------------------------------------------------------------


async def test_a_store_that_was_made_anew_under_the_same_name_is_not_taken_for_the_old_one(
    engine: PostgresEngine, url: str, own: asyncpg.Connection
) -> None:
    await own.execute(f"UPDATE {engine._url.schema}.store SET id = gen_random_uuid()")
    async with own.transaction():
        with pytest.raises(InvalidInput, match=r"^tx: .*not to another store"):
            await engine.create_in(own, [a_new_job()])


async def test_a_connection_without_our_schema_is_refused_with_its_name(url: str, tmp_path: Path) -> None:
    closed = PostgresEngine.from_url(url_of("postgres", tmp_path / "never opened"))
    own = await asyncpg.connect(without_options(url))
    async with own.transaction():
        with pytest.raises(InvalidInput, match=f"^tx: .*{closed._url.schema}"):
            await closed.create_in(own, [a_new_job()])
    await own.close()


@pytest.mark.parametrize("commits", [True, False])
async def test_two_drivers_that_want_one_dedupe_key_wait_for_each_other(url: str, commits: bool) -> None:
    async with (
        opened(url) as engine,
        OPENINGS["asyncpg"](url, True) as first,
        OPENINGS["psycopg-async"](url, True) as second,
    ):
        await a_pending_job(engine)  # The type and its lane are known.
        [mine] = await engine.create_in(first.tx, [a_new_job(dedupe_key="d")])
        theirs = asyncio.create_task(engine.create_in(second.tx, [a_new_job(dedupe_key="d")]))
        await blocked(engine)
        assert not theirs.done()
        await (first.commit() if commits else first.rollback())
        [answer] = await asyncio.wait_for(theirs, DEADLINE_S)
        await second.commit()
        assert answer.deduplicated is commits
        assert (answer.key == mine.key) is commits
        assert [job.type for job in await every_job(engine)] == [TYPE] * 2


async def blocked(engine: PostgresEngine) -> None:
    """Somebody waits for somebody else's transaction."""
    sql = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"

    async def is_blocked() -> bool:
        return bool((await engine._store.connections.read(sql))[0][0])

    await until(is_blocked)
