"""The lock file that writers share: who may open it, how long to wait for it, and who holds it."""

from __future__ import annotations

import fcntl
import os
import stat
import threading
import time
import weakref
from pathlib import Path
from typing import Final

from everwork.codec.local_file import PRIVATE_MODE, give_to_owner_of
from everwork.exceptions import EngineBusy, EngineUnavailable

WAIT_SECONDS: Final = 15.0
"""How long to wait for another process; longer than a writer waits for other programs' transactions, `BUSY_SECONDS`."""
_READ_WRITE: Final = 0o666
_PERMISSIONS: Final = 0o777


class FileLock:
    """A blocking flock. It belongs to the open file, so only one thread at a time may use it."""

    def __init__(self, path: str | None) -> None:
        """The lock of a database file; None for a store in memory, which needs no lock."""
        self._descriptor: int | None = None
        self._path = path or ""
        if path is not None:
            try:
                self._descriptor = _opened(path)
            except OSError as error:
                raise EngineUnavailable(f"cannot use {path}: cannot create its lock file ({error.strerror})") from None
            _open_locks.add(self)

    def acquire(self) -> None:
        """Wait for the lock, for as long as it takes."""
        if self._descriptor is not None:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)

    def acquire_now(self) -> bool:
        """Take the lock if it is free; never wait."""
        try:
            if self._descriptor is not None:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def acquire_soon(self) -> None:
        """Wait for the lock; after `WAIT_SECONDS`, close the file and raise `EngineBusy`.

        The kernel serves waiting processes in order, so a thread blocks there: polling might never get the lock.
        """
        if self.acquire_now():
            return
        waiting = threading.Thread(target=self.acquire, name="everwork-sqlite-lock", daemon=True)
        waiting.start()
        waiting.join(WAIT_SECONDS)
        if waiting.is_alive():
            busy = self.busy()
            self.close()  # If the thread gets the lock later, it is released immediately: no descriptor refers to it.
            raise busy

    def busy(self) -> EngineBusy:
        """The error for a lock that another process does not release."""
        advice = "nothing was written; stop that process, or retry when it has finished"
        return EngineBusy(f"cannot write {self._path}: {self._holder()} holds the lock {self._path}.lock; {advice}")

    def release(self) -> None:
        """Release the lock."""
        if self._descriptor is not None:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the lock file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _holder(self) -> str:
        """The process that holds the lock, according to the kernel; a process in another container has no pid here."""
        if self._descriptor is None:
            return "another process"
        inode = os.fstat(self._descriptor).st_ino
        pids = [pid for pid in _flock_holders(inode) if pid > 0]
        return f"process {pids[0]}{_command(pids[0])}" if pids else "another process"


class LockWait:
    """A writer's wait for the lock file: either it takes the lock, or its callers give up, but never both."""

    def __init__(self) -> None:
        self.is_given_up = False
        self._since = time.monotonic()
        self._has_ended = False
        self._fork: threading.Event | None = None
        self._deciding = threading.Lock()

    def give_up(self) -> bool:
        """Whether the callers have waited long enough, and the lock has not been taken in the meantime."""
        return self.is_given_up or (time.monotonic() - self._since >= WAIT_SECONDS and self.give_up_for(None))

    def give_up_for(self, fork: threading.Event | None) -> bool:
        """Give up, and keep the writer off its connection until a fork has ended; False if it has taken the lock."""
        with self._deciding:
            if not self._has_ended:
                self.is_given_up, self._fork = True, fork or self._fork
            return not self._has_ended

    def end(self) -> bool:
        """End the wait after taking the lock; returns whether the lock is still needed."""
        with self._deciding:
            self._has_ended = True
            return not self.is_given_up

    def wait_for_fork(self) -> None:
        """Wait until the fork that did not wait for this writer has ended."""
        if self._fork is not None:
            self._fork.wait()


def _opened(path: str) -> int:
    """Open the lock file of a database, with the access that the database has.

    Read access to the lock file is enough to hold the lock, and so to block every writer.
    """
    mode = _mode_beside(path)
    lock = f"{path}.lock"
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    except FileExistsError:
        descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
        _set_mode(Path(lock), mode)
        return descriptor
    os.fchmod(descriptor, mode)  # Regardless of the umask.
    give_to_owner_of(path, descriptor)
    return descriptor


def _mode_beside(path: str) -> int:
    """The mode for files next to a database: a store that is shared with a group stays shared."""
    try:
        return Path(path).stat().st_mode & _READ_WRITE
    except FileNotFoundError:
        return PRIVATE_MODE


def create_folder_beside(path: str, folder: Path) -> None:
    """Create a folder with the access that a database has: users who may read may also enter."""
    mode = _mode_beside(path)
    mode |= (mode & 0o444) >> 2
    folder.mkdir(mode, exist_ok=True)
    _set_mode(folder, mode)


def _set_mode(file: Path, mode: int) -> None:
    """Set the mode of a file or folder, whatever the umask is, if this user owns it: the database may be shared now.

    What a link points to stays as it is: another user may have created the link.
    """
    found = file.lstat()
    is_own = found.st_uid == os.geteuid() and not stat.S_ISLNK(found.st_mode)
    if is_own and found.st_mode & _PERMISSIONS != mode:
        file.chmod(stat.S_IMODE(found.st_mode) & ~_PERMISSIONS | mode)


def _flock_holders(inode: int) -> list[int]:
    """The processes that hold a flock on a file; lines with an arrow are waiting processes."""
    try:
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return []
    fields = [line.split() for line in lines]
    return [int(at[4]) for at in fields if len(at) > 5 and at[1] == "FLOCK" and at[5].endswith(f":{inode}")]


def _command(pid: int) -> str:
    try:
        return f" ({Path(f'/proc/{pid}/comm').read_text().strip()})"
    except OSError:
        return ""


_open_locks: weakref.WeakSet[FileLock] = weakref.WeakSet()


def _close_locks_in_child() -> None:
    # A forked child shares the open file: if its parent died inside a transaction, the child would keep the lock.
    for lock in list(_open_locks):
        lock.close()


os.register_at_fork(after_in_child=_close_locks_in_child)
