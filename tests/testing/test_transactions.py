"""A stage takes the transactions of the code under test: what it creates in one is there at its commit, not before."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import psycopg2
import pytest
import sqlalchemy
from sqlalchemy import orm
from sqlalchemy.exc import IntegrityError

from everwork import Everwork, JobContext, RetryPolicy, State
from everwork.exceptions import EngineUnavailable, InvalidInput
from everwork.testing import rehearse
from everwork.testing.stage import Stage
from tests.conformance.own_transactions import OPENINGS, SYNCHRONOUS, Own
from tests.stores import url_of

DRIVERS = sorted(set(OPENINGS) - {"psycopg2"})
with_every_driver = pytest.mark.parametrize("driver", DRIVERS)


@pytest.fixture
def app() -> Everwork:
    """An application whose own store must not be reached."""
    made = Everwork("redis://127.0.0.1:1/")

    @made.job("letter-send")
    async def send(to: str) -> str:
        return f"sent to {to}"

    return made


@pytest.fixture
def begin(tmp_path: Path) -> Callable[..., AbstractAsyncContextManager[Own]]:
    """A way to transactions on a database that holds no jobs."""

    def opened(driver: str, *, begin: bool = True) -> AbstractAsyncContextManager[Own]:
        name = "sqlite" if "sqlite" in driver else "postgres"
        return OPENINGS[driver](url_of(name, tmp_path), begin)

    return opened


Begin = Callable[..., AbstractAsyncContextManager[Own]]


async def enqueue(app: Everwork, to: str, tx: object, **options: Any) -> int:
    return await app.using(tx=tx, **options).enqueue("letter-send", to=to)


def letters(stage: Stage) -> list[str]:
    """Whom letters go to, of the jobs that are there."""
    return sorted(job.variables["to"] for job in stage.jobs("letter-send"))


@with_every_driver
async def test_a_job_is_there_at_the_commit_and_runs(app: Everwork, driver: str, begin: Begin) -> None:
    async with rehearse(app) as stage, begin(driver) as own:
        key = await enqueue(app, "ada", own.tx)
        assert (letters(stage), await stage.drain()) == ([], [])
        await own.commit()
        assert [job.key for job in stage.assert_enqueued("letter-send", to="ada", count=1)] == [key]
        await stage.drain()
        assert await app.result(key) == "sent to ada"


@with_every_driver
async def test_after_a_rollback_there_is_none(app: Everwork, driver: str, begin: Begin) -> None:
    async with rehearse(app) as stage, begin(driver) as own:
        await enqueue(app, "ada", own.tx)
        await own.rollback()
        assert letters(stage) == []


@with_every_driver
async def test_a_connection_that_is_closed_was_rolled_back(app: Everwork, driver: str, begin: Begin) -> None:
    async with rehearse(app) as stage:
        async with begin(driver) as own:
            await enqueue(app, "ada", own.tx)
        assert letters(stage) == []


@with_every_driver
async def test_a_savepoint_that_is_rolled_back_takes_its_jobs_with_it(app: Everwork, driver: str, begin: Begin) -> None:
    async with rehearse(app) as stage, begin(driver) as own:
        await enqueue(app, "before", own.tx)
        async with a_savepoint(own, is_kept=False):
            await enqueue(app, "never", own.tx, dedupe_key="d")
        async with a_savepoint(own, is_kept=True), a_savepoint(own, is_kept=True):
            await enqueue(app, "inside", own.tx, dedupe_key="d")
        async with a_savepoint(own, is_kept=False), a_savepoint(own, is_kept=True):
            await enqueue(app, "neither", own.tx)
        await own.commit()
        assert letters(stage) == ["before", "inside"]


@asynccontextmanager
async def a_savepoint(own: Own, *, is_kept: bool) -> AsyncIterator[None]:
    """A savepoint as users of the library set it, then released or rolled back."""
    if not hasattr(own.tx, "begin_nested"):
        await own.run("SAVEPOINT inside")
        yield
        await own.run("RELEASE SAVEPOINT inside" if is_kept else "ROLLBACK TO SAVEPOINT inside")
        return
    nested = own.tx.begin_nested()
    is_awaited = hasattr(nested, "__await__")
    nested = await nested if is_awaited else nested
    yield
    ended = nested.commit() if is_kept else nested.rollback()
    if is_awaited:
        await ended


@pytest.mark.parametrize("driver", ["psycopg-async", "asyncpg", "asyncpg-pool"])
async def test_blocks_and_the_blocks_inside_are_followed(app: Everwork, driver: str, begin: Begin) -> None:
    async with rehearse(app) as stage, begin(driver, begin=False) as own:
        async with own.tx.transaction():
            await enqueue(app, "outer", own.tx)
            with suppress(LookupError):
                async with own.tx.transaction():
                    await enqueue(app, "inner", own.tx)
                    raise LookupError
            assert letters(stage) == []
        assert letters(stage) == ["outer"]


async def test_a_connection_that_commits_and_closes_in_one_block_is_followed(app: Everwork, tmp_path: Path) -> None:
    url = url_of("postgres", tmp_path).partition("?")[0]
    async with rehearse(app) as stage:
        with psycopg.connect(url) as own:
            await enqueue(app, "ada", own)
        with closing(sqlite3.connect(tmp_path / "own.db")) as other, other:
            await enqueue(app, "bea", other)
        assert letters(stage) == ["ada", "bea"]


async def test_two_transactions_at_a_time_do_not_touch_each_other(app: Everwork, tmp_path: Path) -> None:
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path}/own.db")
    async with rehearse(app) as stage:
        with orm.Session(engine) as first, orm.Session(engine) as second:
            keys = [await enqueue(app, name, tx) for name, tx in (("a", first), ("b", second), ("c", first))]
            second.rollback()
            keys.append(await enqueue(app, "d", second))
            first.commit()
            assert letters(stage) == ["a", "c"]
            second.commit()
        assert letters(stage) == ["a", "c", "d"]
    assert len(set(keys)) == 4


async def test_a_commit_that_fails_creates_nothing(app: Everwork, tmp_path: Path) -> None:
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path}/own.db")
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE a (id INTEGER PRIMARY KEY)")
        connection.exec_driver_sql("CREATE TABLE b (a REFERENCES a (id) DEFERRABLE INITIALLY DEFERRED)")
    wrong = "INSERT INTO b VALUES (1)"
    async with rehearse(app) as stage:
        for tx in (engine.connect(), orm.Session(engine)):
            with tx:
                tx.execute(sqlalchemy.text("PRAGMA foreign_keys = ON"))
                tx.execute(sqlalchemy.text(wrong))
                await enqueue(app, "never", tx)
                with pytest.raises(IntegrityError):
                    tx.commit()
        engine.dispose()
        with closing(sqlite3.connect(tmp_path / "own.db")) as own:
            own.execute("PRAGMA foreign_keys = ON")
            own.execute(wrong)
            await enqueue(app, "never", own)
            with pytest.raises(sqlite3.IntegrityError):
                own.commit()
            assert letters(stage) == []
        assert letters(stage) == []


async def test_a_commit_that_the_server_refuses_leaves_nothing_for_the_next_one(app: Everwork, tmp_path: Path) -> None:
    unique = "CREATE TEMP TABLE a (id int UNIQUE DEFERRABLE INITIALLY DEFERRED)"
    wrong = "INSERT INTO a VALUES (1), (1)"
    url = url_of("postgres", tmp_path).partition("?")[0]
    async with rehearse(app) as stage:
        with psycopg.connect(url, autocommit=True) as own:
            own.execute(unique)
            with suppress(psycopg.errors.UniqueViolation), own.transaction():
                own.execute(wrong)
                await enqueue(app, "never", own)
            with own.transaction():
                await enqueue(app, "psycopg", own)
        async with asyncpg.create_pool(url, min_size=1, max_size=1) as pool, pool.acquire() as pooled:
            await pooled.execute(unique)
            with suppress(asyncpg.UniqueViolationError):
                async with pooled.transaction():
                    await pooled.execute(wrong)
                    await enqueue(app, "never", pooled)
            async with pooled.transaction():
                await enqueue(app, "asyncpg", pooled)
        assert letters(stage) == ["asyncpg", "psycopg"]


async def test_a_session_of_a_test_that_undoes_everything_creates_its_jobs(app: Everwork, tmp_path: Path) -> None:
    """The recipe of SQLAlchemy's manual: the session's commit releases a savepoint of a transaction that never ends."""
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path}/own.db")
    async with rehearse(app) as stage:
        with engine.connect() as connection, connection.begin() as outer:
            with orm.Session(connection, join_transaction_mode="create_savepoint") as session:
                await enqueue(app, "ada", session)
                session.commit()
            outer.rollback()
        assert letters(stage) == ["ada"]


async def test_dedupe_keys_count_within_the_transaction_and_against_the_stage(app: Everwork, begin: Begin) -> None:
    async with rehearse(app) as stage, begin("sqlite3") as own:
        known = await enqueue(app, "known", None, dedupe_key="known")
        jobs = [app.using(dedupe_key=name).call("letter-send", to="x") for name in ("known", "new", "new")]
        keys = await app.within(own.tx).enqueue_many(jobs)
        again = await enqueue(app, "x", own.tx, dedupe_key="new")
        await own.commit()
        assert (keys[0], keys[1], keys[2]) == (known, again, again)
        assert [key.deduplicated for key in (*keys, again)] == [True, False, True, True]  # type: ignore[attr-defined]
        assert len(stage.jobs()) == 2


@pytest.mark.parametrize("driver", ["sqlite3", "sqlalchemy-session", "sqlalchemy-asyncpg-session"])
async def test_a_handler_completes_its_job_in_its_transaction(app: Everwork, driver: str, begin: Begin) -> None:
    states: list[State] = []

    @app.job("pay", retry=RetryPolicy(base=0))
    async def pay(ctx: JobContext) -> None:
        async with begin(driver) as own:
            await enqueue(app, "payer", own.tx)
            await ctx.complete(ctx.attempt, tx=own.tx)
            states.append(stage.job(ctx.key).state)
            if ctx.attempt == 1:
                await own.rollback()
                raise LookupError("the card was refused")
            await own.commit()
            states.append(stage.job(ctx.key).state)

    async with rehearse(app) as stage:
        key = await app.enqueue("pay")
        await stage.drain(until_empty=True)
        assert (await app.result(key), letters(stage)) == (2, ["payer"])
    assert states == [State.PROCESSING, State.PROCESSING, State.COMPLETED]


def test_code_without_an_event_loop_enqueues_by_the_sync_facade(app: Everwork, tmp_path: Path) -> None:
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path}/own.db")
    with rehearse(app) as stage:
        with orm.Session(engine) as session, session.begin():
            key = app.sync.within(session).enqueue("letter-send", to="ada")
        stage.drain()
        stage.assert_completed(key)


@pytest.mark.parametrize("driver", [driver for driver in DRIVERS if driver not in SYNCHRONOUS][:2])
async def test_the_sync_facade_refuses_an_asynchronous_driver(app: Everwork, driver: str, begin: Begin) -> None:
    async with rehearse(app), begin(driver) as own:
        with pytest.raises(InvalidInput, match=r"^tx: must belong to a synchronous driver here; use await app\.within"):
            app.sync.within(own.tx).enqueue("letter-send", to="ada")


@with_every_driver
async def test_a_connection_in_no_transaction_is_refused(app: Everwork, driver: str, begin: Begin) -> None:
    async with rehearse(app), begin(driver, begin=False) as own:
        with pytest.raises(InvalidInput, match=r"^tx: must be in a transaction"):
            await enqueue(app, "ada", own.tx)


async def test_what_cannot_be_followed_is_refused(app: Everwork, tmp_path: Path) -> None:
    url = url_of("postgres", tmp_path).partition("?")[0]
    async with rehearse(app):
        with closing(psycopg2.connect(url)) as own, pytest.raises(InvalidInput, match=r"^tx: commits of psycopg2"):
            await enqueue(app, "ada", own)
        with pytest.raises(InvalidInput, match=r"^tx: must be a connection or session of SQLAlchemy, .* not 5"):
            await enqueue(app, "ada", 5)


async def test_an_engine_that_is_away_refuses_transactions_too(app: Everwork, begin: Begin) -> None:
    async with rehearse(app) as stage, begin("sqlite3") as own:
        stage.engine_away()
        with pytest.raises(EngineUnavailable):
            await enqueue(app, "ada", own.tx)


async def test_what_is_committed_after_the_stage_is_of_no_interest(app: Everwork, begin: Begin) -> None:
    for driver in ("sqlite3", "psycopg", "asyncpg", "sqlalchemy", "sqlalchemy-session"):
        async with begin(driver) as own:
            async with rehearse(app):
                await enqueue(app, "ada", own.tx)
            await own.commit()
            assert "Watched" not in type(own.tx).__name__


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg", "sqlalchemy", "sqlalchemy-session"])
async def test_two_stages_follow_one_connection(app: Everwork, driver: str, begin: Begin) -> None:
    other = Everwork("redis://127.0.0.1:1/")
    async with rehearse(app) as stage, begin(driver) as own:
        async with rehearse(other):
            await enqueue(app, "ada", own.tx)
            await enqueue(other, "bea", own.tx)
        await enqueue(app, "cid", own.tx)
        await own.commit()
        assert letters(stage) == ["ada", "cid"]


@pytest.mark.parametrize("kind", [orm.Session, sqlalchemy.Engine.connect])
def test_nothing_is_left_on_a_connection_after_the_rehearsal(
    app: Everwork, tmp_path: Path, kind: Callable[[sqlalchemy.Engine], Any]
) -> None:
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path}/own.db")
    with kind(engine) as own:
        with rehearse(app):
            app.sync.within(own).enqueue("letter-send", to="ada")
            own.commit()
        names = ("after_commit", "after_transaction_end", "rollback", "savepoint")
        assert [list(getattr(own.dispatch, name, ())) for name in names] == [[], [], [], []]
    engine.dispose()
