"""The service's verbs for one caller: every item of every call is checked against the caller's key (G13)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from everwork.codec.json import decode, encode_object
from everwork.codec.new_job import search_text
from everwork.core import checks
from everwork.core.job import HistoryEntry, Job, LeasedJob, NewJob
from everwork.core.leasing import Created, Demand, Judged
from everwork.core.limits import LEASE_MS_MAX, LIST_LIMIT_MAX, PAYLOAD_BYTES_MAX
from everwork.core.outcome import Complete, Outcome
from everwork.core.queries import BulkChange, Count, Explanation, JobFilter, Page, Stats
from everwork.core.states import State
from everwork.exceptions import InvalidInput, PermissionDenied
from everwork.service.access.principal import Permission, Principal
from everwork.service.service import JobService


class Jobs:
    """What the holder of one key may do. Cheap to make: one per call, if need be."""

    __slots__ = ("_service", "principal")

    def __init__(self, service: JobService, principal: Principal) -> None:
        self._service = service
        self.principal = principal

    # A job's way --------------------------------------------------------------------------------

    async def create(self, jobs: Sequence[NewJob]) -> list[Created]:
        """Accept jobs, all or none."""
        self.principal.require(Permission.JOBS)
        if self.principal.tenants:
            for job in jobs:
                self.principal.require_tenant(job.tenant)
        return await self._service.create(jobs)

    async def activate(self, demand: Demand, wait_ms: int = 0) -> list[LeasedJob]:
        """Lease jobs of the caller's tenants; with nothing to do, wait for some as long as the caller allows."""
        self.principal.require(Permission.JOBS)
        allowed = demand._replace(tenants=self.principal.tenants_for(demand.tenants))
        return await self._service.lease(allowed, wait_ms)

    async def settle(self, outcomes: Sequence[Outcome]) -> list[Judged]:
        """End attempts; nothing happens if one of them is another tenant's."""
        self.principal.require(Permission.JOBS)
        for outcome in outcomes:
            checks.attempt(outcome.attempt)
            for event in outcome.events if isinstance(outcome, Complete) else ():
                self.principal.require_tenant(event.tenant)
        await self._require_own([outcome.key for outcome in outcomes])
        return await self._service.settle(outcomes)

    async def extend(self, key: int, attempt: int, lease_ms: int) -> Judged:
        """Let a lease end `lease_ms` from now; attempt 0 means the one that runs."""
        self.principal.require(Permission.JOBS)
        checks.whole_number("timeout", lease_ms, 1, LEASE_MS_MAX)
        await self._require_own([checks.job_key(key, "job_key")])
        return await self._service.extend(key, checks.attempt(attempt), lease_ms)

    async def merged_variables(self, key: int, more: Mapping[str, Any], field: str = "variables") -> str:
        """The job's variables with others put over them, as a failure may bring them in a field of its message."""
        job = await self.get(key)
        return encode_object(field, {**decode(job.variables), **more}, PAYLOAD_BYTES_MAX)

    # Changes ------------------------------------------------------------------------------------

    async def cancel(self, key: int, reason: str = "") -> State:
        """Cancel one job; the state it was in."""
        await self._may_change(key)
        return await self._service.cancel(key, reason)

    async def requeue(self, key: int) -> State:
        """Bring one dead letter back."""
        await self._may_change(key)
        return await self._service.requeue(key)

    async def set_retries(self, key: int, retries: int) -> int:
        """Change how many attempts are left; the previous number."""
        await self._may_change(key)
        return await self._service.set_retries(key, retries)

    async def reschedule(self, key: int, *, run_at_ms: int | None = None, delay_ms: int = 0) -> State:
        """Let one pending job run at another time."""
        await self._may_change(key)
        return await self._service.reschedule(key, run_at_ms=run_at_ms, delay_ms=delay_ms)

    async def set_priority(self, key: int, priority: int) -> State:
        """Change the priority of one pending job."""
        await self._may_change(key)
        return await self._service.set_priority(key, priority)

    async def delete(self, key: int) -> State:
        """Remove one finished job."""
        await self._may_change(key)
        return await self._service.delete(key)

    async def requeue_many(self, keys: Sequence[int]) -> list[Judged]:
        """Bring dead letters back, each judged by itself; nothing happens if one of them is another tenant's."""
        await self._may_change_all(keys)
        return await self._service.requeue_many(keys)

    async def delete_many(self, keys: Sequence[int]) -> list[Judged]:
        """Remove finished jobs, in the same way."""
        await self._may_change_all(keys)
        return await self._service.delete_many(keys)

    async def cancel_many(self, keys: Sequence[int], reason: str = "") -> list[Judged]:
        """Cancel jobs that wait or run, in the same way."""
        await self._may_change_all(keys)
        return await self._service.cancel_many(keys, reason)

    async def run_now_many(self, keys: Sequence[int]) -> list[Judged]:
        """Let waiting jobs start at once, in the same way."""
        await self._may_change_all(keys)
        return await self._service.run_now_many(keys)

    async def requeue_matching(self, wanted: JobFilter, *, all: bool = False) -> BulkChange:
        """Bring back every dead letter that a filter shows; without any filter, only if `all` is said."""
        change = BulkChange(0, 0)
        async for done in self.requeue_in_steps(wanted, all=all):
            change = done
        return change

    async def requeue_in_steps(self, wanted: JobFilter, *, all: bool = False) -> AsyncIterator[BulkChange]:
        """`requeue_matching`, which tells after each step what has been done so far."""
        self.principal.require(Permission.JOBS)
        require_meant(wanted, all=all)
        found = replace(self.confined(wanted), states=frozenset([State.FAILED]))
        matched = changed = 0
        cursor: int | None = None
        while True:
            page = await self._service.find(found, LIST_LIMIT_MAX, cursor)
            judged = await self._service.requeue_many([job.key for job in page.jobs]) if page.jobs else []
            matched += len(judged)
            changed += sum(one.ok for one in judged)
            yield BulkChange(matched, changed)
            cursor = page.next
            if cursor is None:
                return

    # Questions ----------------------------------------------------------------------------------

    async def get(self, key: int) -> Job:
        """A job as it stands."""
        self.principal.require(Permission.JOBS_READ)
        job = await self._service.get(key)
        if self.principal.tenants and job.tenant not in self.principal.tenants:
            raise foreign_job(key)
        return job

    async def get_many(self, keys: Sequence[int]) -> list[Job | None]:
        """Jobs as they stand; None for those that do not exist or are another tenant's."""
        self.principal.require(Permission.JOBS_READ)
        tenants = self.principal.tenants
        jobs = await self._service.get_many(keys) if keys else []
        return [None if job is None or (tenants and job.tenant not in tenants) else job for job in jobs]

    async def count(self) -> list[Count]:
        """How many jobs of the caller's tenants are in which state."""
        self.principal.require(Permission.JOBS_READ)
        tenants = self.principal.tenants
        return [count for count in await self._service.count() if not tenants or count.tenant in tenants]

    async def history(self, key: int) -> list[HistoryEntry]:
        """How a job's attempts ended."""
        await self._may_read(key)
        return await self._service.history(key)

    async def explain(self, key: int) -> Explanation:
        """Why a job is not running."""
        await self._may_read(key)
        return await self._service.explain(key)

    async def stats(self, hours: int) -> Stats:
        """Counts of the caller's tenants, and what workers did lately.

        What workers did is kept for all tenants together: a key that is bound to some does not see it.
        """
        self.principal.require(Permission.JOBS_READ)
        stats = await self._service.stats(hours)
        if not self.principal.tenants:
            return stats
        mine = [count for count in stats.counts if count.tenant in self.principal.tenants]
        return Stats(mine, [], stats.generated_at_ms)

    async def key_since(self, instant_ms: int) -> int | None:
        """The lowest key of those that came at an instant or later, by halving: keys grow with time. None: none did."""
        self.principal.require(Permission.JOBS_READ)
        newest = await self._newest()
        if newest is None or newest.created_at_ms < instant_ms:
            return None
        earlier, since = 0, newest.key
        while since - earlier > 1:
            middle = (earlier + since) // 2
            found = (await self._service.look(JobFilter(), 1, middle + 1)).jobs
            if found and found[0].created_at_ms >= instant_ms:
                since = found[0].key
            else:
                earlier = middle
        return since

    async def newest_key(self) -> int | None:
        """The highest key there is, whosever it is: the caller's own jobs may lie far below it."""
        self.principal.require(Permission.JOBS_READ)
        newest = await self._newest()
        return None if newest is None else newest.key

    async def foreign(self, keys: Sequence[int]) -> set[int]:
        """Those of the keys that belong to tenants which the caller may not touch."""
        if not self.principal.tenants:
            return set()
        owners = await self._service.owners(keys)
        pairs = zip(keys, owners, strict=True)
        return {key for key, owner in pairs if owner is not None and owner not in self.principal.tenants}

    async def _newest(self) -> Job | None:
        return next(iter((await self._service.look(JobFilter(), 1)).jobs), None)

    async def _may_change(self, key: int) -> None:
        await self._may_change_all([checks.job_key(key)])

    async def _may_change_all(self, keys: Sequence[int]) -> None:
        self.principal.require(Permission.JOBS)
        await self._require_own(keys)

    async def _may_read(self, key: int) -> None:
        self.principal.require(Permission.JOBS_READ)
        await self._require_own([checks.job_key(key)])

    async def _require_own(self, keys: Sequence[int]) -> None:
        if self.principal.tenants and (foreign := await self.foreign(keys)):
            raise foreign_job(min(foreign))

    def confined(self, wanted: JobFilter) -> JobFilter:
        """A filter that shows nothing but jobs of the caller's tenants."""
        if wanted.error_text is not None:
            search_text("error", wanted.error_text)
        return replace(wanted, tenants=self.principal.tenants_for(wanted.tenants))

    async def find(self, wanted: JobFilter, limit: int, cursor: int | None = None) -> Page:
        """Matching jobs of the caller's tenants, newest first."""
        self.principal.require(Permission.JOBS_READ)
        return await self._service.find(self.confined(wanted), limit, cursor)

    async def look(self, wanted: JobFilter, limit: int, cursor: int | None = None) -> Page:
        """`list` in one step of the engine, however few match: `next` tells where it stopped looking."""
        self.principal.require(Permission.JOBS_READ)
        checks.whole_number("limit", limit, 1, LIST_LIMIT_MAX)
        return await self._service.look(self.confined(wanted), limit, cursor)


def require_meant(wanted: JobFilter, *, all: bool) -> None:
    """Refuse an empty filter where it would touch every dead letter, unless just that is said."""
    is_empty = replace(wanted, states=frozenset()) == JobFilter()
    if is_empty and not all:
        raise InvalidInput("all", "must be true if every dead letter is meant; else give a filter")
    if all and not is_empty:
        raise InvalidInput("all", "must not be given together with a filter")


def foreign_job(key: int) -> PermissionDenied:
    """The error of whoever touches another tenant's job."""
    return PermissionDenied(f"Job '{key}' belongs to a tenant that this key may not touch")
