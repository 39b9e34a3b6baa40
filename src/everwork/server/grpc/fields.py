"""Counts the fields of a message before it is parsed: once parsed, small ones take a hundred times their bytes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any, Final

from everwork.core.limits import MESSAGE_FIELDS_MAX
from everwork.exceptions import InvalidInput

LARGE_BYTES: Final = 65_536
"""Smaller messages cannot have too many fields that matter."""
STEP: Final = 1_000
"""How many fields are counted before other callers are served."""
VARINT, FIXED64, NESTED, FIXED32 = 0, 1, 2, 5


async def require_few_fields(descriptor: Any, raw: bytes, give_way: Callable[[], Awaitable[None]]) -> None:
    """Refuse a large message with too many fields. Malformed ones are left to the parser."""
    if len(raw) <= LARGE_BYTES:
        return
    fields, places = 0, [(descriptor, 0, len(raw))]
    try:
        while places:
            kind, at, end = places.pop()
            nested = _nested(kind)
            while at < end:
                tag, at = _varint(raw, at)
                wire = tag & 7
                if wire == NESTED:
                    size, at = _varint(raw, at)
                    if (inner := nested.get(tag >> 3)) is not None and _nested(inner):
                        places.append((inner, at, min(at + size, end)))
                    at += size
                elif wire == VARINT:
                    _, at = _varint(raw, at)
                else:
                    at += 8 if wire == FIXED64 else 4 if wire == FIXED32 else 0
                fields += 1
                if fields % STEP == 0:
                    if fields >= MESSAGE_FIELDS_MAX:
                        problem = f"must have at most {MESSAGE_FIELDS_MAX:,} fields; send less in one message"
                        raise InvalidInput("request", problem)
                    await give_way()
    except IndexError:
        return


@cache
def _nested(descriptor: Any) -> dict[int, Any]:
    """The fields of a message that are messages themselves, by number."""
    return {one.number: one.message_type for one in descriptor.fields if one.message_type is not None}


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    """The number at a place, and the place after it."""
    number = raw[at]
    at += 1
    if number < 128:
        return number, at
    number &= 127
    shift = 7
    while True:
        byte = raw[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128 or shift > 63:
            return number, at
        shift += 7
