"""enqueue(tx=): a job inside the user's own SQLite transaction exists exactly if that commits."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import aiosqlite
import pytest
import sqlalchemy
from sqlalchemy import orm
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from everwork import Everwork, JobKey, State
from everwork.core.queries import JobFilter
from everwork.exceptions import EngineBusy, InvalidInput
from tests.app.waiting import DEADLINE_S, working


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[Everwork]:
    """An application on a file that the user shares."""
    made = Everwork(f"sqlite:///{tmp_path}/shared.db")
    await made.open()
    yield made
    await made.close()


@pytest.fixture
def own(app: Everwork, tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """The user's own connection, with sqlite3's default settings, and a table of the user's."""
    connection = sqlite3.connect(tmp_path / "shared.db")
    connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
    connection.commit()
    yield connection
    connection.close()


async def pending(app: Everwork) -> int:
    """How many jobs anybody can see."""
    return len((await app._host.call(lambda service: service.find(JobFilter(), 100))).jobs)


async def test_after_the_commit_the_job_exists(app: Everwork, own: sqlite3.Connection) -> None:
    own.execute("INSERT INTO orders VALUES (1)")
    key = await app.using(tx=own).enqueue("email-send", to="a")
    assert await pending(app) == 0
    own.commit()
    job = await app.get(key)
    assert isinstance(key, JobKey)
    assert (job.type, job.state, job.variables) == ("email-send", State.PENDING, {"to": "a"})


async def test_after_a_rollback_there_is_neither_order_nor_job(app: Everwork, own: sqlite3.Connection) -> None:
    own.execute("INSERT INTO orders VALUES (1)")
    await app.using(tx=own).enqueue("email-send")
    own.rollback()
    assert await pending(app) == 0
    assert own.execute("SELECT count(*) FROM orders").fetchone() == (0,)
    assert await app._host.call(lambda service: service._engine.count()) == []


async def test_without_a_transaction_yet_sqlite3_begins_one_by_itself(app: Everwork, own: sqlite3.Connection) -> None:
    await app.using(tx=own).enqueue("email-send")
    assert own.in_transaction
    assert await pending(app) == 0
    own.commit()
    assert await pending(app) == 1


async def test_a_with_block_of_the_connection_commits_the_job(app: Everwork, own: sqlite3.Connection) -> None:
    with own:
        own.execute("INSERT INTO orders VALUES (1)")
        await app.using(tx=own).enqueue("email-send")
    assert await pending(app) == 1


async def test_enqueue_many_and_dedupe_work_inside_the_transaction(app: Everwork, own: sqlite3.Connection) -> None:
    keys = await app.using(tx=own).enqueue_many(
        [app.using(dedupe_key="x").call("email-send")] * 2 + [app.call("sms-send")]
    )
    own.commit()
    assert [key.deduplicated for key in keys] == [False, True, False]
    assert await pending(app) == 2


async def test_the_counts_include_what_was_committed(app: Everwork, own: sqlite3.Connection) -> None:
    await app.using(tx=own).enqueue("email-send")
    own.commit()
    [count] = await app._host.call(lambda service: service._engine.count())
    assert (count.type, count.state, count.jobs) == ("email-send", State.PENDING, 1)


async def test_a_transaction_begun_by_hand_is_used(app: Everwork, own: sqlite3.Connection) -> None:
    own.isolation_level = None
    own.execute("BEGIN IMMEDIATE")
    await app.using(tx=own).enqueue("email-send")
    own.execute("COMMIT")
    assert await pending(app) == 1


async def test_an_autocommit_connection_without_begin_is_refused(app: Everwork, own: sqlite3.Connection) -> None:
    own.isolation_level = None
    with pytest.raises(InvalidInput, match=r"^tx: must be in a transaction: execute BEGIN IMMEDIATE first"):
        await app.using(tx=own).enqueue("email-send")
    assert await pending(app) == 0


