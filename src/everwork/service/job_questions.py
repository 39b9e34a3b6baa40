"""Queries about jobs for one caller: it sees only jobs of its tenants (G13)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from everwork.codec.new_job import search_text
from everwork.core import checks
from everwork.core.job import HistoryEntry, StoredJob
from everwork.core.leasing import Spooled
from everwork.core.limits import LIST_LIMIT_MAX
from everwork.core.queries import Count, Explanation, JobFilter, Page, Stats
from everwork.exceptions import EverworkError, JobNotFound, NotFound
from everwork.service.access.principal import Permission
from everwork.service.access.turns import Turns
from everwork.service.explain import explain
from everwork.service.service import JobService
from everwork.service.verb import ANY, CONFINED, CUT, IN_PROCESS, ITEMS, OWNER, Caller, ForCaller, verb

if TYPE_CHECKING:
    from everwork.service.access.audit import Audit

READ: Final = Permission.JOBS_READ


class JobQuestions(ForCaller):
    """Queries about jobs that a caller may use."""

    __slots__ = ("_engine", "_service")

    def __init__(self, service: JobService, caller: Caller) -> None:
        super().__init__(caller)
        self._service = service
        self._engine = service._engine  # noqa: SLF001 - of this package

    @property
    def _audit(self) -> Audit:
        return self._service.audit

    @verb(READ, tenants=ITEMS)
    async def get(self, key: int) -> StoredJob:
        """A job in its current state."""
        return await self._own_job(key)

    @verb(READ, tenants=CUT)
    async def get_many(self, keys: Sequence[int]) -> list[StoredJob | None]:
        """Jobs in their current state; None for those that do not exist or are another tenant's."""
        tenants = self.principal.tenants
        jobs = await self._service.get_many(keys) if keys else []
        return [None if job is None or (tenants and job.tenant not in tenants) else job for job in jobs]

    @verb(READ, tenants=CONFINED)
    async def find(self, filter_: JobFilter, limit: int, cursor: int | None = None) -> Page:
        """Matching jobs of the caller's tenants, in the filter's order."""
        allowed = self._confined(filter_)
        async with self._turn(self._service.budgets.searches, _is_search(allowed)):
            return await self._service.find(allowed, limit, cursor)

    @verb(READ, tenants=CONFINED)
    async def find_step(self, filter_: JobFilter, limit: int, cursor: int | None = None) -> Page:
        """`find` limited to one engine step, even if few or no jobs match; `next` is where it stopped."""
        checks.whole_number("limit", limit, 1, LIST_LIMIT_MAX)
        allowed = self._confined(filter_)
        async with self._turn(self._service.budgets.searches, _is_search(allowed)):
            return await self._service.find_step(allowed, limit, cursor)

    @verb(READ, tenants=CUT)
    async def count(self) -> list[Count]:
        """The number of jobs in each state, of the caller's tenants."""
        tenants = self.principal.tenants
        return [count for count in await self._service.count() if not tenants or count.tenant in tenants]

    @verb(READ, tenants=ITEMS)
    async def history(self, key: int) -> list[HistoryEntry]:
        """The history of a job's attempts; empty for an unknown key."""
        refused = await self._refused([checks.job_key(key)])
        return [] if refused else await self._engine.history(key)

    @verb(READ, tenants=ITEMS)
    async def spooled(self, spool_id: str) -> Spooled:
        """The state of a job that was spooled here because the engine was unavailable."""
        found = await self._service.spooled(checks.name("spool_id", spool_id), self.principal.tenants)
        # Once the job has been delivered, only the store knows its tenant.
        is_foreign = found is not None and found.created is not None and await self._refused([found.created.key])
        if found is None or is_foreign:
            raise NotFound("spooled job", spool_id)
        return found

    @verb(READ, tenants=OWNER)
    async def result(self, key: int, timeout: float) -> str | None:
        """Wait for the result of a job."""
        return await self._service.result(key, timeout)

    @verb(READ, tenants=OWNER)
    async def explain(self, key: int) -> Explanation:
        """Why a job is not running. A key restricted to tenants learns only the number of workers."""
        sees_all = not self.principal.tenants
        return await explain(self._engine, self._service.fleet, checks.job_key(key), sees_all=sees_all)

    @verb(READ, tenants=ANY)
    async def blocked_reason(self, type: str) -> str | None:
        """Why no job of a type is leased. A key restricted to tenants does not learn which job is the probe."""
        return await self._service.blocked_reason(type, names_probe=not self.principal.tenants)

    @verb(READ, tenants=CUT)
    async def stats(self, hours: int) -> Stats:
        """Job counts of the caller's tenants, and worker activity in the last `hours` hours.

        Worker activity is not stored per tenant, so a key restricted to tenants does not see it.
        """
        stats = await self._service.stats(hours)
        if not self.principal.tenants:
            return stats
        mine = [count for count in stats.counts if count.tenant in self.principal.tenants]
        return Stats(mine, [], stats.generated_at_ms)

    @verb(READ, tenants=ANY)
    async def key_since(self, instant_ms: int) -> int | None:
        """The lowest key created at or after a given time, or None; found by bisection, because keys grow with time."""
        newest = await self._newest()
        if newest is None or newest.created_at_ms < instant_ms:
            return None
        earlier, since = 0, newest.key
        while since - earlier > 1:
            middle = (earlier + since) // 2
            found = (await self._service.find_step(JobFilter(), 1, middle + 1)).jobs
            if found and found[0].created_at_ms >= instant_ms:
                since = found[0].key
            else:
                earlier = middle
        return since

    @verb(READ, tenants=ANY)
    async def newest_key(self) -> int | None:
        """The highest job key across all tenants; the keys of the caller's own jobs may be far lower."""
        newest = await self._newest()
        return None if newest is None else newest.key

    # Internals -------------------------------------------------------------------------------------

    async def _own_job(self, key: int) -> StoredJob:
        """A job, after checking its owner first, so that refusing a foreign job takes no longer than a missing one."""
        if self.principal.tenants:
            await self._require_own([checks.job_key(key)])
        return await self._service.get(key)

    async def _require_own(self, keys: Sequence[int]) -> None:
        for _, error in sorted((await self._refused(keys)).items()):
            raise error

    async def _refused(self, keys: Sequence[int]) -> dict[int, EverworkError]:
        """The jobs refused to a restricted key: it cannot tell another tenant's job from one that does not exist."""
        if not self.principal.tenants:
            return {}
        owners = zip(keys, await self._service.owners(keys), strict=True)
        return {key: JobNotFound(key) for key, owner in owners if owner not in self.principal.tenants}

    def _confined(self, filter_: JobFilter) -> JobFilter:
        """The filter restricted to the caller's tenants."""
        for field, text in (("error", filter_.error_text), ("variables", filter_.variables_text)):
            if text is not None:
                search_text(field, text)
        return replace(filter_, tenants=self.principal.tenants_for(filter_.tenants))

    def _turn(self, turns: Turns, is_needed: bool = True) -> AbstractAsyncContextManager[object]:
        """A turn of the caller, if one is needed; a program that uses the store directly needs none."""
        return turns.of(self.principal) if is_needed and self.caller is not IN_PROCESS else nullcontext()

    async def _newest(self) -> StoredJob | None:
        return next(iter((await self._service.find_step(JobFilter(), 1)).jobs), None)


def _is_search(filter_: JobFilter) -> bool:
    """Whether a filter searches jobs for a text, which reads far more than it returns."""
    return filter_.error_text is not None or filter_.variables_text is not None
