"""Scheduled times of triggers; each fires once, however many managers are running."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from everwork.engines.values import Fire, Fired, TriggerMarks


class Triggers(ABC):
    """The marks of triggers, and firing them."""

    @abstractmethod
    async def trigger_marks(self, triggers: Sequence[str]) -> TriggerMarks:
        """The marks of triggers. A new trigger starts now: `began_ms` and `last_ms` are the engine's current time.

        Marks are registry entries (kind "trigger-mark", body "<began_ms> <last_ms>") and are copied with the registry.
        """

    @abstractmethod
    async def fire(self, fires: Sequence[Fire]) -> list[Fired]:
        """Mark scheduled times as passed, each exactly once, no matter how many callers do so or how often (G12).

        Times are judged one after the other: one at or before the trigger's mark has already passed and creates
        nothing; a later one becomes the mark, and its job is created as by `create`; all in one transaction. A
        trigger without a mark starts with the first of its times in this call.
        """
