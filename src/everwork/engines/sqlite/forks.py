"""Forks: SQLite keeps its locks in the memory of the process, so no connection may be open while it is copied.

Before a fork every connection of this process is closed, between two transactions; afterwards the parent opens them
again. The child starts with none and opens its own.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from everwork.engines.sqlite.calls import Pause
    from everwork.engines.sqlite.opened import Opened

_opened: weakref.WeakSet[Opened] = weakref.WeakSet()
_paused: list[tuple[Opened, list[Pause]]] = []
_one_at_a_time = threading.Lock()


def watch(opened: Opened) -> None:
    """Take an open engine into account."""
    _opened.add(opened)


def forget(opened: Opened) -> None:
    """An engine is being closed."""
    with _one_at_a_time:
        _opened.discard(opened)


def _before() -> None:
    _one_at_a_time.acquire()
    _paused.extend((opened, opened.pause()) for opened in list(_opened) if opened.pid == os.getpid())
    for _, pauses in _paused:
        for pause in pauses:
            pause.is_closed.wait()


def _in_parent() -> None:
    for opened, pauses in _paused:
        opened.go_on()
        for pause in pauses:
            pause.goes_on.set()
    _paused.clear()
    _one_at_a_time.release()


def _in_child() -> None:
    _opened.clear()
    _paused.clear()
    _one_at_a_time.release()


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
