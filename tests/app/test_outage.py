"""The server dies (SIGKILL) and comes back: workers go on by themselves, and nothing is lost or done twice."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

import psycopg
import pytest

from everwork import Everwork, State
from everwork.app.caller_engine import OPENS_AFTER
from everwork.core.job import NewJob
from everwork.core.queries import JobFilter
from everwork.engines.open import open_engine
from everwork.exceptions import EngineUnavailable
from tests.app.test_caller_engine import until_opened
from tests.app.waiting import until, working
from tests.servers import RedisServer, postgres_server, redis_server
from tests.stores import ENGINES

if TYPE_CHECKING:
    from pathlib import Path

    from everwork.engines.contract import Engine
    from tests.servers import Server
    from tests.stores import VirtualClock

AGAIN_S = 30.0
"""Far more than a server takes to come back and be found again; reached only by a defect."""
RETRY_S = 6
"""The first retry is due by then; leases are longer."""


@pytest.fixture(scope="module", params=[name for name in ENGINES if name != "sqlite"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server of the tests' own, which keeps what it has accepted."""
    aof = ("--appendonly", "yes", "--appendfsync", "always")
    started = redis_server(*aof) if request.param == "redis" else postgres_server()
    yield started
    started.remove()


@pytest.fixture
def url(server: Server, tmp_path: Path) -> str:
    """A store of the test's own on that server, which runs."""
    server.restart()
    name = "".join(letter for letter in tmp_path.name.lower() if letter.isalnum())[-30:]
    return f"{server.url}?{'schema=ew_' if server.url.startswith('postgres') else 'namespace=n'}{name}"


@pytest.fixture
async def app(url: str) -> AsyncIterator[Everwork]:
    """An application on that store, open."""
    made = Everwork(url)
    await made.open()
    yield made
    await made.close()


async def killed(server: Server) -> None:
    """The server as it is after SIGKILL."""
    await asyncio.to_thread(server.kill)


async def back(server: Server) -> None:
    """The server as it is after a start."""
    await asyncio.to_thread(server.restart)


async def kinds(app: Everwork, key: int) -> list[tuple[int, str]]:
    """The history in short."""
    return [(event.attempt, event.kind) for event in await app.history(key)]


# Producers --------------------------------------------------------------------------------------------


def test_a_restart_between_two_blocking_creates_fails_neither(url: str, server: Server) -> None:
    app = Everwork(url)
    keys = [app.sync.enqueue("work") for _ in range(OPENS_AFTER)]
    until_opened(app)
    own = app._host._caller_engine._opened
    for _ in range(2):
        server.kill()
        server.restart()
        keys.append(app.sync.enqueue("work"))
    assert app._host._caller_engine._opened is own
    assert len(list(app.sync.list())) == len(set(keys)) == OPENS_AFTER + 2
    app.sync.close()


def test_a_blocking_create_while_the_server_is_away_fails_and_creates_nothing_later(url: str, server: Server) -> None:
    app = Everwork(url)
    keys = [app.sync.enqueue("work") for _ in range(OPENS_AFTER)]
    until_opened(app)
    server.kill()
    with pytest.raises(EngineUnavailable):
        app.sync.enqueue("work")
    server.restart()
    keys.append(app.sync.enqueue("work"))
    assert len(list(app.sync.list())) == len(set(keys)) == OPENS_AFTER + 1
    app.sync.close()


# Workers ----------------------------------------------------------------------------------------------


async def test_a_waiting_worker_finds_new_work_after_the_server_has_come_back(app: Everwork, server: Server) -> None:
    @app.job("work")
    async def work(number: int) -> int:
        return number

    async with working(app), asyncio.timeout(AGAIN_S):
        assert await app.result(await app.enqueue("work", number=1)) == 1
        await killed(server)
        await back(server)
        key = await app.using(dedupe_key="two").enqueue("work", number=2)
        assert await app.result(key) == 2


async def test_a_job_that_ends_while_the_server_is_away_is_settled_when_it_is_back(
    app: Everwork, server: Server
) -> None:
    begun, release = asyncio.Event(), asyncio.Event()

    @app.job("work")
    async def work() -> str:
        begun.set()
        await release.wait()
        return "done"

    async with working(app), asyncio.timeout(AGAIN_S):
        key = await app.enqueue("work")
        await begun.wait()
        await killed(server)
        release.set()
        await until(
            lambda: app._workers.runtime is not None and not app._workers.runtime._executor._pools["work"].running
        )
        await back(server)
        assert await app.result(key) == "done"
    assert await kinds(app, key) == [(1, "complete")]


