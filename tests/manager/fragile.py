"""A worker whose module can be imported by a manager, but not by its processes."""

from __future__ import annotations

import multiprocessing

from everwork import AbstractWorker, WorkerSettings

if multiprocessing.parent_process() is not None:
    raise RuntimeError("not in this process")


class Fragile(AbstractWorker):
    """Never comes to life."""

    @classmethod
    def _get_settings(cls) -> WorkerSettings:
        return WorkerSettings(title="fragile", sources={"fragile"})

    async def __call__(self) -> None:
        """Do nothing."""
