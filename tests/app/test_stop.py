"""stop(), close() and cancellation of work(): what runs is finished or handed back, never left behind."""

from __future__ import annotations

import asyncio
import fcntl
import math
import os
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from everwork import Everwork, State
from everwork.core.leasing import Demand
from everwork.exceptions import BadConfiguration
from everwork.runtime import fetcher, runtime
from tests.app.waiting import DEADLINE_S, finished, stop_thread, until, working


class Gate:
    """A handler that waits until it is let go."""

    def __init__(self, app: Everwork, type: str = "work") -> None:
        self.begun, self.release, self.ended = asyncio.Event(), asyncio.Event(), False
        app.job(type)(self._handle)

    async def _handle(self) -> str:
        self.begun.set()
        await self.release.wait()
        self.ended = True
        return "done"


async def test_stop_finishes_what_runs_and_begins_nothing(app: Everwork) -> None:
    gate = Gate(app)
    async with working(app) as work:
        running = await app.enqueue("work")
        await gate.begun.wait()
        app.stop()
        await until(lambda: app._workers.runtime is None or app._workers.runtime._executor._stopping.is_set())
        later = await app.enqueue("work")
        gate.release.set()
        await asyncio.wait_for(work, DEADLINE_S)
    assert [(await app.get(key)).state for key in (running, later)] == [State.COMPLETED, State.PENDING]
    assert (await app.get(later)).attempt == 0


async def test_stop_releases_what_was_fetched_ahead_without_counting_it(
    app: Everwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetcher, "UNSTARTED_SECONDS", math.inf)  # Otherwise it is released in the end whatever happens.
    gate = Gate(app)
    gate.release.set()
    async with working(app) as work:
        await finished(app, await app.enqueue("work"))
        gate.release.clear()
        gate.begun.clear()
        runs, waits = await app.enqueue_many([("work", {})] * 2)
        await gate.begun.wait()
        await until(lambda: app._workers.runtime._executor._pools["work"].inbox)  # type: ignore[union-attr]
        app.stop()
        await until(lambda: app._workers.runtime is None or app._workers.runtime._executor._stopping.is_set())
        gate.release.set()
        await asyncio.wait_for(work, DEADLINE_S)
    job = await app.get(waits)
    assert (await app.get(runs)).state is State.COMPLETED
    assert (job.state, job.attempt, job.attempts) == (State.PENDING, 1, 0)
    assert [event.kind for event in await app.history(waits)] == ["release"]


async def test_the_second_stop_cancels_what_runs_and_releases_it_without_counting(app: Everwork) -> None:
    gate = Gate(app)
    async with working(app) as work:
        key = await app.enqueue("work")
        await gate.begun.wait()
        app.stop()
        app.stop()
        await asyncio.wait_for(work, DEADLINE_S)
    job = await app.get(key)
    assert (job.state, job.attempt, job.attempts, gate.ended) == (State.PENDING, 1, 0, False)


async def test_what_runs_longer_than_the_shutdown_timeout_is_cancelled_and_released(app: Everwork) -> None:
    gate = Gate(app)
    async with working(app, shutdown_timeout=0) as work:
        key = await app.enqueue("work")
        await gate.begun.wait()
        app.stop()
        await asyncio.wait_for(work, DEADLINE_S)
    job = await app.get(key)
    assert (job.state, job.attempts, gate.ended) == (State.PENDING, 0, False)


async def test_a_handler_that_finishes_in_answer_to_its_cancellation_has_finished(app: Everwork) -> None:
    begun = asyncio.Event()

    @app.job("careful")
    async def careful() -> str:
        begun.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return "saved in time"

    async with working(app, shutdown_timeout=0) as work:
        key = await careful.enqueue()
        await begun.wait()
        app.stop()
        await asyncio.wait_for(work, DEADLINE_S)
    assert await app.result(key) == "saved in time"


async def test_a_thread_that_does_not_stop_is_left_to_its_lease(app: Everwork, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "CANCEL_SECONDS", 0.2)
    begun, release = threading.Event(), threading.Event()

    @app.job("hang")
    def hang() -> str:
        begun.set()
        release.wait(2 * DEADLINE_S)
        return "too late"

    async with working(app, shutdown_timeout=0) as work:
        key = await hang.enqueue()
        await until(begun.is_set)
        app.stop()
        await asyncio.wait_for(work, DEADLINE_S)
    release.set()
    job = await app.get(key)
    assert (job.state, job.attempts, job.result) == (State.PROCESSING, 1, None)


