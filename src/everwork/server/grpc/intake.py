"""Limits on open calls and on requests being received, so that unfinished requests cannot exhaust the memory."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

import grpc.aio

from everwork.core.limits import MESSAGE_FIELDS_MAX, RECEIVE_SECONDS_MAX, RECEIVING_EACH_MAX, RECEIVING_MAX
from everwork.exceptions import CallTimeout, InvalidInput, TooManyRequests
from everwork.logs import Occasional

if TYPE_CHECKING:
    from everwork.server.grpc.gateway import Context

RETRY_MS: Final = 1_000
CHECK_SECONDS: Final = 1.0
WAITED: Final = "this caller has too many unfinished requests; finish or cancel them, or retry later"
UNREAD: Final = "the workers of this API key do not read the jobs that were sent to them; retry later"
VARINT, LENGTH_DELIMITED = 0, 2
FIXED_BYTES: Final = {1: 8, 5: 4}
"""Wire types of protobuf, and the size of those that have a fixed one."""
EOF: Final[object] = grpc.aio.EOF  # type: ignore[attr-defined]  # Missing in its stubs.


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
        if own and self.count >= self._total and own >= self._total // len(self._of):
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

    def leave(self, caller: str) -> None:
        """Stop counting a call."""
        self.count -= 1
        own = self._of[caller] - 1
        if own:
            self._of[caller] = own
        else:
            del self._of[caller]


class Undelivered:
    """The bytes of leased jobs that workers have not read yet, limited per API key and in total.

    A key that has none may always hold those of one activation, so that other keys cannot lock it out.
    """

    def __init__(self, bytes_max: int, bytes_per_key_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes_per_key_max = bytes_per_key_max
        self.bytes = 0
        """How many bytes have not been read yet."""
        self._of: dict[str, int] = {}

    def hold(self, caller: str, size: int) -> int:
        """Count bytes until `release`, or refuse them; returns how many were counted."""
        own = self._of.get(caller, 0)
        if own and (own + size > self._bytes_per_key_max or self.bytes + size > self._bytes_max):
            raise TooManyRequests(UNREAD, RETRY_MS)
        self._of[caller] = own + size
        self.bytes += size
        return size

    def release(self, caller: str, size: int) -> None:
        """Stop counting bytes."""
        own = self._of.get(caller, 0) - size
        self.bytes -= size
        if own > 0:
            self._of[caller] = own
        else:
            self._of.pop(caller, None)


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
    ) -> None:
        self._notices = notices
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
        if self._has_room(caller) and caller not in self._queues:
            self._of[caller] = self._of.get(caller, 0) + 1
            self.count += 1
        else:
            await self._turn(caller)
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - each call is a task
        self._started[task] = monotonic()
        if self._timer is None:
            self._timer = task.get_loop().call_later(CHECK_SECONDS, self._check)
        try:
            return await context.read()
        except asyncio.CancelledError:
            if task not in self._late:
                raise
            self._late.discard(task)
            task.uncancel()
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


def require_few_fields(raw: bytes) -> None:
    """Refuse a message with very many fields before it is parsed: 300,000 map entries take most of a second.

    Nothing is counted in a message that is too short for that, or is malformed.
    """
    if len(raw) <= 2 * MESSAGE_FIELDS_MAX:
        return
    at, fields = 0, 0
    with suppress(IndexError):
        while at < len(raw):
            fields += 1
            if fields > MESSAGE_FIELDS_MAX:
                raise InvalidInput("request", f"must have at most {MESSAGE_FIELDS_MAX:,} fields and map entries")
            kind = raw[at] & 7
            _, at = _varint(raw, at)
            if kind == LENGTH_DELIMITED:
                size, at = _varint(raw, at)
                at += size
            elif kind == VARINT:
                _, at = _varint(raw, at)
            else:
                at += FIXED_BYTES.get(kind, 0)


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    """The number at a position, and where it ends; an IndexError if there is none."""
    byte = raw[at]
    value, shift = byte & 127, 7
    while byte > 127:
        if shift > 63:
            raise IndexError
        at += 1
        byte = raw[at]
        value |= (byte & 127) << shift
        shift += 7
    return value, at + 1
