"""What administrators do to the whole store, for one caller: the key is checked, and the audit log is written."""

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
from everwork.service.bulk import walk
from everwork.service.fleet.admin import FleetAdmin
from everwork.service.jobs import Jobs
from everwork.service.policies import put_over, put_policy, said_of_stored
from everwork.service.service import JobService


class TypeView(NamedTuple):
    """A type, and how many of its jobs are in which state."""

    info: TypeInfo
    counts: Mapping[State, int]


class PolicyView(NamedTuple):
    """The policy in force for a type; `said` are the fields that were set for it."""

    policy: TypePolicy
    said: Mapping[str, Any]

    @property
    def is_own(self) -> bool:
        """Whether the type has a policy of its own, not the default."""
        return bool(self.said)


class GroupView(NamedTuple):
    """A further group of a type: its jobs, and when a worker last asked for the type."""

    type: str
    group: str
    counts: Mapping[State, int]
    last_asked_ms: int | None


class Admin(FleetAdmin):
    """What the holder of one key may do to the store. `origin` says where the call came from."""

    __slots__ = ("_desk", "_keys")

    def __init__(self, service: JobService, keys: KeyRing, audit: Audit, principal: Principal, origin: str) -> None:
        super().__init__(service._engine, audit, principal, origin)  # noqa: SLF001 - of this package
        self._desk = Jobs(service, principal)
        self._keys = keys

    # Types --------------------------------------------------------------------------------------

    async def types(self) -> list[TypeView]:
        """Every type that the store has seen, by name."""
        self._may_read()
        counts = await self._counts(by_group=False)
        return [TypeView(info, counts[info.type, ""]) for info in await self._engine.types()]

    async def pause(self, type: str) -> None:
        """Let no job of a type start, seen before or not; what runs goes on."""
        self._may_change(type=type)
        await self._noted("types.pause", type, lambda: self._engine.pause(type, True))

    async def resume(self, type: str) -> None:
        """Let jobs of a type start again."""
        self._may_change(type=type)
        await self._known(type)
        await self._noted("types.resume", type, lambda: self._engine.pause(type, False))

    async def open_breaker(self, type: str, seconds: float = CircuitBreaker().seconds) -> float:
        """Open a type's breaker by hand, for so many seconds; then one job may try whether things work again."""
        self._may_change(type=type)
        open_ms = checks.milliseconds("seconds", seconds, 1.0, BREAKER_SECONDS_MAX)
        await self._known(type)
        said = {"seconds": seconds}
        await self._noted("types.breaker-open", type, lambda: self._engine.open_breaker(type, open_ms), said)
        return seconds

    async def reset_breaker(self, type: str) -> bool:
        """Close a type's breaker; False if it was not open."""
        self._may_change(type=type)
        await self._known(type)
        return await self._noted("types.breaker-reset", type, lambda: self._engine.reset_breaker(type))

    async def policy(self, type: str) -> PolicyView:
        """The policy in force for a type."""
        self._may_read()
        checks.name("type", type)
        return _policy_of(await self._known(type))

    async def set_policy(self, type: str, said: Mapping[str, Any], *, changes_only: bool = False) -> PolicyView:
        """Give a type a policy. What is not said is as usual or, with `changes_only`, stays as it is."""
        self._may_change(type=type)
        require_object("policy", said)
        stored = next((info.policy for info in await self._engine.types() if info.type == type), None)
        after = put_over(said_of_stored(stored) if changes_only else {}, said)
        view = PolicyView(policy_from(after), after)
        text = encode_policy_fields(after) if after else None
        await self._noted("types.policy", type, lambda: put_policy(self._engine, type, stored, text), after)
        return view

    async def clear_policy(self, type: str) -> None:
        """Take a type's policy away: the default one holds."""
        self._may_change(type=type)
        stored = (await self._known(type)).policy
        await self._noted("types.policy-clear", type, lambda: put_policy(self._engine, type, stored, None))

    # Groups -------------------------------------------------------------------------------------

    async def groups(self) -> list[GroupView]:
        """The further groups of all types, by type and name."""
        self._may_read()
        counts = await self._counts(by_group=True)
        return [
            GroupView(info.type, group, counts[info.type, group], info.last_asked_ms)
            for info in await self._engine.types()
            for group in sorted(info.groups)
        ]

    async def drop_group(self, type: str, group: str) -> int:
        """Forget a group; how many of its pending jobs were cancelled."""
        self._may_change(type=type, group=group)
        if group not in (await self._known(type)).groups:
            raise NotFound(f"type '{type}': group", group)
        return await self._noted("groups.drop", f"{type}/{group}", lambda: self._engine.drop_group(type, group))

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
        """Make an API key; its text is in the answer and nowhere else."""
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
        """Refuse a key from now on."""
        self._may_change(id=id)
        return await self._noted("keys.revoke", id, lambda: self._keys.revoke(id))

    async def audit(self, limit: int, below: str | None = None) -> list[AuditEntry]:
        """The newest entries of the audit log, or those older than the entry `below`."""
        self._may_change()
        return await self._audit.last(limit, below)

    # Jobs: what cannot be undone, or concerns many at once, is noted too ----------------------------

    async def delete_job(self, key: int) -> State:
        """Remove one finished job; the desk says who may."""
        return await self._noted("jobs.delete", str(key), lambda: self._desk.delete(key))

    async def cancel_job(self, key: int, reason: str = "") -> State:
        """Cancel one job; the state it was in."""
        said = {"reason": reason} if reason else None
        return await self._noted("jobs.cancel", str(key), lambda: self._desk.cancel(key, reason), said)

    async def requeue_job(self, key: int) -> State:
        """Bring one dead letter back."""
        return await self._noted("jobs.requeue", str(key), lambda: self._desk.requeue(key))

    async def run_job_now(self, key: int) -> State:
        """Let one waiting job start at once."""
        return await self._noted("jobs.run-now", str(key), lambda: self._desk.reschedule(key))

    async def set_job_retries(self, key: int, retries: int) -> int:
        """Change how many attempts one job has left; the previous number."""
        said = {"retries": retries}
        return await self._noted("jobs.retries", str(key), lambda: self._desk.set_retries(key, retries), said)

    async def set_job_priority(self, key: int, priority: int) -> State:
        """Change the priority of one waiting job."""
        said = {"priority": priority}
        return await self._noted("jobs.priority", str(key), lambda: self._desk.set_priority(key, priority), said)

    async def change_jobs(self, act: bulk.BulkAction, keys: Sequence[int]) -> BulkChange:
        """Do something to jobs that somebody has picked, each judged by itself; one entry tells of all."""
        now_ms = await self._engine.now()
        steps = bulk.picked(self._desk, act, keys, now_ms)
        return await self._in_steps(steps, f"jobs.{act.value}", None, {"keys": [str(key) for key in keys]})

    async def change_matching(self, act: bulk.BulkAction, search: bulk.BulkFilter) -> BulkChange:
        """Do something to all jobs that a search shows, in steps, each job judged by itself; one entry tells of all."""
        now_ms = await self._engine.now()
        steps = bulk.in_steps(self._desk, act, search, now_ms)
        told = {"filter": bulk.meant(self._desk, act, search).told()}
        return await self._in_steps(steps, f"jobs.{act.value}", search.wanted.type, told)

    async def requeue_matching(self, wanted: JobFilter, *, all: bool = False) -> BulkChange:
        """Bring back every dead letter that a filter shows; the desk says who may, and that `all` must be said."""
        steps = self._desk.requeue_in_steps(wanted, all=all)
        return await self._in_steps(steps, "jobs.requeue", wanted.type, _told(self._desk.confined(wanted)))

    async def change_dead(
        self,
        act: dead_letters.DeadLetterAction,
        wanted: dead_letters.DeadLetterFilter,
        *,
        all: bool = False,
        dry_run: bool = False,
        told: Callable[[BulkChange], None] | None = None,
    ) -> BulkChange:
        """Bring back or remove the dead letters that a filter shows; `told` hears of each step.

        A dry run changes nothing and is not noted.
        """
        steps = dead_letters.in_steps(self._desk, act, wanted, all=all, dry_run=dry_run)
        action = None if dry_run else f"dead.{act.value}"
        about = {"filter": wanted.confined(self.principal).told()}
        return await self._in_steps(steps, action, wanted.type, about, told)

    async def purge_one(self, key: int) -> State:
        """Remove one dead letter."""
        return await self._noted(
            "dead.purge",
            str(key),
            lambda: dead_letters.change_one(self._desk, dead_letters.DeadLetterAction.PURGE, key),
        )

    # Inside -------------------------------------------------------------------------------------

    async def _in_steps(
        self,
        steps: AsyncIterator[BulkChange],
        action: str | None,
        type: str | None,
        about: Mapping[str, Any],
        told: Callable[[BulkChange], None] | None = None,
    ) -> BulkChange:
        """Do what is to be done, and write it down in one entry, as far as it has come."""
        name = self._audit.new_name()

        async def write(done: Mapping[str, Any]) -> None:
            detail = {**about, **done}
            await self._audit.record(self.principal, action or "", type or "*", self.origin, detail, name=name)

        return await walk(steps, told, write if action else None)

    async def _known(self, type: str) -> TypeInfo:
        found = next((info for info in await self._engine.types() if info.type == type), None)
        if found is None:
            raise NotFound("type", type)
        return found

    async def _counts(self, *, by_group: bool) -> defaultdict[tuple[str, str], dict[State, int]]:
        counts: defaultdict[tuple[str, str], dict[State, int]] = defaultdict(lambda: dict.fromkeys(State, 0))
        for count in await self._engine.count():
            counts[count.type, count.group if by_group else ""][count.state] += count.jobs
        return counts


def _told(wanted: JobFilter) -> dict[str, Any]:
    """What a filter says, as far as it says anything; states aside, which are those of dead letters."""
    said = {one.name: getattr(wanted, one.name) for one in fields(JobFilter) if one.name != "states"}
    return {"filter": {name: value for name, value in said.items() if value not in (None, (), False)}}


def _policy_of(info: TypeInfo) -> PolicyView:
    return PolicyView(decode_policy(info.policy), said_of_stored(info.policy))
