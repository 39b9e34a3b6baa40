"""The URL of a store: its database file, whether it can be used, and connections to it."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from everwork.exceptions import BadConfiguration, EngineUnavailable

MEMORY = ":memory:"
SQLITE_VERSION_MIN = (3, 35, 0)
NETWORK_FILE_SYSTEMS = frozenset(
    [
        "nfs",
        "nfs4",
        "cifs",
        "smb",
        "smb2",
        "smb3",
        "smbfs",
        "ncpfs",
        "afs",
        "9p",
        "ceph",
        "lustre",
        "glusterfs",
        "gfs",
        "gfs2",
        "ocfs2",
        "beegfs",
        "orangefs",
        "pvfs2",
        "fuse.sshfs",
        "fuse.glusterfs",
        "fuse.ceph",
        "fuse.s3fs",
        "fuse.rclone",
        "fuse.davfs",
        "fuse.gcsfuse",
        "fuse.juicefs",
        "davfs",
        "webdav",
    ]
)


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
    """Refuse what could lose jobs or can never work, before anything is written."""
    if sqlite3.sqlite_version_info < SQLITE_VERSION_MIN:
        needed = ".".join(map(str, SQLITE_VERSION_MIN))
        raise EngineUnavailable(f"SQLite {sqlite3.sqlite_version} is too old; {needed} or newer is needed")
    if url.in_memory:
        return
    file = Path(url.path)
    if file.is_dir():
        raise EngineUnavailable(f"cannot open {file}: it is a directory; name a file")
    if file.exists() and not file.is_file():
        raise EngineUnavailable(f"cannot open {file}: it is not a regular file; name another path")
    if not file.parent.is_dir():
        raise EngineUnavailable(f"cannot open {file}: the directory {file.parent} does not exist; create it first")
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise EngineUnavailable(f"cannot write {file}: permission denied; choose a path that this user may write")
    refuse_network_file_system(file, _mounts())
    if file.exists():
        _require_database(file)


def _require_database(file: Path) -> None:
    """Refuse what is no database. SQLite must read it: it loses its locks if other code closes the file."""
    try:
        with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True, timeout=5.0)) as connection:
            connection.execute("PRAGMA schema_version")
    except sqlite3.Error as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_NOTADB:
            raise EngineUnavailable(f"cannot use {file}: it is not an SQLite file; choose another path") from None


def identity(url: StoreUrl) -> tuple[int, int] | None:
    """The file that is at the path now, as device and inode; None for a store in memory."""
    if url.in_memory:
        return None
    try:
        found = os.stat(url.path)  # noqa: PTH116 - once per transaction, three times as fast
    except FileNotFoundError:
        return (0, 0)
    return found.st_dev, found.st_ino


def require_jobs(url: StoreUrl) -> None:
    """Refuse a file that has never held jobs, without changing it."""
    if url.in_memory:
        raise EngineUnavailable("a store in memory is empty: name a file")
    if not Path(url.path).exists():
        raise EngineUnavailable(f"there is no file {url.path}: create a first job, or name another engine")
    try:
        with closing(sqlite3.connect(f"{Path(url.path).as_uri()}?mode=ro", uri=True, timeout=5.0)) as connection:
            is_ours = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'ew_schema'").fetchone()
    except sqlite3.Error as error:
        raise unavailable(url.path, error) from None
    if is_ours is None:
        raise EngineUnavailable(f"{url.path} holds no jobs: create a first one in it, or name another engine")


def refuse_network_file_system(file: Path, mounts: Iterable[tuple[str, str]]) -> None:
    """Refuse network file systems, where SQLite's locks do not work; `mounts` are (mount point, type) pairs."""
    inside = [(point, kind) for point, kind in mounts if file.is_relative_to(point)]
    # The deepest mount point counts, and of several on one point the last.
    point, kind = max(reversed(inside), key=lambda mount: len(mount[0]), default=("/", ""))
    if kind in NETWORK_FILE_SYSTEMS:
        raise EngineUnavailable(
            f"cannot use {file}: {point} is a network file system ({kind}), where SQLite's locks do not hold; "
            "use a local disk, or PostgreSQL or Redis"
        )


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
        if read_only:
            connection.execute("PRAGMA query_only = ON")
    except sqlite3.Error as error:
        connection.close()
        raise unavailable(url.path, error) from None
    return connection


def unavailable(path: str, error: sqlite3.Error) -> EngineUnavailable:
    """A SQLite error as one line for the operator."""
    text = str(error)
    advice = {
        "file is not a database": "it is not an SQLite file; choose another path",
        "database disk image is malformed": "the file is damaged; restore it from a backup",
        "database or disk is full": "the disk is full; free some space and try again",
        "attempt to write a readonly database": "it is read-only; check the permissions of the file and its directory",
        "unable to open database file": "check the path, its permissions and free file handles",
        "disk I/O error": "the disk reports an error; check it, then start again",
    }.get(text)
    return EngineUnavailable(f"cannot use {path}: {text}" + (f": {advice}" if advice else ""))


_OCTAL = re.compile(r"\\([0-7]{3})")


def _mounts() -> list[tuple[str, str]]:
    try:
        lines = Path("/proc/self/mounts").read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return []
    mounts = [line.split(" ", 3) for line in lines]
    return [(_OCTAL.sub(_character, mount[1]), mount[2]) for mount in mounts if len(mount) > 2]


def _character(octal: re.Match[str]) -> str:
    return chr(int(octal[1], 8))
