"""Times in forms: sent in UTC or with an offset, shown by the script in the viewer's time zone."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

from everwork.core import checks
from everwork.core.instants import moment_ms, utc_text
from everwork.exceptions import InvalidInput

_MOMENT: Final = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d)(:\d\d(?:\.\d{1,3})?)?(Z|[+ -]\d\d:\d\d)?", re.ASCII)
ALLOWED: Final = "must be a time in UTC, like 2030-01-31T12:00Z, or with an offset, like 2030-01-31T14:00+02:00"


def utc_moment(name: str, text: str) -> int:
    """Parse the value of a browser's datetime-local field, in UTC unless it has an offset."""
    found = _MOMENT.fullmatch(text.strip())
    if found is None:
        raise InvalidInput(name, f"{ALLOWED}, not {checks.shown(text)}")
    minute, seconds, zone = found.groups()
    # A plus sign in a URL that was typed by hand arrives as a space.
    return moment_ms(name, f"{minute}{seconds or ':00'}{(zone or 'Z').replace(' ', '+')}")


def utc_iso(text: str) -> str:
    """The typed time in UTC; empty if it is not a time."""
    try:
        return utc_text(utc_moment("time", text))
    except InvalidInput:
        return ""


def utc_field(text: str) -> str:
    """The typed time as the value of a datetime-local field, in UTC; unchanged if it is not a time."""
    try:
        moment = datetime.fromtimestamp(utc_moment("time", text) / 1000, UTC)
    except InvalidInput:
        return text
    return moment.strftime("%Y-%m-%dT%H:%M:%S" if moment.second else "%Y-%m-%dT%H:%M")
