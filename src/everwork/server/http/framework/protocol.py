"""HTTP on one connection: uvicorn's, with bounds on how large a request's head is and how long it takes to come."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

HEAD_BYTES_MAX: Final = 131_072
"""More than any honest request has; a query of all that is allowed fits."""
HEAD_SECONDS: Final = 30.0


class BoundedProtocol(HttpToolsProtocol):
    """A caller that never ends its head holds neither memory nor a connection for long."""

    head_seconds: float = HEAD_SECONDS

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._head_bytes = 0
        self._has_head = False
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The first head is awaited from now on."""
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is awaited any more."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take what has come; of a head, not without end."""
        had_head = self._has_head
        super().data_received(data)
        if not self._has_head:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX and not self.transport.is_closing():
                self._refuse()
        elif not had_head:
            self._head_bytes = 0

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._has_head = False
        self._head_bytes = 0
        self._await_head()

    def on_headers_complete(self) -> None:
        """Its head is complete."""
        self._has_head = True
        self._stop_timer()
        super().on_headers_complete()

    def _await_head(self) -> None:
        self._stop_timer()
        self._head_timer = self.loop.call_later(self.head_seconds, self._give_up)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _give_up(self) -> None:
        if self._is_answering:
            self._await_head()  # What was sent ahead is looked at when its turn comes.
        else:
            self.transport.abort()

    @property
    def _is_answering(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

    def _refuse(self) -> None:
        """Say so, unless the answer to an earlier request is under way."""
        if self._is_answering:
            self.transport.abort()
        else:
            self.send_400_response("The head of the request is too large.")
