"""Accepts connections: counted before TLS is negotiated, with a certificate that may change, never without descriptors.

Uvicorn's own listener counts nothing, negotiates for a minute, and is silent when the process runs out of descriptors.
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
PAUSE_SECONDS: Final = 0.2
"""How long to wait for a free descriptor."""
EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

Tls = Callable[[], ssl.SSLContext | None]


class Acceptor:
    """The accept loop of one listener; like an asyncio server, it can be closed."""

    def __init__(
        self, listener: socket.socket, connections: Connections, make: Callable[[], BoundedProtocol], tls: Tls
    ) -> None:
        self._listener = listener
        self._connections = connections
        self._make = make
        self._tls = tls
        self._refused: set[asyncio.BaseProtocol] = set()
        self._openings: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._accept(), name="everwork-http-accept")

    def close(self) -> None:
        """Accept no more connections, and give up those that negotiate TLS."""
        self._task.cancel()
        self._connections.end_handshakes()

    async def wait_closed(self) -> None:
        """Wait until nothing is being accepted."""
        await asyncio.wait([self._task, *self._openings])

    async def _accept(self) -> None:
        self._listener.setblocking(False)
        while True:
            try:
                peer, _ = await self._loop.sock_accept(self._listener)
            except OSError as error:
                await self._failed(error)
                continue
            task = self._loop.create_task(self._open(peer))
            self._openings.add(task)
            task.add_done_callback(self._openings.discard)

    async def _failed(self, error: OSError) -> None:
        """Wait for a free descriptor; a connection that its peer gave up is no failure."""
        if error.errno in EXHAUSTED:
            log.warning("cannot accept connections: out of file descriptors", error=error.strerror)
            self._connections.evict()
            await asyncio.sleep(PAUSE_SECONDS)

    async def _open(self, peer: socket.socket) -> None:
        protocol = self._make()
        if not self._connections.admit(protocol):
            await self._refuse(peer)
        elif not await self._connect(peer, protocol):
            self._connections.lost(protocol)

    async def _refuse(self, peer: socket.socket) -> None:
        """Send 503. The request is read and discarded for a while: otherwise, many clients see only a reset."""
        if len(self._refused) < REFUSED_MAX:
            await self._connect(peer, _Refusal(self._refused))
        else:
            peer.close()

    async def _connect(self, peer: socket.socket, protocol: asyncio.Protocol) -> bool:
        """Connect a protocol, after TLS was negotiated; returns whether that succeeded."""
        tls = self._tls()
        if tls is None:
            await self._loop.connect_accepted_socket(lambda: protocol, peer)
            return True
        self._connections.handshaking(peer)
        try:
            await self._loop.connect_accepted_socket(
                lambda: protocol,
                peer,
                ssl=tls,
                ssl_handshake_timeout=HANDSHAKE_SECONDS,
                ssl_shutdown_timeout=GOODBYE_SECONDS,
            )
        except OSError:  # ssl.SSLError is one too.
            peer.close()
            return False
        finally:
            self._connections.shook_hands(peer)
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
        """Make room for the next one."""
        self._refused.discard(self)