async def test_stopped_workers_can_be_started_again(app: Everwork) -> None:
    gate = Gate(app)
    gate.release.set()
    async with working(app):
        await finished(app, await app.enqueue("work"))
    async with working(app):
        job = await finished(app, await app.enqueue("work"))
    assert job.state is State.COMPLETED


async def test_a_stop_before_the_first_step_of_work_is_not_forgotten(app: Everwork) -> None:
    gate = Gate(app)
    await app.enqueue("work")
    work = asyncio.create_task(app.work())
    app.stop()
    await asyncio.wait_for(work, DEADLINE_S)
    assert not gate.begun.is_set()
    async with working(app):
        await asyncio.wait_for(gate.begun.wait(), DEADLINE_S)
        gate.release.set()


async def test_stop_without_workers_does_nothing(app: Everwork) -> None:
    app.stop()
    assert await app.enqueue("work") > 0


async def test_close_stops_the_workers_and_waits_for_what_runs(app: Everwork) -> None:
    gate = Gate(app)
    async with working(app) as work:
        key = await app.enqueue("work")
        await gate.begun.wait()
        closing = asyncio.create_task(app.close())
        await until(lambda: app._workers.runtime is None or app._workers.runtime._executor._stopping.is_set())
        gate.release.set()
        await asyncio.wait_for(closing, DEADLINE_S)
        assert work.done()
    assert (await app.get(key)).state is State.COMPLETED


async def test_a_closed_application_opens_again_when_it_is_used(app: Everwork) -> None:
    key = await app.enqueue("work")
    await app.close()
    assert (await app.get(key)).key == key


async def test_close_twice_is_allowed(app: Everwork) -> None:
    await app.open()
    await app.close()
    await app.close()


async def test_the_application_is_open_inside_async_with(app: Everwork) -> None:
    async with app as same:
        assert same is app
        assert (await app._host.call(lambda service: service._engine.health())).engine
    with pytest.raises(BadConfiguration, match="the application is not open"):
        _ = app.service


async def test_a_stop_that_comes_while_the_engine_opens_is_not_forgotten(tmp_path: Path) -> None:
    app = Everwork(f"sqlite:///{tmp_path}/jobs.db")
    Gate(app)
    lock = os.open(tmp_path / "jobs.db.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)  # Opening waits for this.
    work = asyncio.create_task(app.work())
    await until(lambda: app._host._portal is not None)
    app.stop()
    os.close(lock)
    try:
        await asyncio.wait_for(asyncio.shield(work), DEADLINE_S)
    finally:
        app.stop()
        await asyncio.wait_for(work, DEADLINE_S)
        await app.close()


async def test_workers_whose_task_is_cancelled_take_no_more_jobs(app: Everwork) -> None:
    gate = Gate(app)
    gate.release.set()
    work = asyncio.create_task(app.work())
    await finished(app, await app.enqueue("work"))
    work.cancel()
    await asyncio.wait({work}, timeout=DEADLINE_S)
    key = await app.enqueue("work")
    demand = Demand("work", "somebody else", 1)
    await app._host.call(lambda service: service._engine.activate([demand]))
    assert (await app.get(key)).worker == "somebody else"


async def test_a_job_whose_workers_task_is_cancelled_is_handed_back(app: Everwork) -> None:
    gate = Gate(app)
    work = asyncio.create_task(app.work())
    key = await app.enqueue("work")
    await gate.begun.wait()
    work.cancel()
    await asyncio.wait({work}, timeout=DEADLINE_S)

    async def is_back() -> bool:
        return (await app.get(key)).state is State.PENDING

    await until(is_back)
    assert (await app.get(key)).attempts == 0


def test_run_works_in_a_thread_and_stops_by_stop(url: str) -> None:
    app = Everwork(url)

    @app.job("work")
    async def work() -> str:
        return "done"

    workers = threading.Thread(target=app.run)
    workers.start()
    with Everwork(url).sync as other:
        assert other.result(other.enqueue("work"), timeout=DEADLINE_S) == "done"
    stop_thread(app, workers)