async def test_many_jobs_under_way_when_the_server_dies_are_all_done(app: Everwork, server: Server) -> None:
    counted: list[int] = []
    half = asyncio.Event()

    @app.job("work", concurrency=10)
    async def work(number: int) -> None:
        counted.append(number)
        if len(counted) == 100:
            half.set()
        await asyncio.sleep(0)

    keys = await app.enqueue_many([("work", {"number": number}) for number in range(200)])
    async with working(app), asyncio.timeout(AGAIN_S):
        await half.wait()
        await killed(server)
        await back(server)
        for key in keys:
            await app.result(key)
    assert set(counted) == set(range(200))


async def test_an_attempt_whose_lease_lapsed_meanwhile_is_refused_and_the_next_one_counts(
    url: str, server: Server, clock: VirtualClock
) -> None:
    app = Everwork(url, worker="w1", clock=clock)
    begun, release = threading.Event(), threading.Event()

    @app.job("work")
    def work() -> str:
        begun.set()
        release.wait(AGAIN_S)
        return "late"

    async with app, working(app), asyncio.timeout(AGAIN_S):
        key = await app.enqueue("work")
        await asyncio.to_thread(begun.wait)
        await killed(server)
        clock.advance(seconds=60)
        await back(server)
        await until(lambda: _has_lapsed(app, key, clock))
        release.set()
        clock.advance(seconds=RETRY_S)
        assert await app.result(key) == "late"
        assert await kinds(app, key) == [(1, "lapse"), (2, "complete")]


async def _has_lapsed(app: Everwork, key: int, clock: VirtualClock) -> bool:
    """Whether the lease was swept; if the worker's heartbeat came first, the lease has to expire again."""
    try:
        if (1, "lapse") in await kinds(app, key):
            return True
    except EngineUnavailable:
        return False
    clock.advance(seconds=60)
    return False


async def test_workers_stop_while_the_server_is_away(app: Everwork, server: Server) -> None:
    @app.job("work")
    async def work() -> None:
        """Never called."""

    async with asyncio.timeout(AGAIN_S), working(app):
        await killed(server)


# Callers ------------------------------------------------------------------------------------------------


async def test_a_create_that_may_have_happened_is_told_and_not_repeated(app: Everwork, server: Server) -> None:
    await killed(server)
    with pytest.raises(EngineUnavailable) as raised:
        await asyncio.wait_for(app.enqueue("work"), AGAIN_S)
    assert "\n" not in str(raised.value)
    await back(server)
    await until(lambda: _is_empty(app))


async def _is_empty(app: Everwork) -> bool:
    try:
        return (await app._host.call(lambda service: service.find(JobFilter(), 10))).jobs == []
    except EngineUnavailable:
        return False


async def test_a_create_with_a_dedupe_key_waits_for_the_server(app: Everwork, server: Server) -> None:
    await killed(server)
    creating = asyncio.ensure_future(app.using(dedupe_key="once").enqueue("work"))
    await back(server)
    key = await asyncio.wait_for(creating, AGAIN_S)
    assert (await app.get(key)).state is State.PENDING


async def test_who_waits_for_a_result_waits_through_a_restart(app: Everwork, server: Server) -> None:
    begun, release = asyncio.Event(), asyncio.Event()

    @app.job("work")
    async def work() -> str:
        begun.set()
        await release.wait()
        return "done"

    async with working(app), asyncio.timeout(AGAIN_S):
        waiting = asyncio.ensure_future(app.result(await app.enqueue("work")))
        await begun.wait()
        await killed(server)
        await back(server)
        release.set()
        assert await waiting == "done"


# Wake-ups -------------------------------------------------------------------------------------------------


async def test_wake_ups_come_again_after_the_server_has_come_back(url: str, server: Server) -> None:
    waiting, creating = open_engine(url), open_engine(url)
    await waiting.open()
    await creating.open()
    try:
        await killed(server)
        await back(server)
        async with asyncio.timeout(AGAIN_S):
            while not await _is_woken(waiting, creating):
                pass
    finally:
        await waiting.close()
        await creating.close()


async def test_wake_ups_come_again_after_the_server_has_cut_every_connection(url: str, server: Server) -> None:
    waiting, creating = open_engine(url), open_engine(url)
    await waiting.open()
    await creating.open()
    try:
        await asyncio.to_thread(_cut_connections, server)
        async with asyncio.timeout(AGAIN_S):
            while not await _is_woken(waiting, creating):
                pass
    finally:
        await waiting.close()
        await creating.close()


def _cut_connections(server: Server) -> None:
    """Cut everybody off, while the server goes on."""
    if isinstance(server, RedisServer):
        for kind in ("normal", "pubsub"):
            server.ask("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")
        return
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")


async def _is_woken(waiting: Engine, creating: Engine) -> bool:
    """Whether a job of one engine wakes the other, out of a silence."""
    try:
        mark = waiting.mark()
        if await waiting.wait(["work"], 200, since=mark):
            return False  # Something else rang: look again.
        waiter = asyncio.ensure_future(waiting.wait(["work"], 2_000, since=mark))
        await creating.create([NewJob("work")])
        return await waiter
    except EngineUnavailable:
        return False
