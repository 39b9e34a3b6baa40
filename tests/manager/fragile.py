"""A worker whose module can be imported by a manager, but not by its processes."""

from __future__ import annotations

import sys

from everwork import AbstractWorker, WorkerSettings

if sys.modules["__main__"].__name__ == "__mp_main__":
    raise RuntimeError("not in this process")


class Fragile(AbstractWorker):
    """Never comes to life."""

    @classmethod
    def _get_settings(cls) -> WorkerSettings:
        return WorkerSettings(title="fragile", sources={"fragile"})

    async def __call__(self) -> None:
        """Do nothing."""
