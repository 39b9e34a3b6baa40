"""Forks: a child begins with nothing open, and never touches what its parent has open.

Connections and event loops are shared with the parent through the kernel. The child neither uses nor closes its copies,
and keeps them: freeing a connection takes its socket out of the loop's poll set, which is the parent's, too.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")

_watched: WeakKeyDictionary[Any, Callable[[Any], object]] = WeakKeyDictionary()
_of_parents: list[object] = []


def watch(one: T, begin_anew: Callable[[T], object]) -> None:
    """Let it begin anew in every child: forget what the parent has open, and answer it."""
    _watched[one] = begin_anew


def _in_child() -> None:
    _of_parents.extend([begin_anew(one) for one, begin_anew in list(_watched.items())])


os.register_at_fork(after_in_child=_in_child)
