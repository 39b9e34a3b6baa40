"""Group commit: items added while a batch is being flushed form the next batch."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from everwork.exceptions import EngineError

Item = TypeVar("Item")
Result = TypeVar("Result")


class Batcher(Generic[Item, Result]):
    """Passes items to `flush` in batches; each caller gets the results of its own items.

    `on_flush` is called with the number of items of each batch and the seconds it took.
    """

    def __init__(
        self,
        flush: Callable[[Sequence[Item]], Awaitable[list[Result]]],
        items_max: int,
        on_flush: Callable[[int, float], None] = lambda _items, _seconds: None,
    ) -> None:
        self._do_flush = flush
        self._items_max = items_max
        self._on_flush = on_flush
        self._is_busy = False
        self._waiting: list[tuple[Sequence[Item], asyncio.Future[list[Result]]]] = []
        self._task: asyncio.Task[None] | None = None

    async def add(self, items: Sequence[Item]) -> list[Result]:
        """Return the results of these items once their batch is flushed."""
        if self._is_busy:
            future: asyncio.Future[list[Result]] = asyncio.get_running_loop().create_future()
            self._waiting.append((items, future))
            return await future
        self._is_busy = True
        try:
            return await self._flush(items)
        finally:
            self._flush_next()

    async def _flush(self, items: Sequence[Item]) -> list[Result]:
        started = time.perf_counter()
        results = await self._do_flush(items)
        self._on_flush(len(items), time.perf_counter() - started)
        return results

    def _flush_next(self) -> None:
        if self._waiting:
            self._task = asyncio.get_running_loop().create_task(self._flush_waiting())
        else:
            self._is_busy = False

    async def _flush_waiting(self) -> None:
        while self._waiting:
            batch = self._take()
            try:
                results = await self._flush([item for items, _ in batch for item in items])
            except EngineError as error:
                _fail(batch, error)
                continue
            except Exception as error:  # noqa: BLE001 - raised in the caller it belongs to
                if len(batch) == 1:
                    _fail(batch, error)
                else:
                    await self._flush_each(batch)
                continue
            offset = 0
            for items, future in batch:
                if not future.done():
                    future.set_result(results[offset : offset + len(items)])
                offset += len(items)
        self._is_busy = False

    async def _flush_each(self, batch: Sequence[tuple[Sequence[Item], asyncio.Future[list[Result]]]]) -> None:
        """Flush every caller's items separately: one of them made the whole batch fail."""
        for items, future in batch:
            try:
                results = await self._flush(items)
            except Exception as error:  # noqa: BLE001 - raised in its caller
                _fail([(items, future)], error)
            else:
                if not future.done():
                    future.set_result(results)

    def _take(self) -> list[tuple[Sequence[Item], asyncio.Future[list[Result]]]]:
        """Take the callers of the next batch: at least one, and further ones up to `items_max` items."""
        total = 0
        for at, (items, _) in enumerate(self._waiting):
            total += len(items)
            if at and total > self._items_max:
                batch, self._waiting = self._waiting[:at], self._waiting[at:]
                return batch
        batch, self._waiting = self._waiting, []
        return batch


def _fail(batch: Sequence[tuple[object, asyncio.Future[list[Result]]]], error: Exception) -> None:
    for _, future in batch:
        if not future.done():
            future.set_exception(error)
