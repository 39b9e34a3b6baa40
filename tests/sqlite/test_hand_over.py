"""Hand-over on SQLite: same rows as by the general way, no writes while idle, and no job lost, whoever dies when."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from everwork.core.leasing import Demand
from everwork.core.queries import JobFilter
from everwork.core.states import State
from everwork.engines.sqlite import hand_over
from everwork.engines.sqlite.create import create_any
from everwork.engines.sqlite.engine import SqliteEngine
from everwork.engines.sqlite.processes import short_path
from everwork.engines.sqlite.store_url import StoreUrl
from tests.app.waiting import until
from tests.conformance.observe import kinds
from tests.conformance.test_hand_over import FIELDS, Taker, parked
from tests.factories import LEASE_MS, TYPE, WORKER, a_new_job, a_pending_job, asked, leased_keys, the_state
from tests.sqlite.test_wake import go, start, told  # noqa: F401 - a fixture
from tests.stores import VirtualClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from everwork.core.job import NewJob
    from tests.sqlite.test_wake import Start


async def opened(file: Path, clock: VirtualClock | None = None) -> SqliteEngine:
    """An engine on a file."""
    engine = SqliteEngine(StoreUrl(str(file)), clock)
    await engine.open()
    return engine


@pytest.fixture
async def other(sqlite: SqliteEngine, file: Path, clock: VirtualClock) -> AsyncIterator[SqliteEngine]:
    """Another engine on the same file."""
    assert sqlite._opened is not None
    engine = await opened(file, clock)
    yield engine
    await engine.close()


@pytest.fixture
async def live(file: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SqliteEngine]:
    """An engine with the host's clock, like that of other processes; parked demands do not expire while it is busy."""
    monkeypatch.setattr(hand_over, "PARK_MS", 60_000)
    engine = await opened(file)
    yield engine
    await engine.close()


# The same rows ------------------------------------------------------------------------------------------


