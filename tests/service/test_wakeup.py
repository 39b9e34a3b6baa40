"""Watches: who is called, how often, and never after the cancellation."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from everwork.aio import wakeup
from everwork.aio.wakeup import WaitingTask, Watches
from everwork.exceptions import EngineUnavailable


class Wait:
    """A wait that ends when the test lets it; a cancelled one ends late."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.may_end = asyncio.Event()

    async def __call__(self) -> bool:
        try:
            return await self.answer
        except asyncio.CancelledError:
            await self.may_end.wait()
            return True


async def turns(count: int = 5) -> None:
    """Let everything run that is ready."""
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize("is_woken", [True, False])
async def test_the_end_of_a_wait_calls_once(is_woken: bool) -> None:
    wait, calls = Wait(), list[bool]()
    watch = WaitingTask(wait(), calls.append)
    await turns()
    assert not calls
    wait.answer.set_result(is_woken)
    await turns()
    watch.cancel()
    assert calls == [is_woken]


async def test_a_cancelled_wait_that_ends_late_calls_nobody() -> None:
    wait, calls = Wait(), list[bool]()
    watch = WaitingTask(wait(), calls.append)
    await turns()
    watch.cancel()
    await turns()
    wait.may_end.set()
    await turns()
    assert not calls


async def test_a_wait_that_fails_calls_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses = list[float]()
    sleep = asyncio.sleep

    async def paused(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    monkeypatch.setattr(wakeup.asyncio, "sleep", paused)  # type: ignore[attr-defined]
    wait, called = Wait(), asyncio.Event()
    WaitingTask(wait(), lambda _: called.set())
    wait.answer.set_exception(EngineUnavailable("away"))
    await called.wait()
    assert len(pauses) == 1
    assert pauses[0] > 0


async def test_a_watch_is_called_once_and_a_cancelled_one_never() -> None:
    watches, calls = Watches(), list[Any]()
    watches.add(lambda _: calls.append("a"), 60_000, ["a"])
    watches.add(lambda _: calls.append("b"), 60_000, ["b"])
    watches.add(lambda _: calls.append("c"), 60_000, ["a"]).cancel()
    watches.wake(lambda types: "a" in types)
    watches.wake(lambda types: "a" in types)
    assert calls == ["a"]
    assert watches
    watches.wake()
    assert calls == ["a", "b"]
    assert not watches


async def test_one_that_is_called_may_cancel_another() -> None:
    watches, calls = Watches(), list[Any]()
    watches.add(lambda _: other.cancel(), 60_000)
    other = watches.add(lambda _: calls.append("other"), 60_000)
    watches.wake()
    assert not calls


async def test_a_timeout_calls_with_false() -> None:
    watches = Watches()
    assert await watches.wait(1) is False
    assert not watches
