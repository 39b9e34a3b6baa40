"""The URL of a store: its database file, whether it can be used, and connections to it."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from everwork.codec import local_file
from everwork.codec.local_file import require_local_file, unavailable
from everwork.exceptions import BadConfiguration, EngineUnavailable

MEMORY = ":memory:"
SQLITE_VERSION_MIN = (3, 35, 0)
CHECKPOINT_PAGES_MAX = 1_000
"""The size of the write-ahead log, in pages, from which commits checkpoint it; below that, only sweeps do, in another
thread. Not higher: while the log grows, each sync takes half as long again."""


@dataclass(frozen=True, slots=True)
class StoreUrl:
    """A database file (or memory) and how safely it is written."""

    path: str
    synchronous: str = "FULL"

    @property
    def in_memory(self) -> bool:
        """Whether the store exists in this process only."""
        return self.path == MEMORY

    @classmethod
    def from_url(cls, url: str) -> StoreUrl:
        """Parse `sqlite:///relative.db`, `sqlite:////absolute.db` or `sqlite:///:memory:`, with `?synchronous=`."""
        parts = urlsplit(url)
        path = unquote(parts.path)[1:]
        if "#" in url:
            raise BadConfiguration("engine URL: write # as %23")
        if parts.netloc or not path or not url.startswith("sqlite:///"):
            raise BadConfiguration(
                "engine URL: must be sqlite:///relative/path.db, sqlite:////absolute/path.db or sqlite:///:memory:"
            )
        if "\0" in path:
            raise BadConfiguration("engine URL: the path must not contain a NUL character")
        synchronous = "FULL"
        for name, value in parse_qsl(parts.query, keep_blank_values=True):
            if name != "synchronous":
                raise BadConfiguration(f"engine URL: unknown option {name!r}; allowed: synchronous")
            synchronous = value.upper()
            if synchronous not in ("FULL", "NORMAL"):
                raise BadConfiguration(f"engine URL: synchronous must be full or normal, not {value!r}")
        return cls(path if path == MEMORY else os.path.realpath(path), synchronous)


def check_file(url: StoreUrl) -> None:
    """Refuse a configuration that could lose jobs or can never work, before anything is written."""
    if sqlite3.sqlite_version_info < SQLITE_VERSION_MIN:
        needed = ".".join(map(str, SQLITE_VERSION_MIN))
        raise EngineUnavailable(f"SQLite {sqlite3.sqlite_version} is too old; {needed} or newer is required")
    if url.in_memory:
        return
    file = Path(url.path)
    require_local_file(file)
    if file.exists():
        _require_database(file)


def _require_database(file: Path) -> None:
    """Refuse a file that is not a database. Only SQLite may read it: other code that closes it drops SQLite's locks."""
    try:
        with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True, timeout=5.0)) as connection:
            connection.execute("PRAGMA schema_version")
    except sqlite3.Error as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_NOTADB:
            raise EngineUnavailable(f"cannot use {file}: it is not a SQLite file; choose another path") from None


def identity(url: StoreUrl) -> tuple[int, int] | None:
    """The file that is at the path now, as device and inode; None for a store in memory."""
    return None if url.in_memory else local_file.identity(url.path)


def require_jobs(url: StoreUrl) -> None:
    """Refuse a file that has never held jobs, without changing it."""
    if url.in_memory:
        raise EngineUnavailable("an in-memory store has no jobs; use a file")
    if not Path(url.path).exists():
        raise EngineUnavailable(f"file {url.path} does not exist: create a first job, or use another engine")
    try:
        with closing(sqlite3.connect(f"{Path(url.path).as_uri()}?mode=ro", uri=True, timeout=5.0)) as connection:
            is_ours = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'ew_schema'").fetchone()
    except sqlite3.Error as error:
        raise unavailable(url.path, error) from None
    if is_ours is None:
        raise EngineUnavailable(f"{url.path} holds no jobs: create a first one in it, or use another engine")


def connect(url: StoreUrl, *, read_only: bool = False) -> sqlite3.Connection:
    """A connection with this engine's settings; a file that is not a database is refused here."""
    try:
        connection = sqlite3.connect(
            url.path, isolation_level=None, check_same_thread=False, cached_statements=256, timeout=5.0
        )
    except sqlite3.Error as error:
        raise EngineUnavailable(f"cannot open {url.path}: {error}") from None
    try:
        connection.execute("PRAGMA journal_mode = WAL").fetchone()
        connection.execute(f"PRAGMA synchronous = {url.synchronous}")
        connection.execute(f"PRAGMA cache_size = {-8192 if read_only else -65536}")
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES_MAX}").fetchone()
        if read_only:
            connection.execute("PRAGMA query_only = ON")
    except sqlite3.Error as error:
        connection.close()
        raise unavailable(url.path, error) from None
    return connection
