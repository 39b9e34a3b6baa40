"""The job operations for one caller: every item of every call is checked against the caller's key (G13)."""

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
    """What the holder of a key may do with jobs. Cheap to create, for instance per call."""

    __slots__ = ("_service", "principal")

    def __init__(self, service: JobService, principal: Principal) -> None:
        self._service = service
        self.principal = principal

    # Life cycle ---------------------------------------------------------------------------------

    async def create(self, jobs: Sequence[NewJob]) -> list[Created]:
        """Create jobs, all or none."""
        self.principal.require(Permission.JOBS)
        if self.principal.tenants:
            for job in jobs:
                self.principal.require_tenant(job.tenant)
        return await self._service.create(jobs)

    async def activate(self, demand: Demand, wait_ms: int = 0) -> list[LeasedJob]:
        """Lease jobs of the caller's tenants; if none is due, wait for some up to `wait_ms`."""
        self.principal.require(Permission.JOBS)
        allowed = demand._replace(tenants=self.principal.tenants_for(demand.tenants))
        return await self._service.activate(allowed, wait_ms)

    async def settle(self, outcomes: Sequence[Outcome]) -> list[Judged]:
        """Settle attempts; refused as a whole if one of them is another tenant's."""
        self.principal.require(Permission.JOBS)
        for outcome in outcomes:
            checks.attempt(outcome.attempt)
            for event in outcome.events if isinstance(outcome, Complete) else ():
                self.principal.require_tenant(event.tenant)
        await self._require_own([outcome.key for outcome in outcomes])
        return await self._service.settle(outcomes)

    async def extend(self, key: int, attempt: int, lease_ms: int) -> Judged:
        """Let a lease end `lease_ms` from now; attempt 0 means the running one."""
        self.principal.require(Permission.JOBS)
        checks.whole_number("timeout", lease_ms, 1, LEASE_MS_MAX)
        await self._require_own([checks.job_key(key, "job_key")])
        return await self._service.extend(key, checks.attempt(attempt), lease_ms)

    async def merged_variables(self, key: int, more: Mapping[str, Any], field: str = "variables") -> str:
        """The job's variables updated with those of a failure; `field` names them in errors."""
        job = await self.get(key)
        return encode_object(field, {**decode(job.variables), **more}, PAYLOAD_BYTES_MAX)

    # Changes ------------------------------------------------------------------------------------

    async def cancel(self, key: int, reason: str = "") -> State:
        """Cancel a job; returns the state it was in."""
        await self._may_change(key)
        return await self._service.cancel(key, reason)

    async def requeue(self, key: int) -> State:
        """Requeue a dead letter."""
        await self._may_change(key)
        return await self._service.requeue(key)

    async def set_retries(self, key: int, retries: int) -> int:
        """Set how many attempts are left; returns the previous number."""
        await self._may_change(key)
        return await self._service.set_retries(key, retries)

    async def reschedule(self, key: int, *, run_at_ms: int | None = None, delay_ms: int = 0) -> State:
        """Reschedule a pending job."""
        await self._may_change(key)
        return await self._service.reschedule(key, run_at_ms=run_at_ms, delay_ms=delay_ms)

    async def set_priority(self, key: int, priority: int) -> State:
        """Change the priority of a pending job."""
        await self._may_change(key)
        return await self._service.set_priority(key, priority)

    async def delete(self, key: int) -> State:
        """Delete a finished job."""
        await self._may_change(key)
        return await self._service.delete(key)

    async def requeue_many(self, keys: Sequence[int]) -> list[Judged]:
        """Requeue dead letters, one verdict per key; refused as a whole if one of them is another tenant's."""
        await self._may_change_all(keys)
        return await self._service.requeue_many(keys)

    async def delete_many(self, keys: Sequence[int]) -> list[Judged]:
        """Delete finished jobs, likewise."""
        await self._may_change_all(keys)
        return await self._service.delete_many(keys)

    async def cancel_many(self, keys: Sequence[int], reason: str = "") -> list[Judged]:
        """Cancel pending and running jobs, likewise."""
        await self._may_change_all(keys)
        return await self._service.cancel_many(keys, reason)

    async def run_now_many(self, keys: Sequence[int]) -> list[Judged]:
        """Make pending jobs due now, likewise."""
        await self._may_change_all(keys)
        return await self._service.run_now_many(keys)

    async def requeue_matching(self, filter_: JobFilter, *, all: bool = False) -> BulkChange:
        """Requeue every matching dead letter; an empty filter needs `all`."""
        change = BulkChange(0, 0)
        async for so_far in self.requeue_in_steps(filter_, all=all):
            change = so_far
        return change

    async def requeue_in_steps(self, filter_: JobFilter, *, all: bool = False) -> AsyncIterator[BulkChange]:
        """`requeue_matching` that yields the totals so far after each step."""
        self.principal.require(Permission.JOBS)
        require_filter(filter_, all=all)
        failed = replace(self.confined(filter_), states=frozenset([State.FAILED]))
        matched = changed = 0
        cursor: int | None = None
        while True:
            page = await self._service.find(failed, LIST_LIMIT_MAX, cursor)
            judged = await self._service.requeue_many([job.key for job in page.jobs]) if page.jobs else []
            matched += len(judged)
            changed += sum(one.ok for one in judged)
            yield BulkChange(matched, changed)
            cursor = page.next
            if cursor is None:
                return

    # Questions ----------------------------------------------------------------------------------

    async def get(self, key: int) -> Job:
        """A job in its current state."""
        self.principal.require(Permission.JOBS_READ)
        job = await self._service.get(key)
        if self.principal.tenants and job.tenant not in self.principal.tenants:
            raise foreign_job_error(key)
        return job

    async def get_many(self, keys: Sequence[int]) -> list[Job | None]:
        """Jobs in their current state; None for those that do not exist or are another tenant's."""
        self.principal.require(Permission.JOBS_READ)
        tenants = self.principal.tenants
        jobs = await self._service.get_many(keys) if keys else []
        return [None if job is None or (tenants and job.tenant not in tenants) else job for job in jobs]

    async def find(self, filter_: JobFilter, limit: int, cursor: int | None = None) -> Page:
        """Matching jobs of the caller's tenants, newest first."""
        self.principal.require(Permission.JOBS_READ)
        return await self._service.find(self.confined(filter_), limit, cursor)

    async def find_step(self, filter_: JobFilter, limit: int, cursor: int | None = None) -> Page:
        """`find` in one step of the engine, however few jobs match: `next` is where it stopped."""
        self.principal.require(Permission.JOBS_READ)
        checks.whole_number("limit", limit, 1, LIST_LIMIT_MAX)
        return await self._service.find_step(self.confined(filter_), limit, cursor)

    async def count(self) -> list[Count]:
        """How many jobs of the caller's tenants are in which state."""
        self.principal.require(Permission.JOBS_READ)
        tenants = self.principal.tenants
        return [count for count in await self._service.count() if not tenants or count.tenant in tenants]

    async def history(self, key: int) -> list[HistoryEntry]:
        """How the attempts of a job ended."""
        await self._may_read(key)
        return await self._service.history(key)

    async def explain(self, key: int) -> Explanation:
        """Why a job is not running."""
        await self._may_read(key)
        return await self._service.explain(key)

    async def stats(self, hours: int) -> Stats:
        """Counts of the caller's tenants, and what workers did in the last hours.

        What workers did is not kept per tenant: a key that is bound to tenants does not see it.
        """
        self.principal.require(Permission.JOBS_READ)
        stats = await self._service.stats(hours)
        if not self.principal.tenants:
            return stats
        mine = [count for count in stats.counts if count.tenant in self.principal.tenants]
        return Stats(mine, [], stats.generated_at_ms)

    async def key_since(self, instant_ms: int) -> int | None:
        """The lowest key created at an instant or later, by bisection: keys grow with time. None if there is none."""
        self.principal.require(Permission.JOBS_READ)
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

    async def newest_key(self) -> int | None:
        """The highest key of all tenants: the caller's own jobs may lie far below it."""
        self.principal.require(Permission.JOBS_READ)
        newest = await self._newest()
        return None if newest is None else newest.key

    async def foreign(self, keys: Sequence[int]) -> set[int]:
        """The keys among these that belong to tenants which the caller may not touch."""
        if not self.principal.tenants:
            return set()
        owners = await self._service.owners(keys)
        pairs = zip(keys, owners, strict=True)
        return {key for key, owner in pairs if owner is not None and owner not in self.principal.tenants}

    def confined(self, filter_: JobFilter) -> JobFilter:
        """The filter restricted to the caller's tenants."""
        if filter_.error_text is not None:
            search_text("error", filter_.error_text)
        return replace(filter_, tenants=self.principal.tenants_for(filter_.tenants))

    async def _newest(self) -> Job | None:
        return next(iter((await self._service.find_step(JobFilter(), 1)).jobs), None)

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
            raise foreign_job_error(min(foreign))


def require_filter(filter_: JobFilter, *, all: bool) -> None:
    """Refuse an empty filter, which would match every dead letter, unless `all` is given."""
    is_empty = replace(filter_, states=frozenset()) == JobFilter()
    if is_empty and not all:
        raise InvalidInput("all", "must be true if every dead letter is meant; else give a filter")
    if all and not is_empty:
        raise InvalidInput("all", "must not be given together with a filter")


def foreign_job_error(key: int) -> PermissionDenied:
    """The error for a caller that touches another tenant's job."""
    return PermissionDenied(f"Job '{key}' belongs to a tenant that this key may not touch")
