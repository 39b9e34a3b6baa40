"""Ways to break the Redis engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

MUTATIONS: Final[dict[str, Callable[[], None]]] = {}
