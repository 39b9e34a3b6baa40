"""One connection to a Redis server: commands go out as they come, answers come back in their order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, cast

import hiredis

SILENCE_SECONDS = 30.0
"""A server that owes an answer and says nothing for this long is given up."""
PING_SECONDS = 15.0
"""A connection over which nothing is asked is tried this often: a network may forget it without a word."""
_LOOK_SECONDS = 5.0

ReplyError = hiredis.ReplyError
Word = str | bytes | int


def pack(words: tuple[Word, ...]) -> bytes:
    """A command as it goes over the wire."""
    packed: bytes = hiredis.pack_command(words)  # type: ignore[arg-type]  # It takes tuples of any length.
    return packed


class ConnectionLost(Exception):
    """The connection ended before the answer came: what the command did is unknown."""


class Wire(asyncio.Protocol):
    """A pipeline: nobody waits for the answers of others, and a caller that goes away leaves nothing half read."""

    def __init__(self, heard: Callable[[list[Any]], None] | None = None) -> None:
        self._reader = hiredis.Reader()
        self._owed: deque[asyncio.Future[Any]] = deque()
        self._heard = heard
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._is_silent_for = 0.0
        self._is_idle_for = 0.0
        self._watch: asyncio.TimerHandle | None = None
        self.ended: asyncio.Future[None] = self._loop.create_future()

    @property
    def is_open(self) -> bool:
        """Whether commands can be sent."""
        return self._transport is not None and not self._transport.is_closing()

    def ask(self, *words: Word) -> asyncio.Future[Any]:
        """Send one command; its answer, where an error of the server is a value."""
        return self.send(pack(words))

    def send(self, packed: bytes) -> asyncio.Future[Any]:
        """Send a command that is packed already."""
        future: asyncio.Future[Any] = self._loop.create_future()
        transport = self._transport
        if transport is None or transport.is_closing():
            future.set_exception(ConnectionLost("the connection is closed"))
            return future
        self._owed.append(future)
        transport.write(packed)
        return future

    def tell(self, *words: Word) -> None:
        """Send a command that has no reply of its own."""
        if self._transport is not None:
            self._transport.write(pack(words))

    def close(self) -> None:
        """Hang up."""
        if self._transport is not None:
            self._transport.abort()

    # asyncio calls these -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast("asyncio.Transport", transport)
        self._watch = self._loop.call_later(_LOOK_SECONDS, self._look)

    def data_received(self, data: bytes) -> None:
        """Hand out the answers that have come in."""
        self._is_silent_for = 0.0
        reader, owed = self._reader, self._owed
        try:
            reader.feed(data)
            while (reply := reader.gets()) is not False:
                if type(reply) is hiredis.PushNotification:
                    if self._heard is not None:
                        self._heard(reply)
                    continue
                future = owed.popleft()
                if not future.done():
                    future.set_result(reply)
        except (hiredis.ProtocolError, IndexError):
            self.close()  # Whoever speaks there is not Redis.

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell everybody whose answer will not come."""
        if self._watch is not None:
            self._watch.cancel()
        self._transport = None
        problem = str(exc) if exc else "the server closed the connection"
        while self._owed:
            future = self._owed.popleft()
            if not future.done():
                future.set_exception(ConnectionLost(problem))
        if not self.ended.done():
            self.ended.set_result(None)

    def _look(self) -> None:
        if self._owed:
            self._is_silent_for += _LOOK_SECONDS
        else:
            self._is_silent_for = 0.0
            self._ping_at_times()
        if self._is_silent_for >= SILENCE_SECONDS:
            self.close()
        else:
            self._watch = self._loop.call_later(_LOOK_SECONDS, self._look)

    def _ping_at_times(self) -> None:
        self._is_idle_for += _LOOK_SECONDS
        if self._is_idle_for >= PING_SECONDS:
            self._is_idle_for = 0.0
            self.ask("PING").add_done_callback(_ignore)


def _ignore(answer: asyncio.Future[Any]) -> None:
    if not answer.cancelled():
        answer.exception()  # Whoever uses the connection learns by himself that it has ended.
