"""Administration of a store for one caller: the key is checked, and changes are audited."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

from everwork.aio.loops import shielded
from everwork.codec.json import decode_policy, encode_policy_fields, require_object
from everwork.core import checks
from everwork.core.breaker import CircuitBreaker
from everwork.core.limits import BREAKER_SECONDS_MAX
from everwork.core.policy import TypePolicy, policy_from
from everwork.core.queries import BulkChange, JobFilter, TypeInfo
from everwork.core.states import State
from everwork.exceptions import NotFound
from everwork.service import bulk, dead_letters
from everwork.service.access.api_key import ApiKey, NewKey
from everwork.service.access.audit import Audit, AuditEntry
from everwork.service.access.keys import KeyRing
from everwork.service.access.principal import Principal
from everwork.service.bulk import run_steps
from everwork.service.fleet.admin import FleetAdmin
from everwork.service.jobs import Jobs
from everwork.service.policies import merged_fields, put_policy, stored_fields
from everwork.service.service import JobService


class TypeView(NamedTuple):
    """A type, and how many of its jobs are in each state."""

    info: TypeInfo
    counts: Mapping[State, int]


class PolicyView(NamedTuple):
    """The policy in force for a type; `fields` are those that were set for it."""

    policy: TypePolicy
    fields: Mapping[str, Any]

    @property
    def is_own(self) -> bool:
        """Whether the type has a policy of its own."""
        return bool(self.fields)


class GroupView(NamedTuple):
    """An additional group of a type: its jobs, and when a worker last polled the type."""

    type: str
    group: str
    counts: Mapping[State, int]
    last_asked_ms: int | None


class Admin(FleetAdmin):
    """What the holder of a key may do to the store. `origin` is where the call came from."""

    __slots__ = ("_jobs", "_keys")

    def __init__(self, service: JobService, keys: KeyRing, audit: Audit, principal: Principal, origin: str) -> None:
        super().__init__(service._engine, audit, principal, origin)  # noqa: SLF001 - of this package
        self._jobs = Jobs(service, principal)
        self._keys = keys

    # Types --------------------------------------------------------------------------------------

    async def types(self) -> list[TypeView]:
        """Every type in the store, by name."""
        self._may_read()
        counts = await self._counts(by_group=False)
        return [TypeView(info, counts[info.type, ""]) for info in await self._engine.types()]

    async def pause(self, type: str) -> None:
        """Pause a type, known or not; running jobs are not affected."""
        self._may_change(type=type)
        await self._audited("types.pause", type, lambda: self._engine.pause(type, True))

    async def resume(self, type: str) -> None:
        """Resume a type."""
        self._may_change(type=type)
        await self._require_type(type)
        await self._audited("types.resume", type, lambda: self._engine.pause(type, False))

    async def open_breaker(self, type: str, seconds: float = CircuitBreaker().seconds) -> float:
        """Open a type's breaker for some seconds; then one job probes whether it may close."""
        self._may_change(type=type)
        open_ms = checks.milliseconds("seconds", seconds, 1.0, BREAKER_SECONDS_MAX)
        await self._require_type(type)
        detail = {"seconds": seconds}
        await self._audited("types.breaker-open", type, lambda: self._engine.open_breaker(type, open_ms), detail)
        return seconds

    async def reset_breaker(self, type: str) -> bool:
        """Close a type's breaker; False if it was not open."""
        self._may_change(type=type)
        await self._require_type(type)
        return await self._audited("types.breaker-reset", type, lambda: self._engine.reset_breaker(type))

    async def policy(self, type: str) -> PolicyView:
        """The policy in force for a type."""
        self._may_read()
        checks.name("type", type)
        return _policy_of(await self._require_type(type))

    async def set_policy(self, type: str, given: Mapping[str, Any], *, changes_only: bool = False) -> PolicyView:
        """Set a type's policy. Fields that are not given are reset or, with `changes_only`, kept."""
        self._may_change(type=type)
        require_object("policy", given)
        stored = next((info.policy for info in await self._engine.types() if info.type == type), None)
        after = merged_fields(stored_fields(stored) if changes_only else {}, given)
        view = PolicyView(policy_from(after), after)
        text = encode_policy_fields(after) if after else None
        await self._audited("types.policy", type, lambda: put_policy(self._engine, type, stored, text), after)
        return view

    async def clear_policy(self, type: str) -> None:
        """Remove a type's policy: the default applies."""
        self._may_change(type=type)
        stored = (await self._require_type(type)).policy
        await self._audited("types.policy-clear", type, lambda: put_policy(self._engine, type, stored, None))

    # Groups -------------------------------------------------------------------------------------

    async def groups(self) -> list[GroupView]:
        """The additional groups of all types, by type and name."""
        self._may_read()
        counts = await self._counts(by_group=True)
        return [
            GroupView(info.type, group, counts[info.type, group], info.last_asked_ms)
            for info in await self._engine.types()
            for group in sorted(info.groups)
        ]

    async def drop_group(self, type: str, group: str) -> int:
        """Delete a group; returns how many of its pending jobs were cancelled."""
        self._may_change(type=type, group=group)
        if group not in (await self._require_type(type)).groups:
            raise NotFound(f"type '{type}': group", group)
        return await self._audited("groups.drop", f"{type}/{group}", lambda: self._engine.drop_group(type, group))

    # Keys and audit -----------------------------------------------------------------------------

    async def create_key(
        self,
        name: str,
        permissions: Sequence[str],
        *,
        tenants: Sequence[str] = (),
        expires_at_ms: int | None = None,
        rate_per_second: float | None = None,
    ) -> NewKey:
        """Create an API key; its text is returned and stored nowhere."""
        self._may_change()
        limits: dict[str, Any] = {"expires_at_ms": expires_at_ms, "rate_per_second": rate_per_second}

        async def create() -> NewKey:
            new = await self._keys.create(name, permissions, tenants=tenants, creator=self.principal, **limits)
            detail = {"name": name, "permissions": list(permissions), "tenants": list(tenants)}
            await self._record("keys.create", new.key.id, detail | limits)
            return new

        return await shielded(create())

    async def list_keys(self) -> Sequence[ApiKey]:
        """Every API key, without anything secret."""
        self._may_change()
        return await self._keys.list()

    async def revoke_key(self, id: str) -> ApiKey:
        """Revoke a key."""
        self._may_change(id=id)
        return await self._audited("keys.revoke", id, lambda: self._keys.revoke(id))

    async def audit(self, limit: int, below: str | None = None) -> list[AuditEntry]:
        """The newest entries of the audit log, or those older than the entry `below`."""
        self._may_change()
        return await self._audit.last(limit, below)

    # Jobs: what cannot be undone, or changes many, is audited too ---------------------------------

    async def delete_job(self, key: int) -> State:
        """Delete a finished job; `Jobs` checks the permission."""
        return await self._audited("jobs.delete", str(key), lambda: self._jobs.delete(key))

    async def cancel_job(self, key: int, reason: str = "") -> State:
        """Cancel a job; returns the state it was in."""
        detail = {"reason": reason} if reason else None
        return await self._audited("jobs.cancel", str(key), lambda: self._jobs.cancel(key, reason), detail)

    async def requeue_job(self, key: int) -> State:
        """Requeue a dead letter."""
        return await self._audited("jobs.requeue", str(key), lambda: self._jobs.requeue(key))

    async def run_job_now(self, key: int) -> State:
        """Make a pending job due now."""
        return await self._audited("jobs.run-now", str(key), lambda: self._jobs.reschedule(key))

    async def set_job_retries(self, key: int, retries: int) -> int:
        """Set how many attempts a job has left; returns the previous number."""
        detail = {"retries": retries}
        return await self._audited("jobs.retries", str(key), lambda: self._jobs.set_retries(key, retries), detail)

    async def set_job_priority(self, key: int, priority: int) -> State:
        """Change the priority of a pending job."""
        detail = {"priority": priority}
        return await self._audited("jobs.priority", str(key), lambda: self._jobs.set_priority(key, priority), detail)

    async def change_jobs(self, action: bulk.BulkAction, keys: Sequence[int]) -> BulkChange:
        """Change the jobs with these keys, each judged on its own; one audit entry for all."""
        now_ms = await self._engine.now()
        steps = bulk.change_selected(self._jobs, action, keys, now_ms)
        return await self._in_steps(steps, f"jobs.{action.value}", None, {"keys": [str(key) for key in keys]})

    async def change_matching(self, action: bulk.BulkAction, search: bulk.BulkFilter) -> BulkChange:
        """Change all jobs that match, in steps, each judged on its own; one audit entry for all."""
        now_ms = await self._engine.now()
        steps = bulk.change_in_steps(self._jobs, action, search, now_ms)
        detail = {"filter": bulk.effective(self._jobs, action, search).detail()}
        return await self._in_steps(steps, f"jobs.{action.value}", search.filter.type, detail)

    async def requeue_matching(self, filter_: JobFilter, *, all: bool = False) -> BulkChange:
        """Requeue every matching dead letter; an empty filter needs `all`. `Jobs` checks the permission."""
        steps = self._jobs.requeue_in_steps(filter_, all=all)
        return await self._in_steps(steps, "jobs.requeue", filter_.type, _filter_detail(self._jobs.confined(filter_)))

    async def change_dead(
        self,
        action: dead_letters.DeadLetterAction,
        filter_: dead_letters.DeadLetterFilter,
        *,
        all: bool = False,
        dry_run: bool = False,
        progress: Callable[[BulkChange], None] | None = None,
    ) -> BulkChange:
        """Requeue or purge all dead letters that match; `progress` is called after each step.

        A dry run changes nothing and is not audited.
        """
        steps = dead_letters.change_in_steps(self._jobs, action, filter_, all=all, dry_run=dry_run)
        audited = None if dry_run else f"dead.{action.value}"
        detail = {"filter": filter_.confined(self.principal).detail()}
        return await self._in_steps(steps, audited, filter_.type, detail, progress)

    async def purge_one(self, key: int) -> State:
        """Purge a dead letter."""
        return await self._audited(
            "dead.purge",
            str(key),
            lambda: dead_letters.change_one(self._jobs, dead_letters.DeadLetterAction.PURGE, key),
        )

    # Inside -------------------------------------------------------------------------------------

    async def _in_steps(
        self,
        steps: AsyncIterator[BulkChange],
        action: str | None,
        type: str | None,
        detail: Mapping[str, Any],
        progress: Callable[[BulkChange], None] | None = None,
    ) -> BulkChange:
        """Run a bulk change, and keep its totals in one audit entry."""
        name = self._audit.new_name()

        async def write(totals: Mapping[str, Any]) -> None:
            both = {**detail, **totals}
            await self._audit.record(self.principal, action or "", type or "*", self.origin, both, name=name)

        return await run_steps(steps, progress, write if action else None)

    async def _require_type(self, type: str) -> TypeInfo:
        found = next((info for info in await self._engine.types() if info.type == type), None)
        if found is None:
            raise NotFound("type", type)
        return found

    async def _counts(self, *, by_group: bool) -> defaultdict[tuple[str, str], dict[State, int]]:
        counts: defaultdict[tuple[str, str], dict[State, int]] = defaultdict(lambda: dict.fromkeys(State, 0))
        for count in await self._engine.count():
            counts[count.type, count.group if by_group else ""][count.state] += count.jobs
        return counts


def _filter_detail(filter_: JobFilter) -> dict[str, Any]:
    """A filter's restrictions, as the audit log has them; without states, which are those of dead letters."""
    found = {one.name: getattr(filter_, one.name) for one in fields(JobFilter) if one.name != "states"}
    return {"filter": {name: value for name, value in found.items() if value not in (None, (), False)}}


def _policy_of(info: TypeInfo) -> PolicyView:
    return PolicyView(decode_policy(info.policy), stored_fields(info.policy))
