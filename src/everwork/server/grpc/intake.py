"""Limits on open calls, on requests being received, and on the bytes of requests and responses."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

import grpc.aio

from everwork.core.limits import (
    IN_FLIGHT_BYTES_DEFAULT,
    IN_FLIGHT_BYTES_EACH_DEFAULT,
    RECEIVE_SECONDS_MAX,
    RECEIVING_EACH_MAX,
    RECEIVING_MAX,
)
from everwork.exceptions import CallTimeout, TooManyRequests
from everwork.logs import Occasional
from everwork.service.access.budgets import has_its_share

if TYPE_CHECKING:
    from everwork.server.grpc.gateway import Context

RETRY_MS: Final = 1_000
CHECK_SECONDS: Final = 1.0
WAITED: Final = "this caller has too many unfinished requests; finish or cancel them, or retry later"
UNREAD: Final = "the clients of this API key do not read what was sent to them; retry later"
EOF: Final[object] = grpc.aio.EOF  # type: ignore[attr-defined]  # Missing in its stubs.
COUNTED_BYTES: Final = 512
"""Smaller requests and responses are not counted: the number of open calls limits them."""
PARSED_FACTOR: Final = 3
"""The memory that a request takes, as a multiple of its size: as received, as parsed, and its values."""
ITEM_FACTOR: Final = 120
"""The memory that a request with small items takes in addition."""
ITEMS_BYTES_MAX: Final = 8 * 1_048_576
"""The most that it takes in addition: the number of items in one call is limited."""


def request_bytes(size: int, *, has_items: bool = False) -> int:
    """How much memory a request of this size takes while it is in progress."""
    return PARSED_FACTOR * size + (min(ITEM_FACTOR * size, ITEMS_BYTES_MAX) if has_items else 0)


class OpenCalls:
    """Counts the open calls of each API key. Once the server is full, each key keeps an equal share."""

    def __init__(self, total: int, notices: Occasional) -> None:
        self._total = total
        self._notices = notices
        self.count = 0
        """How many calls are open."""
        self._of: dict[str, int] = {}

    def enter(self, caller: str) -> str:
        """Count one call until `leave`; returns the caller."""
        own = self._of.get(caller, 0)
        if has_its_share(own, self.count, self._total, len(self._of)):
            self._notices.warning(
                "gRPC call refused: too many calls are open", limit=self._total, key=caller, of_key=own
            )
            raise TooManyRequests(
                f"the server has reached its limit of open calls, {own:,} of them from this API key; retry later",
                RETRY_MS,
            )
        self._of[caller] = own + 1
        self.count += 1
        return caller

    def leave(self, caller: str, _task: object = None) -> None:
        """Stop counting a call, whose task has ended."""
        self.count -= 1
        own = self._of[caller] - 1
        if own:
            self._of[caller] = own
        else:
            del self._of[caller]


class HeldBytes:
    """Bytes that are in memory for a while, limited per API key and in total.

    A key that has none may always hold some, so that other keys cannot lock it out.
    """

    def __init__(self, bytes_max: int, bytes_per_key_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes_per_key_max = bytes_per_key_max
        self.bytes = 0
        """How many bytes are held."""
        self._of: dict[str, int] = {}
        self._waiting: dict[str, deque[tuple[int, asyncio.Future[None]]]] = {}
        """The sizes that wait for room, by caller."""

    def hold(self, caller: str, size: int) -> int:
        """Count bytes until `release`, or refuse them; returns how many were counted."""
        if not self._has_room(caller, size):
            raise TooManyRequests(UNREAD, RETRY_MS)
        self.add(caller, size)
        return size

    async def reserve(self, caller: str, size: int) -> None:
        """Count bytes until `release`, as soon as there is room for them."""
        if caller not in self._waiting and self._has_room(caller, size):
            self.add(caller, size)
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(caller, deque()).append((size, granted))
        try:
            await granted
        except asyncio.CancelledError:
            if granted.cancelled():
                self._admit()
            else:
                self.release(caller, size)  # The room came at the same moment as the cancellation.
            raise

    def add(self, caller: str, size: int) -> None:
        """Count bytes until `release`, even above the limits."""
        self._of[caller] = self._of.get(caller, 0) + size
        self.bytes += size

    def release(self, caller: str, size: int) -> None:
        """Stop counting bytes."""
        own = self._of.get(caller, 0) - size
        self.bytes -= size
        if own > 0:
            self._of[caller] = own
        else:
            self._of.pop(caller, None)
        if self._waiting:
            self._admit()

    def _has_room(self, caller: str, size: int) -> bool:
        own = self._of.get(caller, 0)
        return not own or (own + size <= self._bytes_per_key_max and self.bytes + size <= self._bytes_max)

    def _admit(self) -> None:
        """Give room to those who wait, those of each key in their order."""
        for caller, queue in list(self._waiting.items()):
            while queue and (queue[0][1].done() or self._has_room(caller, queue[0][0])):
                size, granted = queue.popleft()
                if not granted.done():
                    self.add(caller, size)
                    granted.set_result(None)
            if not queue:
                del self._waiting[caller]


class Receiving:
    """Receives a bounded number of requests at a time; the others wait unread.

    While gRPC receives a request, it can take as much memory as the largest message. Each caller may have a few such
    requests; once half of the places are taken, only one, so that callers whose requests never arrive cannot block the
    others.
    """

    def __init__(
        self,
        notices: Occasional,
        total: int = RECEIVING_MAX,
        each: int = RECEIVING_EACH_MAX,
        seconds: float = RECEIVE_SECONDS_MAX,
        *,
        requests: HeldBytes | None = None,
    ) -> None:
        self._notices = notices
        self.requests = requests or HeldBytes(IN_FLIGHT_BYTES_DEFAULT, IN_FLIGHT_BYTES_EACH_DEFAULT)
        """The memory of the requests in progress."""
        self._half = total // 2
        self._total = total
        self._each = each
        self.seconds = seconds
        self.count = 0
        """How many requests are being received."""
        self._of: dict[str, int] = {}
        self._started: dict[asyncio.Task[Any], float] = {}
        """The calls whose requests are being received, oldest first."""
        self._late: set[asyncio.Task[Any]] = set()
        self._queues: dict[str, dict[asyncio.Future[None], float]] = {}
        """The requests that wait for a place, by caller, and when they started to wait."""
        self._timer: asyncio.TimerHandle | None = None

    async def message(self, caller: str, context: Context) -> bytes:
        """The next request of a call, which must arrive in time; EOF if there is none."""
        return (await self.receive(caller, context, lambda _: 0))[0]

    async def receive(
        self, caller: str, context: Context, weigh: Callable[[bytes], int], task: asyncio.Task[Any] | None = None
    ) -> tuple[bytes, int]:
        """The next request and the memory reserved for it, which the caller must release.

        The request keeps its place while it waits for memory. `task`: the current one, if the caller knows it.
        """
        if self._has_room(caller) and caller not in self._queues:
            self._of[caller] = self._of.get(caller, 0) + 1
            self.count += 1
        else:
            await self._turn(caller)
        task = task or asyncio.current_task()
        assert task is not None  # noqa: S101 - each call is a task
        self._started[task] = monotonic()
        if self._timer is None:
            self._timer = task.get_loop().call_later(CHECK_SECONDS, self._check)
        raw: bytes | None = None
        try:
            raw = await context.read()
            if weight := weigh(raw):
                await self.requests.reserve(caller, weight)
            return raw, weight
        except asyncio.CancelledError:
            if task not in self._late:
                raise
            self._late.discard(task)
            task.uncancel()
            if raw is not None:
                raise TooManyRequests(WAITED, RETRY_MS) from None
            self._notices.warning("gRPC call ended: its request did not arrive in time", key=caller)
            raise CallTimeout(f"the request did not arrive within {self.seconds:g} s") from None
        finally:
            del self._started[task]
            self._release(caller)

    @property
    def waiting(self) -> int:
        """How many requests are waiting to be received."""
        return sum(len(queue) for queue in self._queues.values())

    def is_free(self, caller: str) -> bool:
        """Whether a request of this caller would be received without waiting."""
        return self._has_room(caller) and caller not in self._queues

    def _has_room(self, caller: str) -> bool:
        own = self._of.get(caller)
        if own is None:
            return self.count < self._total
        return self.count < self._half and own < self._each

    def _release(self, caller: str) -> None:
        self.count -= 1
        own = self._of[caller] - 1
        if own:
            self._of[caller] = own
        else:
            del self._of[caller]
        if self._queues:
            self._admit()

    # Waiting ------------------------------------------------------------------------------------

    async def _turn(self, caller: str) -> None:
        """Wait for a place, which is taken when this returns."""
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue = self._queues.setdefault(caller, {})
        queue[granted] = monotonic()
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled() and granted.exception() is None:
                self._release(caller)
            raise
        finally:
            if queue.pop(granted, None) is not None and not queue:
                self._queues.pop(caller, None)

    def _admit(self) -> None:
        """Give free places to waiting requests: each caller in turn gets as many as it may have."""
        for caller, queue in list(self._queues.items()):
            while queue and self._has_room(caller):
                granted = next(iter(queue))
                del queue[granted]
                if not granted.done():
                    self._of[caller] = self._of.get(caller, 0) + 1
                    self.count += 1
                    granted.set_result(None)
            if not queue:
                del self._queues[caller]

    def _check(self) -> None:
        """End requests that take too long to arrive, and refuse those that have waited too long for a place."""
        oldest = monotonic() - self.seconds
        for task, started in self._started.items():
            if started > oldest:
                break
            if task not in self._late:
                self._late.add(task)
                task.cancel()
        for caller, queue in self._queues.items():
            for granted, since in queue.items():
                if since > oldest:
                    break
                if not granted.done():
                    self._notices.warning(
                        "gRPC call refused: it waited too long, because too many requests are being received",
                        key=caller,
                    )
                    granted.set_exception(TooManyRequests(WAITED, RETRY_MS))
        self._admit()
        is_needed = self.count or self._queues
        self._timer = asyncio.get_running_loop().call_later(CHECK_SECONDS, self._check) if is_needed else None
