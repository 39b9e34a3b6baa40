"""Taking every job from one store to another."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from everwork.engines.values import JobRecord


class Moving(ABC):
    """Dump and load."""

    @abstractmethod
    async def dump(self, after: int, limit: int) -> list[JobRecord]:
        """Every job with a key over `after`, lowest first, with all that is known of it; empty at the end."""

    @abstractmethod
    async def load(self, records: Sequence[JobRecord]) -> int:
        """Write jobs as another store has dumped them, with their keys; answer how many.

        One whose key exists is left as it is, so that a copy that was cut short can be repeated. Types and
        groups appear as they are met. Keys given later are higher than every key loaded.
        """
