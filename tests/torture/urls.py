"""Where a fresh store of each engine is; another engine joins by one more case."""

from __future__ import annotations

from pathlib import Path


def fresh_url(engine: str, folder: Path) -> str:
    """The URL of a store that nobody has opened yet."""
    match engine:
        case "sqlite":
            return f"sqlite:///{folder}/torture.db"
        case _:
            raise ValueError(f"no engine is called {engine!r}")
