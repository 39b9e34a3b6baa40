"""Waiting for what must happen, never for time to pass: every wait ends with its condition or fails at its deadline."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, TypeVar

from everwork import Everwork, Job, JobOptions
from everwork.exceptions import EngineUnavailable

T = TypeVar("T")

DEADLINE_S: Final = 45.0
"""Far more than anything here takes; reached only by a defect."""
SOON_S: Final = 30.0
"""The deadline of a single call that must not hang."""
RESTART_S: Final = 60.0
"""The deadline of what a server must be restarted for."""
_LOOK_EVERY_S: Final = 0.005


async def until(condition: Callable[[], Any], deadline_s: float = DEADLINE_S) -> None:
    """Return when the condition holds; it may be a coroutine function."""
    ends = time.monotonic() + deadline_s
    while True:
        holds = condition()
        if await holds if isinstance(holds, Awaitable) else holds:
            return
        assert time.monotonic() < ends, "what the test waited for did not happen"
        await asyncio.sleep(_LOOK_EVERY_S)


async def stubbornly(act: Callable[[], Awaitable[T]]) -> T:
    """Do it again while the engine is away, as workers do."""
    answers: list[T] = []

    async def is_done() -> bool:
        with suppress(EngineUnavailable):
            answers.append(await act())
        return bool(answers)

    await until(is_done, RESTART_S)
    return answers[0]


def until_sync(condition: Callable[[], Any]) -> None:
    """Return when the condition holds, in a test without an event loop."""
    ends, never = time.monotonic() + DEADLINE_S, threading.Event()
    while not condition():
        assert time.monotonic() < ends, "what the test waited for did not happen"
        never.wait(_LOOK_EVERY_S)


def stop_thread(app: Everwork, workers: threading.Thread) -> None:
    """Stop workers that run in a thread, and wait for its end."""
    until_sync(lambda: app._workers.runtime is not None or not workers.is_alive())
    app.stop()
    workers.join(2 * DEADLINE_S)
    assert not workers.is_alive(), "the workers did not stop"


async def trace_of(app: Everwork, key: int) -> list[str]:
    """The lines of the traceback that is kept with the last attempt of a job."""
    return ((await app.history(key))[-1].traceback or "").split("\n")


@asynccontextmanager
async def working(app: Everwork, *, shutdown_timeout: float = DEADLINE_S) -> AsyncIterator[asyncio.Task[None]]:
    """Workers that run in the test's own event loop; at the end everything they began has been settled."""
    task = asyncio.create_task(app.work(shutdown_timeout=shutdown_timeout))
    await until(lambda: task.done() or app._workers.runtime is not None)
    try:
        yield task
    except BaseException:
        app.stop()  # A failed test may have left a handler waiting: do not wait for it.
        raise
    finally:
        app.stop()
        await asyncio.wait_for(task, 2 * DEADLINE_S)


async def finished(app: Everwork, key: int) -> Job:
    """The job as it rests once nothing more will happen to it."""

    async def is_finished() -> bool:
        return (await app.get(key)).state.label in ("completed", "failed", "cancelled")

    await until(is_finished)
    return await app.get(key)


async def run_one(app: Everwork, type: str, *, using: JobOptions | None = None, **arguments: Any) -> Job:
    """Enqueue one job, let the workers finish it, and answer how it rests."""
    async with working(app):
        return await finished(app, await app.using(**(using or {})).enqueue(type, arguments))
