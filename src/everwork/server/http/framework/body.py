"""Request bodies: bounded in size and time; JSON without duplicate names or numbers that lose digits."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, Protocol

import orjson
from starlette.requests import ClientDisconnect, Request

from everwork.aio.loops import within
from everwork.codec.json import long_integer, without_escapes
from everwork.core import checks
from everwork.exceptions import InvalidInput
from everwork.server.http.framework.in_flight import COUNTED_BYTES, HOLD, Hold
from everwork.server.http.framework.problems import Refusal

BODY_BYTES_MAX: Final = 4 * 1_048_576
BULK_BYTES_MAX: Final = 32 * 1_048_576
BODY_SECONDS: Final = 20.0
BODY_BYTES_PER_SECOND: Final = 16_384
"""A body may take `BODY_SECONDS`, plus the time that the bytes received so far take at this rate."""
PARSED_FACTOR: Final = 3
"""How much memory parsing and using a body takes in addition to the body, as a multiple of its size."""
VALUE_BYTES: Final = 200
"""How much memory each value in a body takes in addition: small ones need far more than their text."""
JSON_TYPE: Final = "application/json"
TURN: Final = "everwork.turn"
"""The scope key of a request's `RequestTurn`."""
DIAGNOSE_BYTES_MAX: Final = 262_144
"""Bodies up to this size are parsed a second time, slowly, to find the duplicate name."""

GiveWay = Callable[[], Awaitable[None]]
"""Lets other callers go first."""
Reserve = Callable[[int], Awaitable[None]]
"""Waits for the turn to work with this many bytes."""


class RequestTurn(Protocol):
    """The turn of a request, which starts once its body is complete."""

    async def begin(self) -> None:
        """Wait for the turn, unless it has started."""

    async def give_way(self) -> None:
        """Let other callers go first between two steps of a large request."""


async def read_json(request: Request, bytes_max: int, *, is_required: bool = False) -> Any:
    """Return the JSON value of the body; an empty body is `{}` unless one is required."""
    raw = await read_body(request, bytes_max)
    turn: RequestTurn | None = request.scope.get(TURN)
    if turn is not None:
        await turn.begin()
    if not raw and is_required:
        raise InvalidInput("body", "is required; send {} for an empty object")
    if not raw:
        return {}
    _require_json(request)
    hold = _hold(request)
    return await parse_json(raw, None if turn is None else turn.give_way, None if hold is None else hold.reserve)


async def read_body(request: Request, bytes_max: int) -> bytes:
    """Return the whole body; refuse one that is too large as early as possible, whether or not it declares its size."""
    try:
        return await _read(request, bytes_max, _hold(request))
    except Refusal as error:
        error.has_unread_body = True
        raise
    except TimeoutError:
        detail = f"the body must arrive within {BODY_SECONDS:g} s, plus 1 s per {BODY_BYTES_PER_SECOND // 1024} KiB"
        raise Refusal(408, "body_timeout", detail, {"Connection": "close"}) from None


async def _read(request: Request, bytes_max: int, hold: Hold | None) -> bytes:
    declared = request.headers.get("content-length", "")
    declared_bytes = int(declared[:20]) if declared.isdigit() else 0
    if declared_bytes > bytes_max:
        raise _too_large(bytes_max)
    if declared_bytes > COUNTED_BYTES and hold is not None:
        hold.receive(declared_bytes)  # Otherwise, many large bodies would all start, and all be refused near their end.
    chunks: list[bytes] = []
    size, loop = 0, asyncio.get_running_loop()
    ends = loop.time() + BODY_SECONDS
    while True:
        message = await within(ends + size / BODY_BYTES_PER_SECOND - loop.time(), request.receive())
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > bytes_max:
            raise _too_large(bytes_max)
        if size > max(COUNTED_BYTES, declared_bytes) and hold is not None:
            hold.receive(size)
        chunks.append(chunk)
        if not message.get("more_body", False):
            return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _hold(request: Request) -> Hold | None:
    """Where the bytes of this request are counted; None for requests outside our middleware."""
    hold: Hold | None = request.scope.get(HOLD)
    return hold


