"""Who keeps the leases of a process's attempts: itself, or its parent, who then wants to see that it lives."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from everwork.aio.loops import BackgroundLoop
from everwork.core.leasing import Lease, LeaseStatus
from everwork.runtime.attempt import Attempt, Stop
from everwork.runtime.ledger import Ledger
from everwork.service.service import JobService

HEARTBEAT_SECONDS: Final = 0.5
PULSE_SECONDS: Final = 0.5

Attempts = Mapping[tuple[int, int], Attempt]


class Heartbeat:
    """Extends the leases that need it, and learns which are cancelled or lost."""

    def __init__(
        self,
        service: JobService,
        here: Attempts,
        take_back: Callable[[float], None],
        stop: Callable[[Attempt, Stop], None],
        *,
        lease_ms: int,
    ) -> None:
        self._service = service
        self._here = here
        self._take_back = take_back
        self._stop = stop
        self._lease_ms = lease_ms
        self._loop = BackgroundLoop("everwork-heartbeat", self._beat, HEARTBEAT_SECONDS)

    def start(self) -> None:
        """Begin to beat."""
        self._loop.start()

    async def end(self) -> None:
        """End at once."""
        await self._loop.abort()

    async def _beat(self) -> bool:
        now = time.monotonic()
        self._take_back(now)
        held = [a for a in self._here.values() if now - a.leased_at > HEARTBEAT_SECONDS]
        kept = [a for a in held if a.is_ending or not a.is_overdue(now)]
        due = [a for a in kept if now - a.extended_at > self._lease_ms / 3000]
        if due:
            self._learn(due, await self._service.extend_all(_leases(due), self._lease_ms))
            for attempt in due:
                attempt.extended_at = now
        extended = set(due)
        rest = [a for a in held if a not in extended]
        if rest:
            self._learn(rest, await self._service.check(_leases(rest)))
        return False

    def _learn(self, attempts: Sequence[Attempt], statuses: Sequence[LeaseStatus]) -> None:
        for attempt, status in zip(attempts, statuses, strict=True):
            if status is not LeaseStatus.HELD:
                self._stop(attempt, Stop.CANCELLED if status is LeaseStatus.CANCELLED else Stop.LOST)


class LivenessBeat:
    """Shows the parent that the engine's loop turns; a timer and nothing else, for it never stops while idle."""

    def __init__(self, ledger: Ledger, take_back: Callable[[float], None]) -> None:
        self._ledger = ledger
        self._take_back = take_back
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to beat."""
        now = time.monotonic()
        self._ledger.turn_engine(now)
        self._take_back(now)
        self._timer = asyncio.get_running_loop().call_later(PULSE_SECONDS, self.start)

    async def end(self) -> None:
        """End at once; the table tells how much was done."""
        if self._timer is not None:
            self._timer.cancel()
        self._ledger.turn_engine(time.monotonic())


def _leases(attempts: Sequence[Attempt]) -> list[Lease]:
    return [Lease(attempt.job.key, attempt.job.attempt) for attempt in attempts]
