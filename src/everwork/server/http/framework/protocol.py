"""Uvicorn's HTTP protocol with limits on the size of a request's head and the time to receive it."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

HEAD_BYTES_MAX: Final = 131_072
"""Enough for the longest query that is allowed."""
HEAD_SECONDS: Final = 30.0


class BoundedProtocol(HttpToolsProtocol):
    """Bounds the head of a request, so that slow or endless heads hold neither memory nor connections."""

    head_seconds: float = HEAD_SECONDS

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._head_bytes = 0
        self._has_head = False
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer for the first head."""
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse data; refuse a head that grows too large."""
        had_head = self._has_head
        super().data_received(data)
        if not self._has_head:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX and not self.transport.is_closing():
                self._refuse()
        elif not had_head:
            self._head_bytes = 0

    def on_message_begin(self) -> None:
        """A request starts: restart the timeout for its headers."""
        super().on_message_begin()
        self._has_head = False
        self._head_bytes = 0
        self._await_head()

    def on_headers_complete(self) -> None:
        """The head is complete: stop its timer."""
        self._has_head = True
        self._stop_timer()
        super().on_headers_complete()

    def _await_head(self) -> None:
        self._stop_timer()
        self._head_timer = self.loop.call_later(self.head_seconds, self._head_timeout)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_timeout(self) -> None:
        if self._is_responding:
            self._await_head()  # A pipelined request is parsed only after the response.
        else:
            self.transport.abort()

    @property
    def _is_responding(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

    def _refuse(self) -> None:
        """Respond with 400, unless a response to an earlier request is in progress."""
        if self._is_responding:
            self.transport.abort()
        else:
            self.send_400_response("The head of the request is too large.")
