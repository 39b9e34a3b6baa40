"""Copying every job from one store to another."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from everwork.engines.values import JobRecord


class Moving(ABC):
    """Dump and load."""

    @abstractmethod
    async def dump(self, after: int, limit: int) -> list[JobRecord]:
        """The next jobs with keys above `after`, lowest first, as complete records; empty at the end."""

    @abstractmethod
    async def load(self, records: Sequence[JobRecord]) -> int:
        """Write jobs dumped from another store, with their keys; return how many were written.

        A job whose key exists is not changed, so that an interrupted copy can be repeated. Types and groups are
        created as needed. Keys assigned later are higher than every loaded key.
        """
