"""Read-only queries on jobs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from everwork.core.job import HistoryEntry, StoredJob
from everwork.core.queries import Count, Explanation, JobFilter, Measure, Oldest, Page, Stats


class Questions(ABC):
    """Read-only queries on jobs."""

    @abstractmethod
    async def get(self, keys: Sequence[int]) -> list[StoredJob | None]:
        """The jobs as they are now, None for keys that do not exist."""

    @abstractmethod
    async def owners(self, keys: Sequence[int]) -> list[str | None]:
        """The tenants of jobs, None for keys that do not exist; nothing else is read."""

    @abstractmethod
    async def history(self, key: int) -> list[HistoryEntry]:
        """How each attempt ended, and each requeue, oldest first; at most the newest 200; empty for an unknown key."""

    @abstractmethod
    async def count(self) -> list[Count]:
        """The number of jobs per tenant, type, group and state, from maintained counts; exact, without zeros."""

    @abstractmethod
    async def stats(self, hours: int) -> Stats:
        """The counts, and the statistics of the last `hours` hours by hour, type and worker."""

    @abstractmethod
    async def measures(self, hours: int, type: str | None = None) -> list[Measure]:
        """Counts of the attempts that ended in the last `hours` hours, of one type or of all, by hour, type and name.

        Every attempt that ends as completed, failed or retried is in exactly one bucket of durations and in one of
        waits (`core.measures`), except that one whose lease expired is in no bucket of durations and adds nothing to
        the run time of `stats`: how long it ran is not known. Failed and retried ones are also counted by the category
        of their failure; all in the transaction that ends them. Not counted are releases, cancellations, and expired
        leases that `reclaim` has restored. Measures are kept as long as the hours of `stats`. The result may be very
        large, so it is read in portions that do not block other calls: the counts of one hour and type are consistent,
        different hours may be read at different moments.
        """

    @abstractmethod
    async def hour_totals(self, hours: int, type: str | None = None) -> list[Measure]:
        """What `stats` and `measures` count in the last `hours` hours, summed over workers, and over types if none is
        given.

        By hour and name, with an empty type and without zeros. The names are those of `measures` and of `WorkerHour`:
        completed, failed, retried, execution_ms, wait_ms. Read in portions, like `measures`.
        """

    @abstractmethod
    async def oldest(self) -> list[Oldest]:
        """When the longest-waiting due job became due, for each type and group that has one, by type and group.

        Paused types and open breakers make no difference. The cost does not grow with the number of waiting jobs,
        but with their lanes and priorities, of which at most OLDEST_SCAN_MAX are read for each type and group.
        """

    @abstractmethod
    async def explain(self, key: int) -> Explanation | None:
        """Why the job is not running, or which worker is running it; None for an unknown key."""

    @abstractmethod
    async def find(self, query: JobFilter, limit: int, cursor: int | None = None) -> Page:
        """Jobs that match, in the query's order, after the cursor. Paging to the end returns every job once.

        `Order.DUE` finds pending jobs only, by `run_at`, then key; `Order.FAILED` failed jobs only, by the instant of
        their failure, then key, both descending. A job that moves to another place in the list between two pages may be
        missing or occur twice; other jobs are unaffected.

        `dedupe_key` is looked up where dedupe keys are kept, in the types and tenants of the query, or in all that
        have jobs. A query for the newest jobs is refused with InvalidInput if these exceed LIST_SCAN_MAX; an engine
        may refuse other orders, too.

        A page may be short although there is a next one: a call scans at most LIST_SCAN_MAX jobs, and a page ends
        when its jobs exceed PAGE_BYTES_MAX. For `variables_text` a call searches at most about SEARCH_BYTES_MAX of
        variables; `next` then is the last job that was searched.
        """
