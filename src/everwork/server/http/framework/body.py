"""The body of a request: bounded, JSON, and unambiguous."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter as Tally
from typing import Any, Final, NamedTuple

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message

from everwork.core import checks
from everwork.exceptions import InvalidInput
from everwork.server.http.framework.problems import Refusal

BODY_BYTES_MAX: Final = 4 * 1_048_576
BULK_BYTES_MAX: Final = 32 * 1_048_576
PIECE_SECONDS: Final = 30.0
JSON_TYPE: Final = "application/json"
SLOWLY_MAX: Final = 262_144
"""A body up to this size may be read a second time, slowly, to say what is wrong with it."""


async def read_json(request: Request, bytes_max: int, *, is_required: bool = False) -> Any:
    """The value that was sent; nothing is as good as an object without fields, unless something must be said."""
    raw = await read_body(request, bytes_max)
    if not raw and is_required:
        raise InvalidInput("body", "must be sent; {} is an object that says nothing")
    if not raw:
        return {}
    _require_json(request)
    return await parse_json(raw)


async def read_body(request: Request, bytes_max: int) -> bytes:
    """The whole body; one that is too large is refused as soon as that is known, said beforehand or not."""
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared[:20]) > bytes_max:
        raise _too_large(bytes_max)
    parts: list[bytes] = []
    size = 0
    while True:
        message = await _next_piece(request)
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        part = message.get("body", b"")
        size += len(part)
        if size > bytes_max:
            raise _too_large(bytes_max)
        parts.append(part)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


async def _next_piece(request: Request) -> Message:
    """What comes next; whoever sends nothing for a while holds his connection for nothing."""
    try:
        async with asyncio.timeout(PIECE_SECONDS):
            return await request.receive()
    except TimeoutError:
        detail = f"the body must come without pauses of {PIECE_SECONDS:g} s"
        raise Refusal(408, "body_timeout", detail, {"Connection": "close"}) from None


async def parse_json(raw: bytes) -> Any:
    """A JSON value that means the same to everybody: no name twice, no number that loses digits."""
    seen = await outline(raw)
    try:
        value = orjson.loads(raw)
        await asyncio.sleep(0)
        again = await outline(orjson.dumps(value))
    except orjson.JSONDecodeError as error:
        raise Refusal(400, "invalid_json", f"the body is no JSON: {error}") from None
    except (orjson.JSONEncodeError, RecursionError):
        raise Refusal(400, "invalid_json", "the body is nested too deeply") from None
    # orjson takes the last of two equal names, and rounds long numbers, silently.
    if seen.names != again.names:
        raise _named_twice(raw)
    if seen.long_number is not None:
        raise InvalidInput("body", f"must not contain whole numbers over 64 bits, like {seen.long_number}")
    return value


def _require_json(request: Request) -> None:
    said = request.headers.getlist("content-type")
    if len(said) != 1 or said[0].partition(";")[0].strip().lower() != JSON_TYPE:
        shown = checks.shown(", ".join(said)) if said else "nothing"
        raise Refusal(415, "unsupported_media_type", f"Content-Type must be {JSON_TYPE}, not {shown}")
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.lower() != "identity":
        detail = f"Content-Encoding must be absent: bodies are taken as they are, not {checks.shown(encoding)}"
        raise Refusal(415, "unsupported_media_type", detail)


def _too_large(bytes_max: int) -> Refusal:
    detail = f"the body must be at most {bytes_max // 1_048_576} MiB"
    return Refusal(413, "body_too_large", detail)


def _named_twice(raw: bytes) -> InvalidInput:
    """Which name it is costs a long look, which a large body does not get."""
    try:
        if len(raw) <= SLOWLY_MAX:
            json.loads(raw, object_pairs_hook=_unambiguous)
    except InvalidInput as error:
        return error
    return InvalidInput("body", "must not have a name twice in one object")


def _unambiguous(pairs: list[tuple[str, Any]]) -> None:
    twice, times = Tally(name for name, _ in pairs).most_common(1)[0] if pairs else ("", 0)
    if times > 1:
        raise InvalidInput(twice[:80], "must not be given twice in one object")


VALUES_MAX: Final = 1_000_000
"""In one body; so many are read in a tenth of a second, during which nobody else is served."""
PIECE: Final = 1_048_576
"""After so many bytes others get their turn."""
_DROPPED: Final = bytes(set(range(256)) - set(b'",[:0123456789.eE+-'))
_LONG: Final = re.compile(rb"(?<![0-9.eE+-])-?[0-9]{19,}(?![0-9.eE])")
_SHOWN: Final = 40


class Outline(NamedTuple):
    """How many names the objects of a text have, and the first whole number over 64 bits."""

    names: int
    long_number: str | None


async def outline(raw: bytes) -> Outline:
    """Look at a text in pieces. What is said of one that is no JSON means nothing."""
    names = values = quotes = start = 0
    long_number: str | None = None
    while start < len(raw):
        # Behind a comma there is neither a number nor an escape that could be cut in two.
        end = raw.find(b",", start + PIECE) + 1 or len(raw)
        piece = _without_escapes(raw[start:end])
        _bound(values, quotes + piece.count(b'"'))
        parts = piece.translate(None, _DROPPED).split(b'"')
        outside = b"".join(parts[quotes % 2 :: 2])
        names += outside.count(b":")
        values += outside.count(b",") + outside.count(b"[") + outside.count(b":")
        quotes += len(parts) - 1
        _bound(values, quotes)
        long_number = long_number or _long_number(outside)
        start = end
        if start < len(raw):
            await asyncio.sleep(0)
    return Outline(names, long_number)


def _without_escapes(piece: bytes) -> bytes:
    return piece.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in piece else piece


def _bound(values: int, quotes: int) -> None:
    """Every text has two quotes, and two of them, name and value, may count as one."""
    if values > VALUES_MAX or quotes > 4 * VALUES_MAX:
        raise InvalidInput("body", f"must have at most {VALUES_MAX:,} values; send them in several calls")


def _long_number(outside: bytes) -> str | None:
    for found in _LONG.finditer(outside):
        digits = found[0].decode()
        if len(digits) > 20 or not -(2**63) <= int(digits) < 2**64:
            return digits[:_SHOWN]
    return None
