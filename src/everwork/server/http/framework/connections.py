"""The open connections of the HTTP port: their number is limited, and idle, slow and stalled ones are closed."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple, Protocol, TypeVar

from everwork.logs import Occasional, get_logger

log = Occasional(get_logger("everwork"))

EVICTABLE_SECONDS: Final = 1.0
"""A new connection that has not sent a request for this long may be closed to make room for another one."""
HEADS_BYTES_MAX: Final = 16 * 1_048_576
"""The maximum size of all incomplete request heads together."""


class Timeouts(NamedTuple):
    """How long a connection may take, in seconds.

    head: to send the head of a request; idle: between two requests; blocked: with too many pipelined requests, so that
    the server stops reading and cannot notice a disconnect; stalled: without reading the response.
    """

    head: float = 20.0
    idle: float = 30.0
    blocked: float = 5.0
    stalled: float = 20.0


class Connection(Protocol):
    """What the limits need from a connection."""

    @property
    def is_closing(self) -> bool:
        """Whether it has ended, except for what the peer has not read yet."""

    def end_slow_head(self) -> None:
        """End a connection whose head takes too long."""

    def end(self) -> None:
        """End a connection after its response, or now if the peer does not read it."""

    def abort(self) -> None:
        """End a connection now."""


class Connections:
    """All connections of one port, by what they wait for; each dictionary has the longest wait first."""

    def __init__(self, connections_max: int, clock: Callable[[], float], timeouts: Timeouts | None = None) -> None:
        self.connections_max = connections_max
        self.timeouts = timeouts or Timeouts()
        self.heads_bytes = 0
        self.clock = clock
        self._open: set[Connection] = set()
        self._handshakes: dict[socket.socket, float] = {}
        self._heads: dict[Connection, float] = {}
        self._idle: dict[Connection, float] = {}
        self._blocked: dict[Connection, float] = {}
        self._stalled: dict[Connection, float] = {}

    def __len__(self) -> int:
        return len(self._open)

    # Admission ------------------------------------------------------------------------------------

    def admit(self, connection: Connection) -> bool:
        """Count a new connection; False if the limit has been reached and no other connection can be closed."""
        if len(self._open) >= self.connections_max and not self.evict():
            log.warning("too many connections: new ones are refused", max_connections=self.connections_max)
            return False
        self._open.add(connection)
        return True

    def evict(self) -> bool:
        """Close the connection that has been idle for longest, or one that is slow to send its first request."""
        if self._idle:
            oldest = next(iter(self._idle))
            del self._idle[oldest]
            oldest.abort()
            return True
        latest = self.clock() - EVICTABLE_SECONDS
        for slow in _until(self._heads, latest):
            del self._heads[slow]
            slow.abort()
            return True
        for peer in _until(self._handshakes, latest):
            self._end_handshake(peer)
            return True
        return False

    def end_handshakes(self) -> None:
        """End all connections that are still negotiating TLS."""
        for peer in list(self._handshakes):
            self._end_handshake(peer)

    def _end_handshake(self, peer: socket.socket) -> None:
        """Make the handshake fail; only the event loop may close the descriptor."""
        del self._handshakes[peer]
        with suppress(OSError):
            peer.shutdown(socket.SHUT_RDWR)

    def handshaking(self, peer: socket.socket) -> None:
        """A connection has started to negotiate TLS."""
        self._handshakes[peer] = self.clock()

    def shook_hands(self, peer: socket.socket) -> None:
        """The negotiation has ended."""
        self._handshakes.pop(peer, None)

    def lost(self, connection: Connection) -> None:
        """A connection has ended, or has never started."""
        self._open.discard(connection)
        for waiting in (self._heads, self._idle, self._blocked, self._stalled):
            waiting.pop(connection, None)

    # What connections wait for --------------------------------------------------------------------

    def await_head(self, connection: Connection) -> None:
        """A head has started, or is expected on a new connection."""
        self._idle.pop(connection, None)
        self._heads.setdefault(connection, self.clock())

    def has_head(self, connection: Connection) -> None:
        """A head is complete."""
        self._idle.pop(connection, None)
        self._heads.pop(connection, None)

    def await_request(self, connection: Connection) -> None:
        """A response has been sent, and no other request has started."""
        self._blocked.pop(connection, None)
        self._idle.pop(connection, None)  # Otherwise, it would keep its old place in the order.
        self._idle[connection] = self.clock()

    def block(self, connection: Connection) -> None:
        """Nothing more is read from a connection until a response has been sent."""
        self._blocked.setdefault(connection, self.clock())

    def unblock(self, connection: Connection) -> None:
        """The connection is read again."""
        self._blocked.pop(connection, None)

    def stall(self, connection: Connection) -> None:
        """The peer does not read as fast as the response is sent."""
        self._stalled[connection] = self.clock()

    def resume(self, connection: Connection) -> None:
        """The peer has read almost everything."""
        self._stalled.pop(connection, None)

    # Deadlines ------------------------------------------------------------------------------------

    def sweep(self, now: float) -> None:
        """End the connections that have exceeded a timeout."""
        timeouts = self.timeouts
        for slow in _until(self._heads, now - timeouts.head):
            del self._heads[slow]
            slow.end_slow_head()
        for idle in _until(self._idle, now - timeouts.idle):
            del self._idle[idle]
            idle.end()
        for blocked in _until(self._blocked, now - timeouts.blocked):
            del self._blocked[blocked]
            blocked.abort()
        for stalled in _until(self._stalled, now - timeouts.stalled):
            del self._stalled[stalled]
            log.warning("connection closed: the client does not read the response")
            stalled.abort()
        for one in self._open:
            if one.is_closing:
                self._idle.setdefault(one, now)


T = TypeVar("T")


def _until(waiting: dict[T, float], latest: float) -> list[T]:
    """Those that have waited since `latest` or longer, the longest wait first."""
    found: list[T] = []
    for one, since in waiting.items():
        if since > latest:
            break
        found.append(one)
    return found
