"""Changes that must be known to the end: whoever goes away, what has begun is finished and written down."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from everwork.aio.loops import to_the_end
from everwork.aio.retrying import through_outage
from everwork.core.queries import BulkChange
from everwork.exceptions import EngineError

T = TypeVar("T")
Told = Callable[[BulkChange], None]
Write = Callable[[Mapping[str, Any]], Awaitable[None]]


async def walk(steps: AsyncIterator[BulkChange], told: Told | None, write: Write | None) -> BulkChange:
    """Take all steps, and write down after each what has been done so far, always in the same place.

    When the caller goes away, the step that has begun is finished, and no other begins.
    """
    stop = asyncio.Event()
    return await to_the_end(_walk(steps, told, write, stop), stop.set)


async def _walk(
    steps: AsyncIterator[BulkChange], told: Told | None, write: Write | None, stop: asyncio.Event
) -> BulkChange:
    change = written = BulkChange(0, 0)
    try:
        async for change in steps:
            if told is not None:
                told(change)
            if stop.is_set():
                break
            if write is not None and change.changed > written.changed:
                await write({**change._asdict(), "unfinished": True})
                written = change
    except EngineError:
        await _break_off(change, write)
        raise
    if stop.is_set():
        await _break_off(change, write)
    elif write is not None:
        await write(change._asdict())
    return change


async def _break_off(change: BulkChange, write: Write | None) -> None:
    """What was done must be known, above all when the rest was not."""
    if write is not None and change.matched:
        with suppress(EngineError):
            await through_outage(lambda: write({**change._asdict(), "broken_off": True}), None)
