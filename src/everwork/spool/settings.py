"""The settings of a spool."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final, NamedTuple

from everwork.codec.urls import store_name
from everwork.core import checks
from everwork.core.limits import PRODUCER_KEEP_MS
from everwork.exceptions import InvalidInput

BYTES_DEFAULT: Final = 256 * 1_048_576
BYTES_MIN: Final = 1_048_576
BYTES_MAX: Final = 1 << 40
AGE_SECONDS_DEFAULT: Final = 7 * 86_400.0
AGE_SECONDS_MAX: Final = PRODUCER_KEEP_MS / 2 / 1000
"""Half the time for which the store remembers stamps, so that a job is never delivered twice."""
PATIENCE_SECONDS_DEFAULT: Final = 5.0


@dataclass(frozen=True, slots=True)
class Spool:
    """A local file for offline mode: keeps jobs and outcomes while the engine is unavailable, and delivers them later.

    Args:
        path: The path of the file.
        max_bytes: The maximum size of its contents. Default: 256 MiB.
        max_age: Jobs not delivered within this many seconds are set aside; outcomes have no age limit. Default: 7 days.
        patience: An engine that has not replied within this many seconds counts as unavailable. Default: 5.
    """

    path: str
    max_bytes: int = BYTES_DEFAULT
    max_age: float = AGE_SECONDS_DEFAULT
    patience: float = PATIENCE_SECONDS_DEFAULT

    def __post_init__(self) -> None:
        path: object = self.path
        if not isinstance(path, str | os.PathLike) or not str(path) or "\0" in str(path):
            raise InvalidInput("offline", f"must be the path of a file, not {checks.shown(self.path)}")
        # Resolve the path: several paths can name the same file, but there must be only one lock file next to it.
        object.__setattr__(self, "path", os.path.realpath(self.path))
        checks.whole_number("offline.max_bytes", self.max_bytes, BYTES_MIN, BYTES_MAX)
        checks.number("offline.max_age", self.max_age, 1, AGE_SECONDS_MAX)
        checks.number("offline.patience", self.patience, 0.1, 600)


class Offline(NamedTuple):
    """A spool, and the name (without secrets) of the store that its entries belong to."""

    spool: Spool
    store: str

    @classmethod
    def of(cls, given: str | Spool | None, url: str) -> Offline | None:
        """Convert the value of `offline=`: a path or a `Spool`; None disables offline mode."""
        if given is None:
            return None
        offline = cls(given if isinstance(given, Spool) else Spool(given), store_name(url))
        offline._require_own_file()
        return offline

    def _require_own_file(self) -> None:
        scheme, _, path = self.store.partition(":///")
        spool = self.spool.path
        if scheme == "sqlite" and (spool in _files_of(path) or path in _files_of(spool)):
            raise InvalidInput("offline", f"must be a file other than the engine's, not {checks.shown(spool)}")


def _files_of(path: str) -> list[str]:
    """A SQLite database with its companion files."""
    return [path + suffix for suffix in ("", "-wal", "-shm", "-journal", ".lock", ".wake")]
