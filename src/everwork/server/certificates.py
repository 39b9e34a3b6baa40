"""The TLS files: renewed ones are loaded without a restart, and only if they can be used together."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from everwork.exceptions import BadConfiguration
from everwork.logs import Occasional, get_logger

if TYPE_CHECKING:
    import ssl

    from everwork.server.settings import Settings

CHECK_SECONDS: Final = 1.0
CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""The ciphers for TLS 1.2; all ciphers of TLS 1.3 are fine."""

log = get_logger("everwork")

_Version = tuple[int, int, int]


class Certificates(NamedTuple):
    """The contents of the files, in PEM."""

    certificate: bytes
    key: bytes
    authority: bytes | None


def certificate_files(settings: Settings) -> CertificateFiles | None:
    """The files in the settings; None without TLS."""
    if settings.tls_certificate is None or settings.tls_key is None:
        return None
    try:
        return CertificateFiles(settings.tls_certificate, settings.tls_key, settings.tls_client_ca)
    except (OSError, ValueError) as error:
        raise BadConfiguration(f"tls_certificate, tls_key: cannot be used: {_reason(error)}") from None


class CertificateFiles:
    """Reloads the files when they have changed; checks at most once a second. Thread-safe.

    Files that do not match are ignored: they may be in the middle of being replaced.
    """

    def __init__(
        self,
        certificate: Path,
        key: Path,
        authority: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._certificate, self._key, self._authority = certificate, key, authority
        self._clock = clock
        self._notices = Occasional(log, clock=clock)
        self._versions = self._look()
        self._check_at = clock() + CHECK_SECONDS
        self._context, self.current = self._load()

    def latest_context(self, **facts: Any) -> ssl.SSLContext:
        """The context for the next connection; open connections keep the one they have."""
        self.changed(**facts)
        return self._context

    def changed(self, **facts: Any) -> Certificates | None:
        """The contents of the files if they differ from the last ones and can be used; `facts` go to the log."""
        now = self._clock()
        if now < self._check_at:
            return None
        self._check_at = now + CHECK_SECONDS
        versions = self._look()
        if versions == self._versions:
            return None
        try:
            context, found = self._load()
        except (OSError, ValueError) as error:
            reason = _reason(error)
            self._notices.warning("new TLS files cannot be used, the old ones stay in use", problem=reason, **facts)
            return None
        if self._look() != versions:  # They changed while they were read.
            return None
        is_same = found == self.current
        self._versions, self._context, self.current = versions, context, found
        if is_same:
            return None
        log.info("TLS files reloaded", certificate=f"{self._certificate}", **facts)
        return found

    def _load(self) -> tuple[ssl.SSLContext, Certificates]:
        """Load the files; raises if the key does not match the certificate."""
        import ssl  # noqa: PLC0415 - commands without TLS start without it

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._certificate, self._key, password="")  # OpenSSL must not prompt for one.
        context.set_ciphers(CIPHERS)
        if self._authority is not None:
            context.load_verify_locations(self._authority)
            context.verify_mode = ssl.CERT_REQUIRED
        return context, self._read()

    def _read(self) -> Certificates:
        authority = None if self._authority is None else self._authority.read_bytes()
        return Certificates(self._certificate.read_bytes(), self._key.read_bytes(), authority)

    def _look(self) -> list[_Version | None]:
        return [_version(path) for path in (self._certificate, self._key, self._authority) if path is not None]


def _reason(error: OSError | ValueError) -> str:
    """Why files cannot be used; an `ssl.SSLError` is an `OSError`."""
    return str(getattr(error, "strerror", None) or error)


def _version(path: Path) -> _Version | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
