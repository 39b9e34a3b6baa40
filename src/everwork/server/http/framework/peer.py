"""The peer of a request: address (only trusted proxies can override it), API key, TLS, and Host header."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

from starlette.types import Scope

from everwork.exceptions import Unauthenticated

Network = IPv4Network | IPv6Network
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
    peer = _plain(str(client[0])) if client else UNKNOWN
    if not trusted or not _is_trusted(peer, tuple(trusted)):
        return peer
    hops = [_plain(hop.strip()) for hop in _forwarded(scope).split(",") if hop.strip()]
    for hop in reversed(hops):
        if not _is_address(hop):
            return peer
        if not _is_trusted(hop, tuple(trusted)):
            return hop
        peer = hop
    return peer


def is_tls(scope: Scope, trusted: Sequence[str]) -> bool:
    """Whether the client uses TLS, terminated here or by a trusted proxy."""
    if scope["scheme"] == "https":
        return True
    client = scope.get("client")
    if not trusted or client is None or not _is_trusted(_plain(str(client[0])), tuple(trusted)):
        return False
    protocols = [value.decode("latin-1") for name, value in scope["headers"] if name == b"x-forwarded-proto"]
    return bool(protocols) and protocols[-1].rpartition(",")[2].strip().lower() == "https"


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
    return name in ("localhost", host.lower()) or (_is_address(name) and ip_address(name).is_loopback)


def is_same_origin(scope: Scope) -> bool:
    """Whether a request comes from a page of this site, or from no page at all."""
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


def _forwarded(scope: Scope) -> str:
    return ",".join(value.decode("latin-1") for name, value in scope["headers"] if name == b"x-forwarded-for")


def _is_trusted(address: str, trusted: tuple[str, ...]) -> bool:
    if not _is_address(address):
        return False
    return any(ip_address(address) in network for network in _networks(trusted))


def _plain(address: str) -> str:
    """Extract an IPv4 address from its IPv6-mapped form, which dual-stack servers see."""
    if not address.lower().startswith("::ffff:") or not _is_address(address):
        return address
    wrapped = IPv6Address(address).ipv4_mapped
    return address if wrapped is None else str(wrapped)


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


@lru_cache(maxsize=8)
def _networks(trusted: tuple[str, ...]) -> tuple[Network, ...]:
    return tuple(ip_network(_plain(one), strict=False) for one in trusted)
