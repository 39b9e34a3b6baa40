"""Leases of running jobs: kept while the handler runs, and a handler that lost its lease, or its job, is stopped."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from everwork import Everwork, JobContext, RetryPolicy, State
from everwork.app import app as application
from everwork.engines.contract import Engine
from everwork.engines.open import open_engine
from tests.app.waiting import DEADLINE_S, finished, stop_thread, until, until_sync, working
from tests.stores import SECOND_MS, VirtualClock

pytestmark = pytest.mark.every_engine


@pytest.fixture
async def late(url: str, clock: VirtualClock) -> AsyncIterator[Engine]:
    """Another engine on the same store, for whom 31 seconds more have passed: every lease has run out."""
    engine = open_engine(url, clock=lambda: clock() + 31 * SECOND_MS)
    await engine.open()
    yield engine
    await engine.close()


def logged(caplog: pytest.LogCaptureFixture, key: int) -> list[tuple[str, str]]:
    """Level and event of each line about a job."""
    lines = [record for record in caplog.records if f"key={key} " in record.message]
    return [(record.levelname, record.message.partition(": ")[0]) for record in lines]


async def test_cancel_reaches_a_running_async_handler(app: Everwork, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "everwork")
    begun, was_cancelled = asyncio.Event(), asyncio.Event()

    @app.job("wait")
    async def wait() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            was_cancelled.set()

    async with working(app):
        key = await wait.enqueue()
        await begun.wait()
        await app.cancel(key, "not needed")
        await asyncio.wait_for(was_cancelled.wait(), DEADLINE_S)
    job = await app.get(key)
    assert (job.state, job.last_error, job.result) == (State.CANCELLED, "not needed", None)
    assert logged(caplog, key) == [("INFO", "job cancelled, stopping its handler")]


async def test_cancel_reaches_a_running_thread_by_its_context(app: Everwork) -> None:
    begun, stopped = threading.Event(), threading.Event()

    @app.job("wait")
    def wait(ctx: JobContext) -> str:
        begun.set()
        until_sync(lambda: ctx.cancelled)
        stopped.set()
        return "too late"

    async with working(app):
        key = await wait.enqueue()
        await until(begun.is_set)
        await app.cancel(key)
        await until(stopped.is_set)
    job = await app.get(key)
    assert (job.state, job.result) == (State.CANCELLED, None)


async def test_a_job_cancelled_before_its_handler_began_is_never_begun(app: Everwork) -> None:
    ran: list[str] = []
    release = asyncio.Event()

    @app.job("work")
    async def work(name: str) -> None:
        ran.append(name)
        if name == "blocks":
            await release.wait()

    async with working(app):
        await finished(app, await work.enqueue(name="teaches the worker that jobs are short"))
        blocks, waits = await app.enqueue_many([("work", {"name": "blocks"}), ("work", {"name": "waits"})])
        await until(lambda: waiting_here(app, "work"))
        await app.cancel(waits)
        runtime = app._workers.runtime
        assert runtime is not None
        await until(lambda: not waiting_here(app, "work") or runtime._executor._pools["work"].inbox[0].stop)
        release.set()
        await finished(app, blocks)
        await finished(app, await work.enqueue(name="last"))
    assert ran == ["teaches the worker that jobs are short", "blocks", "last"]


def waiting_here(app: Everwork, type: str) -> int:
    """How many leased jobs wait for their handler in this process."""
    assert app._workers.runtime is not None
    return len(app._workers.runtime._executor._pools[type].inbox)


async def test_a_lost_lease_stops_the_handler(app: Everwork, late: Engine, caplog: pytest.LogCaptureFixture) -> None:
    begun, was_cancelled = asyncio.Event(), asyncio.Event()

    @app.job("wait")
    async def wait() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            was_cancelled.set()

    async with working(app):
        key = await wait.enqueue()
        await begun.wait()
        assert (await late.sweep("late")).lapsed == 1
        await asyncio.wait_for(was_cancelled.wait(), DEADLINE_S)
    assert [event.kind for event in await app.history(key)] == ["lapse"]
    event = "lease expired, stopping the handler; the job is retried if it has attempts left"
    assert logged(caplog, key) == [("WARNING", event)]


async def test_the_result_of_a_lost_lease_is_refused(
    app: Everwork, late: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    begun, release = asyncio.Event(), asyncio.Event()

    @app.job("wait")
    async def wait() -> str:
        begun.set()
        await release.wait()
        return "too late"

    async with working(app):
        key = await wait.enqueue()
        await begun.wait()
        await late.sweep("late")
        release.set()
    job = await app.get(key)
    assert (job.state, job.attempts, job.result) == (State.PENDING, 1, None)
    assert logged(caplog, key) in (
        [("WARNING", "outcome discarded, the lease had expired")],
        [("WARNING", "lease expired, stopping the handler; the job is retried if it has attempts left")],
    )
    assert [event.kind for event in await app.history(key)] == ["lapse"]


async def test_a_lost_attempt_is_stopped_although_this_worker_has_the_next_one(
    app: Everwork, clock: VirtualClock
) -> None:
    begun: list[int] = []
    stopped: list[int] = []

    @app.job("wait", concurrency=2, retry=RetryPolicy(base=0.0))
    async def wait(ctx: JobContext) -> None:
        begun.append(ctx.attempt)
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(ctx.attempt)

    async with working(app):
        key = await wait.enqueue()
        await until(lambda: begun == [1])
        clock.advance(seconds=31)  # The machine slept: this application's own sweep takes the lease away.
        await until(lambda: begun == [1, 2])
        try:
            await until(lambda: stopped == [1])
        finally:
            await app.cancel(key)


def test_a_handler_that_blocks_its_event_loop_keeps_its_lease(
    url: str, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(application, "LEASE_MS_DEFAULT", 900)
    begun, release = threading.Event(), threading.Event()
    app = Everwork(url, clock=clock)

    @app.job("block")
    async def block() -> None:
        begun.set()
        release.wait(DEADLINE_S)

    workers = threading.Thread(target=app.run)
    workers.start()
    key = app.sync.enqueue("block")
    assert begun.wait(DEADLINE_S)
    granted = app.sync.get(key).lease_until_ms
    now_ms = clock.advance(ms=500)
    try:
        until_sync(lambda: app.sync.get(key).lease_until_ms == now_ms + 900)
    finally:
        release.set()
        stop_thread(app, workers)
    assert granted == now_ms + 400


def test_a_lease_is_not_kept_past_the_time_out_and_the_late_result_is_refused(
    url: str, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(application, "LEASE_MS_DEFAULT", 900)
    begun, release = threading.Event(), threading.Event()
    app = Everwork(url, clock=clock)

    @app.job("block", timeout=0.01, retry=RetryPolicy(max_attempts=1))
    async def block() -> str:
        begun.set()
        release.wait(DEADLINE_S)
        return "too late"

    workers = threading.Thread(target=app.run)
    workers.start()
    key = app.sync.enqueue("block")
    try:
        assert begun.wait(DEADLINE_S)
        clock.advance(seconds=1)
        until_sync(lambda: app.sync.get(key).state is State.FAILED)
    finally:
        release.set()
        stop_thread(app, workers)
    with Everwork(url, clock=clock).sync as other:
        assert [event.kind for event in other.history(key)] == ["lapse"]
        assert other.get(key).result is None
