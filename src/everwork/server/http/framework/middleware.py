"""Around every answer: headers that protect its reader, a figure, and the last resort."""

from __future__ import annotations

import asyncio
from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from everwork.logs import get_logger
from everwork.server.http.framework.context import DOOR, AppContext
from everwork.server.http.framework.origin import is_own_host
from everwork.server.http.framework.problems import problem

log = get_logger("everwork")

HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
}
GONE: Final = 499
"""What the figures say of a caller who went away before there was an answer."""


class _OwnHostOnly:
    """Without keys, a page of a stranger must not reach the server by giving it a name of its own."""

    def __init__(self, app: ASGIApp, host: str) -> None:
        self._app = app
        self._host = host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if is_own_host(scope, self._host):
            await self._app(scope, receive, send)
        else:
            detail = "a server without authentication answers only to names of its own host"
            await problem(403, "permission_denied", detail)(scope, receive, send)


class ResponseMiddleware:
    """An ASGI application around another."""

    def __init__(self, app: ASGIApp, parts: AppContext) -> None:
        self._app = _OwnHostOnly(app, parts.settings.host) if not parts.settings.has_auth else app
        self._metrics = parts.metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = GONE

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except ClientDisconnect:
            pass
        except asyncio.CancelledError:
            # Nobody but a server that is stopping and can wait no longer does this.
            if status == GONE:
                await problem(503, "stopping", "the server is stopping")(scope, receive, watched)
        except Exception as error:  # the last resort: a defect must not become a traceback on the wire
            log.error("a request met a defect", path=scope["path"], error=type(error).__name__, exc_info=error)
            if status != GONE:
                raise
            await problem(500, "internal_error", "the server met a defect; its log says more")(scope, receive, watched)
        finally:
            self._metrics.called(DOOR, scope.get("everwork.operation", "unknown"), str(status))
