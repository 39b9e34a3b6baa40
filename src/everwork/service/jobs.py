"""The job operations for one caller: each says who may call it, and every item of every call is checked (G13)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Container, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from everwork.codec.json import decode, encode_object
from everwork.codec.new_job import search_text
from everwork.core import checks
from everwork.core.job import HistoryEntry, Job, LeasedJob, NewJob
from everwork.core.leasing import Created, Demand, Judged, Lease, LeaseStatus, Verdict, accepted
from everwork.core.limits import (
    ATTEMPTS_MAX,
    DELAY_MS_MAX,
    ERROR_CHARS_MAX,
    INSTANT_MS_MAX,
    LEASE_MS_MAX,
    LIST_LIMIT_MAX,
    PAYLOAD_BYTES_MAX,
    PRIORITY_MAX,
    PRIORITY_MIN,
)
from everwork.core.outcome import Complete, Outcome
from everwork.core.queries import BulkChange, Count, Explanation, JobFilter, Page, Stats
from everwork.core.states import State
from everwork.exceptions import EverworkError, JobNotFound, PermissionDenied, WrongState
from everwork.service import bulk
from everwork.service.access.principal import Permission
from everwork.service.bulk import BulkAction, BulkFilter
from everwork.service.dead_letters import DeadLetterAction, dead_filter
from everwork.service.explain import explain
from everwork.service.service import JobService
from everwork.service.verb import (
    ANY,
    BY_MINUTE,
    CONFINED,
    CUT,
    IN_PROCESS,
    ITEMS,
    ITSELF,
    OWNER,
    Caller,
    ForCaller,
    verb,
)

if TYPE_CHECKING:
    from everwork.service.access.audit import Audit

READ: Final = Permission.JOBS_READ
WRITE: Final = Permission.JOBS
_NOT_FOUND: Final = Judged(Verdict.NOT_FOUND)


class Jobs(ForCaller):
    """What a caller may do with jobs."""

    __slots__ = ("_engine", "_service")

    def __init__(self, service: JobService, caller: Caller) -> None:
        super().__init__(caller)
        self._service = service
        self._engine = service._engine  # noqa: SLF001 - what changes jobs is written here and nowhere else

    @property
    def _audit(self) -> Audit:
        return self._service.audit

    # Life cycle ---------------------------------------------------------------------------------

    @verb(WRITE, tenants=ITEMS)
    async def create(self, jobs: Sequence[NewJob]) -> list[Created]:
        """Create jobs, all or none."""
        if self.principal.tenants:
            for job in jobs:
                self.principal.require_tenant(job.tenant)
        return await self._service.create(jobs)

    @verb(WRITE, tenants=CONFINED)
    async def activate(self, demand: Demand, wait_ms: int = 0) -> list[LeasedJob]:
        """Lease jobs of the caller's tenants; if none is due, wait for some up to `wait_ms`."""
        allowed = demand._replace(tenants=self.principal.tenants_for(demand.tenants))
        return await self._service.activate(allowed, wait_ms)

    @verb(WRITE, tenants=ITEMS)
    async def settle(self, outcomes: Sequence[Outcome]) -> list[Judged]:
        """Settle attempts; refused as a whole if one of them is another tenant's."""
        for outcome in outcomes:
            checks.attempt(outcome.attempt)
            for event in outcome.events if isinstance(outcome, Complete) else ():
                self.principal.require_tenant(event.tenant)
        refused = await self._refused([outcome.key for outcome in outcomes])
        if foreign := [key for key, error in refused.items() if isinstance(error, PermissionDenied)]:
            raise refused[min(foreign)]
        return await (self._settle_known(outcomes, refused) if refused else self._service.settle(outcomes))

    @verb(WRITE, tenants=ITEMS)
    async def extend(self, key: int, attempt: int, lease_ms: int) -> Judged:
        """Make a lease expire `lease_ms` from now; attempt 0 means the running one."""
        checks.whole_number("timeout", lease_ms, 1, LEASE_MS_MAX)
        await self._require_own([checks.job_key(key, "job_key")])
        lease = Lease(key, checks.attempt(attempt) or (await self._service.get(key)).attempt)
        if (await self._engine.extend([lease], lease_ms))[0] is LeaseStatus.HELD:
            return Judged(Verdict.ACCEPTED, State.PROCESSING)
        job = await self._service.get(key)
        # A caller that named no attempt has lost none: the job is not running.
        is_lost = attempt > 0 and (job.attempt != attempt or job.state in (State.PENDING, State.PROCESSING))
        return Judged(Verdict.LEASE_LOST if is_lost else Verdict.WRONG_STATE, job.state)

    @verb(READ, tenants=ITEMS)
    async def merged_variables(self, key: int, more: Mapping[str, Any], field: str = "variables") -> str:
        """The job's variables updated with those of a failure; `field` names them in errors."""
        job = await self._own_job(key)
        return encode_object(field, {**decode(job.variables), **more}, PAYLOAD_BYTES_MAX)

    # Changes ------------------------------------------------------------------------------------

    @verb(WRITE, tenants=OWNER, audit="jobs.cancel", audited=BY_MINUTE)
    async def cancel(self, key: int, reason: str = "") -> State:
        """Cancel a job; returns the state it was in."""
        checks.text("reason", reason, ERROR_CHARS_MAX)
        [judged] = await self._engine.cancel([checks.job_key(key)], reason)
        return accepted(key, judged, "cancelled")

    @verb(WRITE, tenants=OWNER, audit="jobs.requeue", audited=BY_MINUTE)
    async def requeue(self, key: int) -> State:
        """Requeue a dead letter."""
        [judged] = await self._engine.requeue([checks.job_key(key)])
        return accepted(key, judged, "requeued")

    @verb(WRITE, tenants=OWNER, audit="jobs.retries", audited=BY_MINUTE)
    async def set_retries(self, key: int, retries: int) -> int:
        """Set how many attempts are left; returns the previous number."""
        checks.whole_number("retries", retries, 0, ATTEMPTS_MAX)
        judged = await self._engine.set_retries(checks.job_key(key), retries)
        if judged.verdict is Verdict.WRONG_STATE and judged.state is State.PENDING:
            raise WrongState(
                key, f"Job '{key}' is pending: 0 retries would leave it waiting for ever; cancel it instead"
            )
        accepted(key, judged, "given other retries")
        return judged.retries or 0

    @verb(WRITE, tenants=OWNER, audit="jobs.reschedule", audited=BY_MINUTE)
    async def reschedule(self, key: int, *, run_at_ms: int | None = None, delay_ms: int | None = None) -> State:
        """Reschedule a pending job; without a time or a delay, to now."""
        if delay_ms is not None:
            checks.whole_number("delay_ms", delay_ms, 0, DELAY_MS_MAX)
        if run_at_ms is not None:
            checks.whole_number("run_at_ms", run_at_ms, 0, INSTANT_MS_MAX)
        [judged] = await self._engine.reschedule([checks.job_key(key)], run_at_ms=run_at_ms, delay_ms=delay_ms or 0)
        return accepted(key, judged, "rescheduled")

    @verb(WRITE, tenants=OWNER, audit="jobs.run-now", audited=BY_MINUTE)
    async def run_now(self, key: int) -> State:
        """Make a pending job due now."""
        [judged] = await self._engine.reschedule([checks.job_key(key)])
        return accepted(key, judged, "rescheduled")

    @verb(WRITE, tenants=OWNER, audit="jobs.priority", audited=BY_MINUTE)
    async def set_priority(self, key: int, priority: int) -> State:
        """Change the priority of a pending job."""
        checks.whole_number("priority", priority, PRIORITY_MIN, PRIORITY_MAX)
        [judged] = await self._engine.set_priority([checks.job_key(key)], priority)
        return accepted(key, judged, "given a priority")

    @verb(WRITE, tenants=OWNER, audit="jobs.delete")
    async def delete(self, key: int) -> State:
        """Delete a finished job."""
        [judged] = await self._engine.delete([checks.job_key(key)])
        return accepted(key, judged, "deleted")

    @verb(WRITE, tenants=OWNER, audit="dead.purge")
    async def purge(self, key: int) -> State:
        """Delete a dead letter; a job in any other state is refused."""
        job = await self._service.get(key)
        if job.state is not State.FAILED:
            raise WrongState(key, f"Job '{key}' is {job.state.label}: only dead letters are purged")
        [judged] = await self._engine.delete([job.key])
        return accepted(key, judged, "deleted")

    # Bulk changes: one audit entry per call ------------------------------------------------------

    @verb(WRITE, tenants=CONFINED, audit=("jobs.cancel", "jobs.requeue", "jobs.run-now", "jobs.delete"), audited=ITSELF)
    async def change_many(self, action: BulkAction, keys: Sequence[int]) -> BulkChange:
        """Change the jobs with these keys; each one is accepted or refused individually."""
        steps = bulk.change_selected(
            self, action, bulk.change_of(action, self._engine), keys, await self._service.now()
        )
        return await self._in_steps(steps, f"jobs.{action.value}", None, {"keys": [str(key) for key in keys]})

    @verb(WRITE, tenants=CONFINED, audit=("jobs.cancel", "jobs.requeue", "jobs.run-now", "jobs.delete"), audited=ITSELF)
    async def change_matching(self, action: BulkAction, search: BulkFilter) -> BulkChange:
        """Change all matching jobs, in steps; each one is accepted or refused individually."""
        now_ms = await self._service.now()
        allowed = self._confined_search(bulk.restricted(action, search))
        steps = bulk.change_in_steps(
            lambda cursor: bulk.find_step(self, allowed, LIST_LIMIT_MAX, now_ms, cursor),
            bulk.change_of(action, self._engine),
            bulk.changed_by_this_call,
        )
        return await self._in_steps(steps, f"jobs.{action.value}", search.filter.type, {"filter": allowed.detail()})

    @verb(WRITE, tenants=CONFINED, audit="jobs.requeue", audited=ITSELF)
    async def requeue_matching(self, filter_: JobFilter, *, all: bool = False) -> BulkChange:
        """Requeue every matching dead letter; an empty filter needs `all`."""
        dead = BulkFilter(replace(self._confined(filter_), states=frozenset([State.FAILED])))
        bulk.require_selection(replace(filter_, states=frozenset()) == JobFilter(), all=all)
        steps = await self._steps_of_dead(dead, self._engine.requeue)
        return await self._in_steps(steps, "jobs.requeue", filter_.type, {"filter": dead.detail(with_states=False)})

    @verb(WRITE, tenants=CONFINED, audit=("dead.requeue", "dead.purge"), audited=ITSELF)
    async def change_dead(
        self,
        action: DeadLetterAction,
        search: BulkFilter,
        *,
        all: bool = False,
        dry_run: bool = False,
        progress: bulk.Progress | None = None,
    ) -> BulkChange:
        """Requeue or purge all dead letters that match; `progress` is called after each step.

        A dry run changes nothing and is not audited. `NothingMatches` is raised if there are none.
        """
        dead = replace(search, filter=replace(search.filter, states=frozenset([State.FAILED])))
        bulk.require_selection(dead == dead_filter(), all=all)
        allowed = self._confined_search(dead)
        is_requeue = action is DeadLetterAction.REQUEUE
        change = self._engine.requeue if is_requeue else self._engine.delete
        steps = await self._steps_of_dead(allowed, None if dry_run else change, "no dead letter matches")
        audited = None if dry_run else f"dead.{action.value}"
        return await self._in_steps(
            steps, audited, search.filter.type, {"filter": allowed.detail(with_states=False)}, progress
        )

    # Questions ----------------------------------------------------------------------------------

    @verb(READ, tenants=ITEMS)
    async def get(self, key: int) -> Job:
        """A job in its current state."""
        return await self._own_job(key)

    @verb(READ, tenants=CUT)
    async def get_many(self, keys: Sequence[int]) -> list[Job | None]:
        """Jobs in their current state; None for those that do not exist or are another tenant's."""
        tenants = self.principal.tenants
        jobs = await self._service.get_many(keys) if keys else []
        return [None if job is None or (tenants and job.tenant not in tenants) else job for job in jobs]

    @verb(READ, tenants=CONFINED)
    async def find(self, filter_: JobFilter, limit: int, cursor: int | None = None) -> Page:
        """Matching jobs of the caller's tenants, newest first."""
        return await self._service.find(self._confined(filter_), limit, cursor)

    @verb(READ, tenants=CONFINED)
    async def find_step(self, filter_: JobFilter, limit: int, cursor: int | None = None) -> Page:
        """`find` in one step of the engine, however few jobs match: `next` is where it stopped."""
        checks.whole_number("limit", limit, 1, LIST_LIMIT_MAX)
        return await self._service.find_step(self._confined(filter_), limit, cursor)

    @verb(READ, tenants=CUT)
    async def count(self) -> list[Count]:
        """The number of jobs in each state, of the caller's tenants."""
        tenants = self.principal.tenants
        return [count for count in await self._service.count() if not tenants or count.tenant in tenants]

    @verb(READ, tenants=ITEMS)
    async def history(self, key: int) -> list[HistoryEntry]:
        """How the attempts of a job ended; empty for an unknown key."""
        error = (await self._refused([checks.job_key(key)])).get(key)
        if isinstance(error, PermissionDenied):
            raise error
        return [] if error else await self._engine.history(key)

    @verb(READ, tenants=OWNER)
    async def result(self, key: int, timeout: float) -> str | None:
        """Wait for the result of a job."""
        return await self._service.result(key, timeout)

    @verb(READ, tenants=OWNER)
    async def explain(self, key: int) -> Explanation:
        """Why a job is not running."""
        return await explain(self._engine, self._service.fleet, checks.job_key(key))

    @verb(READ, tenants=CUT)
    async def stats(self, hours: int) -> Stats:
        """Job counts of the caller's tenants, and worker activity in the last `hours` hours.

        Worker activity is not kept per tenant, so a key that is bound to tenants does not see it.
        """
        stats = await self._service.stats(hours)
        if not self.principal.tenants:
            return stats
        mine = [count for count in stats.counts if count.tenant in self.principal.tenants]
        return Stats(mine, [], stats.generated_at_ms)

    @verb(READ, tenants=ANY)
    async def key_since(self, instant_ms: int) -> int | None:
        """The lowest key created at an instant or later, by bisection: keys grow with time. None if there is none."""
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
        """The highest key of all tenants: the caller's own jobs may lie far below it."""
        newest = await self._newest()
        return None if newest is None else newest.key

    @verb(WRITE, tenants=CUT)
    async def refused(self, keys: Sequence[int]) -> dict[int, EverworkError]:
        """The jobs among these that the caller may not touch, and why."""
        return await self._refused(keys)

    # Inside -------------------------------------------------------------------------------------

    async def _own_job(self, key: int) -> Job:
        """A job, once its owner has been checked, in one engine call."""
        job = await self._service.get(key)
        if self.principal.tenants and job.tenant not in self.principal.tenants:
            raise _refusal(key, job.tenant)
        return job

    async def _require_own(self, keys: Sequence[int]) -> None:
        for _, error in sorted((await self._refused(keys)).items()):
            raise error

    async def _refused(self, keys: Sequence[int]) -> dict[int, EverworkError]:
        """Bound keys are also refused jobs that do not exist: another tenant may have created them meanwhile."""
        if not self.principal.tenants:
            return {}
        owners = zip(keys, await self._service.owners(keys), strict=True)
        return {key: _refusal(key, owner) for key, owner in owners if owner not in self.principal.tenants}

    async def _settle_known(self, outcomes: Sequence[Outcome], unknown: Container[int]) -> list[Judged]:
        known = [outcome for outcome in outcomes if outcome.key not in unknown]
        judged = iter(await self._service.settle(known) if known else ())
        return [_NOT_FOUND if outcome.key in unknown else next(judged) for outcome in outcomes]

    def _confined(self, filter_: JobFilter) -> JobFilter:
        """The filter restricted to the caller's tenants."""
        if filter_.error_text is not None:
            search_text("error", filter_.error_text)
        return replace(filter_, tenants=self.principal.tenants_for(filter_.tenants))

    async def _newest(self) -> Job | None:
        return next(iter((await self._service.find_step(JobFilter(), 1)).jobs), None)

    def _confined_search(self, search: BulkFilter) -> BulkFilter:
        return replace(search, filter=self._confined(search.filter))

    async def _steps_of_dead(
        self, search: BulkFilter, change: bulk.Change | None, nothing: str | None = None
    ) -> AsyncIterator[BulkChange]:
        read = partial(bulk.find_page, self, search, await self._service.now())
        return bulk.change_in_steps(read, change, bulk.is_changed, nothing)

    async def _in_steps(
        self,
        steps: AsyncIterator[BulkChange],
        action: str | None,
        type: str | None,
        detail: Mapping[str, Any],
        progress: bulk.Progress | None = None,
    ) -> BulkChange:
        """Run a bulk change, and keep its totals in one audit entry."""
        if action is None or self.caller is IN_PROCESS:
            return await bulk.run_steps(steps, progress, bulk.unrecorded)
        name = self._audit.new_name()

        async def write(totals: Mapping[str, Any]) -> None:
            await self._record(action, type or "*", {**detail, **totals}, name)

        return await bulk.run_steps(steps, progress, write)


def in_process(service: JobService) -> Jobs:
    """The operations for a program that opened the store itself: nothing is refused, nothing is recorded."""
    return Jobs(service, IN_PROCESS)


def _refusal(key: int, owner: str | None) -> EverworkError:
    if owner is None:
        return JobNotFound(key)
    return PermissionDenied(f"Job '{key}' belongs to a tenant that this key may not touch")
