"""Group commit: items added while a batch is being flushed form the next batch, from any thread."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Final, Generic, TypeVar

from everwork.exceptions import EngineError, EngineUnavailable

Item = TypeVar("Item")
Result = TypeVar("Result")
Promise = asyncio.Future[list[Result]] | Future[list[Result]]
"""The future that a caller waits for, in an event loop or in a thread without one."""
Entry = tuple[Sequence[Item], Promise[Result]]
Answer = tuple[Promise[Result], list[Result] | Exception]

CLOSED: Final = "the application is closed; open it again"


class Batcher(Generic[Item, Result]):
    """Passes items to `flush` in batches; each caller gets the results for its items.

    If no flush is running, a caller runs `flush` directly; callers that arrive in the meantime share the next batch.
    `on_flush` is called with the number of items in each batch and the seconds it took.
    """

    def __init__(
        self,
        flush: Callable[[Sequence[Item]], Awaitable[list[Result]]],
        items_max: int,
        on_flush: Callable[[int, float], None] | None = None,
    ) -> None:
        self._flush = flush if on_flush is None else partial(_measured, flush, on_flush)
        self._items_max = items_max
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_busy = False
        self._waiting: list[Entry[Item, Result]] = []
        self._intake: deque[Entry[Item, Result]] = deque()
        self._is_called = False
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

    def open(self) -> None:
        """Accept items from other threads; they are flushed in the running loop."""
        self._loop = asyncio.get_running_loop()

    def put(self, items: Sequence[Item], promise: Promise[Result]) -> None:
        """Add items from any thread. A burst wakes this loop only once, and each waiting loop only once."""
        loop = self._loop
        self._intake.append((items, promise))
        if loop is not None and not self._is_called:
            self._is_called = True
            try:
                loop.call_soon_threadsafe(self._take_in)
            except RuntimeError:
                pass  # It was closed in the meantime.
            except BaseException:  # A signal handler has raised it, and the loop may not have been called.
                self._is_called = False
                raise
        if self._loop is None:  # After the append: either `close` sees the item, or this sees the close.
            self._refuse()

    def close(self) -> None:
        """Refuse waiting and future items; a batch that is being flushed is finished."""
        self._loop = None
        waiting, self._waiting = self._waiting, []
        _fail(waiting, _closed())
        self._refuse()

    def _take_in(self) -> None:
        self._is_called = False  # Before taking items: a later `put` schedules another call.
        if self._loop is None:
            return
        while self._intake:
            self._waiting.append(self._intake.popleft())
        if not self._is_busy:
            self._is_busy = True
            self._flush_next()

    def _refuse(self) -> None:
        with suppress(IndexError):  # Another thread has taken the last one.
            while self._intake:
                _fail([self._intake.popleft()], _closed())

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
            except Exception as error:  # noqa: BLE001 - raised in the caller it belongs to
                await self._flush_each(batch, error)
            except asyncio.CancelledError:
                _fail(batch, _closed())
                raise
            else:
                _answer(_shares(batch, results))
        self._is_busy = False

    async def _flush_each(self, batch: list[Entry[Item, Result]], error: Exception) -> None:
        """Flush every caller's items separately, because one of them made the whole batch fail."""
        if len(batch) == 1:
            _fail(batch, error)
            return
        for items, promise in batch:
            try:
                results = await self._flush(items)
            except Exception as its_own:  # noqa: BLE001 - raised in its caller
                _answer([(promise, its_own)])
            except asyncio.CancelledError:
                _fail(batch, _closed())
                raise
            else:
                _answer([(promise, results)])

    def _take(self) -> list[Entry[Item, Result]]:
        """Take the callers of the next batch: at least one, and further ones up to `items_max` items."""
        total = 0
        for at, (items, _) in enumerate(self._waiting):
            total += len(items)
            if at and total > self._items_max:
                batch, self._waiting = self._waiting[:at], self._waiting[at:]
                return batch
        batch, self._waiting = self._waiting, []
        return batch


async def _measured(
    flush: Callable[[Sequence[Item]], Awaitable[list[Result]]],
    on_flush: Callable[[int, float], None],
    items: Sequence[Item],
) -> list[Result]:
    started = time.perf_counter()
    results = await flush(items)
    on_flush(len(items), time.perf_counter() - started)
    return results


def _shares(batch: Sequence[Entry[Item, Result]], results: list[Result]) -> Iterator[Answer[Result]]:
    """Each caller's part of the results."""
    offset = 0
    for items, promise in batch:
        yield promise, results[offset : offset + len(items)]
        offset += len(items)


def _fail(batch: Iterable[Entry[Item, Result]], error: Exception) -> None:
    _answer((promise, error) for _, promise in batch)


def _answer(answers: Iterable[Answer[Result]]) -> None:
    here = _running_loop()
    elsewhere: dict[asyncio.AbstractEventLoop, list[Answer[Result]]] = {}
    for promise, answer in answers:
        if isinstance(promise, Future) or (loop := promise.get_loop()) is here:
            _resolve(promise, answer)
        else:
            elsewhere.setdefault(loop, []).append((promise, answer))
    for loop, theirs in elsewhere.items():
        with suppress(RuntimeError):  # The callers' loop is closed.
            loop.call_soon_threadsafe(_resolve_all, theirs)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _resolve_all(answers: Iterable[Answer[Result]]) -> None:
    for promise, answer in answers:
        _resolve(promise, answer)


def _resolve(promise: Promise[Result], answer: list[Result] | Exception) -> None:
    if promise.done():
        return  # The caller was cancelled.
    if isinstance(answer, Exception):
        promise.set_exception(answer)
    else:
        promise.set_result(answer)


def _closed() -> EngineUnavailable:
    return EngineUnavailable(CLOSED)
