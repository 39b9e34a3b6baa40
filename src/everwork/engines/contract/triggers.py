"""Time points that pass once, however many managers watch the clock."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from everwork.engines.values import Fire, Fired, TriggerMarks


class Triggers(ABC):
    """Triggers: where they stand, and their fires."""

    @abstractmethod
    async def trigger_marks(self, triggers: Sequence[str]) -> TriggerMarks:
        """Where triggers stand. One that is not known yet begins now: `began_ms` and `last_ms` are the engine's now.

        Marks stand in the registry (kind "trigger-mark", body "<began_ms> <last_ms>") and move with it to other stores.
        """

    @abstractmethod
    async def fire(self, fires: Sequence[Fire]) -> list[Fired]:
        """Let time points pass, each once, whoever asks and how often (G12).

        Judged one after the other: a point at or before the trigger's mark has passed and creates nothing; a later
        one becomes the mark and its job is created, as by `create`, all in one transaction. A trigger without mark
        begins with its point.
        """
