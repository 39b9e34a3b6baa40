"""One pipelined connection to a Redis server: commands are sent as they arrive, replies come in the same order.

This client is the engine's own, because each call is one script over one shared connection: a protocol on top of
hiredis costs a fraction of redis-py's pool and command objects, especially with many concurrent callers. redis-py is
used only by the inbox (see inbox.py), whose stream commands go to any node of a cluster, block, and are few.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, cast

import hiredis

SILENCE_SECONDS = 30.0
"""A server that owes a reply and sends nothing for this long counts as unavailable."""
PING_SECONDS = 15.0
"""How often an idle connection is pinged: a network may drop it without notice."""
_CHECK_SECONDS = 5.0
REPLICATION_MS = 2_000
"""How long replicas may take to acknowledge a write; until then, the connection serves nothing else."""

ReplyError = hiredis.ReplyError
Arg = str | bytes | int
PushHandler = Callable[[list[Any]], None]


def pack(args: tuple[Arg, ...]) -> bytes:
    """A command, encoded for the protocol."""
    packed: bytes = hiredis.pack_command(args)  # type: ignore[arg-type]  # It takes tuples of any length.
    return packed


class ConnectionLost(Exception):
    """The connection ended before the reply came: the effect of the command is unknown."""


class Wire(asyncio.Protocol):
    """A pipeline: no caller waits for another caller's reply, and a cancelled caller leaves no reply half read."""

    def __init__(self, on_push: PushHandler | None = None) -> None:
        self._reader = hiredis.Reader()
        self._pending: deque[asyncio.Future[Any]] = deque()
        self._on_push = on_push
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._replicated: asyncio.Future[Any] | None = None
        self._silent_seconds = 0.0
        self._idle_seconds = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.ended: asyncio.Future[None] = self._loop.create_future()

    @property
    def is_open(self) -> bool:
        """Whether commands can be sent."""
        return self._transport is not None and not self._transport.is_closing()

    def request(self, *args: Arg) -> asyncio.Future[Any]:
        """Send one command and return its reply; server errors are returned, not raised."""
        return self.send(pack(args))

    def send(self, packed: bytes) -> asyncio.Future[Any]:
        """Send a packed command; returns its reply, as `request` does."""
        future: asyncio.Future[Any] = self._loop.create_future()
        transport = self._transport
        if transport is None or transport.is_closing():
            future.set_exception(ConnectionLost("the connection is closed"))
            return future
        self._pending.append(future)
        transport.write(packed)
        return future

    async def replicated(self, replicas: int) -> Any:
        """Wait for replicas to acknowledge every write that this connection has a reply to; returns how many did.

        Callers share a wait: replies come in order, so a pending WAIT was sent after the write of every caller.
        """
        if self._replicated is None or self._replicated.done():
            self._replicated = self.request("WAIT", replicas, REPLICATION_MS)
            self._replicated.add_done_callback(_ignore)
        return await asyncio.shield(self._replicated)

    def close(self) -> None:
        """Close the connection; pending requests fail."""
        if self._timer is not None:
            self._timer.cancel()  # uvloop never calls `connection_lost` if `create_connection` was cancelled.
        if self._transport is not None:
            self._transport.abort()

    # asyncio calls these -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start watching the connection."""
        self._transport = cast("asyncio.Transport", transport)
        self._timer = self._loop.call_later(_CHECK_SECONDS, self._check)

    def data_received(self, data: bytes) -> None:
        """Pass the replies that have arrived to their callers."""
        self._silent_seconds = 0.0
        reader, pending = self._reader, self._pending
        try:
            reader.feed(data)
            while (reply := reader.gets()) is not False:
                if type(reply) is hiredis.PushNotification and reply[0] != b"subscribe":
                    if self._on_push is not None:
                        self._on_push(reply)
                    continue  # Not if it confirms a subscription: that push is the reply.
                future = pending.popleft()
                if not future.done():
                    future.set_result(reply)
        except (hiredis.ProtocolError, IndexError):
            self.close()  # The peer does not speak the Redis protocol.

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the requests whose replies will not come."""
        if self._timer is not None:
            self._timer.cancel()
        self._transport = None
        problem = str(exc) if exc else "the server closed the connection"
        while self._pending:
            future = self._pending.popleft()
            if not future.done():
                future.set_exception(ConnectionLost(problem))
        if not self.ended.done():
            self.ended.set_result(None)

    def _check(self) -> None:
        if self._pending:
            self._silent_seconds += _CHECK_SECONDS
        else:
            self._silent_seconds = 0.0
            self._ping_if_idle()
        if self._silent_seconds >= SILENCE_SECONDS:
            self.close()
        else:
            self._timer = self._loop.call_later(_CHECK_SECONDS, self._check)

    def _ping_if_idle(self) -> None:
        self._idle_seconds += _CHECK_SECONDS
        if self._idle_seconds >= PING_SECONDS:
            self._idle_seconds = 0.0
            self.request("PING").add_done_callback(_ignore)


def _ignore(reply: asyncio.Future[Any]) -> None:
    if not reply.cancelled():
        reply.exception()  # The next call notices that the connection has ended.
