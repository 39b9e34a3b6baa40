"""Where a server is, how its line is secured, and the key that goes with every call."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from everwork.core.checks import shown
from everwork.engines.urls import shown_url
from everwork.exceptions import BadConfiguration

SCHEMES: Final = ("grpc", "grpcs")
PORT_DEFAULT: Final = 27500
KEY_VARIABLE: Final = "EVERWORK_API_KEY"
_PLACE: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(\d{1,5}))?/?")


@dataclass(frozen=True, slots=True)
class Address:
    """A server. The key is never shown."""

    target: str
    is_secure: bool = False
    authorities: bytes | None = field(default=None, repr=False)
    """Certificates to trust instead of the machine's own."""
    key: str | None = field(default=None, repr=False)

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What goes with every call."""
        return () if self.key is None else (("x-api-key", self.key),)


def is_remote(url: object) -> bool:
    """Whether a URL names a server and not a store."""
    return isinstance(url, str) and url.partition("://")[0].lower() in SCHEMES


def server_address(url: str, key: str | None, tls: bool | str | Path) -> Address:
    """The server that a URL names, with what is needed to talk to it."""
    scheme, _, place = url.partition("://")
    found = _PLACE.fullmatch(place)
    port = int(found[2] or PORT_DEFAULT) if found else 0
    if found is None or not 1 <= port <= 65535:
        raise BadConfiguration(f"client URL: must look like grpc://host:{PORT_DEFAULT}, not {shown_url(url)!r}")
    is_secure = scheme.lower() == "grpcs" or tls is not False
    return Address(f"{found[1]}:{port}", is_secure, _authorities(tls), _key(key))


def _authorities(tls: bool | str | Path) -> bytes | None:
    if isinstance(tls, bool):
        return None
    if not isinstance(tls, str | Path):
        raise BadConfiguration(f"tls: must be True, False or the path of a CA file, not {shown(tls)}")
    try:
        return Path(tls).read_bytes()
    except OSError as error:
        raise BadConfiguration(f"tls: the CA file {str(tls)!r} cannot be read: {error.strerror}") from None


def _key(key: str | None) -> str | None:
    key = key if key is not None else os.environ.get(KEY_VARIABLE) or None
    if key is not None and not (key and key.isascii() and key.isprintable()):
        raise BadConfiguration("key: must be a text of printable ASCII characters, as `everwork keys create` shows it")
    return key.strip() if key else None