async def test_a_connection_to_another_file_is_refused(app: Everwork, tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "other.db")
    problem = r"^tx: must be a connection to .*shared\.db, not to .*other\.db; .*use app\.after_commit\(session\)$"
    with pytest.raises(InvalidInput, match=problem):
        await app.using(tx=other).enqueue("email-send")
    other.close()


async def test_a_connection_in_memory_is_refused(app: Everwork) -> None:
    with pytest.raises(InvalidInput, match=r"^tx: must be a connection to .*shared\.db, not to memory"):
        await app.using(tx=sqlite3.connect(":memory:")).enqueue("email-send")
    with pytest.raises(InvalidInput, match=r"^tx: cannot be joined: the jobs are in memory; "):
        await Everwork("sqlite:///:memory:").using(tx=sqlite3.connect(":memory:")).enqueue("email-send")


async def test_a_transaction_that_has_ended_is_refused(app: Everwork, tmp_path: Path) -> None:
    """The session would begin another one, which nobody commits."""
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path}/shared.db")
    with orm.Session(engine) as session, session.begin() as ended:
        pass
    with pytest.raises(InvalidInput, match=r"^tx: must be an open transaction; this one has ended"):
        await app.within(ended).enqueue("email-send")
    engine.dispose()


async def test_a_call_that_fails_leaves_no_transaction_which_it_began(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "empty.db")) as own:
        with pytest.raises(
            InvalidInput, match=r"tables for jobs yet: call `await app\.open\(\)` or `app\.sync\.open\(\)` at"
        ):
            await Everwork(f"sqlite:///{tmp_path}/empty.db").within(own).enqueue("email-send")
        assert not own.in_transaction
        own.execute("BEGIN")
        with pytest.raises(InvalidInput, match=r"has no tables for jobs yet"):
            await Everwork(f"sqlite:///{tmp_path}/empty.db").within(own).enqueue("email-send")
        assert own.in_transaction


class Traced:
    """A connection in the hands of a tracing tool."""

    def __init__(self, traced: object) -> None:
        self._traced = traced

    def __getattr__(self, name: str) -> Any:
        return getattr(self._traced, name)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self._traced)


async def test_a_proxy_of_a_connection_is_taken_for_it(app: Everwork, own: sqlite3.Connection) -> None:
    await app.within(Traced(own)).enqueue("email-send")
    assert await pending(app) == 0
    own.commit()
    assert await pending(app) == 1


@pytest.mark.parametrize("tx", ["connection", 5, object()])
async def test_what_is_no_connection_is_refused(app: Everwork, tx: object) -> None:
    with pytest.raises(InvalidInput, match=r"^tx: must be a sqlite3, aiosqlite, SQLAlchemy or Django connection to /"):
        await app.using(tx=tx).enqueue("email-send")


async def test_a_closed_connection_is_refused(app: Everwork, own: sqlite3.Connection) -> None:
    own.close()
    with pytest.raises(InvalidInput, match=r"^tx: "):
        await app.using(tx=own).enqueue("email-send")


async def test_the_file_may_be_reached_by_another_path(app: Everwork, tmp_path: Path) -> None:
    (tmp_path / "link.db").symlink_to("shared.db")
    linked = sqlite3.connect(tmp_path / "link.db")
    await app.using(tx=linked).enqueue("email-send")
    linked.commit()
    linked.close()
    assert await pending(app) == 1


def as_dict(cursor: sqlite3.Cursor, row: tuple[Any, ...]) -> dict[str, Any]:
    """The row factory of the sqlite3 manual."""
    return {column[0]: value for column, value in zip(cursor.description, row, strict=True)}


@pytest.mark.parametrize("factory", [sqlite3.Row, as_dict], ids=["Row", "dict"])
async def test_a_row_factory_of_the_users_does_not_matter(app: Everwork, own: sqlite3.Connection, factory: Any) -> None:
    own.row_factory = factory
    first = await app.using(dedupe_key="x", tx=own).enqueue("email-send")
    again = await app.using(dedupe_key="x", tx=own).enqueue("email-send")
    own.commit()
    assert (first, again.deduplicated) == (again, True)
    assert own.row_factory is factory


