"""What can be done with jobs, wherever they are: the verbs that a store in process and a server both have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from everwork.core.job import HistoryEntry, Job, NewJob
from everwork.core.leasing import Created, Demand, Judged
from everwork.core.outcome import Outcome
from everwork.core.queries import BulkChange, Explanation, JobFilter, Page, Stats
from everwork.core.states import State


class Verbs(Protocol):
    """One call's way to the jobs; see `everwork.service.desk.Desk` for what each verb does."""

    async def create(self, jobs: Sequence[NewJob]) -> list[Created]:
        """Accept jobs, all or none."""
        ...

    async def activate(self, demand: Demand, wait_ms: int) -> Sequence[Any]:
        """Lease jobs: what an `ActiveJob` is made of."""
        ...

    async def settle(self, outcomes: Sequence[Outcome]) -> list[Judged]:
        """End attempts; the variables of failures are merged into the jobs' own."""
        ...

    async def extend(self, key: int, attempt: int, lease_ms: int) -> Judged:
        """Let a lease end later."""
        ...

    async def cancel(self, key: int, reason: str) -> State:
        """Cancel one job."""
        ...

    async def requeue(self, key: int) -> State:
        """Bring one dead letter back."""
        ...

    async def requeue_matching(self, wanted: JobFilter, *, all: bool) -> BulkChange:
        """Bring back every dead letter that a filter shows; without any, only if `all` is said."""
        ...

    async def set_retries(self, key: int, retries: int) -> int:
        """Change how many attempts are left."""
        ...

    async def reschedule(self, key: int, *, run_at_ms: int | None, delay_ms: int) -> State:
        """Let one pending job run at another time."""
        ...

    async def set_priority(self, key: int, priority: int) -> State:
        """Change the priority of one pending job."""
        ...

    async def delete(self, key: int) -> State:
        """Remove one finished job."""
        ...

    async def get(self, key: int) -> Job:
        """A job as it stands."""
        ...

    async def history(self, key: int) -> list[HistoryEntry]:
        """How a job's attempts ended."""
        ...

    async def explain(self, key: int) -> Explanation:
        """Why a job is not running."""
        ...

    async def stats(self, hours: int) -> Stats:
        """Counts, and what workers did lately."""
        ...

    async def result(self, key: int, timeout: float) -> str | None:
        """The result of a job, once it has one."""
        ...

    async def page(self, wanted: JobFilter, limit: int, cursor: int | None) -> Page:
        """Matching jobs, newest first."""
        ...


class Line(Protocol):
    """How a client reaches the jobs."""

    async def open(self) -> None:
        """Be ready for calls."""
        ...

    async def close(self) -> None:
        """Let go of everything."""
        ...

    def desk(self, deadline: float) -> Verbs:
        """The verbs for one call, which must be answered by this time of the event loop's clock."""
        ...
