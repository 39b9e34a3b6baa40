"""Heartbeats: a process extends its own leases, or shows its parent, which extends them, that it is alive."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from everwork.aio.loops import BackgroundLoop
from everwork.aio.wakeup import Wakeup
from everwork.core.leasing import Lease, LeaseStatus
from everwork.exceptions import EngineError
from everwork.runtime.attempt import Attempt, Stop
from everwork.runtime.ledger import Ledger
from everwork.runtime.source import JobStore, StopAttempt

HEARTBEAT_SECONDS: Final = 0.5
LIVENESS_SECONDS: Final = 0.5

Attempts = Mapping[tuple[int, int], Attempt]


class Heartbeat:
    """Extends leases when needed, and stops attempts that were cancelled or lost their lease."""

    def __init__(
        self,
        store: JobStore,
        leased: Attempts,
        release_overdue: Callable[[float], None],
        stop: StopAttempt,
        *,
        doubtful: set[Attempt],
        lease_ms: int,
    ) -> None:
        self._store = store
        self._leased = leased
        self._release_overdue = release_overdue
        self._stop = stop
        self._doubtful = doubtful
        """Attempts whose leases may have expired because the store was unavailable; they are extended immediately."""
        self._lease_ms = lease_ms
        self._loop = BackgroundLoop("everwork-heartbeat", self._beat, HEARTBEAT_SECONDS)
        self._has_leases = Wakeup()

    def start(self) -> None:
        """Start."""
        self._loop.start()

    async def end(self) -> None:
        """Stop immediately."""
        await self._loop.abort()

    def begin(self) -> None:
        """Start beating: an attempt was leased."""
        self._has_leases.wake()

    async def _beat(self) -> bool:
        while not self._leased:
            await self._has_leases.wait()  # An idle worker has nothing to extend.
        now = time.monotonic()
        self._release_overdue(now)
        held = [a for a in self._leased.values() if now - a.leased_at > HEARTBEAT_SECONDS]
        valid = [a for a in held if a.is_ending or not a.is_overdue(now)]
        due = [a for a in valid if now - a.extended_at > self._lease_ms / 3000 or a in self._doubtful]
        try:
            if due:
                statuses = await self._store.extend_all(_leases(due), self._lease_ms)
                for attempt in due:
                    attempt.extended_at = now
                # Ending attempts stay in doubt: an outcome sent before this call may still be refused.
                self._doubtful.difference_update([a for a in due if not a.is_ending])
                self._stop_lost(due, statuses)
            extended = set(due)
            rest = [a for a in held if a not in extended]
            if rest:
                self._stop_lost(rest, await self._store.check(_leases(rest)))
        except EngineError:
            self._doubtful.update(self._leased.values())
            raise
        return False

    def _stop_lost(self, attempts: Sequence[Attempt], statuses: Sequence[LeaseStatus]) -> None:
        for attempt, status in zip(attempts, statuses, strict=True):
            if status is LeaseStatus.LOST and attempt in self._doubtful:
                continue  # The lease may be renewed.
            if status is not LeaseStatus.HELD:
                self._stop(attempt, Stop.CANCELLED if status is LeaseStatus.CANCELLED else Stop.LOST)


class LivenessBeat:
    """Shows the parent that the engine's loop is running. Uses a timer, which fires even while the loop is idle."""

    def __init__(self, ledger: Ledger, release_overdue: Callable[[float], None]) -> None:
        self._ledger = ledger
        self._release_overdue = release_overdue
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start."""
        now = time.monotonic()
        self._ledger.turn_engine(now)
        self._release_overdue(now)
        self._timer = asyncio.get_running_loop().call_later(LIVENESS_SECONDS, self.start)

    def begin(self) -> None:
        """Do nothing: it beats whether or not attempts are leased."""

    async def end(self) -> None:
        """Stop immediately; the ledger keeps the last figures."""
        if self._timer is not None:
            self._timer.cancel()
        self._ledger.turn_engine(time.monotonic())


def _leases(attempts: Sequence[Attempt]) -> list[Lease]:
    return [Lease(attempt.job.key, attempt.job.attempt) for attempt in attempts]
