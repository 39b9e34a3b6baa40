"""The seam for whoever watches a process: figures today, traces tomorrow."""

from __future__ import annotations

from typing import Final, Protocol


class Reporter(Protocol):
    """Hears of steps, never of single jobs: it is called on the hot path, and must not raise or wait."""

    def committed(self, step: str, items: int, seconds: float) -> None:
        """One step of the engine ("create", "settle", "activate") carried so many items, whoever they came from."""

    def polled(self, seconds: float, jobs: int) -> None:
        """Somebody who asked for jobs was answered after so long, with so many."""


class _Silent:
    """Tells nobody."""

    def committed(self, step: str, items: int, seconds: float) -> None:
        """Nothing."""

    def polled(self, seconds: float, jobs: int) -> None:
        """Nothing."""


SILENT: Final[Reporter] = _Silent()
