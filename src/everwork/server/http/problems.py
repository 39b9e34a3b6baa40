"""Errors as callers of REST see them: problem documents (RFC 9457) with a stable code."""

from __future__ import annotations

import math
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

import orjson
from starlette.responses import Response

from everwork.exceptions import EverworkError, InvalidInput, TooManyRequests, Unauthenticated
from everwork.server.errors import wire

PROBLEM_TYPE: Final = "application/problem+json"
CHALLENGE: Final = 'Bearer realm="everwork"'


class Refusal(Exception):
    """A request that is refused for what it is in HTTP: its path, method, size or content type."""

    def __init__(self, status: int, code: str, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.headers = dict(headers or {})


def problem(
    status: int, code: str, detail: str, *, field: str | None = None, headers: Mapping[str, str] | None = None
) -> Response:
    """One problem document."""
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
    """The problem document of an error."""
    if isinstance(error, Refusal):
        return problem(error.status, error.code, str(error), headers=error.headers)
    known = wire(error)
    field = error.field if isinstance(error, InvalidInput) else None
    return problem(known.http, known.code, str(error), field=field, headers=_headers(error))


def _headers(error: EverworkError) -> dict[str, str]:
    if isinstance(error, TooManyRequests):
        return {"Retry-After": str(max(1, math.ceil(error.retry_after_ms / 1000)))}
    if isinstance(error, Unauthenticated):
        return {"WWW-Authenticate": CHALLENGE}
    return {}


def _dumped(body: dict[str, Any]) -> bytes:
    """A message quotes what the caller sent, and that may not be Unicode that can be sent back."""
    try:
        return orjson.dumps(body)
    except TypeError:
        texts = {
            name: value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
            for name, value in body.items()
        }
        return orjson.dumps(texts)