async def test_a_wrong_job_leaves_the_users_transaction_as_it_was(app: Everwork, own: sqlite3.Connection) -> None:
    own.execute("INSERT INTO orders VALUES (1)")
    with pytest.raises(InvalidInput, match=r"^priority: "):
        await app.using(priority="high", tx=own).enqueue("email-send")  # type: ignore[arg-type]
    own.commit()
    assert await pending(app) == 0
    assert own.execute("SELECT count(*) FROM orders").fetchone() == (1,)


async def test_a_transaction_that_cannot_write_is_told_to_begin_immediate(
    app: Everwork, own: sqlite3.Connection, tmp_path: Path
) -> None:
    own.execute("PRAGMA busy_timeout = 0")
    other = sqlite3.connect(tmp_path / "shared.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(EngineBusy, match="BEGIN IMMEDIATE"):
        await app.using(tx=own).enqueue("email-send")
    other.close()


async def test_waiting_workers_find_the_job_after_the_commit(app: Everwork, own: sqlite3.Connection) -> None:
    @app.job("work")
    async def work() -> str:
        return "done"

    async with working(app):
        key = await app.using(tx=own).enqueue("work")
        own.commit()
        assert await asyncio.wait_for(app.result(key), DEADLINE_S) == "done"


def test_the_sync_twin_runs_in_the_callers_thread(tmp_path: Path) -> None:
    app = Everwork(f"sqlite:///{tmp_path}/shared.db")
    with app.sync as sync:
        own = sqlite3.connect(tmp_path / "shared.db")
        kept = sync.using(tx=own).enqueue("email-send")
        own.commit()
        sync.using(tx=own).enqueue_many([("email-send", {})] * 2)
        own.rollback()
        own.close()
        assert sync.get(kept).state is State.PENDING
        assert sync.enqueue("email-send") == kept + 1


def test_the_sync_twin_refuses_what_is_no_connection(tmp_path: Path) -> None:
    with Everwork(f"sqlite:///{tmp_path}/shared.db").sync as sync, pytest.raises(InvalidInput, match=r"^tx: "):
        sync.using(tx=5).enqueue("email-send")


async def test_jobs_can_be_looked_at_inside_a_transaction_that_a_write_waits_for(
    app: Everwork, own: sqlite3.Connection
) -> None:
    key = await app.enqueue("email-send")
    own.execute("BEGIN IMMEDIATE")
    waiting = asyncio.ensure_future(app.enqueue("email-send"))
    await asyncio.sleep(0)
    async with asyncio.timeout(DEADLINE_S):
        looks = [(await app.get(key)).state for _ in range(20)]
    assert (looks, waiting.done()) == ([State.PENDING] * 20, False)
    own.rollback()
    assert await waiting > key


# SQLAlchemy ---------------------------------------------------------------------------------------------


@pytest.fixture
def sessions(tmp_path: Path, own: sqlite3.Connection) -> Iterator[orm.sessionmaker[orm.Session]]:
    """Sessions on the application's own file."""
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path}/shared.db")
    yield orm.sessionmaker(engine)
    engine.dispose()


async def test_a_job_joins_the_transaction_of_a_session(app: Everwork, sessions: orm.sessionmaker[orm.Session]) -> None:
    with sessions() as session:
        session.execute(sqlalchemy.text("INSERT INTO orders VALUES (1)"))
        await app.within(session).enqueue("email-send")
        with session.begin_nested() as inner:
            await app.within(session).enqueue("email-send")
            inner.rollback()
        assert await pending(app) == 0
        session.commit()
        await app.within(session).enqueue("email-send")
        session.rollback()
    assert await pending(app) == 1


