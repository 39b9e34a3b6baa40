"""Instants are integer milliseconds UTC; formatting them for people, and parsing."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from everwork.core.checks import shown
from everwork.core.limits import INSTANT_MS_MAX
from everwork.exceptions import InvalidInput

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_RFC_3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)", re.ASCII)


@lru_cache(maxsize=4_096)  # Jobs that were created together show the same instants.
def utc_text(instant_ms: int) -> str:
    """An instant in RFC 3339, to the millisecond."""
    moment = _EPOCH + timedelta(milliseconds=instant_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def utc_text_or_none(instant_ms: int | None) -> str | None:
    """An instant in RFC 3339, if there is one."""
    return None if instant_ms is None else utc_text(instant_ms)


def instant_ms(moment: datetime) -> int:
    """A datetime with a time zone as an instant."""
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def moment_ms(field: str, text: object) -> int:
    """Parse a strict RFC 3339 timestamp as an instant."""
    try:
        is_moment = isinstance(text, str) and _RFC_3339.fullmatch(text)
        instant = instant_ms(datetime.fromisoformat(str(text).upper())) if is_moment else -1
    except ValueError:  # No such day, or no such hour.
        instant = -1
    if not 0 <= instant <= INSTANT_MS_MAX:
        allowed = "must be a time from 1970 to 9999 in RFC 3339 format, such as 2030-01-31T12:00:00Z"
        raise InvalidInput(field, f"{allowed}, not {shown(text)}")
    return instant
