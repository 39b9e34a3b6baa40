"""Counts the fields of a message before it is parsed: once parsed, small ones take a hundred times their bytes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any, Final

from everwork.core.limits import MESSAGE_FIELDS_MAX
from everwork.exceptions import InvalidInput

LARGE_BYTES: Final = 65_536
"""In smaller messages, nothing is counted."""
STEP: Final = 1_000
"""How many fields are counted before other callers are served."""
VARINT, NESTED = 0, 2
FIXED_BYTES: Final = {1: 8, 5: 4}
"""Wire types of protobuf, and the size of those that have a fixed one."""
UNKNOWN: Final = (None, 0)
"""A field in which nothing is counted."""


async def require_few_fields(descriptor: Any, raw: bytes, give_way: Callable[[], Awaitable[None]]) -> None:
    """Refuse a large message with too many fields; a map entry counts as two. Malformed ones are left to the parser."""
    if len(raw) <= LARGE_BYTES:
        return
    fields, step_ends, places = 0, STEP, [(descriptor, 0, len(raw))]
    try:
        while places:
            kind, at, end = places.pop()
            known = _known(kind)
            while at < end:
                fields += 1
                tag, at = _varint(raw, at)
                wire = tag & 7
                if wire == NESTED:
                    size, at = _varint(raw, at)
                    inner, more = known.get(tag >> 3, UNKNOWN)
                    fields += more
                    if inner is not None:
                        places.append((inner, at, min(at + size, end)))
                    at += size
                else:
                    at = _varint(raw, at)[1] if wire == VARINT else at + FIXED_BYTES.get(wire, 0)
                if fields >= step_ends:
                    if fields > MESSAGE_FIELDS_MAX:
                        raise InvalidInput("request", f"must have at most {MESSAGE_FIELDS_MAX:,} fields")
                    step_ends = min(fields + STEP, MESSAGE_FIELDS_MAX + 1)
                    await give_way()
    except IndexError:
        return


@cache
def _known(descriptor: Any) -> dict[int, tuple[Any, int]]:
    """The fields of a message, by number, in which something is counted: either their own fields, or one more field."""
    nested = {one.number: one.message_type for one in descriptor.fields if one.message_type is not None}
    inner = {number: kind for number, kind in nested.items() if any(one.message_type for one in kind.fields)}
    maps = {number for number, kind in nested.items() if kind.GetOptions().map_entry}
    return {number: (inner.get(number), int(number in maps)) for number in nested}


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    """The number at a position, and the position after it; an IndexError if there is none."""
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
