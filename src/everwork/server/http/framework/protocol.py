"""Uvicorn's HTTP protocol, with limits on the size, number and duration of what a peer sends or leaves unread."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Final

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from everwork.server.http.framework.connections import HEADS_BYTES_MAX, Connections, log
from everwork.server.http.framework.problems import problem

HEAD_BYTES_MAX: Final = 131_072
"""Enough for the longest query that is allowed. Trailers and chunk extensions have the same limit."""
HEADERS_MAX: Final = 100
PIPELINE_PAUSE: Final = 8
"""How many requests may wait for an earlier response before the server stops reading."""
PIPELINE_MAX: Final = 64
"""The maximum number of waiting requests: many can arrive in one read."""


class _Refused(Exception):
    """Ends the parsing of a request."""


class BoundedProtocol(HttpToolsProtocol):
    """One connection.

    `Connections` enforces deadlines without timers: a request that is not slow costs only two dictionary updates.
    """

    def __init__(self, connections: Connections, config: uvicorn.Config, server_state: ServerState) -> None:
        super().__init__(config=config, server_state=server_state, app_state={})
        self._connections = connections
        self._running: RequestResponseCycle | None = None
        self._refusal = INVALID
        self._is_parsing = False
        self._has_head = False
        self._body_bytes = 0
        """How many bytes of the last data belong to bodies."""
        self._head_bytes = 0
        self._loose_bytes = 0
        """The bytes of chunk extensions and trailers since the last piece of the body."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first head."""
        super().connection_made(transport)
        self._connections.await_head(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Notify the request in progress, which is not always the last one that was received."""
        self._count_head(0)
        self._connections.lost(self)
        super().connection_lost(exc)
        if (running := self._running) is not None and not running.response_complete:
            running.disconnected = True
            running.message_event.set()

    # Receiving ------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Parse data; limit what is still incomplete."""
        self._body_bytes = 0
        super().data_received(data)
        if self._is_parsing:
            self._bound(len(data))
        if self.pipeline and self.flow.read_paused:
            self._connections.block(self)

    def on_message_begin(self) -> None:
        """A request starts."""
        super().on_message_begin()
        self._is_parsing = True
        self._has_head = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header as uvicorn does, up to the limit; trailers are ignored, because proxies do not check them."""
        if self._has_head:
            return
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))
        if len(self.headers) > HEADERS_MAX:
            self._refusal = TOO_MANY_HEADERS
            raise _Refused

    def on_headers_complete(self) -> None:
        """The head is complete: start the request, or let it wait for the response to the previous one."""
        self._has_head = True
        self._loose_bytes = 0
        self._count_head(0)
        self._connections.has_head(self)
        super().on_headers_complete()
        if not self.pipeline:
            self._running = self.cycle
        elif len(self.pipeline) < PIPELINE_PAUSE:
            self.flow.resume_reading()  # Otherwise, a disconnect would go unnoticed.
        elif len(self.pipeline) > PIPELINE_MAX:
            raise _Refused

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """A request is complete, unless the next one follows in the same data."""
        self._is_parsing = False
        super().on_message_complete()

    def _bound(self, size: int) -> None:
        """Limit incomplete heads, and chunk extensions and trailers, which no request needs."""
        if self.transport.is_closing():
            return
        if not self._has_head:
            self._count_head(self._head_bytes + size - self._body_bytes)
            if not self._is_responding:
                self._connections.await_head(self)
        self._loose_bytes = 0 if self._body_bytes or not self._has_head else self._loose_bytes + size
        if max(self._head_bytes, self._loose_bytes) > HEAD_BYTES_MAX:
            self._refuse(TOO_LARGE)
        elif self._head_bytes and self._connections.heads_bytes > HEADS_BYTES_MAX:
            log.warning("too many unfinished requests: some are refused", unfinished_bytes_max=HEADS_BYTES_MAX)
            self._refuse(BUSY)

    def _count_head(self, size: int) -> None:
        self._connections.heads_bytes += size - self._head_bytes
        self._head_bytes = size

    # Responding -----------------------------------------------------------------------------------

    def on_response_complete(self) -> None:
        """Start the next waiting request, or wait for one to arrive."""
        if self.pipeline:
            self._running = self.pipeline[-1][0]
            self._connections.unblock(self)
            super().on_response_complete()
            return
        # As in uvicorn, without its timer.
        self._running = None
        self.server_state.total_requests += 1
        if not self.transport.is_closing():
            self.flow.resume_reading()
        if self._is_parsing and not self._has_head:
            self._connections.await_head(self)
        else:
            self._connections.await_request(self)

    def pause_writing(self) -> None:
        """The peer does not read."""
        super().pause_writing()
        self._connections.stall(self)

    def resume_writing(self) -> None:
        """The peer has read."""
        super().resume_writing()
        self._connections.resume(self)

    # Ending ---------------------------------------------------------------------------------------

    def end_slow_head(self) -> None:
        """Respond with 408, or just close a connection that has sent nothing."""
        if self._head_bytes:
            self._refuse(SLOW_HEAD)
        else:
            self.end()

    def end(self) -> None:
        """Close the connection; discard what the peer has not read so far."""
        if self.transport.is_closing() or self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()

    def abort(self) -> None:
        """Close the connection now."""
        self.transport.abort()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's text says less
        """Respond to a request that cannot be parsed."""
        log.warning("invalid HTTP request")
        self._refuse(self._refusal)

    def _unsupported_upgrade_warning(self) -> None:
        """Log nothing: a client that requests WebSocket or HTTP/2 gets a normal response."""

    @property
    def is_closing(self) -> bool:
        """Whether it only waits until the peer has read the rest."""
        transport: asyncio.Transport | None = self.transport
        return transport is not None and transport.is_closing()

    @property
    def _is_responding(self) -> bool:
        return self._running is not None and not self._running.response_complete

    def _refuse(self, refusal: bytes) -> None:
        """Send a refusal, unless a response to an earlier request is in progress."""
        if self._is_responding:
            self.transport.abort()
        elif not self.transport.is_closing():
            self.transport.write(refusal)
            self.transport.close()
            self._connections.await_request(self)  # Until the peer has read it.


def refusal(status: int, code: str, detail: str, **headers: str) -> bytes:
    """A complete response, for requests that never reach the application."""
    response = problem(status, code, detail, headers={"Connection": "close", **headers})
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}".encode()]
    lines += [name + b": " + value for name, value in response.raw_headers]
    return b"\r\n".join([*lines, b"", bytes(response.body)])


INVALID: Final = refusal(400, "invalid_request", "the request is not valid HTTP/1.1")
TOO_LARGE: Final = refusal(431, "head_too_large", f"the head must be at most {HEAD_BYTES_MAX // 1024} KiB")
TOO_MANY_HEADERS: Final = refusal(431, "head_too_large", f"a request may have at most {HEADERS_MAX} headers")
SLOW_HEAD: Final = refusal(408, "head_timeout", "the head of the request did not arrive in time")
BUSY: Final = refusal(
    503, "too_many_connections", "too many connections or unfinished requests; retry later", **{"Retry-After": "1"}
)
