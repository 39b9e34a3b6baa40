"""The bytes of request bodies and responses in flight, limited per API key and in total.

Bytes are *held* while a peer sends or reads them, which can take long, and *reserved* while the server processes them,
which is quick. If there is no room, a request that needs to hold bytes is refused, and one that needs to reserve them
waits.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import Final

from everwork.core.limits import IN_FLIGHT_BYTES_DEFAULT, IN_FLIGHT_BYTES_EACH_DEFAULT
from everwork.server.http.framework.problems import Refusal

HOLD: Final = "everwork.hold"
"""The scope key of a request's `Hold`."""
COUNTED_BYTES: Final = 65_536
"""Smaller bodies and responses are not counted: the limit on connections also limits them."""
TURN_SECONDS: Final = 30.0
LATER: Final = {"Retry-After": "1"}


class Account:
    """The bytes of one API key, or of all keys together."""

    __slots__ = ("bytes_max", "held", "reserved")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.held = 0
        self.reserved = 0

    def may_hold(self, size: int, own: int) -> bool:
        """Whether a request that holds `own` bytes may hold more; a single one may exceed the limit."""
        return self.held == own or self.held + size <= self.bytes_max

    def may_reserve(self, size: int) -> bool:
        """Whether the server may process more bytes; a single request always may reserve them."""
        return self.reserved == 0 or self.held + self.reserved + size <= self.bytes_max


class InFlight:
    """All bytes in flight of one server."""

    def __init__(
        self, bytes_max: int = IN_FLIGHT_BYTES_DEFAULT, bytes_per_key_max: int = IN_FLIGHT_BYTES_EACH_DEFAULT
    ) -> None:
        self.all = Account(bytes_max)
        self._bytes_per_key_max = bytes_per_key_max
        self._accounts: dict[str, Account] = {}
        self._waiting: dict[str, deque[tuple[int, asyncio.Future[None]]]] = {}

    def of(self, key: str) -> Account:
        """The account of a key; "" stands for callers without a key."""
        return self._accounts.get(key) or Account(self._bytes_per_key_max)

    def may_hold(self, hold: Hold, size: int) -> bool:
        """Whether a request may hold more bytes of all; once they are taken, each key has an equal share of them."""
        if self.all.may_hold(size, hold.held):
            return True
        keys = len({*self._accounts, hold.owner})
        return self.of(hold.owner).held + size <= self.all.bytes_max // keys

    def change(self, key: str, held: int, reserved: int) -> None:
        """Change the bytes of a key; empty accounts are not kept."""
        account = self._accounts[key] = self.of(key)
        for one in (account, self.all):
            one.held += held
            one.reserved += reserved
        if not (account.held or account.reserved):
            del self._accounts[key]
        if self._waiting and (held < 0 or reserved < 0):
            self._admit()

    def try_reserve(self, key: str, size: int) -> bool:
        """Reserve bytes if no other request of the key waits and there is room; returns whether it did."""
        if key in self._waiting or not self._may_reserve(key, size):
            return False
        self.change(key, 0, size)
        return True

    async def reserve(self, key: str, size: int) -> None:
        """Reserve bytes as soon as there is room; the requests of a key wait in their order."""
        granted = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, deque()).append((size, granted))
        try:
            await granted
        except asyncio.CancelledError:
            if not granted.cancelled():
                self.change(key, 0, -size)  # The room came at the same moment as the cancellation.
            raise

    def _may_reserve(self, key: str, size: int) -> bool:
        """Whether there is room; a key without any reservation never waits for others."""
        own = self.of(key)
        return own.reserved == 0 or (own.may_reserve(size) and self.all.may_reserve(size))

    def _admit(self) -> None:
        for key, queue in list(self._waiting.items()):
            while queue and (queue[0][1].done() or self._may_reserve(key, queue[0][0])):
                size, granted = queue.popleft()
                if not granted.done():
                    self.change(key, 0, size)
                    granted.set_result(None)
            if not queue:
                del self._waiting[key]


class Hold:
    """The bytes of one request and its response."""

    __slots__ = ("_in_flight", "_reserved", "held", "owner")

    def __init__(self, in_flight: InFlight) -> None:
        self._in_flight = in_flight
        self.owner = ""
        """The id of the API key, once it is known."""
        self.held = 0
        """How many bytes it holds."""
        self._reserved = 0

    def has_room(self, size: int) -> bool:
        """Whether a response can be held until it is read; small ones always can."""
        own = self._in_flight.of(self.owner)
        return size <= COUNTED_BYTES or (own.may_hold(size, self.held) and self._in_flight.may_hold(self, size))

    def require_room(self, size: int) -> None:
        """Refuse a request for which there is no room, before any work is done for it."""
        if not self._in_flight.of(self.owner).may_hold(size, self.held):
            detail = (
                "this API key has too many bytes in flight (max_bytes_in_flight_per_key); "
                "read the pending responses, or retry later"
            )
            raise Refusal(429, "too_many_bytes", detail, LATER)
        if not self._in_flight.may_hold(self, size):
            raise Refusal(
                503,
                "too_many_bytes",
                "the server has too many bytes in flight (max_bytes_in_flight); retry later",
                LATER,
            )

    def receive(self, size: int) -> None:
        """Hold the bytes of a body received so far, or refuse it."""
        self.require_room(size - self.held)
        self._change(size - self.held, 0)

    def send(self, size: int) -> None:
        """Hold the bytes of the response; its request is no longer needed."""
        self._change(size - self.held, -self._reserved)

    async def reserve(self, size: int, *, is_response: bool = False) -> None:
        """Wait until these bytes may be processed; refuse a response that could not be held afterwards."""
        if is_response:
            self.require_room(size)
        if self.try_reserve(size):
            return
        try:
            async with asyncio.timeout(TURN_SECONDS):
                await self._in_flight.reserve(self.owner, size)
        except TimeoutError:
            detail = "the server is working on too many large requests; retry later"
            raise Refusal(503, "too_many_bytes", detail, LATER) from None
        self._reserved += size
        if is_response:
            self.require_room(size)

    def try_reserve(self, size: int) -> bool:
        """Reserve bytes if that is possible without waiting; returns whether it was."""
        is_reserved = self._in_flight.try_reserve(self.owner, size)
        self._reserved += size * is_reserved
        return is_reserved

    async def reserve_more(self, size: int) -> bool:
        """Reserve bytes for a response, and return whether there is room for them.

        Waits only if nothing is reserved yet: large requests could wait for each other.
        """
        if not self._reserved:
            with suppress(Refusal):
                await self.reserve(size)
                return True
        return self.try_reserve(size)

    def processed(self) -> None:
        """The body has been processed, and its memory is not needed any more."""
        self._change(0, -self._reserved)

    def release(self) -> None:
        """The request has ended."""
        if self.held or self._reserved:
            self._change(-self.held, -self._reserved)

    def _change(self, held: int, reserved: int) -> None:
        self.held += held
        self._reserved += reserved
        self._in_flight.change(self.owner, held, reserved)
