"""Group commit: what concurrent callers bring while a batch is under way becomes the next batch."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from everwork.exceptions import EngineError

Item = TypeVar("Item")
Result = TypeVar("Result")


class Batcher(Generic[Item, Result]):
    """Hands items to `flush` in batches; each caller gets the results of its own items.

    `told` hears how many items each batch had and how many seconds it took.
    """

    def __init__(
        self,
        flush: Callable[[Sequence[Item]], Awaitable[list[Result]]],
        items_max: int,
        told: Callable[[int, float], None] = lambda _items, _seconds: None,
    ) -> None:
        self._do_flush = flush
        self._items_max = items_max
        self._told = told
        self._is_busy = False
        self._waiting: list[tuple[Sequence[Item], asyncio.Future[list[Result]]]] = []
        self._task: asyncio.Task[None] | None = None

    async def add(self, items: Sequence[Item]) -> list[Result]:
        """The results of these items, once their batch is done."""
        if self._is_busy:
            future: asyncio.Future[list[Result]] = asyncio.get_running_loop().create_future()
            self._waiting.append((items, future))
            return await future
        self._is_busy = True
        try:
            return await self._flush(items)
        finally:
            self._go_on()

    async def _flush(self, items: Sequence[Item]) -> list[Result]:
        began = time.perf_counter()
        results = await self._do_flush(items)
        self._told(len(items), time.perf_counter() - began)
        return results

    def _go_on(self) -> None:
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
            except Exception as error:  # noqa: BLE001 - it goes to the caller whose fault it is
                if len(batch) == 1:
                    _fail(batch, error)
                else:
                    await self._flush_each(batch)
                continue
            at = 0
            for items, future in batch:
                if not future.done():
                    future.set_result(results[at : at + len(items)])
                at += len(items)
        self._is_busy = False

    async def _flush_each(self, batch: Sequence[tuple[Sequence[Item], asyncio.Future[list[Result]]]]) -> None:
        """One of them spoils the batch: each goes by itself."""
        for items, future in batch:
            try:
                results = await self._flush(items)
            except Exception as error:  # noqa: BLE001 - it goes to its caller
                _fail([(items, future)], error)
            else:
                if not future.done():
                    future.set_result(results)

    def _take(self) -> list[tuple[Sequence[Item], asyncio.Future[list[Result]]]]:
        """The callers that go into the next batch: at least one, at most as many items as are allowed."""
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
