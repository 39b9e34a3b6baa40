"""watch: `wait` for a worker that has just activated, with a callback instead of a task."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from everwork.core.leasing import Demand
from everwork.exceptions import EngineUnavailable
from tests.factories import LEASE_MS, TYPE, WORKER, a_new_job, a_pending_job
from tests.stores import open_store

if TYPE_CHECKING:
    from pathlib import Path

    from everwork.aio.wakeup import Watch
    from everwork.engines.contract import Engine
    from tests.stores import VirtualClock

pytestmark = pytest.mark.every_way

LONG_MS = 60_000
"""No test waits this long: `DEADLINE_S` ends it earlier."""
DEADLINE_S = 30.0


class Waiter:
    """A worker that found nothing, and is called when that may have changed."""

    def __init__(self) -> None:
        self.calls: list[bool] = []
        self._called = asyncio.Event()

    def wake(self, is_woken: bool) -> None:
        """Note the call."""
        self.calls.append(is_woken)
        self._called.set()

    async def called(self) -> bool:
        """The argument of the first call."""
        await asyncio.wait_for(self._called.wait(), DEADLINE_S)
        return self.calls[0]


@pytest.fixture(autouse=True)
def _slow_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a slow machine might see a poll before the wake-up."""
    monkeypatch.setattr("everwork.engines.redis.wake.POLL_SECONDS", LONG_MS / 1_000)


async def watching(engine: Engine, *types: str, timeout_ms: int = LONG_MS) -> tuple[Waiter, Watch]:
    """A waiting worker, of an engine that receives wake-ups of other processes."""
    types = types or (TYPE,)
    while await engine.wait(types, 20):
        pass
    waiter, mark = Waiter(), engine.mark()
    assert not (await engine.activate([Demand(type, WORKER, 1, LEASE_MS) for type in types])).jobs
    while engine.mark() != mark:
        mark = engine.mark()  # It has received an earlier wake-up.
    return waiter, engine.watch(types, timeout_ms, mark, waiter.wake)


async def test_a_new_job_calls(engine: Engine) -> None:
    waiter, _ = await watching(engine)
    await a_pending_job(engine)
    assert await waiter.called()


async def test_a_job_of_any_of_its_types_calls(engine: Engine) -> None:
    waiter, _ = await watching(engine, "a", "b", TYPE)
    await a_pending_job(engine, type="b")
    assert await waiter.called()


async def test_a_job_of_another_engine_on_the_same_store_calls(
    engine: Engine, engine_name: str, tmp_path: Path, clock: VirtualClock
) -> None:
    other = await open_store(engine_name, tmp_path, clock)
    try:
        waiter, _ = await watching(engine)
        await a_pending_job(other)
        await waiter.called()
    finally:
        await other.close()


async def test_many_are_called_and_each_once(engine: Engine) -> None:
    waiters = [(await watching(engine))[0] for _ in range(3)]
    await engine.create([a_new_job(), a_new_job()])
    await a_pending_job(engine)
    for waiter in waiters:
        await waiter.called()
    later, _ = await watching(engine, "another", timeout_ms=20)
    await later.called()
    assert [len(waiter.calls) for waiter in waiters] == [1, 1, 1]


async def test_a_wake_up_after_the_mark_calls_but_not_within_the_call(engine: Engine) -> None:
    await watching(engine)
    mark, waiter = engine.mark(), Waiter()
    await a_pending_job(engine)
    while engine.mark() == mark:
        await engine.wait([TYPE], 1, mark)
    engine.watch([TYPE], LONG_MS, mark, waiter.wake)
    assert not waiter.calls
    assert await waiter.called()


async def test_without_any_work_the_timeout_calls(engine: Engine) -> None:
    waiter, _ = await watching(engine, timeout_ms=20)
    await waiter.called()


async def test_the_first_watch_of_an_engine_misses_nothing(engine: Engine) -> None:
    mark, waiter = engine.mark(), Waiter()
    await engine.activate([Demand(TYPE, WORKER, 1, LEASE_MS)])
    engine.watch([TYPE], LONG_MS, mark, waiter.wake)
    await a_pending_job(engine)
    await waiter.called()


async def test_a_cancelled_watch_calls_nobody(engine: Engine) -> None:
    mark, waiter = engine.mark(), Waiter()
    await engine.activate([Demand(TYPE, WORKER, 1, LEASE_MS)])
    first = engine.watch([TYPE], LONG_MS, mark, waiter.wake)  # It may have to prepare the engine.
    await asyncio.sleep(0)
    first.cancel()
    second, watch = await watching(engine)
    watch.cancel()
    await a_pending_job(engine)
    third = engine.watch([TYPE], LONG_MS, engine.mark() - 1, second.wake)
    third.cancel()
    last = Waiter()
    engine.watch([TYPE], LONG_MS, engine.mark() - 1, last.wake)
    await last.called()
    assert waiter.calls == second.calls == []


async def test_closing_the_engine_calls(engine: Engine, engine_name: str, tmp_path: Path, clock: VirtualClock) -> None:
    other = await open_store(engine_name, tmp_path, clock)
    waiter, _ = await watching(other)
    mark = other.mark()
    await other.close()
    await waiter.called()
    with pytest.raises(EngineUnavailable):
        other.watch([TYPE], LONG_MS, mark, waiter.wake)
