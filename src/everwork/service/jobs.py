"""The job operations for one caller: each declares who may call it, and every item of every call is checked (G13)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from hashlib import sha256
from typing import Any, Final

from everwork.codec.json import decode_stored_object, encode_object
from everwork.core import checks
from everwork.core.job import LeasedJob, NewJob
from everwork.core.leasing import Created, Demand, Judged, Lease, LeaseStatus, Stamp, Verdict, accepted
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
from everwork.core.queries import BulkChange, JobFilter, Order
from everwork.core.states import State
from everwork.exceptions import EverworkError, InvalidInput, WrongState
from everwork.service import bulk
from everwork.service.access.budgets import BULK_MIN, LARGE_CHARS
from everwork.service.access.principal import Permission
from everwork.service.bulk import BulkAction, BulkFilter
from everwork.service.dead_letters import DeadLetterAction, dead_filter
from everwork.service.job_questions import READ, JobQuestions
from everwork.service.service import JobService
from everwork.service.verb import (
    BY_MINUTE,
    CONFINED,
    CUT,
    IN_PROCESS,
    ITEMS,
    ITSELF,
    OWNER,
    verb,
)

WRITE: Final = Permission.JOBS
_NOT_FOUND: Final = Judged(Verdict.NOT_FOUND)


def _is_large(jobs: Sequence[NewJob]) -> bool:
    """Whether a create takes a turn among the bulk calls."""
    return len(jobs) >= BULK_MIN or sum([len(job.variables) for job in jobs]) >= LARGE_CHARS


Settle = Callable[[Sequence[Outcome]], Awaitable[list[Judged]]]


class Jobs(JobQuestions):
    """Operations on jobs that a caller may use."""

    __slots__ = ()

    # Life cycle ---------------------------------------------------------------------------------

    @verb(WRITE, tenants=ITEMS)
    async def create(self, jobs: Sequence[NewJob], stamp: Stamp | None = None) -> list[Created]:
        """Create jobs, all or none; with a stamp, only once even if the call is repeated."""
        if self.principal.tenants:
            for job in jobs:
                self.principal.require_tenant(job.tenant)
        if new := self._new_types(jobs):
            await self._service.type_limits.admit(self.principal.id, new)
        own_stamp = stamp and self._admitted(stamp)
        if self.caller is IN_PROCESS or not _is_large(jobs):  # Most calls need no turn.
            return await self._service.create(jobs, own_stamp)
        async with self._turn(self._service.budgets.bulk):
            return await self._service.create(jobs, own_stamp)

    @verb(WRITE, tenants=CONFINED)
    async def activate(self, demand: Demand, wait_ms: int = 0) -> list[LeasedJob]:
        """Lease jobs of the caller's tenants; if none is due, wait up to `wait_ms`."""
        if new := self._new_types([demand]):
            await self._service.type_limits.admit(self.principal.id, new)
        principal = self.principal
        allowed = demand._replace(tenants=principal.tenants_for(demand.tenants), is_bound=bool(principal.tenants))
        if self.caller is IN_PROCESS:
            return await self._service.activate(allowed, wait_ms)
        turns = self._service.budgets.requests
        if wait_ms <= 0:
            async with turns.of(principal):
                return await self._service.activate(allowed, wait_ms, principal.id, principal.party)
        await turns.pace(principal)
        leased = await self._service.activate(allowed, wait_ms, principal.id, principal.party)
        try:
            await turns.pace(principal)
        except BaseException:
            self._service.release_undelivered(leased)
            raise
        return leased

    @verb(WRITE, tenants=ITEMS)
    async def settle(self, outcomes: Sequence[Outcome]) -> list[Judged]:
        """Settle attempts; a job of another tenant is not found."""
        return await self._settle_own(outcomes, self._service.settle)

    @verb(WRITE, tenants=ITEMS)
    async def settle_late(self, outcomes: Sequence[Outcome]) -> list[Judged]:
        """Settle attempts that ended while the caller was disconnected; expired leases are restored where possible."""
        return await self._settle_own(outcomes, self._service.settle_late)

    @verb(WRITE, tenants=ITEMS)
    async def extend(self, key: int, attempt: int, lease_ms: int) -> Judged:
        """Extend a lease to `lease_ms` from now; attempt 0 means the running attempt."""
        checks.whole_number("timeout", lease_ms, 1, LEASE_MS_MAX)
        await self._require_own([checks.job_key(key, "job_key")])
        lease = Lease(key, checks.attempt(attempt) or (await self._service.get(key)).attempt)
        if (await self._engine.extend([lease], lease_ms))[0] is LeaseStatus.HELD:
            return Judged(Verdict.ACCEPTED, State.PROCESSING)
        job = await self._service.get(key)
        # If no attempt was given, there is no lease to lose: the job is not running.
        is_lost = attempt > 0 and (job.attempt != attempt or job.state in (State.PENDING, State.PROCESSING))
        return Judged(Verdict.LEASE_LOST if is_lost else Verdict.WRONG_STATE, job.state)

    @verb(READ, tenants=ITEMS)
    async def merged_variables(self, key: int, more: Mapping[str, Any], field: str = "variables") -> str:
        """The job's variables, updated with those of a failure; `field` names them in errors."""
        job = await self._own_job(key)
        return encode_object(field, {**decode_stored_object(field, job.variables), **more}, PAYLOAD_BYTES_MAX)

    # Changes ------------------------------------------------------------------------------------

    @verb(WRITE, tenants=OWNER, audit="jobs.cancel", audited=BY_MINUTE)
    async def cancel(self, key: int, reason: str = "") -> State:
        """Cancel a job; returns the state it was in."""
        checks.text("reason", reason, ERROR_CHARS_MAX)
        [judged] = await self._engine.cancel([checks.job_key(key)], reason)
        return accepted(key, judged, "cancelled")

    @verb(WRITE, tenants=OWNER, audit="jobs.requeue", audited=BY_MINUTE, withheld=("variables",))
    async def requeue(self, key: int, *, only_dead: bool = False, variables: Mapping[str, Any] | None = None) -> State:
        """Requeue a dead letter, or a job waiting for a retry: due now, with attempts reset to 0.

        `variables` replace the job's own, in the same step.
        """
        text = None if variables is None else encode_object("variables", variables, PAYLOAD_BYTES_MAX)
        [judged] = await self._engine.requeue([checks.job_key(key)], waiting=not only_dead, variables=text)
        if judged.verdict is Verdict.WRONG_STATE and judged.state is State.PENDING and not only_dead:
            problem = "cannot be requeued because it has used no attempts; run it now instead"
            raise WrongState(key, f"Job '{key}' is pending: it {problem}")
        return accepted(key, judged, "requeued")

    @verb(WRITE, tenants=OWNER, audit="jobs.retries", audited=BY_MINUTE)
    async def set_retries(self, key: int, retries: int) -> int:
        """Set how many attempts are left; returns the previous number."""
        checks.whole_number("retries", retries, 0, ATTEMPTS_MAX)
        judged = await self._engine.set_retries(checks.job_key(key), retries)
        if judged.verdict is Verdict.WRONG_STATE and judged.state is State.PENDING:
            raise WrongState(
                key, f"Job '{key}' is pending: 0 retries would leave it waiting forever; cancel it instead"
            )
        accepted(key, judged, "given a new number of retries")
        return judged.retries or 0

    @verb(WRITE, tenants=OWNER, audit="jobs.reschedule", audited=BY_MINUTE)
    async def reschedule(self, key: int, *, run_at_ms: int | None = None, delay_ms: int | None = None) -> State:
        """Reschedule a pending job; without a time or a delay, it becomes due now."""
        if delay_ms is not None:
            checks.whole_number("delay_ms", delay_ms, 0, DELAY_MS_MAX)
        if run_at_ms is not None:
            checks.whole_number("run_at_ms", run_at_ms, 0, INSTANT_MS_MAX)
        [judged] = await self._engine.reschedule([checks.job_key(key)], run_at_ms=run_at_ms, delay_ms=delay_ms or 0)
        return accepted(key, judged, "rescheduled")

    @verb(WRITE, tenants=OWNER, audit="jobs.run-now", audited=BY_MINUTE)
    async def run_now(self, key: int, *, reset: bool = False) -> State:
        """Make a pending job due now; `reset` also resets attempts and last error, and accepts dead letters."""
        keys = [checks.job_key(key)]
        if reset:
            [judged] = await self._engine.requeue(keys, waiting=True)
            if judged.verdict is not Verdict.WRONG_STATE or judged.state is not State.PENDING:
                return accepted(key, judged, "requeued")
        [judged] = await self._engine.reschedule(keys)  # A pending job without attempts has nothing to reset.
        return accepted(key, judged, "rescheduled")

    @verb(WRITE, tenants=OWNER, audit="jobs.priority", audited=BY_MINUTE)
    async def set_priority(self, key: int, priority: int) -> State:
        """Change the priority of a pending job."""
        checks.whole_number("priority", priority, PRIORITY_MIN, PRIORITY_MAX)
        [judged] = await self._engine.set_priority([checks.job_key(key)], priority)
        return accepted(key, judged, "given a new priority")

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
            raise WrongState(key, f"Job '{key}' is {job.state.label}: only dead letters can be deleted this way")
        [judged] = await self._engine.delete([job.key], [job.attempt])
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
        """Requeue every matching dead letter; an empty filter needs `all`. Rejected jobs stay."""
        if filter_.order is not Order.NEWEST:
            raise InvalidInput("order", "is only allowed in lists")
        dead = BulkFilter(replace(self._confined(filter_), states=frozenset([State.FAILED])), rejected=False)
        bulk.require_selection(replace(filter_, states=frozenset()) == JobFilter(), all=all)
        steps = await self._steps_of_dead(dead, bulk.by_key(self._engine.requeue))
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
        """Requeue or delete all matching dead letters; `progress` is called after each step.

        A dry run changes nothing and is not audited. Raises `NothingMatches` if no dead letter matches.
        """
        failed = replace(search.filter, states=frozenset([State.FAILED]))
        dead = replace(search, filter=failed, rejected=bool(search.rejected))
        bulk.require_selection(dead == dead_filter(), all=all)
        allowed = self._confined_search(dead)
        is_requeue = action is DeadLetterAction.REQUEUE
        change = bulk.by_key(self._engine.requeue) if is_requeue else bulk.deletion(self._engine)
        steps = await self._steps_of_dead(allowed, None if dry_run else change, "no dead letter matches")
        audited = None if dry_run else f"dead.{action.value}"
        return await self._in_steps(
            steps, audited, search.filter.type, {"filter": allowed.detail(with_states=False)}, progress
        )

    @verb(WRITE, tenants=CUT)
    async def refused(self, keys: Sequence[int]) -> dict[int, EverworkError]:
        """The jobs that the caller has no access to, and why."""
        return await self._refused(keys)

    # Internals -------------------------------------------------------------------------------------

    def _new_types(self, named: Sequence[NewJob | Demand]) -> set[str]:
        """The types that may be new, and so must be admitted; none for a program that uses the store directly."""
        if self.caller is IN_PROCESS:
            return set()
        known = self._service.type_limits.known
        return {one.type for one in named if one.type not in known}

    def _admitted(self, stamp: Stamp) -> Stamp:
        """Bind a producer to its key's tenants, not to the key, which may be replaced while a call is being retried."""
        tenants = sha256("\0".join(sorted(self.principal.tenants)).encode()).hexdigest()[:16]
        party = tenants if self.principal.tenants else "*"
        own = Stamp(f"{party}/{stamp.producer}", stamp.number)
        if self.caller is not IN_PROCESS:
            self._service.producer_limits.admit(party, own.producer)
        return own

    async def _settle_own(self, outcomes: Sequence[Outcome], settle: Settle) -> list[Judged]:
        for outcome in outcomes:
            checks.attempt(outcome.attempt)
            if isinstance(outcome, Complete) and outcome.events:
                for event in outcome.events:
                    self.principal.require_tenant(event.tenant)
                if new := self._new_types(outcome.events):
                    await self._service.type_limits.admit(self.principal.id, new)
        if not self.principal.tenants:
            return await settle(outcomes)
        unknown = await self._refused([outcome.key for outcome in outcomes])
        if not unknown:
            return await settle(outcomes)
        known = [outcome for outcome in outcomes if outcome.key not in unknown]
        judged = iter(await settle(known) if known else ())
        return [_NOT_FOUND if outcome.key in unknown else next(judged) for outcome in outcomes]

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
        """Run a bulk change, and record its totals in one audit entry."""
        if action is None or self.caller is IN_PROCESS:
            return await bulk.run_steps(steps, progress, bulk.unrecorded)
        name = self._audit.new_name()

        async def write(totals: Mapping[str, Any]) -> None:
            await self._record(action, type or "*", {**detail, **totals}, name)

        return await bulk.run_steps(steps, progress, write)


def in_process(service: JobService) -> Jobs:
    """The operations for a program that opened the store directly: no permission checks, no audit entries."""
    return Jobs(service, IN_PROCESS)
