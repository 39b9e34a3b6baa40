"""after_commit: jobs in a store that cannot share the user's transaction are created once it is committed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy import event, orm
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from everwork import Everwork
from everwork.exceptions import EngineUnavailable, InvalidInput
from everwork.testing import rehearse
from tests.app.waiting import until
from tests.stores import VirtualClock


@pytest.fixture
async def app(tmp_path: Path, clock: VirtualClock) -> AsyncIterator[Everwork]:
    """An application on a file of its own."""
    made = Everwork(f"sqlite:///{tmp_path}/jobs.db", clock=clock)

    @made.job("letter-send")
    async def send(to: str) -> None: ...

    await made.open()
    yield made
    await made.close()


@pytest.fixture
def own(tmp_path: Path) -> Iterator[sqlalchemy.Engine]:
    """The user's database, in another file."""
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path}/own.db")
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
    yield engine
    engine.dispose()


async def letters(app: Everwork) -> list[str]:
    return sorted([job.variables["to"] async for job in app.list()])


async def test_jobs_are_created_once_the_session_is_committed(app: Everwork, own: sqlalchemy.Engine) -> None:
    with orm.Session(own) as session:
        jobs = app.after_commit(session)
        await jobs.enqueue("letter-send", to="ada")
        await jobs.using(priority=3).enqueue_many([("letter-send", {"to": "bea"})])
        await app.using(priority=3).after_commit(session).enqueue(app.functions["letter-send"], to="cid")
        assert await letters(app) == []
        session.commit()
    assert await letters(app) == ["ada", "bea", "cid"]
    assert [job.priority async for job in app.list()] == [3, 3, 0]


async def test_a_rollback_and_a_savepoint_that_is_rolled_back_create_nothing(
    app: Everwork, own: sqlalchemy.Engine
) -> None:
    with orm.Session(own) as session:
        await app.after_commit(session).enqueue("letter-send", to="never")
        session.rollback()
        await app.after_commit(session).enqueue("letter-send", to="kept")
        with session.begin_nested() as inner:
            await app.after_commit(session).enqueue("letter-send", to="undone")
            inner.rollback()
        with session.begin_nested():
            await app.after_commit(session).enqueue("letter-send", to="released")
        session.commit()
        await app.after_commit(session).enqueue("letter-send", to="closed")
    assert await letters(app) == ["kept", "released"]


async def test_a_savepoint_inside_a_flush_hands_its_jobs_to_the_transaction(
    app: Everwork, own: sqlalchemy.Engine
) -> None:
    orders: orm.Mapper[Any] = orm.registry().map_imperatively(
        type("Order", (), {}), sqlalchemy.Table("orders", sqlalchemy.MetaData(), autoload_with=own)
    )
    with orm.Session(own) as session:

        @event.listens_for(session, "after_flush")
        def enqueue(*_: object) -> None:
            with session.begin_nested():
                app.sync.after_commit(session).enqueue("letter-send", to="ada")

        session.add(orders.class_())
        session.commit()
    assert await letters(app) == ["ada"]


async def test_a_session_inside_a_transaction_of_its_connection_counts_by_its_own_commit(
    app: Everwork, own: sqlalchemy.Engine
) -> None:
    """As in test suites that roll everything back; SQLAlchemy reports no commit of a connection once it is done."""
    with own.connect() as connection, connection.begin() as outer:
        with orm.Session(connection, join_transaction_mode="create_savepoint") as session:
            await app.after_commit(session).enqueue("letter-send", to="ada")
            session.commit()
            await app.after_commit(session).enqueue("letter-send", to="closed")
        outer.rollback()
    assert await letters(app) == ["ada"]


async def test_an_asynchronous_session_awaits_the_creation(app: Everwork, tmp_path: Path) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/own.db")
    async with AsyncSession(engine) as session:
        async with session.begin():
            await app.after_commit(session).enqueue("letter-send", to="ada")
        assert await letters(app) == ["ada"]
        await app.after_commit(session).enqueue("letter-send", to="bea")
        await session.rollback()
    await engine.dispose()
    assert await letters(app) == ["ada"]


