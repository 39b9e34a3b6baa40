"""Notices writes to the write-ahead log, so that an idle process does not have to poll.

Every commit of any process first writes to the log, and Linux reports that through inotify. Where that is not
available, processes poll instead.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

IN_MODIFY: Final = 0x2
IN_ONESHOT: Final = 0x80000000
MASK: Final = IN_MODIFY | IN_ONESHOT
"""The kernel reports the end of the watch, too, when the log is deleted."""
EVENT_BYTES_MAX: Final = 4_096


class LogWatch:
    """Calls `written`, once, after the next write to the log or its removal. Used in one event loop."""

    def __init__(self, path: str, written: Callable[[], object]) -> None:
        self.is_armed = False
        """Whether the next write will be noticed."""
        self._path = os.fsencode(path)
        self._written = written
        self._descriptor: int | None = None
        self._add: Callable[[int, bytes, int], int] | None = None
        self._is_available = True

    def arm(self) -> bool:
        """Watch from now on; False if that is not possible."""
        if self._is_available and self._descriptor is None:
            self._open()
        if self._add is None or self._descriptor is None:
            return False
        # A watch that exists already is replaced.
        self.is_armed = self._add(self._descriptor, self._path, MASK) >= 0
        return self.is_armed

    def disarm(self) -> None:
        """The caller polls again; a write may still be reported."""
        self.is_armed = False

    def _open(self) -> None:
        self._is_available = False
        init, self._add = _inotify()
        descriptor = -1 if init is None else init(os.O_NONBLOCK | os.O_CLOEXEC)
        if descriptor >= 0:  # Otherwise, this user has too many of them.
            self._descriptor = descriptor
            asyncio.get_running_loop().add_reader(descriptor, self._read)

    def _read(self) -> None:
        if self._descriptor is not None:
            with suppress(BlockingIOError):
                os.read(self._descriptor, EVENT_BYTES_MAX)
        self.is_armed = False
        self._written()

    def close(self, loop: asyncio.AbstractEventLoop) -> None:
        """Stop watching."""
        self.is_armed = self._is_available = False
        if self._descriptor is not None:
            loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None

    def drop_in_child(self) -> None:
        """Close a forked child's copy."""
        if self._descriptor is not None:
            os.close(self._descriptor)


def _inotify() -> tuple[Any, Any]:
    """The two functions of the C library; None if it lacks them."""
    try:
        import ctypes  # noqa: PLC0415 - only processes that wait need it

        library = ctypes.CDLL(None)
        init, add = library.inotify_init1, library.inotify_add_watch
    except (ImportError, OSError, AttributeError):
        return None, None
    add.argtypes = ctypes.c_int, ctypes.c_char_p, ctypes.c_uint32
    return init, add
