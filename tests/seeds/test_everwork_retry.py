"""`Retry` brings a job back within its attempts; an outage of the engine or of a broker costs none of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from everwork import Event, Everwork, PostgresBroker, RedisBroker, RetryPolicy, State, WorkerSettings
from everwork.exceptions import EngineUnavailable, InvalidInput, Retry
from tests.app.waiting import RESTART_S, working
from tests.servers import Server, postgres_server, redis_server
from tests.stores import ENGINES


@pytest.fixture(scope="module", params=[name for name in ENGINES if name != "sqlite"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server of the tests' own, which keeps what it has accepted."""
    aof = ("--appendonly", "yes", "--appendfsync", "always")
    started = redis_server(*aof) if request.param == "redis" else postgres_server()
    yield started
    started.remove()


@pytest.fixture
async def app(server: Server) -> AsyncIterator[Everwork]:
    """An application on that server, open."""
    server.restart()
    made = Everwork(server.url)
    await made.open()
    yield made
    await made.close()


@pytest.mark.parametrize("way", ["enqueue", "push", "retry"])
async def test_an_attempt_that_ends_by_an_outage_of_the_engine_or_broker_is_handed_back_and_not_counted(
    app: Everwork, server: Server, way: str
) -> None:
    broker = (RedisBroker if server.url.startswith("redis") else PostgresBroker)(server.url)

    async def publish() -> None:
        if way == "push":
            await broker.push(Event(source="later"))
        else:
            await app.enqueue("later")

    @app.job("later", retry=None)
    async def later() -> None: ...

    begun, is_away, has_failed = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @app.job(f"outage-{way}", retry=None)
    async def chain() -> str:
        if has_failed.is_set():
            return "done"
        begun.set()
        await is_away.wait()
        try:
            await publish()
        except EngineUnavailable:
            has_failed.set()
            if way == "retry":
                raise Retry  # noqa: B904 - as users write it
            raise
        return "the server was there"

    async with working(app), asyncio.timeout(RESTART_S):
        key = await app.enqueue(f"outage-{way}")
        await begun.wait()
        await asyncio.to_thread(server.kill)
        is_away.set()
        await has_failed.wait()
        await asyncio.to_thread(server.restart)
        assert await app.result(key) == "done"
    await broker.close()
    job, history = await app.get(key), await app.history(key)
    assert (job.state, job.attempts) == (State.COMPLETED, 1)
    assert [(entry.attempt, entry.kind) for entry in history] == [(1, "release"), (2, "complete")]


def test_how_often_a_job_is_retried_is_not_for_retry_to_say_and_never_unbounded() -> None:
    with pytest.raises(InvalidInput, match="max_attempts: Retry accepts only a message and a delay; set the number"):
        Retry(max_attempts=None)
    with pytest.raises(InvalidInput, match="max_attempts: must be a whole number from 1 to 100, not None"):
        RetryPolicy(max_attempts=None)  # type: ignore[arg-type]


def test_a_policy_of_a_hundred_attempts_outlasts_a_day_of_outage() -> None:
    retry = RetryPolicy(max_attempts=100, base=5, cap=900)
    assert WorkerSettings(title="patient", retry=retry).retry == retry
    assert sum(retry.backoff_ms(attempts) for attempts in range(1, 100)) > 22 * 3_600_000