async def test_a_caller_that_is_cancelled_after_its_commit_loses_no_job(app: Everwork, tmp_path: Path) -> None:
    engine, is_committed = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/own.db"), asyncio.Event()

    async def request() -> None:
        async with AsyncSession(engine) as session, session.begin():
            event.listen(session.sync_session, "after_commit", lambda _: is_committed.set())
            await app.after_commit(session).enqueue("letter-send", to="ada")

    await app.close()  # The jobs wait until it is open again.
    caller = asyncio.create_task(request())
    await is_committed.wait()
    caller.cancel()
    await asyncio.wait([caller])

    async def is_there() -> bool:
        return await letters(app) == ["ada"]

    await until(is_there)
    assert caller.cancelled()
    await engine.dispose()


def test_a_scoped_session_is_that_of_the_thread_which_enqueues(tmp_path: Path, own: sqlalchemy.Engine) -> None:
    session = orm.scoped_session(orm.sessionmaker(own))

    def request() -> None:
        jobs.enqueue("letter-send", to="ada")
        session.commit()
        session.remove()

    with Everwork(f"sqlite:///{tmp_path}/jobs.db").sync as app, ThreadPoolExecutor(1) as threads:
        jobs = app.after_commit(session)  # Once for all threads, as a module may.
        threads.submit(request).result()
        assert [job.variables["to"] for job in app.list()] == ["ada"]


def test_code_without_an_event_loop_uses_the_sync_facade(tmp_path: Path, own: sqlalchemy.Engine) -> None:
    session = orm.scoped_session(orm.sessionmaker(own))
    with Everwork(f"sqlite:///{tmp_path}/jobs.db").sync as app:
        app.after_commit(session).using(dedupe_key="d").enqueue("letter-send", to="ada")
        app.after_commit(session).enqueue_many([("letter-send", {"to": "bea"})])
        assert list(app.list()) == []
        session.commit()
        assert sorted(job.variables["to"] for job in app.list()) == ["ada", "bea"]
    session.remove()


async def test_a_job_that_cannot_be_created_fails_the_commit_which_stays_and_is_logged(
    app: Everwork, own: sqlalchemy.Engine, caplog: pytest.LogCaptureFixture
) -> None:
    insert = sqlalchemy.text("INSERT INTO orders DEFAULT VALUES")
    async with rehearse(app) as stage:
        with orm.Session(own) as session:
            session.execute(insert)
            await app.after_commit(session).enqueue("letter-send", to="lost")
            stage.engine_away()
            with pytest.raises(EngineUnavailable):
                session.commit()
            assert session.scalar(sqlalchemy.text("SELECT count(*) FROM orders")) == 1
            await app.after_commit(session).enqueue("letter-send", to="next")
            session.commit()
        assert [job.variables for job in stage.jobs()] == [{"to": "next"}]
    [line] = [record for record in caplog.records if "not created after the commit" in record.message]
    assert (line.levelname, "types=['letter-send'] jobs=1 error=" in line.message) == ("ERROR", True)


async def test_arguments_are_checked_at_once(app: Everwork, own: sqlalchemy.Engine) -> None:
    with orm.Session(own) as session, pytest.raises(InvalidInput, match="to: "):
        await app.after_commit(session).enqueue("letter-send")


async def test_what_does_not_say_when_it_commits_is_refused(app: Everwork, own: sqlalchemy.Engine) -> None:
    with own.connect() as connection:
        for wrong in (connection, connection.connection.driver_connection, 5):
            with pytest.raises(InvalidInput, match=r"^session: must be a SQLAlchemy session or a Django connection"):
                app.after_commit(wrong)
    with orm.Session(own) as session, pytest.raises(InvalidInput, match=r"^tx: cannot be combined"):
        app.within(session).after_commit(session)