def rows_of(file: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of a store, except parked demands; counts are added up, as all readers do."""
    with closing(sqlite3.connect(file)) as connection:
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        rows = {name: sorted(connection.execute(f"SELECT * FROM {name}").fetchall(), key=repr) for name in names}
        sums = "SELECT queue, tenant, state, sum(jobs) FROM ew_delta GROUP BY 1, 2, 3 HAVING sum(jobs) <> 0"
        rows["ew_delta"] = connection.execute(sums).fetchall()
    return rows | {"ew_parked": []}


async def create_generally(engine: SqliteEngine, job: NewJob) -> None:
    """Create a job as if it were one of several."""
    await engine._store.writer.submit(lambda tx: create_any(tx, [job]))


@pytest.mark.parametrize("fields", FIELDS.values(), ids=list(FIELDS))
@pytest.mark.parametrize("tenants", [[], ["first"], ["first", "second"]], ids=len)
async def test_a_plain_job_is_stored_as_by_the_general_way(
    fields: dict[str, Any], tenants: list[str], tmp_path: Path, clock: VirtualClock
) -> None:
    one, two = await opened(tmp_path / "one.db", clock), await opened(tmp_path / "two.db", clock)
    for engine in (one, two):
        await asked(engine)
    for job in [*(a_new_job(tenant=tenant) for tenant in tenants), a_new_job(**fields), a_new_job(tenant="last")]:
        await one.create([job])
        await create_generally(two, job)
        assert rows_of(tmp_path / "one.db") == rows_of(tmp_path / "two.db")
    await one.close()
    await two.close()


@pytest.mark.parametrize("fields", FIELDS.values(), ids=list(FIELDS))
@pytest.mark.parametrize("tenants", [[], ["first"], ["first", "second"], ["first", "second", "third"]], ids=len)
async def test_a_handed_job_is_stored_as_if_it_had_been_created_and_activated(
    fields: dict[str, Any], tenants: list[str], tmp_path: Path, clock: VirtualClock
) -> None:
    one, two = await opened(tmp_path / "one.db", clock), await opened(tmp_path / "two.db", clock)
    demand, taker = Demand(TYPE, WORKER, 1, LEASE_MS), Taker()
    for engine in (one, two):
        await engine.create([a_new_job(tenant=tenant) for tenant in tenants] or [a_new_job(type="other")])
        await asked(engine, 10)
    for job in (a_new_job(**fields), a_new_job(tenant="first")):
        await one.activate([demand._replace(receiver=taker)])
        await two.activate([demand])
        [created] = await one.create([job])
        if await the_state(one, created.key) is State.PENDING:  # The second lane of a queue.
            await one.activate([demand])
        await create_generally(two, job)
        await two.activate([demand])
        assert rows_of(tmp_path / "one.db") == rows_of(tmp_path / "two.db")
    await one.close()
    await two.close()


async def test_a_lone_job_is_created_leased_and_sent_in_one_commit(sqlite: SqliteEngine) -> None:
    taker = await parked(sqlite)
    statements: list[str] = []
    sqlite._store.writer._connection.set_trace_callback(statements.append)
    await sqlite.create([a_new_job()])
    await taker.came()
    assert [one for one in statements if one.startswith(("BEGIN", "COMMIT"))] == ["BEGIN IMMEDIATE", "COMMIT"]
    assert len([one for one in statements if not one.startswith("--")]) <= 10


# Idle workers --------------------------------------------------------------------------------------------


def version_of(file: Path, connection: sqlite3.Connection) -> int:
    """A number that changes with every commit of another connection."""
    assert file.exists()
    return int(connection.execute("PRAGMA data_version").fetchone()[0])


async def test_an_idle_worker_stays_parked_without_a_write(
    sqlite: SqliteEngine, file: Path, clock: VirtualClock
) -> None:
    taker = await parked(sqlite)
    with closing(sqlite3.connect(file)) as connection:
        before = version_of(file, connection)
        for _ in range(9):
            clock.advance(ms=1_000)
            await parked(sqlite, taker=taker)
        assert version_of(file, connection) == before
    job = await a_pending_job(sqlite)
    assert [one.key for one in await taker.came()] == [job.key]


async def test_a_worker_that_stops_looks_up_its_jobs_without_reading_the_counts(sqlite: SqliteEngine) -> None:
    """The counts are many rows after much work, until a sweep sums them."""
    job = await a_pending_job(sqlite)
    await a_pending_job(sqlite, type="another type")
    await asked(sqlite)
    statements: list[str] = []
    assert sqlite._store._scanner is not None
    sqlite._store._scanner._connection.set_trace_callback(statements.append)
    held = await sqlite.find(JobFilter(worker=WORKER, states=frozenset([State.PROCESSING])), 10)
    assert [one.key for one in held.jobs] == [job.key]
    assert [one for one in statements if "ew_leased" in one]
    assert not [one for one in statements if "ew_delta" in one]


async def test_two_idle_workers_do_not_write_in_turns(
    sqlite: SqliteEngine, other: SqliteEngine, file: Path, clock: VirtualClock
) -> None:
    first, second = await parked(sqlite, worker="first"), await parked(other, worker="second")
    with closing(sqlite3.connect(file)) as connection:
        before = version_of(file, connection)
        for _ in range(9):
            clock.advance(ms=1_000)
            await parked(sqlite, worker="first", taker=first)
            await sqlite.unpark("first", [TYPE])  # What a worker does that looks for lost jobs.
            await parked(other, worker="second", taker=second)
        assert version_of(file, connection) == before
    job = await a_pending_job(sqlite)
    assert [one.key for one in await second.came()] == [job.key]


async def test_a_demand_that_may_not_be_parked_writes_only_if_there_is_one_to_withdraw(
    sqlite: SqliteEngine, file: Path, clock: VirtualClock
) -> None:
    taker = await parked(sqlite)
    with closing(sqlite3.connect(file)) as connection:
        versions = [version_of(file, connection)]
        for _ in range(3):
            clock.advance(ms=1_000)
            await parked(sqlite, taker=taker, may_park=False)
            versions.append(version_of(file, connection))
        assert versions[0] < versions[1] == versions[2] == versions[3]


async def test_workers_that_no_longer_exist_are_forgotten(sqlite: SqliteEngine) -> None:
    for number in range(3):
        await asked(sqlite, 1, worker=f"worker-{number}", receiver=Taker())
    await a_pending_job(sqlite, type="other")  # The engine's thread keeps its last call.
    gc.collect()
    assert not sqlite._store.hand_over._have_parked


async def test_a_worker_takes_the_place_of_one_that_is_gone(
    sqlite: SqliteEngine, other: SqliteEngine, clock: VirtualClock
) -> None:
    taker = await parked(sqlite, worker="first")
    await parked(other, worker="second")
    await other.close()
    clock.advance(ms=1_000)
    await parked(sqlite, worker="first", taker=taker)
    job = await a_pending_job(sqlite)
    assert [one.key for one in await taker.came()] == [job.key]
    await other.open()


async def test_a_worker_whose_clock_has_gone_back_is_parked_again_by_its_next_look(
    sqlite: SqliteEngine, other: SqliteEngine, clock: VirtualClock
) -> None:
    taker = await parked(sqlite)
    clock.advance(ms=-3_600_000)
    assert (await a_pending_job(other)).state is State.PENDING
    assert await leased_keys(other) == [1]
    await parked(sqlite, taker=taker)
    job = await a_pending_job(other)
    assert [one.key for one in await taker.came()] == [job.key]


# Whoever dies, and when ------------------------------------------------------------------------------------


async def test_a_worker_learns_that_a_job_was_lost_whose_creator_was_killed_before_it_sent_it(
    live: SqliteEngine,
    file: Path,
    start: Start,  # noqa: F811
) -> None:
    creator = await start("die", file)
    taker = await parked(live, type="work")
    go(creator)
    assert await creator.wait() == -signal.SIGKILL
    assert await the_state(live, 1) is State.PROCESSING
    await parked(live, type="work", taker=taker)
    assert await taker.came() == []
    assert taker.losses == 1


async def test_a_job_that_has_only_not_been_read_yet_is_not_lost(sqlite: SqliteEngine, other: SqliteEngine) -> None:
    taker = await parked(sqlite)
    [demand] = sqlite._store.hand_over._demands.values()
    job = await a_pending_job(other)
    taker.jobs.clear()
    sqlite._store.hand_over._awaited[demand.token] = demand  # As before it was read.
    sender, receiver = other._store.hand_over, sqlite._store.hand_over
    message = orjson.dumps([demand.token, *(await a_new_and_leased(other))])
    sender._sockets[sqlite._store.work.name].send(message)
    receiver._check_arrival(demand)
    assert (len(taker.jobs), taker.losses, job.state) == (1, 0, State.PROCESSING)


async def test_a_worker_that_lost_its_place_looks_once_for_lost_jobs(sqlite: SqliteEngine, other: SqliteEngine) -> None:
    first, second = await parked(sqlite, worker="first"), await parked(other, worker="second")
    for _ in range(3):
        await parked(sqlite, worker="first", taker=first)
    await first.came()
    assert (first.losses, second.losses) == (1, 0)


async def test_a_job_is_not_handed_to_a_worker_that_was_killed(
    live: SqliteEngine,
    file: Path,
    start: Start,  # noqa: F811
) -> None:
    worker = await start("park", file)
    worker.kill()
    await worker.wait()
    assert (await a_pending_job(live, type="work")).state is State.PENDING


async def test_a_worker_that_was_killed_is_not_waiting_in_its_forked_child(
    live: SqliteEngine,
    file: Path,
    start: Start,  # noqa: F811
) -> None:
    worker = await start("fork", file)
    os.kill(worker.pid, signal.SIGKILL)
    await until(lambda: worker.returncode is not None)
    assert (await a_pending_job(live, type="work")).state is State.PENDING
    assert worker.stdin is not None
    worker.stdin.close()


async def test_a_job_is_handed_to_another_process(
    live: SqliteEngine,
    file: Path,
    start: Start,  # noqa: F811
) -> None:
    worker = await start("park", file)
    job = await a_pending_job(live, type="work")
    assert (job.state, await told(worker)) == (State.PROCESSING, str(job.key))


async def test_a_job_that_cannot_be_sent_is_released_at_once(
    sqlite: SqliteEngine, other: SqliteEngine, file: Path
) -> None:
    await parked(sqlite)
    work = sqlite._store.work
    assert work._socket is not None
    asyncio.get_running_loop().remove_reader(work._socket)
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)) as sender:
        with short_path(Path(f"{file}.wake")) as address:
            sender.connect(f"{address}/{work.name}")
        with pytest.raises(BlockingIOError):
            send_forever(sender)
    mark = other.mark()
    [created] = await other.create([a_new_job()])
    assert await other.wait([TYPE], 30_000, mark)
    assert await kinds(other, created.key) == [(1, "release")]
    [job] = (await asked(other, 1)).jobs
    assert (job.key, job.attempt, job.attempts) == (created.key, 2, 1)
    asyncio.get_running_loop().add_reader(work._socket, work.receive)


def send_forever(sender: socket.socket) -> None:
    """Send wake-ups until nothing more fits into the receiver's buffer."""
    while True:
        sender.send(b"w")


async def test_a_job_for_a_worker_that_has_ended_meanwhile_is_released(sqlite: SqliteEngine) -> None:
    await parked(sqlite)
    sqlite._store.hand_over._receivers.clear()
    job = await a_new_and_leased(sqlite)
    mark = sqlite.mark()
    sqlite._store.hand_over._arrived("gone.1", job)
    assert await sqlite.wait([TYPE], 30_000, mark)
    assert await kinds(sqlite, job.key) == [(1, "release")]


async def a_new_and_leased(engine: SqliteEngine) -> Any:
    """A job that the engine has just leased."""
    await engine.create([a_new_job()])
    return (await asked(engine, 1)).jobs[0]


async def test_a_rolled_back_create_hands_nothing_over(sqlite: SqliteEngine) -> None:
    taker = await parked(sqlite)

    def spoil(tx: Any) -> None:
        raise ValueError("spoiled")

    writer = sqlite._store.writer
    creating = [asyncio.ensure_future(sqlite.create([a_new_job()])) for _ in range(2)]
    spoiled = writer.submit(spoil)
    await asyncio.gather(*creating)
    with pytest.raises(ValueError, match="spoiled"):
        await spoiled
    assert [job.key for job in await taker.came()] == [1]
    assert await leased_keys(sqlite, 5) == [2]


# Stores that are not shared files --------------------------------------------------------------------------


@pytest.mark.parametrize("own_loop", [False, True])
async def test_a_store_in_memory_hands_over(own_loop: bool, clock: VirtualClock) -> None:
    engine = SqliteEngine(StoreUrl(":memory:"), clock, own_loop=own_loop)
    await engine.open()
    taker = await parked(engine)
    job = await a_pending_job(engine)
    assert [one.key for one in await taker.came()] == [job.key]
    await engine.close()


async def test_a_copy_of_the_file_hands_nothing_over(sqlite: SqliteEngine, file: Path, clock: VirtualClock) -> None:
    taker = await parked(sqlite)
    copy = file.parent / "copies" / "jobs.db"
    copy.parent.mkdir()
    with closing(sqlite3.connect(file)) as connection, closing(sqlite3.connect(copy)) as target:
        connection.backup(target)
    engine = await opened(copy, clock)
    assert (await a_pending_job(engine)).state is State.PENDING
    assert not taker.jobs
    await engine.close()


async def test_where_no_socket_can_be_bound_nothing_is_parked(tmp_path: Path, clock: VirtualClock) -> None:
    file = tmp_path / "jobs.db"
    (tmp_path / "jobs.db.wake").write_text("in the way")
    engine = await opened(file, clock)
    await parked(engine)
    assert (await a_pending_job(engine)).state is State.PENDING
    assert await leased_keys(engine) == [1]
    await engine.close()


async def test_a_type_that_is_deleted_leaves_no_parked_demand(sqlite: SqliteEngine, file: Path) -> None:
    await parked(sqlite)
    assert (await sqlite.delete_type(TYPE)).value == "accepted"
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("SELECT * FROM ew_parked").fetchall() == []
