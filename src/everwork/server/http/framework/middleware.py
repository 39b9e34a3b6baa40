"""Middleware around every response: security headers, call metrics, and the handler of unexpected errors."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from everwork.logs import Occasional, get_logger
from everwork.server.http.framework.context import API, AppContext
from everwork.server.http.framework.in_flight import HOLD, Hold
from everwork.server.http.framework.peer import is_own_host, is_same_origin
from everwork.server.http.framework.problems import problem

log = get_logger("everwork")
occasional = Occasional(log)

HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
}
HSTS: Final = {"Strict-Transport-Security": "max-age=31536000"}
"""Makes browsers insist on TLS for this host name; not sent on loopback addresses, whose name other programs share."""
GONE: Final = 499
"""The status that metrics record if the client disconnected before the response."""


SLICE_BYTES: Final = 65_536
"""Larger responses are sent in slices, so that what the client has not read is not copied to its connection."""
SEND_SECONDS: Final = 20.0
SEND_BYTES_PER_SECOND: Final = 16_384
"""Reading a response may take `SEND_SECONDS`, plus the time that its size takes at this rate."""
SAFE_METHODS: Final = ("GET", "HEAD", "OPTIONS")


class _OwnSiteOnly:
    """Protects servers without authentication from other sites that a browser on this host visits.

    Refuses requests for another site's host name (DNS rebinding), and changes that another site's page requests.
    """

    def __init__(self, app: ASGIApp, host: str) -> None:
        self._app = app
        self._host = host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not is_own_host(scope, self._host):
            detail = "a server without authentication accepts only requests addressed to its own host"
        elif scope["method"] not in SAFE_METHODS and not is_same_origin(scope):
            detail = "a server without authentication accepts no changes from pages of other sites"
        else:
            await self._app(scope, receive, send)
            return
        await problem(403, "permission_denied", detail)(scope, receive, send)


class ResponseMiddleware:
    """ASGI middleware: adds headers, counts the call, and turns unexpected errors into problem documents."""

    def __init__(self, app: ASGIApp, context: AppContext) -> None:
        settings = context.settings
        self._app = _OwnSiteOnly(app, settings.host) if not settings.has_auth else app
        self._metrics = context.metrics
        self._in_flight = context.in_flight
        has_hsts = settings.tls_certificate is not None and not settings.is_loopback
        headers = {**HEADERS, **HSTS} if has_hsts else HEADERS
        self._headers = [(name.lower().encode(), value.encode()) for name, value in headers.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        hold = scope[HOLD] = Hold(self._in_flight)
        reply = _Reply(send, self._headers, hold)
        try:
            await self._app(scope, receive, reply.send)
        except ClientDisconnect:
            pass
        except _TooSlow:
            occasional.warning("response not completed: the client reads too slowly")
        except asyncio.CancelledError:
            # Requests are cancelled only when the server stops and its grace period has ended.
            if reply.status == GONE:
                await problem(503, "stopping", "the server is stopping")(scope, receive, reply.send)
        except Exception as error:  # the last resort: clients must never see a traceback
            log.error("internal error in a request", path=scope["path"], error=type(error).__name__, exc_info=error)
            if reply.status != GONE:
                raise
            await problem(500, "internal_error", "internal error; see the server log")(scope, receive, reply.send)
        finally:
            hold.release()
            self._metrics.called(API, scope.get("everwork.operation", "unknown"), str(reply.status))


class _Reply:
    """One response: adds headers, records the status, and sends large bodies in slices."""

    __slots__ = ("_headers", "_hold", "_send", "status")

    def __init__(self, send: Send, headers: Sequence[tuple[bytes, bytes]], hold: Hold) -> None:
        self._send = send
        self._headers = headers
        self._hold = hold
        self.status = GONE

    async def send(self, message: Message) -> None:
        """Send one message of the response."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers: list[tuple[bytes, bytes]] = message["headers"]
            own = {name for name, _ in headers}
            headers.extend([header for header in self._headers if header[0] not in own])
        elif len(message.get("body", b"")) > SLICE_BYTES:
            await _send_slices(self._hold, self._send, message)
            return
        await self._send(message)


class _TooSlow(Exception):
    """The client reads more slowly than the minimum rate."""


async def _send_slices(hold: Hold, send: Send, message: Message) -> None:
    """Send a large body in slices, each after the client has read most of the one before."""
    body = memoryview(message["body"])
    hold.send(len(body))
    try:
        async with asyncio.timeout(SEND_SECONDS + len(body) / SEND_BYTES_PER_SECOND):
            for start in range(0, len(body), SLICE_BYTES):
                end = start + SLICE_BYTES
                has_more = end < len(body) or message.get("more_body", False)
                await send({"type": "http.response.body", "body": body[start:end], "more_body": has_more})
                await asyncio.sleep(0)  # A client that reads immediately never makes `send` wait.
    except TimeoutError:
        raise _TooSlow from None
