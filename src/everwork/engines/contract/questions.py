"""What can be asked about jobs. Nothing here changes anything."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from everwork.core.job import HistoryEntry, Job
from everwork.core.queries import Count, Explanation, JobFilter, Measure, Oldest, Page, Stats


class Questions(ABC):
    """Questions, answered without changing anything."""

    @abstractmethod
    async def get(self, keys: Sequence[int]) -> list[Job | None]:
        """The jobs as they stand, None for those that do not exist."""

    @abstractmethod
    async def owners(self, keys: Sequence[int]) -> list[str | None]:
        """The tenants of jobs, None for those that do not exist; nothing else of them is read."""

    @abstractmethod
    async def history(self, key: int) -> list[HistoryEntry]:
        """How each attempt ended and each requeue, oldest first, at most the newest 200; empty if unknown."""

    @abstractmethod
    async def count(self) -> list[Count]:
        """How many jobs are in which state, from maintained counts, exact at this moment; zeros are left out."""

    @abstractmethod
    async def stats(self, hours: int) -> Stats:
        """The counts, and what workers did in the last `hours` hours, by hour, type and worker."""

    @abstractmethod
    async def measures(self, hours: int, type: str | None = None) -> list[Measure]:
        """How attempts went that ended in the last `hours` hours, of one type or of all, by hour, type and name.

        Every attempt that ends as completed, failed or retried is in exactly one bucket of durations and in one of
        waits (`core.measures`), those that failed or were retried are also counted by the sort of their failure; all
        in the transaction that ends them. Releases and cancellations are not counted. Kept as long as the hours of
        `stats`. There may be very many, so that others are served meanwhile: what is told of one hour and type is of
        one moment, but hours may be read one after the other.
        """

    @abstractmethod
    async def oldest(self) -> list[Oldest]:
        """Since when the longest waiting due job of each type and group waits, by type and group; none if none does.

        Paused types and open breakers make no difference. Its cost does not grow with the number of waiting jobs, but
        with their lanes and priorities: of these at most OLDEST_LOOK_MAX are looked at for each type and group.
        """

    @abstractmethod
    async def explain(self, key: int) -> Explanation | None:
        """Why the job is not running, or what it is doing; None if there is no such job."""

    @abstractmethod
    async def find(self, wanted: JobFilter, limit: int, cursor: int | None = None) -> Page:
        """Jobs that match, newest key first, from below the cursor on. Every job is met once by paging on.

        A page may be short although there is a next one: a call looks at LIST_SCAN_MAX jobs at most, and large jobs
        end their page with PAGE_BYTES_MAX.
        """
