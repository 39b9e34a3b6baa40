"""Addresses of callers: loopback, trusted proxies, and whether a key sent from there is protected in transit."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING, Final

from everwork.exceptions import PermissionDenied

if TYPE_CHECKING:
    from everwork.server.settings import Settings

Network = IPv4Network | IPv6Network
CLEAR_KEY: Final = (
    "this server does not accept API keys over an unencrypted connection: use TLS (tls_certificate, or a proxy in "
    "trusted_proxies that sends X-Forwarded-Proto: https), or allow unencrypted keys with insecure = on"
)


def refuses_clear_keys(settings: Settings) -> bool:
    """Whether API keys that other hosts send unencrypted are refused."""
    return (
        settings.tls_certificate is None
        and settings.insecure == "off"
        and settings.has_auth
        and not is_loopback(settings.host)
    )


def require_private(address: str | None, *, is_tls: bool) -> None:
    """Refuse a key that may have been read in transit; without an address, the caller is on this host."""
    if not is_tls and address is not None and not is_loopback(address):
        raise PermissionDenied(CLEAR_KEY)


@lru_cache(maxsize=1_024)
def is_loopback(host: str) -> bool:
    """Whether an address or host name can be reached from this host only."""
    try:
        return ip_address(plain(host.partition("%")[0])).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def is_trusted(address: str, trusted: Sequence[str]) -> bool:
    """Whether an address is that of a trusted proxy."""
    if not trusted or not is_address(address):
        return False
    return any(ip_address(address) in network for network in _networks(tuple(trusted)))


def plain(address: str) -> str:
    """Extract an IPv4 address from its IPv6-mapped form, which dual-stack servers see."""
    if not address.lower().startswith("::ffff:") or not is_address(address):
        return address
    wrapped = IPv6Address(address).ipv4_mapped
    return address if wrapped is None else str(wrapped)


def is_address(text: str) -> bool:
    """Whether a text is an IP address."""
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def caller_address(peer: str, forwarded_for: Sequence[str], trusted: Sequence[str]) -> str:
    """The address of the peer or, behind trusted proxies, of the last hop that is not a trusted proxy."""
    peer = plain(peer)
    if not is_trusted(peer, trusted):
        return peer
    hops = [plain(hop.strip()) for hop in ",".join(forwarded_for).split(",") if hop.strip()]
    for hop in reversed(hops):
        if not is_address(hop):
            return peer
        if not is_trusted(hop, trusted):
            return hop
        peer = hop
    return peer


def is_https_proxy(peer: str, forwarded_proto: Sequence[str], trusted: Sequence[str]) -> bool:
    """Whether the peer is a trusted proxy whose client uses TLS, as it says in X-Forwarded-Proto."""
    is_https = bool(forwarded_proto) and forwarded_proto[-1].rpartition(",")[2].strip().lower() == "https"
    return is_https and is_trusted(plain(peer), trusted)


@lru_cache(maxsize=8)
def _networks(trusted: tuple[str, ...]) -> tuple[Network, ...]:
    return tuple(ip_network(plain(one), strict=False) for one in trusted)
