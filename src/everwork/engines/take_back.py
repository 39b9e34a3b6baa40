"""Jobs that were handed to a receiver that no longer exists are released: nothing would run them under their leases."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final

from everwork.core.job import LeasedJob
from everwork.core.outcome import Outcome, Release
from everwork.exceptions import EngineError

WAITING_MAX: Final = 1_000
"""More jobs than this are not released: their leases expire."""
CLOSE_SECONDS: Final = 1.0


class TakeBack:
    """Releases jobs in the background, those that arrive meanwhile in one call. Runs in the event loop."""

    def __init__(self, settle: Callable[[Sequence[Outcome]], Awaitable[object]]) -> None:
        self._settle = settle
        self._waiting: list[Release] = []
        self._task: asyncio.Task[None] | None = None

    def add(self, job: LeasedJob) -> None:
        """Release a job soon."""
        if len(self._waiting) < WAITING_MAX:
            self._waiting.append(Release(job.key, job.attempt))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._release())

    async def _release(self) -> None:
        try:
            while self._waiting:
                releases, self._waiting = self._waiting, []
                with suppress(EngineError):  # Their leases expire.
                    await self._settle(releases)
        finally:
            self._task = None

    async def close(self) -> None:
        """Wait for the call in flight."""
        if (task := self._task) is not None:
            await asyncio.wait([task], timeout=CLOSE_SECONDS)
            task.cancel()
