"""The credits of a worker stream, and how many jobs the next step leases for them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

from everwork.core.job import LeasedJob
from everwork.core.limits import LEASE_STEP_MAX

FEED_FIRST: Final = 16
"""How many jobs are leased in the first step, while their size is still unknown."""
GROWTH: Final = 8
"""The factor by which the next step may grow if the last jobs were small."""
FEED_BYTES: Final = 4 * 1_048_576
"""How many bytes of variables the jobs of one step should have, estimated from the largest job of the previous step."""


class CreditKey(NamedTuple):
    """What a worker has credits for."""

    type: str
    group: str
    tenants: tuple[str, ...]


class Feed:
    """The credit for one key, and the task that uses it."""

    __slots__ = ("_more", "credits", "step", "task")

    def __init__(self, task: asyncio.Task[None]) -> None:
        self.task = task
        self.credits = 0
        self.step = FEED_FIRST
        """How many jobs the next step may lease."""
        self._more = asyncio.Event()

    def add(self, credits: int) -> None:
        """Add credit."""
        self.credits += credits
        if self.credits:
            self._more.set()

    def take(self, jobs: Sequence[LeasedJob], most: int) -> bool:
        """Use credit for jobs; the next step leases more of them if they are small, and fewer if they are large.

        Returns whether the next step should follow immediately: there may be more jobs, and they are small.
        """
        if not jobs:
            return False
        before, self.credits = self.step, self.credits - len(jobs)
        largest = max([len(job.variables) for job in jobs])
        self.step = max(1, min(LEASE_STEP_MAX, before * GROWTH, FEED_BYTES // (largest + 1)))
        return self.step > before and len(jobs) >= most and self.credits > 0

    async def has_credits(self) -> None:
        """Wait until there is credit."""
        while not self.credits:
            self._more.clear()
            await self._more.wait()
