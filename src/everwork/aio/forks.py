"""Forks: a child starts with nothing open, and never touches its parent's open resources.

Connections and event loops are shared with the parent through the kernel. The child neither uses nor closes its copies,
and keeps them: freeing a connection removes its socket from the loop's poll set, which the parent shares.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")

_resets: WeakKeyDictionary[Any, Callable[[Any], object]] = WeakKeyDictionary()
_kept_alive: list[object] = []


def reset_in_child(target: T, reset: Callable[[T], object]) -> None:
    """Call `reset` in every forked child: it drops the parent's open resources and returns them, to be kept alive."""
    _resets[target] = reset


def _in_child() -> None:
    _kept_alive.extend([reset(target) for target, reset in list(_resets.items())])


os.register_at_fork(after_in_child=_in_child)
