"""Limits on open calls and on requests being received, so that unfinished requests cannot fill the memory."""

from __future__ import annotations

import asyncio
import math
from collections import deque
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

if TYPE_CHECKING:
    from everwork.server.grpc.gateway import Context

RETRY_MS: Final = 1_000
CHECK_SECONDS: Final = 1.0
WAITED: Final = "this caller has too many unfinished requests; finish or cancel them, or retry later"
UNREAD: Final = "the clients of this API key do not read what was sent to them; retry later"
COUNTED_BYTES: Final = 4_096
"""Smaller requests and responses are not counted: the number of open calls limits them."""
EOF: Final[object] = grpc.aio.EOF  # type: ignore[attr-defined]  # Missing in its stubs.


def counted_bytes(raw: bytes) -> int:
    """With how many bytes a request counts."""
    return 0 if raw is EOF or len(raw) <= COUNTED_BYTES else len(raw)


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
    """The bytes of leased jobs and responses that clients have not read yet, limited for each API key and in all.

    A key without any may always hold those of one call, so that others cannot lock it out.
    """

    def __init__(self, bytes_max: int, bytes_per_key_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes_per_key_max = bytes_per_key_max
        self.bytes = 0
        """How many bytes are not read yet."""
        self._of: dict[str, int] = {}

    def hold(self, caller: str, size: int) -> int:
        """Count bytes until `release`, or refuse them; returns how many were counted."""
        own = self._of.get(caller, 0)
        if own and (own + size > self._bytes_per_key_max or self.bytes + size > self._bytes_max):
            raise TooManyRequests(UNREAD, RETRY_MS)
        self.add(caller, size)
        return size

    def add(self, caller: str, size: int) -> None:
        """Count bytes until `release`, even above the limit: what they report has already been done."""
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


class Receiving:
    """Receives requests, a bounded number at a time; the others are not read yet.

    A request that gRPC receives can be as large as the largest message, finished or not. Others of the same caller
    wait. Once half of the places are taken, each caller gets a single place, so that one whose requests arrive does not
    wait for those whose requests never do.

    A request counts with its bytes until it is `done`. A caller with too many of them, or with any while all callers
    have too many, waits too.
    """

    def __init__(
        self,
        notices: Occasional,
        total: int = RECEIVING_MAX,
        each: int = RECEIVING_EACH_MAX,
        seconds: float = RECEIVE_SECONDS_MAX,
        *,
        bytes_max: int = IN_FLIGHT_BYTES_DEFAULT,
        bytes_per_key_max: int = IN_FLIGHT_BYTES_EACH_DEFAULT,
    ) -> None:
        self._notices = notices
        self._bytes_max = bytes_max
        self._bytes_per_key_max = bytes_per_key_max
        self._half = total // 2
        self._total = total
        self._each = each
        self.seconds = seconds
        self.count = 0
        """How many requests are being received."""
        self.bytes = 0
        """How many bytes the received requests have that are not done."""
        self._bytes_of: dict[str, int] = {}
        self._stalled: list[asyncio.Future[None]] = []
        """Those who wait until a request is done, to receive more on the same call."""
        self._of: dict[str, int] = {}
        self._started: dict[asyncio.Task[Any], float] = {}
        """The calls whose requests are being received, oldest first."""
        self._late: set[asyncio.Task[Any]] = set()
        self._queues: dict[str, dict[asyncio.Future[None], float]] = {}
        """The requests that wait for a place, by caller, and since when."""
        self._timer: asyncio.TimerHandle | None = None

    async def message(self, caller: str, context: Context) -> bytes:
        """The next request of a call, which must arrive in time, to be marked as `done`; EOF if there is none."""
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
            raw: bytes = await context.read()
            self.begin(caller, counted_bytes(raw))
            return raw
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

    def begin(self, caller: str, size: int) -> None:
        """Count the bytes of a request."""
        if size:
            self.bytes += size
            self._bytes_of[caller] = self._bytes_of.get(caller, 0) + size

    def done(self, caller: str, size: int) -> None:
        """Stop counting the bytes of a request: nothing of it is kept."""
        if not size:
            return
        self.bytes -= size
        own = self._bytes_of[caller] - size
        if own:
            self._bytes_of[caller] = own
        else:
            del self._bytes_of[caller]
        for waiting in self._stalled:
            if not waiting.done():
                waiting.set_result(None)
        self._stalled.clear()
        if self._queues:
            self._admit()

    async def room(self, caller: str) -> None:
        """Wait until a caller may send more on a call that is open."""
        while not self._may_send(caller):
            waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._stalled.append(waiting)
            await waiting

    @property
    def waiting(self) -> int:
        """How many requests wait until they are received."""
        return sum(len(queue) for queue in self._queues.values())

    def is_free(self, caller: str) -> bool:
        """Whether a request of this caller would be received without waiting."""
        return self._has_room(caller) and caller not in self._queues

    def _has_room(self, caller: str) -> bool:
        if self._bytes_of and not self._may_send(caller):
            return False
        own = self._of.get(caller)
        if own is None:
            return self.count < self._total
        return self.count < self._half and own < self._each

    def _may_send(self, caller: str) -> bool:
        own = self._bytes_of.get(caller, 0)
        return not own or (own < self._bytes_per_key_max and self.bytes < self._bytes_max)

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
        """Give free places to those who wait: each caller in turn gets what it is allowed."""
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
        """End what takes too long: requests that do not arrive, and those that got no place."""
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


class Unsettled:
    """The messages of a worker stream whose outcomes are not settled; they count like other requests."""

    def __init__(self, receiving: Receiving, caller: str) -> None:
        self._receiving = receiving
        self._caller = caller
        self._messages: deque[tuple[int, int]] = deque()
        """The number of each message's last outcome, and its bytes."""
        self.bytes = 0

    def add(self, number: int, size: int) -> None:
        """Count a message until the outcome with this number is settled."""
        self._messages.append((number, size))
        self.bytes += size
        self._receiving.begin(self._caller, size)

    def drop(self, settled: float = math.inf) -> None:
        """Stop counting the messages of this many outcomes, or all."""
        while self._messages and self._messages[0][0] <= settled:
            _, size = self._messages.popleft()
            self.bytes -= size
            self._receiving.done(self._caller, size)
