"""The TLS context of the HTTP port; renewed certificates are used without a restart."""

from __future__ import annotations

import ssl
from typing import Final

from everwork.exceptions import BadConfiguration
from everwork.server.certificates import CertificateFiles
from everwork.server.settings import Settings

CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""The ciphers for TLS 1.2; all ciphers of TLS 1.3 are fine."""


class TlsContext:
    """The context for new connections, from the files in the settings; open connections keep the one they have."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._files: CertificateFiles | None = None
        self._context: ssl.SSLContext | None = None
        if settings.tls_certificate is not None and settings.tls_key is not None:
            try:
                self._context = self._load()
                self._files = CertificateFiles(settings.tls_certificate, settings.tls_key, settings.tls_client_ca)
            except (OSError, ValueError) as error:  # ssl.SSLError is an OSError.
                reason = getattr(error, "strerror", None) or error
                raise BadConfiguration(f"tls_certificate, tls_key: cannot be used: {reason}") from None

    def current(self) -> ssl.SSLContext | None:
        """The context for the next connection; None without TLS."""
        if self._files is not None and self._files.changed(port="http") is not None:
            self._context = self._load()
        return self._context

    def _load(self) -> ssl.SSLContext:
        settings = self._settings
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(f"{settings.tls_certificate}", settings.tls_key, password="")  # No prompt for one.
        context.set_ciphers(CIPHERS)
        if settings.tls_client_ca is not None:
            context.load_verify_locations(settings.tls_client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return context
