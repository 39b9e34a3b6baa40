"""Engine URLs as they may be shown: never with a password."""

from __future__ import annotations

import re
from typing import Final

HIDDEN: Final = "***"
_SECRET: Final = re.compile(r"(?<=[?&])([^=&]*(?:pass|secret|token)[^=&]*)=[^&]*", re.IGNORECASE)


def shown_url(url: str) -> str:
    """The URL with its password hidden, also where it was not written as it should be."""
    scheme, is_url, rest = url.partition("://")
    if not is_url or scheme == "sqlite":
        return url
    # A password may hold any sign, even "/" and "@", if nobody has encoded it: all before the last "@" is suspect.
    who, has_user, place = rest.rpartition("@")
    user, has_password, _ = who.partition(":")
    shown = f"{user}:{HIDDEN}@" if has_password else f"{who}{has_user}"
    return f"{scheme}://{shown}" + _SECRET.sub(rf"\1={HIDDEN}", place)
