"""SQLite files: where they can be stored, and their errors as one line for the operator."""

from __future__ import annotations

import os
import re
import secrets
import sqlite3
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from everwork.core import checks
from everwork.exceptions import EngineUnavailable

NETWORK_FILE_SYSTEMS: Final = frozenset(
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


INSTEAD: Final = "a local disk, or PostgreSQL or Redis"
"""Alternatives to a network file system."""


def require_local_file(file: Path, instead: str = INSTEAD) -> None:
    """Refuse a path where a database file could never work, or could lose data."""
    try:
        _require_usable(file)
    except PermissionError:  # A parent directory cannot be entered.
        raise EngineUnavailable(
            f"cannot open {file}: permission denied; choose a path that this user can access"
        ) from None
    except OSError as error:  # The name is not valid for a file.
        raise EngineUnavailable(f"cannot open {checks.shown(str(file))}: {error.strerror}") from None
    refuse_network_file_system(file, _mounts(), instead)


def _require_usable(file: Path) -> None:
    if file.is_dir():
        raise EngineUnavailable(f"cannot open {file}: it is a directory; name a file")
    if file.exists() and not file.is_file():
        raise EngineUnavailable(f"cannot open {file}: it is not a regular file; name another path")
    if not file.parent.is_dir():
        raise EngineUnavailable(f"cannot open {file}: the directory {file.parent} does not exist; create it first")
    written = file if file.exists() else file.parent
    if os.statvfs(written).f_flag & os.ST_RDONLY:
        raise EngineUnavailable(f"cannot write {file}: the file system is read-only; choose a path on another one")
    if not os.access(written, os.W_OK):
        raise EngineUnavailable(f"cannot write {file}: permission denied; choose a path that this user can write")


def refuse_network_file_system(file: Path, mounts: Iterable[tuple[str, str]], instead: str = INSTEAD) -> None:
    """Refuse network file systems, where SQLite's locks do not work; `mounts` are (mount point, type) pairs."""
    inside = [(point, kind) for point, kind in mounts if file.is_relative_to(point)]
    # The deepest mount point counts; if several share it, the last one.
    point, kind = max(reversed(inside), key=lambda mount: len(mount[0]), default=("/", ""))
    if kind in NETWORK_FILE_SYSTEMS:
        raise EngineUnavailable(
            f"cannot use {file}: {point} is a network file system ({kind}), where SQLite's locks do not work; "
            f"use {instead}"
        )


PRIVATE_MODE: Final = 0o600


def create_private(path: str) -> None:
    """Create an empty database file that only this user can read, regardless of the umask; an existing one is kept.

    SQLite gives the other files of a database the same mode.
    """
    if os.path.lexists(path):  # SQLite handles a dangling link.
        return
    new = Path(path).with_name(f".everwork-{secrets.token_hex(8)}")
    try:
        _create_empty(new)
        _name_new_file(new, Path(path))
    except OSError as error:
        raise EngineUnavailable(f"cannot create {path}: {error.strerror}") from None


def _name_new_file(new: Path, file: Path) -> None:
    """Give a new file its final name, unless another file has it.

    It is not created under that name, because closing a file drops the locks that SQLite holds on it in this process.
    """
    try:
        file.hardlink_to(new)
    except FileExistsError:
        pass
    except OSError:  # A file system without hard links. Renaming the file could replace another one.
        with suppress(FileExistsError):
            _create_empty(file)
    finally:
        new.unlink()


def _create_empty(file: Path) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_MODE)
    os.fchmod(descriptor, PRIVATE_MODE)
    os.close(descriptor)


def give_to_owner_of(path: str, descriptor: int) -> None:
    """If root has created a file next to a database, make the database's owner its owner, as SQLite does."""
    if os.geteuid() == 0:
        with suppress(OSError):
            owner = os.stat(path)  # noqa: PTH116
            os.fchown(descriptor, owner.st_uid, owner.st_gid)


def identity(path: str) -> tuple[int, int]:
    """The file currently at a path, as device and inode; zeros if there is none."""
    try:
        found = os.stat(path)  # noqa: PTH116 - once per transaction, three times as fast
    except FileNotFoundError:
        return (0, 0)
    return found.st_dev, found.st_ino


def require_same_file(path: str, opened: tuple[int, int]) -> None:
    """Refuse to write to a file that was deleted or replaced: the writes would be lost."""
    if identity(path) != opened:
        raise EngineUnavailable(f"cannot use {path}: the file was deleted or replaced while open; restart the program")


def unavailable(path: str, error: sqlite3.Error, damaged: str = "restore it from a backup") -> EngineUnavailable:
    """A SQLite error as one line for the operator; `damaged` is the advice for a damaged file."""
    text = str(error)
    advice = {
        "file is not a database": "it is not a SQLite file; choose another path",
        "database disk image is malformed": f"the file is damaged; {damaged}",
        "database or disk is full": "the disk is full; free some space and retry",
        "attempt to write a readonly database": "it is read-only; check the permissions of the file and its directory",
        "unable to open database file": "check the path, its permissions and the limit on open files",
        "disk I/O error": "the disk reports an error; check it, then restart the program",
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
