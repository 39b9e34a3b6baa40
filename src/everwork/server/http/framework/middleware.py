"""Middleware around every response: security headers, call metrics, and the handler of unexpected errors."""

from __future__ import annotations

import asyncio
from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from everwork.logs import get_logger
from everwork.server.http.framework.context import API, AppContext
from everwork.server.http.framework.peer import is_own_host
from everwork.server.http.framework.problems import problem

log = get_logger("everwork")

HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
}
GONE: Final = 499
"""The status that metrics record if the client disconnected before the response."""


class _OwnHostOnly:
    """Protects servers without authentication from DNS rebinding: another site's host name is refused."""

    def __init__(self, app: ASGIApp, host: str) -> None:
        self._app = app
        self._host = host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if is_own_host(scope, self._host):
            await self._app(scope, receive, send)
        else:
            detail = "a server without authentication accepts only requests addressed to its own host"
            await problem(403, "permission_denied", detail)(scope, receive, send)


class ResponseMiddleware:
    """ASGI middleware: adds headers, counts the call, and turns unexpected errors into problem documents."""

    def __init__(self, app: ASGIApp, context: AppContext) -> None:
        self._app = _OwnHostOnly(app, context.settings.host) if not context.settings.has_auth else app
        self._metrics = context.metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = GONE

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            await self._app(scope, receive, send_with_headers)
        except ClientDisconnect:
            pass
        except asyncio.CancelledError:
            # Requests are cancelled only when the server stops and its grace period has ended.
            if status == GONE:
                await problem(503, "stopping", "the server is stopping")(scope, receive, send_with_headers)
        except Exception as error:  # the last resort: clients must never see a traceback
            log.error("internal error in a request", path=scope["path"], error=type(error).__name__, exc_info=error)
            if status != GONE:
                raise
            await problem(500, "internal_error", "internal error; see the server log")(
                scope, receive, send_with_headers
            )
        finally:
            self._metrics.called(API, scope.get("everwork.operation", "unknown"), str(status))
