"""Readers of single settings: each returns the checked value, or raises `InvalidInput` without a field."""

from __future__ import annotations

import re
from collections.abc import Callable
from ipaddress import ip_network
from pathlib import Path
from typing import Final

from everwork.core import checks
from everwork.exceptions import InvalidInput

DEFAULT_ENGINE: Final = "sqlite:///everwork.db"
NAMES_MAX: Final = 1_000


def whole(low: int, high: int) -> Callable[[object], int]:
    """A whole number within bounds."""
    return lambda value: checks.whole_number("", value, low, high)


def real(low: float, high: float) -> Callable[[object], float]:
    """A number within bounds."""
    return lambda value: checks.number("", value, low, high)


def one_of(allowed: tuple[str, ...]) -> Callable[[object], str]:
    """One of the allowed words."""

    def read(value: object) -> str:
        if not isinstance(value, str) or value not in allowed:
            names = " or ".join([", ".join(allowed[:-1]), allowed[-1]])
            raise InvalidInput("", f"must be {names}, not {checks.shown(value)}")
        return value

    return read


def engine_text(value: object) -> str:
    """Accept any string: the engine checks it."""
    if not isinstance(value, str):
        # The value may contain a password.
        raise InvalidInput("", f"must be a URL such as {DEFAULT_ENGINE}, not of type {type(value).__name__}")
    return value


def host(value: object) -> str:
    """An address or a host name."""
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9._:%-]{1,255}", value):
        allowed = "an address or a host name, such as 127.0.0.1, :: or localhost"
        raise InvalidInput("", f"must be {allowed}, not {checks.shown(value)}")
    return value


def path(value: object) -> Path:
    """The path of a file."""
    if isinstance(value, Path):
        return value
    if value == "":
        raise InvalidInput("", "must be the path of a file, not ''")
    return Path(checks.text("", value, 4_096))


def networks(value: object) -> tuple[str, ...]:
    """Addresses or networks."""
    allowed = "addresses or networks, such as 10.0.0.7 or 10.0.0.0/8"
    if not isinstance(value, list | tuple):
        raise InvalidInput("", f"must be a list of {allowed}, not {checks.shown(value)}")
    for one in value:
        try:
            ip_network(one if isinstance(one, str) else "", strict=False)
        except ValueError:
            raise InvalidInput("", f"must be a list of {allowed}, not {checks.shown(one)}") from None
    return tuple(value)


def names(value: object) -> tuple[str, ...]:
    """Variable names."""
    if not isinstance(value, list | tuple) or len(value) > NAMES_MAX:
        allowed = f"a list of at most {NAMES_MAX:,} names, such as password or api key"
        raise InvalidInput("", f"must be {allowed}, not {checks.shown(value)}")
    return tuple(checks.name("", one) for one in value)
