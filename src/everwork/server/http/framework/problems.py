"""Errors of the REST API: problem documents (RFC 9457) with a stable code."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Any, Final

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from everwork.codec.json import in_json_words
from everwork.exceptions import EverworkError, InvalidInput, TooManyRequests, Unauthenticated
from everwork.server.errors import public_text, wire

PROBLEM_TYPE: Final = "application/problem+json"
DRAIN_SECONDS: Final = 5.0
DRAIN_BYTES_MAX: Final = 128 * 1_048_576
CHALLENGE: Final = 'Bearer realm="everwork"'


class Refusal(Exception):
    """A request refused at the HTTP level: its path, method, size or content type."""

    def __init__(self, status: int, code: str, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.headers = dict(headers or {})
        self.has_unread_body = False
        """Whether the client may still be sending the body."""


def problem(
    status: int, code: str, detail: str, *, field: str | None = None, headers: Mapping[str, str] | None = None
) -> Response:
    """Build a problem document."""
    body: dict[str, Any] = {
        "type": f"urn:everwork:problem:{code}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "code": code,
    }
    if field is not None:
        body["field"] = field
    return Response(_dumped(body), status, dict(headers or {}), PROBLEM_TYPE)


def problem_of(error: EverworkError | Refusal) -> Response:
    """Build the problem document of an error."""
    if isinstance(error, Refusal):
        response = problem(error.status, error.code, str(error), headers=error.headers)
        return DrainingResponse(response) if error.has_unread_body else response
    known = wire(error)
    field = error.field if isinstance(error, InvalidInput) else None
    text = public_text(error)
    detail = text if field is None else in_json_words(text)
    return problem(known.http, known.code, detail, field=field, headers=_headers(error))


class DrainingResponse(Response):
    """The response to a body that is refused before its end.

    Many clients send the whole body before they read, and would see a reset connection instead of the response,
    so the rest of the body is read and discarded for a while.
    """

    def __init__(self, response: Response) -> None:
        super().__init__(response.body, response.status_code, {**response.headers, "Connection": "close"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI
        """Send the response, drain the request, and close the connection."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                await _drain(receive)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _drain(receive: Receive) -> None:
    size = 0
    while size < DRAIN_BYTES_MAX:
        message = await receive()
        size += len(message.get("body", b""))
        if not message.get("more_body", False):
            return


def _headers(error: EverworkError) -> dict[str, str]:
    if isinstance(error, TooManyRequests):
        return {"Retry-After": str(max(1, math.ceil(error.retry_after_ms / 1000)))}
    if isinstance(error, Unauthenticated):
        return {"WWW-Authenticate": CHALLENGE}
    return {}


def _dumped(body: dict[str, Any]) -> bytes:
    """Encode a problem; it can quote lone surrogates from the request, which UTF-8 cannot encode."""
    try:
        return orjson.dumps(body)
    except TypeError:
        texts = {
            name: value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
            for name, value in body.items()
        }
        return orjson.dumps(texts)
