"""Extends the leases of all processes of a manager in one batch, even while their own event loops are blocked."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from everwork.aio.loops import BackgroundLoop
from everwork.core.leasing import Lease, LeaseStatus
from everwork.manager.process_handle import ProcessHandle
from everwork.runtime.attempt import Stop
from everwork.runtime.ledger import Entry, SlotState
from everwork.service.service import JobService

KEEP_SECONDS_MAX: Final = 0.9
YOUNG_SECONDS: Final = 0.5
"""Attempts younger than this are not checked: most end before then."""
VERDICT_SECONDS: Final = 2.0
"""By this long after its timeout, a call has been ended: its lease must not expire before the reason is stored."""

Held = tuple[ProcessHandle, Entry]


class LeaseKeeper:
    """About once per second: extends leases when needed, and checks which other attempts were cancelled or lost."""

    def __init__(self, service: JobService, children: Callable[[], Iterable[ProcessHandle]], lease_ms: int) -> None:
        self._service = service
        self._lease_ms = lease_ms
        self._children = children
        self._extended_at: dict[tuple[int, int], float] = {}
        self.loop = BackgroundLoop("everwork-keeper", self.tick, min(KEEP_SECONDS_MAX, lease_ms / 5_000))

    async def tick(self) -> bool:
        """Check all processes once."""
        now = time.monotonic()
        children = list(self._children())
        held = [
            (child, entry)
            for child in children
            for entry in child.ledger.entries()
            if _is_kept(entry, now, is_leaving=child.is_leaving)
        ]
        due = [(child, entry) for child, entry in held if now - self._fresh_at(entry) > self._lease_ms / 3_000]
        self._extended_at = {key: at for _, e in held if (at := self._extended_at.get(key := (e.key, e.attempt)))}
        if due:
            statuses = await self._service.extend_all(_leases(due), self._lease_ms)
            self._extended_at |= {(entry.key, entry.attempt): now for _, entry in due}
            _flag_lost(due, statuses)
        extended = {(entry.key, entry.attempt) for _, entry in due}
        rest = [(child, entry) for child, entry in held if (entry.key, entry.attempt) not in extended]
        if rest:
            _flag_lost(rest, await self._service.check(_leases(rest)))
        for child in children:
            child.ledger.keep(now)
        return False

    def _fresh_at(self, entry: Entry) -> float:
        return self._extended_at.get((entry.key, entry.attempt), entry.leased_at)


def _is_kept(entry: Entry, now: float, *, is_leaving: bool = False) -> bool:
    """Whether to extend a lease: while the attempt is within its timeout or being timed out, or the process stops.

    None of this lasts forever: each shutdown phase has a time limit, and so does a call that exceeds its timeout.
    """
    if entry.state is SlotState.HUNG or (entry.is_overdue(now - VERDICT_SECONDS) and not is_leaving):
        return False
    return now - entry.leased_at > YOUNG_SECONDS


def _leases(held: Sequence[Held]) -> list[Lease]:
    return [Lease(entry.key, entry.attempt) for _, entry in held]


def _flag_lost(held: Sequence[Held], statuses: Sequence[LeaseStatus]) -> None:
    """Notify processes once about attempts that have lost their lease."""
    flagged = set()
    for (child, entry), status in zip(held, statuses, strict=True):
        why = Stop.CANCELLED if status is LeaseStatus.CANCELLED else Stop.LOST
        if status is not LeaseStatus.HELD and child.ledger.flag(entry, why):
            flagged.add(child)
    for child in flagged:
        child.notify()
