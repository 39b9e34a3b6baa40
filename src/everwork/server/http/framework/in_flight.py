"""The bytes of request bodies and responses in flight, limited per API key and in total.

Bytes are *held* while a peer sends or reads them, which can take long, and *reserved* while the server processes them,
which is quick. If there is no room, a request that needs to hold bytes is refused, and one that needs to reserve them
waits.
"""

from __future__ import annotations

import asyncio
from collections import deque
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
        self._waiting: deque[asyncio.Future[None]] = deque()

    def of(self, key: str) -> Account:
        """The account of a key; "" stands for callers without a key."""
        return self._accounts.get(key) or Account(self._bytes_per_key_max)

    def change(self, key: str, held: int, reserved: int) -> None:
        """Change the bytes of a key; empty accounts are not kept."""
        account = self._accounts[key] = self.of(key)
        for one in (account, self.all):
            one.held += held
            one.reserved += reserved
        if not (account.held or account.reserved):
            del self._accounts[key]
        if held < 0 or reserved < 0:
            self._wake()

    async def wait(self) -> None:
        """Wait until some bytes are free."""
        waiting = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        await waiting

    def _wake(self) -> None:
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)
        self._waiting.clear()


class Hold:
    """The bytes of one request and its response."""

    __slots__ = ("_held", "_in_flight", "_reserved", "owner")

    def __init__(self, in_flight: InFlight) -> None:
        self._in_flight = in_flight
        self.owner = ""
        """The id of the API key, once it is known."""
        self._held = 0
        self._reserved = 0

    def require_room(self, size: int) -> None:
        """Refuse a request for which there is no room, before any work is done for it."""
        if not self._in_flight.of(self.owner).may_hold(size, self._held):
            detail = (
                "this API key has too many bytes in flight (max_bytes_in_flight_per_key); "
                "read the pending responses, or retry later"
            )
            raise Refusal(429, "too_many_bytes", detail, LATER)
        if not self._in_flight.all.may_hold(size, self._held):
            raise Refusal(
                503,
                "too_many_bytes",
                "the server has too many bytes in flight (max_bytes_in_flight); retry later",
                LATER,
            )

    def receive(self, size: int) -> None:
        """Hold the bytes of a body received so far, or refuse it."""
        self.require_room(size - self._held)
        self._change(size - self._held, 0)

    def send(self, size: int) -> None:
        """Hold the bytes of the response; its request is no longer needed."""
        self._change(size - self._held, -self._reserved)

    async def reserve(self, size: int, *, is_response: bool = False) -> None:
        """Wait until these bytes may be processed; refuse a response that could not be held afterwards."""
        account, everything = self._in_flight.of, self._in_flight.all
        try:
            async with asyncio.timeout(TURN_SECONDS):
                while True:
                    if is_response:
                        self.require_room(size)
                    if account(self.owner).may_reserve(size) and everything.may_reserve(size):
                        break
                    await self._in_flight.wait()
        except TimeoutError:
            detail = "the server is working on too many large requests; retry later"
            raise Refusal(503, "too_many_bytes", detail, LATER) from None
        self._change(0, size)

    def release(self) -> None:
        """The request has ended."""
        if self._held or self._reserved:
            self._change(-self._held, -self._reserved)

    def _change(self, held: int, reserved: int) -> None:
        self._held += held
        self._reserved += reserved
        self._in_flight.change(self.owner, held, reserved)
