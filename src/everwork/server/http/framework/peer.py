"""The peer of a request: address (only trusted proxies can override it), API key, TLS, and Host header."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from starlette.types import Scope

from everwork.exceptions import Unauthenticated
from everwork.server.addresses import (
    caller_address,
    is_address,
    is_https_proxy,
    is_loopback,
    refuses_clear_keys,
    require_private,
)
from everwork.server.settings import Settings

UNKNOWN: Final = "unknown"
_HOST: Final = re.compile(r"(\[[0-9a-f:.]+\]|[^:\[\]@/]+)(?::\d+)?")


def api_key_of(scope: Scope) -> str | None:
    """The API key of a request, from X-API-Key or Authorization; more than one is refused."""
    found: list[str] = []
    for name, value in scope["headers"]:
        if name == b"x-api-key":
            found.append(value.decode("latin-1").strip())
        elif name == b"authorization":
            found.append(_bearer(value.decode("latin-1")))
    if len(found) > 1:
        raise Unauthenticated("more than one API key: send one, in X-API-Key or in Authorization: Bearer")
    return found[0] if found else None


def client_address(scope: Scope, trusted: Sequence[str]) -> str:
    """The address of the peer or, behind trusted proxies, of the last hop that is not a trusted proxy."""
    client = scope.get("client")
    return caller_address(str(client[0]), _values(scope, b"x-forwarded-for"), trusted) if client else UNKNOWN


def is_tls(scope: Scope, trusted: Sequence[str]) -> bool:
    """Whether the client uses TLS, terminated here or by a trusted proxy."""
    if scope["scheme"] == "https":
        return True
    client = scope.get("client")
    if client is None:
        return False
    return is_https_proxy(str(client[0]), _values(scope, b"x-forwarded-proto"), trusted)


def require_private_key(scope: Scope, settings: Settings) -> None:
    """Refuse a key that was sent unencrypted from another host, unless the settings allow it."""
    if refuses_clear_keys(settings):
        address = client_address(scope, settings.trusted_proxies) if scope.get("client") else None
        require_private(address, is_tls=is_tls(scope, settings.trusted_proxies))


def host_port(scope: Scope) -> str:
    """The port in the Host header; empty for the default port."""
    host = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"host"), "")
    port = host.rpartition(":")[2]
    return port if port.isascii() and port.isdigit() and len(port) <= 5 else ""


def is_own_host(scope: Scope, host: str) -> bool:
    """Whether the Host header names this host, and is not a foreign name that resolves to it (DNS rebinding)."""
    named = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"host"), "localhost")
    found = _HOST.fullmatch(named.lower())
    if found is None:
        return False
    name = found[1].strip("[]")
    return name in ("localhost", host.lower()) or (is_address(name) and is_loopback(name))


def is_same_origin(scope: Scope) -> bool:
    """Whether a request comes from a page of this site, or not from a page at all."""
    headers = dict(scope["headers"])
    site = headers.get(b"sec-fetch-site")
    if site is not None:
        return site in (b"same-origin", b"none")
    origin = headers.get(b"origin")
    return origin is None or origin.partition(b"://")[2].lower() == headers.get(b"host", b"").lower()


def _bearer(value: str) -> str:
    scheme, _, key = value.partition(" ")
    if scheme.lower() != "bearer":
        raise Unauthenticated("Authorization must be 'Bearer KEY'")
    return key.strip()


def _values(scope: Scope, header: bytes) -> list[str]:
    return [value.decode("latin-1") for name, value in scope["headers"] if name == header]
