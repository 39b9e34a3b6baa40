"""The address of a server, its TLS settings, and the API key that goes with every call."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from everwork.codec.urls import shown_url
from everwork.core.checks import shown
from everwork.exceptions import BadConfiguration

SCHEMES: Final = ("grpc", "grpcs")
PORT_DEFAULT: Final = 27500
KEY_VARIABLE: Final = "EVERWORK_API_KEY"
_HOST_AND_PORT: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(\d{1,5}))?/?")


class Tls(NamedTuple):
    """TLS settings: the trusted certificates, and the client's own certificate."""

    trust: bool | str | Path = False
    certificate: str | Path | None = None
    key: str | Path | None = None


@dataclass(frozen=True, slots=True)
class Address:
    """A server's address and credentials. The key is never shown."""

    target: str
    is_secure: bool = False
    authorities: bytes | None = field(default=None, repr=False)
    """Certificates to trust instead of the machine's own."""
    key: str | None = field(default=None, repr=False)
    identity: tuple[bytes, bytes] | None = field(default=None, repr=False)
    """The client's own private key and certificates."""

    @property
    def store(self) -> str:
        """The name under which a spool records this server as its store."""
        return f"grpc://{self.target}"

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The gRPC metadata sent with every call."""
        return () if self.key is None else (("x-api-key", self.key),)


def is_remote(url: object) -> bool:
    """Whether a URL names a server rather than a store."""
    return isinstance(url, str) and url.partition("://")[0].lower() in SCHEMES


def server_address(url: str, key: str | None, tls: Tls) -> Address:
    """The address of the server at a URL."""
    scheme, _, host = url.partition("://")
    found = _HOST_AND_PORT.fullmatch(host)
    port = int(found[2] or PORT_DEFAULT) if found else 0
    if found is None or not 1 <= port <= 65535:
        raise BadConfiguration(f"client URL: must look like grpc://host:{PORT_DEFAULT}, not {shown_url(url)!r}")
    is_secure = scheme.lower() == "grpcs" or tls.trust is not False
    if tls.certificate is not None and not is_secure:
        raise BadConfiguration("tls_certificate: needs TLS; use grpcs:// or tls=True")
    return Address(f"{found[1]}:{port}", is_secure, _authorities(tls.trust), _key(key), _identity(tls))


def _authorities(trust: bool | str | Path) -> bytes | None:
    if isinstance(trust, bool):
        return None
    if not isinstance(trust, str | Path):
        raise BadConfiguration(f"tls: must be True, False or the path of a CA file, not {shown(trust)}")
    return _content("tls", trust)


def _identity(tls: Tls) -> tuple[bytes, bytes] | None:
    if tls.certificate is None and tls.key is None:
        return None
    if tls.certificate is None or tls.key is None:
        missing, given = ("tls_certificate", "tls_key") if tls.certificate is None else ("tls_key", "tls_certificate")
        raise BadConfiguration(f"{missing}: is required with {given}")
    identity = _content("tls_key", tls.key), _content("tls_certificate", tls.certificate)
    _require_pair(tls.certificate, tls.key)
    return identity


def _require_pair(certificate: str | Path, key: str | Path) -> None:
    import ssl  # noqa: PLC0415 - most clients have no certificate

    try:
        # Pass an empty password so that OpenSSL does not prompt for one on the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(certificate, key, password="")
    except (OSError, ValueError):
        must = "must be a PEM key without a password that belongs to the PEM certificate"
        raise BadConfiguration(f"tls_key: {str(key)!r} {must} {str(certificate)!r}") from None


def _content(name: str, path: str | Path) -> bytes:
    if not isinstance(path, str | Path):
        raise BadConfiguration(f"{name}: must be the path of a PEM file, not {shown(path)}")
    try:
        return Path(path).read_bytes()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise BadConfiguration(f"{name}: the file {str(path)!r} cannot be read: {why}") from None


def _key(key: str | None) -> str | None:
    key = key if key is not None else os.environ.get(KEY_VARIABLE) or None
    if key is not None and not (key and key.isascii() and key.isprintable()):
        raise BadConfiguration("key: must be printable ASCII characters, as shown by `everwork keys create`")
    return key.strip() if key else None
