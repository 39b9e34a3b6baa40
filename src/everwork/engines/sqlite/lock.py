"""The lock beside the file: writers of all processes queue in the kernel instead of sleeping and trying again."""

from __future__ import annotations

import fcntl
import os
import weakref

from everwork.exceptions import EngineUnavailable


class FileLock:
    """A blocking flock. It belongs to the open file, so one thread at a time uses it."""

    def __init__(self, path: str | None) -> None:
        """The lock of a database file; None: a store in memory needs none."""
        self._descriptor: int | None = None
        if path is not None:
            try:
                self._descriptor = os.open(path + ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            except OSError as error:
                raise EngineUnavailable(f"cannot use {path}: no lock beside it ({error.strerror})") from None
            _held.add(self)

    def acquire(self) -> None:
        """Wait in the queue for the lock."""
        if self._descriptor is not None:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)

    def acquire_now(self) -> bool:
        """Take the lock if it is free."""
        try:
            if self._descriptor is not None:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def release(self) -> None:
        """Let the next one in."""
        if self._descriptor is not None:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def close(self) -> None:
        """Let go of the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


_held: weakref.WeakSet[FileLock] = weakref.WeakSet()


def _forget_in_child() -> None:
    # A forked child shares the open file: if its parent died inside a transaction, the child would keep the lock.
    for lock in list(_held):
        lock.close()


os.register_at_fork(after_in_child=_forget_in_child)
