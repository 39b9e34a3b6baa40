"""The TLS settings: files that must be readable and belong together."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from everwork.exceptions import BadConfiguration

if TYPE_CHECKING:
    from everwork.server.settings import Settings


def require_tls(settings: Settings, origins: Mapping[str, str]) -> None:
    """Check the TLS files, so that an unusable certificate is reported at startup and not at the first call."""
    certificate, key, authority = settings.tls_certificate, settings.tls_key, settings.tls_client_ca
    for name, needed in (("tls_certificate", "tls_key"), ("tls_key", "tls_certificate"), ("tls_client_ca", "tls_key")):
        if getattr(settings, name) is not None and getattr(settings, needed) is None:
            raise BadConfiguration(f"{name} ({origins[name]}): must be set together with {needed}")
    if certificate is None or key is None:
        return
    for name in ("tls_certificate", "tls_key", "tls_client_ca"):
        _require_readable(name, getattr(settings, name), origins)
    _require_pair(certificate, key, origins)
    if authority is not None:
        _require_authority(authority, origins)


def _require_readable(name: str, path: Path | None, origins: Mapping[str, str]) -> None:
    if path is None:
        return
    try:
        if path.exists() and not path.is_file():
            raise OSError(0, "it is not a regular file")
        with path.open("rb") as file:
            file.read(1)
    except OSError as error:
        raise BadConfiguration(f"{name} ({origins[name]}): cannot read {path}: {error.strerror}") from None


def _require_pair(certificate: Path, key: Path, origins: Mapping[str, str]) -> None:
    import ssl  # noqa: PLC0415 - commands without TLS start without it

    try:
        # Pass an empty password, so that OpenSSL does not prompt for one on the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
    except (OSError, ValueError):
        raise BadConfiguration(
            f"tls_key ({origins['tls_key']}): {key} must be a PEM key without a password that belongs to the "
            f"PEM certificate {certificate}"
        ) from None


def _require_authority(authority: Path, origins: Mapping[str, str]) -> None:
    import ssl  # noqa: PLC0415 - commands without TLS start without it

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(authority)
    except (OSError, ValueError):
        raise BadConfiguration(
            f"tls_client_ca ({origins['tls_client_ca']}): {authority} must contain PEM certificates"
        ) from None
