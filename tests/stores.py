"""The engines under test, a fresh store of each, and the clock that tests move."""

from __future__ import annotations

from typing import TYPE_CHECKING

from everwork.engines.open import open_engine

if TYPE_CHECKING:
    from pathlib import Path

    from everwork.engines.base import Engine

ENGINES = ["sqlite"]
"""Every model, race and crash test runs on each of these."""
WAYS = [*ENGINES, "sqlite-own-loop"]
"""Every conformance test runs on each of these: an engine may have more than one way to write."""

SECOND_MS = 1_000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS

START_MS = 1_699_999_200_000
"""Where the clock of every test begins: a full hour."""


class VirtualClock:
    """An engine's clock that stands still until a test moves it."""

    def __init__(self, now_ms: int = START_MS) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms

    def advance(self, *, ms: int = 0, seconds: float = 0) -> int:
        """Move on and answer the new instant."""
        self.now_ms += ms + round(seconds * SECOND_MS)
        return self.now_ms


async def open_store(name: str, folder: Path, clock: VirtualClock) -> Engine:
    """An opened engine on the store that belongs to this folder; another engine joins with one more case."""
    match name:
        case "sqlite-own-loop":
            engine = open_engine(f"sqlite:///{folder / 'jobs.db'}", clock=clock, own_loop=True)
        case "sqlite":
            engine = open_engine(f"sqlite:///{folder / 'jobs.db'}", clock=clock)
        case _:
            raise ValueError(f"no engine is called {name!r}")
    await engine.open()
    return engine
