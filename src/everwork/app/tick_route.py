"""Ticks over HTTP: an ASGI route for the cron service of a serverless host, added to the user's own web application."""

from __future__ import annotations

import hmac
import os
from collections.abc import Awaitable, Callable, Coroutine, Mapping, MutableMapping
from dataclasses import asdict
from typing import Any, Final

import orjson

from everwork.app.tick import TickResult, jobs_per_tick
from everwork.core import checks
from everwork.exceptions import BadConfiguration, EngineBusy, EngineUnavailable, EverworkError
from everwork.logs import get_logger

log = get_logger("everwork")

SECRET_VARIABLE: Final = "CRON_SECRET"  # noqa: S105 - the name of a variable, as on Vercel
SECRET_CHARS_MIN: Final = 16
METHODS: Final = ("GET", "POST")
"""Vercel's cron sends GET, most others POST."""
RETRY_SECONDS: Final = 5

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
RunOnce = Callable[[int | None], Coroutine[Any, Any, TickResult]]
Close = Callable[[], Awaitable[None]]


class TickRoute:
    """An ASGI application that runs one tick per request and returns its summary as JSON. Requests can overlap.

    Requests must have the header `Authorization: Bearer SECRET`. `secret` defaults to the environment variable
    CRON_SECRET; `public=True` allows requests without a secret. If the route is served as an application of its own, it
    closes the store at shutdown.
    """

    def __init__(
        self,
        run_once: RunOnce,
        close: Close | None = None,
        *,
        secret: str | None = None,
        public: bool = False,
        max_jobs: int | None = None,
    ) -> None:
        self._run_once = run_once
        self._close = close
        self._secret = None if public else _checked_secret(secret)
        if public and secret is not None:
            raise BadConfiguration("tick_route: pass either secret= or public=True, not both")
        self._max_jobs = None if max_jobs is None else jobs_per_tick(max_jobs)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        match scope["type"]:
            case "http":
                await self._answer(scope, send)
            case "lifespan":
                await self._live(receive, send)
            case _:
                await send({"type": "websocket.close", "code": 1000})

    async def _answer(self, scope: Scope, send: Send) -> None:
        if scope["method"] not in METHODS:
            await _refuse(send, 405, "method_not_allowed", "use GET or POST", {"allow": ", ".join(METHODS)})
        elif not self._is_authorised(scope):
            detail = "the header 'Authorization: Bearer SECRET' is missing or wrong"
            await _refuse(send, 401, "unauthenticated", detail, {"www-authenticate": 'Bearer realm="everwork"'})
        else:
            await self._tick(send)

    def _is_authorised(self, scope: Scope) -> bool:
        if self._secret is None:
            return True
        sent = [value for name, value in scope["headers"] if name.lower() == b"authorization"]
        kind, _, token = (sent[0] if len(sent) == 1 else b"").partition(b" ")
        return kind.lower() == b"bearer" and hmac.compare_digest(token.strip(), self._secret)

    async def _tick(self, send: Send) -> None:
        try:
            result = await self._run_once(self._max_jobs)
        except (EngineUnavailable, EngineBusy) as error:
            log.error("tick failed, the engine is unavailable", error=str(error))
            headers = {"retry-after": str(RETRY_SECONDS)}
            await _refuse(send, 503, "unavailable", "the engine is unavailable", headers)
        except EverworkError as error:
            log.error("tick failed", error=str(error))
            await _refuse(send, 500, "internal", "the tick failed; see the log")
        else:
            await _send(send, 200, "application/json", asdict(result))

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.shutdown":
                if self._close is not None:
                    await self._close()
                await send({"type": "lifespan.shutdown.complete"})
                return
            await send({"type": "lifespan.startup.complete"})


def _checked_secret(given: object) -> bytes:
    text = os.environ.get(SECRET_VARIABLE, "") if given is None else given
    name = SECRET_VARIABLE if given is None else "secret"
    if given is None and not text:
        raise BadConfiguration(
            f"tick_route: needs a secret: set {SECRET_VARIABLE} or pass secret=; public=True allows calls without one"
        )
    if not isinstance(text, str) or len(text) < SECRET_CHARS_MIN or not _fits_header(text):
        # Never quoted: it could contain most of a real secret.
        kind = "" if isinstance(text, str) else f", not {checks.shown(text)}"
        raise BadConfiguration(
            f"tick_route: {name} must be at least {SECRET_CHARS_MIN} printable ASCII characters without spaces{kind}"
        )
    return text.encode("ascii")


def _fits_header(text: str) -> bool:
    return text.isascii() and text.isprintable() and " " not in text


async def _refuse(send: Send, status: int, code: str, detail: str, headers: Mapping[str, str] | None = None) -> None:
    body = {"type": f"urn:everwork:problem:{code}", "status": status, "detail": detail, "code": code}
    await _send(send, status, "application/problem+json", body, headers)


async def _send(
    send: Send, status: int, media_type: str, body: object, headers: Mapping[str, str] | None = None
) -> None:
    content = orjson.dumps(body)
    sent = {
        "content-type": media_type,
        "content-length": str(len(content)),
        "cache-control": "no-store",
        **(headers or {}),
    }
    raw = [(name.encode(), value.encode()) for name, value in sent.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": content})
