"""What a JSON text is made of, found without making its values: bounds come before memory."""

from __future__ import annotations

import asyncio
import re
from typing import Final, NamedTuple

from everwork.exceptions import InvalidInput

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
