"""Concurrency: as many as allowed, never one more."""

from __future__ import annotations

import asyncio
import threading

import pytest

from everwork import Everwork, JobContext, State
from tests.app.waiting import DEADLINE_S, finished, until, working


@pytest.mark.parametrize("limit", [1, 3])
async def test_async_handlers_run_as_many_at_once_as_allowed_and_never_more(app: Everwork, limit: int) -> None:
    running, most, together = 0, 0, asyncio.Event()

    @app.job("work", concurrency=limit)
    async def work() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == limit:
            together.set()
        await together.wait()
        await asyncio.sleep(0)
        running -= 1

    keys = await app.enqueue_many([("work", {})] * 4 * limit)
    async with working(app):
        states = [(await finished(app, key)).state for key in keys]
    assert states == [State.COMPLETED] * 4 * limit
    assert most == limit


@pytest.mark.parametrize("limit", [1, 3])
async def test_threads_run_as_many_at_once_as_allowed_and_never_more(app: Everwork, limit: int) -> None:
    running: set[int] = set()
    most, guard, together = 0, threading.Lock(), threading.Event()

    @app.job("work", concurrency=limit)
    def work() -> None:
        nonlocal most
        with guard:
            running.add(threading.get_ident())
            most = max(most, len(running))
            if len(running) == limit:
                together.set()
        together.wait(DEADLINE_S)
        with guard:
            running.discard(threading.get_ident())

    keys = await app.enqueue_many([("work", {})] * 4 * limit)
    async with working(app):
        states = [(await finished(app, key)).state for key in keys]
    assert states == [State.COMPLETED] * 4 * limit
    assert most == limit


async def test_functions_of_one_pool_share_its_slots(app: Everwork) -> None:
    running, most, ended = 0, 0, []

    async def work(ctx: JobContext) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return ctx.type

    for type in ("a", "b", "c"):
        function = app.job(type, concurrency=2)(work)
        function.pool = "shared"
        function.on_end = lambda attempt, _, judged: ended.append((attempt.job.key, judged.ok))
    keys = await app.enqueue_many([(type, {}) for type in "abc" * 4])
    async with working(app):
        results = [(await finished(app, key)).result for key in keys]
    assert results == list("abc" * 4)
    assert most == 2
    assert sorted(ended) == [(key, True) for key in keys]


async def test_a_busy_type_does_not_hold_up_another(app: Everwork) -> None:
    release = asyncio.Event()

    @app.job("busy")
    async def busy() -> None:
        await release.wait()

    @app.job("free")
    async def free() -> None: ...

    async with working(app):
        held = await app.enqueue_many([("busy", {})] * 3)
        job = await finished(app, await app.enqueue("free"))
        states = [(await app.get(key)).state for key in held]
        release.set()
    assert job.state is State.COMPLETED
    assert State.COMPLETED not in states


async def test_a_worker_takes_no_more_slow_jobs_than_it_runs(app: Everwork) -> None:
    release, begun = asyncio.Event(), 0

    @app.job("slow", concurrency=2)
    async def slow() -> None:
        nonlocal begun
        begun += 1
        await release.wait()

    @app.job("other")
    async def other() -> None: ...

    keys = await app.enqueue_many([("slow", {})] * 5)
    async with working(app):
        await until(lambda: begun == 2)
        await finished(app, await app.enqueue("other"))
        held = [(await app.get(key)).state for key in keys].count(State.PROCESSING)
        release.set()
    assert held == 2


async def test_a_thousand_jobs_are_each_run_once(app: Everwork) -> None:
    ran: list[int] = []

    @app.job("count", concurrency=50)
    async def count(number: int) -> None:
        await asyncio.sleep(0)
        ran.append(number)

    await app.enqueue_many([("count", {"number": number}) for number in range(1_000)])
    async with working(app):
        await until(lambda: len(ran) >= 1_000)
    assert sorted(ran) == list(range(1_000))
