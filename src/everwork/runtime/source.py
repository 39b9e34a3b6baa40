"""Sources of jobs for a runtime: a fetcher on a store, or a worker's stream."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from everwork.aio.wakeup import Wake, Watch
from everwork.core.leasing import Demand, Judged, Lease, LeaseStatus, Settlement
from everwork.core.outcome import Outcome
from everwork.runtime.attempt import Attempt, Stop
from everwork.runtime.handler import Handler

Report = tuple[Attempt, Outcome | None, bool]
"""An attempt, its outcome (if known and acceptable), and whether its runner is free again."""
Deliver = Callable[[Sequence[Attempt]], None]
"""Takes attempts to run."""
StopAttempt = Callable[[Attempt, Stop], None]
"""Stops an attempt whose lease is lost or whose job is cancelled."""


class JobSource(Protocol):
    """Leases jobs, delivers them as attempts, and settles their outcomes; in one event loop."""

    def add(self, handler: Handler) -> None:
        """Add a handler, even while others are running: its jobs are leased from now on."""
        ...

    async def run(self) -> None:
        """Fetch and settle until stopped and all delivered attempts are reported and settled."""
        ...

    def take(self, reports: Sequence[Report]) -> None:
        """Take reports of attempts that have ended or whose handlers have returned."""
        ...

    def stop_fetching(self) -> None:
        """Lease no more jobs; those that have not started are released, here or by the executor."""
        ...

    def release_running(self) -> None:
        """Release running jobs, too, without waiting for their handlers: the process is about to exit."""
        ...

    def abandon(self) -> None:
        """Stop waiting for attempts that do not stop and for an unavailable store; their leases expire."""
        ...


class JobStore(Protocol):
    """The store, as a fetcher uses it."""

    def step(self, outcomes: Sequence[Outcome], demands: Sequence[Demand] = ()) -> Coroutine[Any, Any, Settlement]:
        """Settle outcomes and lease jobs in one step."""
        ...

    def settle_late(self, outcomes: Sequence[Outcome]) -> Coroutine[Any, Any, list[Judged]]:
        """Settle attempts that ended while the engine was unavailable; expired leases are renewed where possible."""
        ...

    def keep_outcomes(self, outcomes: Sequence[Outcome]) -> Coroutine[Any, Any, bool]:
        """Write outcomes that cannot be settled now to the spool; False without a spool."""
        ...

    async def unkept(self, attempts: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """The attempts, by key and number, that have no outcome in the spool."""
        ...

    @property
    def patience(self) -> float | None:
        """After how many seconds without a reply outcomes are written to the spool; None without a spool."""
        ...

    def note_outage(self) -> None:
        """Leases may have expired because the store was unavailable: extend them as if they had."""
        ...

    def forget_outcomes(self, outcomes: Sequence[Outcome]) -> None:
        """Delete settled outcomes from the spool."""
        ...

    def extend_all(self, leases: Sequence[Lease], lease_ms: int) -> Coroutine[Any, Any, list[LeaseStatus]]:
        """Make leases expire `lease_ms` from now; one status per lease."""
        ...

    def check(self, leases: Sequence[Lease]) -> Coroutine[Any, Any, list[LeaseStatus]]:
        """Whether leases are still valid; one status per lease."""
        ...

    def held(self, worker: str) -> Coroutine[Any, Any, dict[tuple[int, int], None]]:
        """The keys and attempts leased by a worker, in order."""
        ...

    def unpark(self, worker: str, types: Sequence[str]) -> Coroutine[Any, Any, None]:
        """Withdraw a worker's parked demands: no more jobs are handed over to it."""
        ...

    def mark(self) -> int:
        """The number of wake-ups so far, for `watch_jobs`."""
        ...

    def watch_jobs(self, types: Sequence[str], timeout_ms: int, since: int, wake: Wake) -> Watch:
        """Call `wake` once, after this call returns, when jobs of these types may be due, or after the timeout."""
        ...