async def parse_json(raw: bytes, give_way: GiveWay | None = None, reserve: Reserve | None = None) -> Any:
    """Parse JSON that every parser reads the same way: no duplicate names, no integers over 64 bits.

    Between the steps of a large body, `give_way` is called. The memory that it takes is reserved first.
    """
    if len(raw) <= SMALL_BYTES:
        give_way = _go_on
    elif give_way is None or len(raw) <= CHUNK_BYTES:
        give_way = _next_pass
    sent = await scan_json(raw, give_way)
    taken = PARSED_FACTOR * len(raw) + VALUE_BYTES * sent.values
    if reserve is not None and taken > COUNTED_BYTES:
        await reserve(taken)
    try:
        value = orjson.loads(raw)
        await give_way()
        text = orjson.dumps(value)
        await give_way()
        parsed = await scan_json(text, give_way)
    except orjson.JSONDecodeError as error:
        raise Refusal(400, "invalid_json", f"the body is not valid JSON: {error}") from None
    except (orjson.JSONEncodeError, RecursionError):
        raise Refusal(400, "invalid_json", "the body is nested too deeply") from None
    # orjson silently keeps the last of two equal names, and rounds long numbers.
    if sent.names != parsed.names:
        raise _duplicate_name(raw)
    if sent.long_number is not None:
        raise InvalidInput("body", f"must not contain integers over 64 bits, such as {sent.long_number}")
    return value


def _require_json(request: Request) -> None:
    content_types = request.headers.getlist("content-type")
    if len(content_types) != 1 or content_types[0].partition(";")[0].strip().lower() != JSON_TYPE:
        shown = checks.shown(", ".join(content_types)) if content_types else "nothing"
        raise Refusal(415, "unsupported_media_type", f"Content-Type must be {JSON_TYPE}, not {shown}")
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.lower() != "identity":
        detail = f"Content-Encoding is not supported: send the body unencoded, not as {checks.shown(encoding)}"
        raise Refusal(415, "unsupported_media_type", detail)


def _too_large(bytes_max: int) -> Refusal:
    size = f"{bytes_max // 1_048_576} MiB" if bytes_max >= 1_048_576 else f"{bytes_max // 1_024} KiB"
    detail = f"the body must be at most {size}"
    return Refusal(413, "body_too_large", detail)


def _duplicate_name(raw: bytes) -> InvalidInput:
    """Return the duplicate name, unless the body is so large that finding it would be too expensive."""
    try:
        if len(raw) <= DIAGNOSE_BYTES_MAX:
            json.loads(raw, object_pairs_hook=_refuse_duplicates)
    except InvalidInput as error:
        return error
    return InvalidInput("body", "must not have duplicate names in one object")


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> None:
    name, count = Counter(name for name, _ in pairs).most_common(1)[0] if pairs else ("", 0)
    if count > 1:
        raise InvalidInput(name[:80], "must not appear twice in one object")


VALUES_MAX: Final = 1_000_000
"""The maximum per body: parsing this many blocks the event loop for about a tenth of a second."""
SMALL_BYTES: Final = 16_384
"""Up to this size, no step of parsing takes long enough to yield to the event loop."""
CHUNK_BYTES: Final = 131_072
"""Bytes to scan before yielding to the event loop."""
_DROPPED: Final = bytes(set(range(256)) - set(b'",[:0123456789.eE+-'))
_CUT: Final = re.compile(rb"[^\\0-9.eE+-]")
"""A cut after one of these bytes splits neither a number nor an escape sequence."""


class JsonScan(NamedTuple):
    """The number of names in all objects of a JSON text, about how many values, and its first integer over 64 bits."""

    names: int
    values: int
    long_number: str | None


async def _go_on() -> None:
    """Do not yield."""


async def _next_pass() -> None:
    await asyncio.sleep(0)


async def scan_json(raw: bytes, give_way: GiveWay = _next_pass) -> JsonScan:
    """Scan a text in chunks; the result is meaningless if the text is not JSON."""
    names = values = quotes = start = 0
    long_number: str | None = None
    while start < len(raw):
        cut = _CUT.search(raw, start + CHUNK_BYTES)
        end = len(raw) if cut is None else cut.end()
        chunk = without_escapes(raw[start:end])
        _check_size(values, quotes + chunk.count(b'"'))
        split = chunk.translate(None, _DROPPED).split(b'"')
        outside = b"".join(split[quotes % 2 :: 2])
        names += outside.count(b":")
        values += outside.count(b",") + outside.count(b"[") + outside.count(b":")
        quotes += len(split) - 1
        _check_size(values, quotes)
        long_number = long_number or long_integer(outside)
        start = end
        if start < len(raw):
            await give_way()
    return JsonScan(names, values, long_number)


def _check_size(values: int, quotes: int) -> None:
    """Refuse too many values. Every string has two quotes, and a name with its value can count as one."""
    if values > VALUES_MAX or quotes > 4 * VALUES_MAX:
        raise InvalidInput("body", f"must have at most {VALUES_MAX:,} values; send them in several calls")
