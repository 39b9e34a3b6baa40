"""The TLS files: renewed ones are found without a restart, and only a pair that works is used."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from everwork.logs import Occasional, get_logger

CHECK_SECONDS: Final = 1.0

log = get_logger("everwork")

_Version = tuple[int, int, int]


class Certificates(NamedTuple):
    """The contents of the files, in PEM."""

    certificate: bytes
    key: bytes
    authority: bytes | None


class CertificateFiles:
    """Reads the files again when they have changed, at most once a second, from any thread.

    Files that do not belong together change nothing: they may be in the middle of being replaced.
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
        self.current = self._read()

    def changed(self, **facts: Any) -> Certificates | None:
        """The contents of the files if they differ from the last ones and can be used; the facts are logged."""
        now = self._clock()
        if now < self._check_at:
            return None
        self._check_at = now + CHECK_SECONDS
        versions = self._look()
        if versions == self._versions:
            return None
        try:
            found = self._usable()
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError.
            problem = f"{getattr(error, 'strerror', None) or error}"
            self._notices.warning("new TLS files cannot be used, the old ones stay in use", problem=problem, **facts)
            return None
        if self._look() != versions:  # They changed while they were read.
            return None
        self._versions = versions
        if found == self.current:
            return None
        self.current = found
        log.info("TLS files reloaded", certificate=f"{self._certificate}", **facts)
        return found

    def _usable(self) -> Certificates:
        import ssl  # noqa: PLC0415 - commands without TLS start without it

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._certificate, self._key, password="")  # OpenSSL must not prompt for one.
        if self._authority is not None:
            context.load_verify_locations(self._authority)
        return self._read()

    def _read(self) -> Certificates:
        authority = None if self._authority is None else self._authority.read_bytes()
        return Certificates(self._certificate.read_bytes(), self._key.read_bytes(), authority)

    def _look(self) -> list[_Version | None]:
        return [_version(path) for path in (self._certificate, self._key, self._authority) if path is not None]


def _version(path: Path) -> _Version | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
