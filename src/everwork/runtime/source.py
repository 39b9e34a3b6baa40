"""Where the jobs of a runtime come from: a fetcher on a store, or a worker's stream."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any, Protocol

from everwork.core.leasing import Demand, Lease, LeaseStatus, Settlement
from everwork.core.outcome import Outcome


class JobStore(Protocol):
    """What a fetcher needs of a store."""

    def step(self, outcomes: Sequence[Outcome], demands: Sequence[Demand] = ()) -> Coroutine[Any, Any, Settlement]:
        """Settle outcomes and lease jobs in one step."""
        ...

    def extend_all(self, leases: Sequence[Lease], lease_ms: int) -> Coroutine[Any, Any, list[LeaseStatus]]:
        """Let leases end `lease_ms` from now; one status per lease."""
        ...

    def check(self, leases: Sequence[Lease]) -> Coroutine[Any, Any, list[LeaseStatus]]:
        """Whether leases still hold; one status per lease."""
        ...

    def held(self, worker: str) -> Coroutine[Any, Any, dict[tuple[int, int], None]]:
        """The keys and attempts leased by a worker, in order."""
        ...

    def mark(self) -> int:
        """The number of wake-ups so far."""
        ...

    def wait_for_jobs(self, types: Sequence[str], timeout_ms: int, since: int) -> Coroutine[Any, Any, bool]:
        """Wait until jobs of these types may be due, or a wake-up has come since a mark; False after the timeout."""
        ...
