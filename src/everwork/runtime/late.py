"""Late outcomes: the engine was unavailable or did not reply, and leases may have expired in the meantime."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from everwork.core.leasing import Judged, Verdict
from everwork.core.outcome import Outcome
from everwork.runtime.attempt import Attempt
from everwork.runtime.ledger import Ledger
from everwork.runtime.source import JobStore

WATCH_SECONDS: Final = 1.0


class LateOutcomes:
    """Tracks which leases may have expired in an outage, and keeps outcomes that cannot be reported in the spool."""

    def __init__(
        self,
        store: JobStore,
        leased: Mapping[tuple[int, int], Attempt],
        waiting: Callable[[], Sequence[Outcome]],
        *,
        ledger: Ledger | None,
        lease_ms: int,
    ) -> None:
        self._store = store
        self._leased = leased
        self._waiting = waiting
        """The outcomes that wait for the next step."""
        self._ledger = ledger
        self._lease_seconds = lease_ms / 1000
        self.is_late = False
        """The engine was unavailable: outcomes are settled before jobs are leased."""
        self.doubtful: set[Attempt] = set()
        """Attempts whose leases may have expired because the engine was unavailable, until they are extended."""
        self.in_step: Sequence[Outcome] = ()
        """The outcomes that the engine is settling."""
        self._unanswered: tuple[Sequence[Outcome], float] = ((), 0.0)
        """The outcomes that the engine was settling at the last check, and since when."""
        self._watched_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._keeping: set[asyncio.Task[bool]] = set()

    def start(self) -> None:
        """Watch for an engine that does not reply, with a timer, because everything else may be waiting for it."""
        self._look_at_leases(now := time.monotonic())
        outcomes, since = self._unanswered
        if outcomes is not self.in_step:
            self._unanswered = (self.in_step, now)
        elif outcomes and self._store.patience is not None and now - since > self._store.patience:
            self.keep_unsettled()
        self._timer = asyncio.get_running_loop().call_later(WATCH_SECONDS, self.start)

    async def end(self) -> None:
        """Stop watching, once all outcomes to keep are written."""
        if self._timer is not None:
            self._timer.cancel()
        if self._keeping:
            await asyncio.wait(self._keeping)

    # What is in doubt ---------------------------------------------------------------------------

    def may_have_lapsed(self, outcomes: Sequence[Outcome]) -> bool:
        """Whether outcomes must be settled before jobs are leased, because their leases may have expired."""
        if self.is_late:
            return bool(outcomes)
        if (now := time.monotonic()) - self._watched_at > 2 * WATCH_SECONDS:
            self._look_at_leases(now)  # This loop was blocked, and so was the timer.
        leased, doubtful = self._leased, self.doubtful
        return bool(doubtful) and any(leased.get((one.key, one.attempt)) in doubtful for one in outcomes)

    def lapsed_meanwhile(self, outcomes: Sequence[Outcome], judged: Sequence[Judged]) -> list[Outcome]:
        """The outcomes that were refused because their leases expired while the engine did not reply."""
        lost = [one for one, verdict in zip(outcomes, judged, strict=True) if verdict.verdict is Verdict.LEASE_LOST]
        return [one for one in lost if self._leased.get((one.key, one.attempt)) in self.doubtful]

    async def settle(self, outcomes: Sequence[Outcome]) -> list[Judged]:
        """Settle outcomes and renew expired leases; after that, each lease is known to be valid or lost."""
        judged = await self._store.settle_late(outcomes)
        self.doubtful.difference_update([self._leased.get((one.key, one.attempt)) for one in outcomes])
        return judged

    def _look_at_leases(self, now: float) -> None:
        self._watched_at = now
        self.doubtful.intersection_update(self._leased.values())
        self.doubtful.update(self._unextended(now))

    def _unextended(self, now: float) -> Iterable[Attempt]:
        """The attempts whose leases should have been extended by now, here or by the parent, but were not."""
        lease, leased = self._lease_seconds, self._leased.values()
        if self._ledger is not None:
            return leased if 0 < self._ledger.kept_at < now - lease / 3 else ()
        late = [a for a in leased if now - a.extended_at > lease * 2 / 3]
        return [a for a in late if a.is_ending or not a.is_overdue(now)]

    # What is kept -------------------------------------------------------------------------------

    async def keep_in_outage(self, outcomes: Sequence[Outcome]) -> bool:
        """Write outcomes that the engine did not accept or that are waiting for it; False if there is no spool."""
        # Attempts that ended before the outage was noticed wait for the next step; until then, they must not be lost.
        unkept = outcomes if self.is_late else [*outcomes, *self._waiting()]
        self.is_late = True
        self.doubtful.update(self._leased.values())
        self._store.note_outage()
        return bool(unkept) and await self._store.keep_outcomes(unkept)

    def keep(self, outcomes: Sequence[Outcome]) -> None:
        """Write outcomes that arise while the engine is unavailable; once it is back, any process settles them."""
        if outcomes:
            task = asyncio.get_running_loop().create_task(self._store.keep_outcomes(outcomes))
            self._keeping.add(task)
            task.add_done_callback(self._keeping.discard)

    def keep_unsettled(self) -> None:
        """Write outcomes that the engine has not settled, in case it never does; settled ones are deleted again."""
        unsettled = [*self.in_step, *self._waiting()]
        if unsettled and not self.is_late:
            self.is_late = True
            self.keep(unsettled)

    def settled(self, outcomes: Sequence[Outcome], judged: Sequence[Judged]) -> None:
        """After a step: delete accepted outcomes from the spool. The courier sets refused ones aside there."""
        self._store.forget_outcomes([one for one, verdict in zip(outcomes, judged, strict=True) if verdict.ok])
        self.is_late = bool(self._waiting())
