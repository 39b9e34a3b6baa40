"""wait and wait_finished: woken by what happens, and otherwise back in time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from everwork.core.outcome import Complete, Failed, Release
from everwork.engines.values import Fire
from tests.factories import TYPE, a_dead_letter, a_new_job, a_pending_job, a_processing_job, settled
from tests.stores import open_store

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from pathlib import Path

    from everwork.core.job import StoredJob
    from everwork.engines.contract import Engine
    from tests.stores import VirtualClock

pytestmark = pytest.mark.every_way

LONG_MS = 60_000
"""Nobody waits this long: `DEADLINE_S` ends the test before."""
DEADLINE_S = 30.0


async def timed_out(wait: Callable[[], Awaitable[bool]]) -> None:
    """A wait may return too early, but not for ever."""
    while await wait():
        pass


async def woken_by(
    wait: Callable[[int], Coroutine[Any, Any, bool]], act: Callable[[], Coroutine[Any, Any, object]]
) -> bool:
    """What a waiter answers who waited already when the act was done."""
    await timed_out(lambda: wait(20))
    waiter = asyncio.create_task(wait(LONG_MS))
    for _ in range(3):
        await asyncio.sleep(0)  # Lets the waiter begin; nothing is timed by it.
    await act()
    return await asyncio.wait_for(waiter, DEADLINE_S)


async def test_a_waiter_is_woken_by_a_new_job(engine: Engine) -> None:
    assert await woken_by(lambda ms: engine.wait([TYPE], ms), lambda: a_pending_job(engine))


async def test_a_waiter_is_woken_by_any_of_its_types(engine: Engine) -> None:
    assert await woken_by(lambda ms: engine.wait(["a", "b", TYPE], ms), lambda: a_pending_job(engine, type="b"))


async def test_many_waiters_are_woken(engine: Engine) -> None:
    async def all_of_them(timeout_ms: int) -> bool:
        return all(await asyncio.gather(*(engine.wait([TYPE], timeout_ms) for _ in range(5))))

    assert await woken_by(all_of_them, lambda: engine.create([a_new_job() for _ in range(5)]))


@pytest.mark.parametrize(
    "outcome", [Release(0, 1), Failed(0, 1, "boom", backoff_ms=0), Complete(0, 1, None, (a_new_job(),))]
)
async def test_a_waiter_is_woken_by_an_outcome_that_makes_work(engine: Engine, outcome: Release) -> None:
    job = await a_processing_job(engine)
    assert await woken_by(lambda ms: engine.wait([TYPE], ms), lambda: settled(engine, outcome._replace(key=job.key)))


async def test_a_waiter_is_woken_by_a_requeue(engine: Engine) -> None:
    job = await a_dead_letter(engine)
    assert await woken_by(lambda ms: engine.wait([TYPE], ms), lambda: engine.requeue([job.key]))


async def test_a_waiter_is_woken_when_its_type_is_resumed(engine: Engine) -> None:
    await engine.pause(TYPE, True)
    await a_pending_job(engine)
    assert await woken_by(lambda ms: engine.wait([TYPE], ms), lambda: engine.pause(TYPE, False))


async def a_fired_job(engine: Engine) -> object:
    """A job that a trigger creates."""
    return await engine.fire([Fire("trigger", 1, a_new_job())])


@pytest.mark.parametrize("act", [a_pending_job, a_fired_job])
async def test_a_waiter_is_woken_by_another_engine_on_the_same_store(
    act: Callable[[Engine], Coroutine[Any, Any, object]],
    engine: Engine,
    engine_name: str,
    tmp_path: Path,
    clock: VirtualClock,
) -> None:
    other = await open_store(engine_name, tmp_path, clock)
    try:
        assert await woken_by(lambda ms: engine.wait([TYPE], ms), lambda: act(other))
    finally:
        await other.close()


async def test_a_wake_up_after_the_mark_is_not_missed(engine: Engine) -> None:
    mark = engine.mark()
    await a_pending_job(engine)
    assert await asyncio.wait_for(engine.wait([TYPE], LONG_MS, mark), DEADLINE_S)


async def test_without_any_work_a_waiter_is_back_after_its_timeout(engine: Engine) -> None:
    await asyncio.wait_for(timed_out(lambda: engine.wait([TYPE], 20)), DEADLINE_S)


async def test_a_waiter_that_gives_up_disturbs_nobody(engine: Engine) -> None:
    waiter = asyncio.create_task(engine.wait([TYPE], LONG_MS))
    await asyncio.sleep(0)
    waiter.cancel()
    assert await asyncio.gather(waiter, return_exceptions=True)
    assert await woken_by(lambda ms: engine.wait([TYPE], ms), lambda: a_pending_job(engine))


async def test_closing_the_engine_lets_its_waiters_go(
    engine: Engine, engine_name: str, tmp_path: Path, clock: VirtualClock
) -> None:
    other = await open_store(engine_name, tmp_path, clock)
    waiter = asyncio.create_task(other.wait([TYPE], LONG_MS))
    await asyncio.sleep(0)
    await other.close()
    [answer] = await asyncio.wait_for(asyncio.gather(waiter, return_exceptions=True), DEADLINE_S)
    assert answer is not None


# wait_finished ------------------------------------------------------------------------------------


async def completed(engine: Engine, job: StoredJob) -> None:
    await settled(engine, Complete(job.key, 1))


async def failed(engine: Engine, job: StoredJob) -> None:
    await settled(engine, Failed(job.key, 1, "boom", final=True))


async def cancelled(engine: Engine, job: StoredJob) -> None:
    await engine.cancel([job.key])


@pytest.mark.parametrize("finish", [completed, failed, cancelled])
async def test_a_waiter_for_results_is_woken_when_a_job_is_finished(
    engine: Engine, finish: Callable[[Engine, StoredJob], Coroutine[Any, Any, None]]
) -> None:
    job = await a_processing_job(engine)
    assert await woken_by(engine.wait_finished, lambda: finish(engine, job))


async def test_a_waiter_for_results_is_woken_by_another_engine_on_the_same_store(
    engine: Engine, engine_name: str, tmp_path: Path, clock: VirtualClock
) -> None:
    other = await open_store(engine_name, tmp_path, clock)
    try:
        job = await a_processing_job(other)
        assert await woken_by(engine.wait_finished, lambda: completed(other, job))
    finally:
        await other.close()


async def test_without_a_finished_job_a_waiter_for_results_is_back_after_its_timeout(engine: Engine) -> None:
    await asyncio.wait_for(timed_out(lambda: engine.wait_finished(20)), DEADLINE_S)
