"""Accepts connections: counts them before TLS is negotiated, uses renewed certificates, and waits for free descriptors.

Uvicorn's own listener counts nothing, negotiates TLS for up to a minute, and does not log that the process has run out
of descriptors.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable
from typing import Final

from everwork.server.http.framework.connections import Connections, log
from everwork.server.http.framework.protocol import BUSY, BoundedProtocol

HANDSHAKE_SECONDS: Final = 10.0
GOODBYE_SECONDS: Final = 5.0
REFUSED_MAX: Final = 32
"""How many refused connections get a response; the others are just closed."""
REFUSED_SECONDS: Final = 2.0
ACCEPTED_MAX: Final = 16
"""How many connections are accepted at a time."""
PAUSE_SECONDS: Final = 0.2
"""How long to wait for a free descriptor."""
EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

Tls = Callable[[], ssl.SSLContext]
"""Returns the TLS context for the next connection."""


class Acceptor:
    """The accept loop of one listener; like an asyncio server, it can be closed."""

    def __init__(
        self, listener: socket.socket, connections: Connections, make: Callable[[], BoundedProtocol], tls: Tls | None
    ) -> None:
        self._listener = listener
        self._connections = connections
        self._make = make
        self._tls = tls
        self._refused: set[asyncio.BaseProtocol] = set()
        self._openings: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        listener.setblocking(False)
        self._listen()

    def close(self) -> None:
        """Accept no more connections, and end those that are still negotiating TLS."""
        self._loop.remove_reader(self._listener)
        if self._pause is not None:
            self._pause.cancel()
        self._connections.end_handshakes()

    async def wait_closed(self) -> None:
        """Wait until nothing is being accepted."""
        if self._openings:
            await asyncio.wait(self._openings)

    def _listen(self) -> None:
        self._pause = None
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        """Accept some connections; then the event loop runs other tasks before the next ones."""
        for _ in range(ACCEPTED_MAX):
            try:
                peer, _address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in EXHAUSTED:
                    self._wait_for_descriptor(error)
                return  # Otherwise, the peer has given up.
            task = self._loop.create_task(self._open(peer))
            self._openings.add(task)
            task.add_done_callback(self._openings.discard)

    def _wait_for_descriptor(self, error: OSError) -> None:
        log.warning("cannot accept connections: out of file descriptors", error=error.strerror)
        self._connections.evict()
        self._loop.remove_reader(self._listener)
        self._pause = self._loop.call_later(PAUSE_SECONDS, self._listen)

    async def _open(self, peer: socket.socket) -> None:
        protocol = self._make()
        if not self._connections.admit(protocol):
            await self._refuse(peer)
            return
        self._connections.handshaking(peer)
        is_connected = False
        try:
            is_connected = await self._connect(peer, protocol, HANDSHAKE_SECONDS)
        finally:
            self._connections.shook_hands(peer)
            if not is_connected:
                self._connections.lost(protocol)

    async def _refuse(self, peer: socket.socket) -> None:
        """Send 503. The request is read and discarded for a while: otherwise, many clients see only a reset."""
        if len(self._refused) >= REFUSED_MAX:
            peer.close()
            return
        refusal = _Refusal(self._refused)
        if not await self._connect(peer, refusal, REFUSED_SECONDS):
            self._refused.discard(refusal)

    async def _connect(self, peer: socket.socket, protocol: asyncio.Protocol, handshake_seconds: float) -> bool:
        """Connect a protocol once TLS has been negotiated; returns whether that succeeded."""
        tls = None if self._tls is None else self._tls()
        try:
            await self._loop.connect_accepted_socket(
                lambda: protocol,
                peer,
                ssl=tls,
                ssl_handshake_timeout=None if tls is None else handshake_seconds,
                ssl_shutdown_timeout=None if tls is None else GOODBYE_SECONDS,
            )
        except OSError:  # Includes ssl.SSLError and TimeoutError.
            peer.close()
            return False
        return True


class _Refusal(asyncio.Protocol):
    """Responds with 503 to whatever is sent."""

    def __init__(self, refused: set[asyncio.BaseProtocol]) -> None:
        self._refused = refused
        refused.add(self)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Send the response, and discard the request until the peer closes the connection."""
        transport.write(BUSY)
        if transport.can_write_eof():
            transport.write_eof()
        asyncio.get_running_loop().call_later(REFUSED_SECONDS, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio
        """Make room for the next refused connection."""
        self._refused.discard(self)