async def test_two_sessions_at_a_time_have_a_job_each(app: Everwork, sessions: orm.sessionmaker[orm.Session]) -> None:
    with sessions() as reading, sessions() as writing:
        reading.execute(sqlalchemy.text("SELECT * FROM orders")).all()
        kept = await app.within(writing).enqueue("email-send")
        writing.commit()
        reading.rollback()
        await app.within(reading).enqueue("email-send")
        reading.rollback()
    assert [job.key async for job in app.list()] == [kept]


async def test_a_session_of_a_registry_is_found(app: Everwork, sessions: orm.sessionmaker[orm.Session]) -> None:
    session = orm.scoped_session(sessions)
    await app.within(session).enqueue("email-send")
    session.commit()
    session.remove()
    assert await pending(app) == 1


async def test_the_transaction_that_a_block_gives_is_taken_for_its_session_or_connection(
    app: Everwork, sessions: orm.sessionmaker[orm.Session]
) -> None:
    with sessions.begin() as session, session.begin_nested() as nested:
        await app.within(nested).enqueue("email-send")
    with sessions.kw["bind"].connect() as connection, connection.begin() as transaction:
        await app.within(transaction).enqueue("email-send")
    assert await pending(app) == 2


async def test_a_transaction_that_a_savepoint_began_has_the_write_lock_before_anything_is_read(
    app: Everwork, own: sqlite3.Connection, tmp_path: Path
) -> None:
    """A commit between the first read and the first write would make the write fail, however long it waits."""
    other = sqlite3.connect(tmp_path / "shared.db", timeout=0, isolation_level=None)
    has_lock: list[bool] = []

    def write_beside(statement: str) -> None:
        if statement.startswith(("PRAGMA", "SAVEPOINT")):
            return
        try:
            other.execute("INSERT INTO orders VALUES (NULL)")
        except sqlite3.OperationalError:
            has_lock.append(True)
        else:
            has_lock.append(False)

    own.execute("SAVEPOINT mine")
    own.set_trace_callback(write_beside)  # Called before each statement.
    await app.within(own).enqueue("email-send")
    own.set_trace_callback(None)
    own.commit()
    other.close()
    assert (await pending(app), has_lock) == (1, [False] + [True] * (len(has_lock) - 1))


async def test_an_aiosqlite_connection_to_another_file_is_refused(app: Everwork, tmp_path: Path) -> None:
    async with aiosqlite.connect(tmp_path / "other.db") as other:
        with pytest.raises(InvalidInput, match=r"^tx: must be a connection to .*shared\.db, not to .*other\.db; "):
            await app.using(tx=other).enqueue("mail")


async def test_a_session_on_another_file_is_refused_with_both_names(app: Everwork, tmp_path: Path) -> None:
    problem = r"^tx: must be a connection to .*shared\.db, not to .*other\.db"
    other = sqlalchemy.create_engine(f"sqlite:///{tmp_path}/other.db")
    with orm.Session(other) as session, pytest.raises(InvalidInput, match=problem):
        await app.within(session).enqueue("email-send")
    async_other = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/other.db")
    async with AsyncSession(async_other) as async_session:
        with pytest.raises(InvalidInput, match=problem):
            await app.within(async_session).enqueue("email-send")
    await async_other.dispose()


async def test_a_session_on_another_database_is_refused(app: Everwork) -> None:
    problem = r"^tx: must be a connection to .*shared\.db, not to postgresql; "
    other = sqlalchemy.create_engine("postgresql+psycopg://nowhere/none")
    with orm.Session(other) as session, pytest.raises(InvalidInput, match=problem):
        await app.within(session).enqueue("email-send")
    with orm.Session() as unbound, pytest.raises(InvalidInput, match=r"^tx: must be a session with one database"):
        await app.within(unbound).enqueue("email-send")


async def test_a_session_before_the_application_was_opened_is_told_so(tmp_path: Path) -> None:
    app = Everwork(f"sqlite:///{tmp_path}/fresh.db")
    problem = r"^tx: .*fresh\.db has no tables for jobs yet"
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path}/fresh.db")
    with orm.Session(engine) as session, pytest.raises(InvalidInput, match=problem):
        await app.within(session).enqueue("email-send")
