"""Runners that are closed: what they leave behind."""

from __future__ import annotations

import asyncio
import gc
from contextlib import suppress

from everwork.aio.runners import Runners
from tests.app.waiting import until


async def test_a_call_that_swallows_its_cancellation_is_kept_until_it_ends() -> None:
    """The event loop refers to its tasks weakly: the garbage collector would end such a call anywhere in its middle."""
    swallowed: list[str] = []

    async def stubborn(item: str, _: object) -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        swallowed.append(item)
        await asyncio.Event().wait()

    runners = Runners(stubborn, 1, "test")
    runners.inbox.append("job")
    runners.wake()
    await asyncio.sleep(0)
    [name] = [task.get_name() for task in runners.tasks]
    runners.close()
    await until(lambda: swallowed == ["job"])
    del runners
    gc.collect()
    [task] = [task for task in asyncio.all_tasks() if task.get_name() == name]
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
