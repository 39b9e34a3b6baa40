"""The TLS context of the HTTP port; renewed certificates are loaded without a restart."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from everwork.exceptions import BadConfiguration
from everwork.logs import get_logger
from everwork.server.settings import Settings

log = get_logger("everwork")

CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""The ciphers for TLS 1.2; all ciphers of TLS 1.3 are fine."""
CHECK_SECONDS: Final = 5.0


class TlsFiles:
    """The context of the files in the settings; None without TLS.

    The files are checked when a connection arrives, at most every few seconds. Connections keep the certificate that
    they were opened with; files that cannot be used change nothing.
    """

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self._certificate, self._key, self._authority = settings.tls_certificate, settings.tls_key, settings.tls_client_ca
        self._clock = clock
        self._context = self._load()
        self._seen = self._versions()
        self._check_at = clock() + CHECK_SECONDS

    def context(self) -> ssl.SSLContext | None:
        """The context for the next connection."""
        if self._context is not None and self._clock() >= self._check_at:
            self._check_at = self._clock() + CHECK_SECONDS
            self._reload()
        return self._context

    def _reload(self) -> None:
        if (versions := self._versions()) == self._seen:
            return
        self._seen = versions
        try:
            self._context = self._load()
        except BadConfiguration as error:
            log.error("the new TLS certificate cannot be used; the old one stays in use", error=str(error))
        else:
            log.warning("TLS certificate reloaded", certificate=str(self._certificate))

    def _load(self) -> ssl.SSLContext | None:
        if self._certificate is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self._certificate, self._key, password="")  # OpenSSL must not prompt for one.
            context.set_ciphers(CIPHERS)
            if self._authority is not None:
                context.load_verify_locations(self._authority)
                context.verify_mode = ssl.CERT_REQUIRED
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError.
            reason = getattr(error, "strerror", None) or error
            raise BadConfiguration(f"tls_certificate, tls_key: cannot be used: {reason}") from None
        return context

    def _versions(self) -> list[tuple[int, int, int] | None]:
        return [_version(path) for path in (self._certificate, self._key, self._authority) if path is not None]


def _version(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
