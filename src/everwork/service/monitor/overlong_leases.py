"""Ends leases that would last too long because the engine's clock was set back.

A lease ends at an instant of the engine's clock. If that clock is set back by an hour, the lease of a dead worker lasts
an hour longer, and servers have no second clock that a statement could read. So a process that detects the jump records
the current leases, and when each should end on its own steady clock. If a lease is unchanged by then, its worker has
not extended it. It is shortened, and the next sweep ends it like any expired lease.

Leases that were taken or extended after the jump, but before they were recorded, are not mistaken for older ones if
they are shorter than the jump, or belong to attempts that began after it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from everwork.core.job import StoredJob
from everwork.core.leasing import Lease
from everwork.core.limits import LEASE_MS_DEFAULT, LIST_LIMIT_DEFAULT
from everwork.core.queries import JobFilter
from everwork.core.states import State
from everwork.engines.contract import Engine
from everwork.logs import get_logger

log = get_logger("everwork")

NOTED_MAX: Final = 10_000
"""How many leases one process records; it reads further ones when these have ended."""
SLACK_MS: Final = 2_000
"""How long before the jump a lease may have expired without having been swept yet."""
EXTENDED_MS: Final = LEASE_MS_DEFAULT
"""The longest time that a worker gets to extend a lease, even if less is left of it."""
RUNNING: Final = JobFilter(states=frozenset([State.PROCESSING]))


@dataclass(frozen=True, slots=True)
class SetBack:
    """A jump back. `engine_ms` is the engine's time at `steady_ms`; the jump was in the `unseen_ms` before that."""

    by_ms: int
    engine_ms: int
    steady_ms: float
    unseen_ms: float
    cursor: int | None = None
    """Where the search for leases continues."""

    def ends_at_ms(self, job: StoredJob, steady_ms: float) -> float | None:
        """When a lease should end on the steady clock; None if the jump has not prolonged it."""
        passed_ms = steady_ms - self.steady_ms
        engine_ms = self.engine_ms + passed_ms
        began_after = self.engine_ms - self.unseen_ms <= (job.activated_at_ms or 0) <= engine_ms
        if job.lease_until_ms is None or began_after:
            return None
        left_ms = job.lease_until_ms - engine_ms
        if left_ms < self.by_ms - self.unseen_ms - passed_ms - SLACK_MS:
            return None  # It was extended after the jump: an older one would last longer.
        return steady_ms + max(left_ms - self.by_ms, min(left_ms, EXTENDED_MS))


class _Noted(NamedTuple):
    lease_until_ms: int | None
    ends_at_ms: float


class OverlongLeases:
    """The leases that one process watches after jumps back."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._jumps: deque[SetBack] = deque()
        self._noted: dict[Lease, _Noted] = {}

    def add(self, jump: SetBack) -> None:
        """Search for the leases that this jump has prolonged, in the next steps."""
        self._jumps.append(jump)

    async def step(self, steady_ms: float) -> bool:
        """Record a page of leases, and shorten those whose time is up; returns whether there is more to do."""
        if self._jumps and len(self._noted) < NOTED_MAX:
            await self._note(self._jumps[0], steady_ms)
        ended = [lease for lease, noted in self._noted.items() if noted.ends_at_ms <= steady_ms]
        if ended:
            await self._shorten(ended[:LIST_LIMIT_DEFAULT])
        return len(ended) > LIST_LIMIT_DEFAULT or (bool(self._jumps) and len(self._noted) < NOTED_MAX)

    async def _note(self, jump: SetBack, steady_ms: float) -> None:
        page = await self._engine.find(RUNNING, LIST_LIMIT_DEFAULT, jump.cursor)
        for job in page.jobs:
            ends_at_ms, lease = jump.ends_at_ms(job, steady_ms), Lease(job.key, job.attempt)
            noted = self._noted.get(lease)
            # If an earlier jump has also prolonged this lease, its recorded end stays.
            if ends_at_ms is not None and (noted is None or noted.lease_until_ms != job.lease_until_ms):
                self._noted[lease] = _Noted(job.lease_until_ms, ends_at_ms)
        self._jumps.popleft()
        if page.next is not None:
            self._jumps.appendleft(replace(jump, cursor=page.next))

    async def _shorten(self, leases: list[Lease]) -> None:
        jobs = await self._engine.get([lease.key for lease in leases])
        stale = [
            lease
            for lease, job in zip(leases, jobs, strict=True)
            if job is not None and job.attempt == lease.attempt and self._is_noted(lease, job)
        ]
        if stale:
            await self._engine.extend(stale, 1)
            log.warning("ended leases that had been prolonged when the engine's clock was set back", jobs=len(stale))
        for lease in leases:
            del self._noted[lease]

    def _is_noted(self, lease: Lease, job: StoredJob) -> bool:
        return job.state is State.PROCESSING and job.lease_until_ms == self._noted[lease].lease_until_ms
