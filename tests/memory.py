"""Finds the objects of some types that are still in memory."""

from __future__ import annotations

import gc
from typing import TypeVar

T = TypeVar("T")


def kept(kind: type[T]) -> list[T]:
    """All objects of a type. Not by `isinstance`, which would load lazy objects, such as Django's settings."""
    return [one for one in gc.get_objects() if issubclass(type(one), kind)]
