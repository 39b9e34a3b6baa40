"""Administration of a store for one caller: each operation declares who may call it, and changes are audited."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from everwork.aio.loops import shielded
from everwork.codec.json import decode_policy, encode_policy_fields, require_object
from everwork.core import checks
from everwork.core.breaker import CircuitBreaker
from everwork.core.leasing import Verdict
from everwork.core.limits import BREAKER_SECONDS_MAX, LIST_LIMIT_MAX
from everwork.core.policy import TypePolicy, policy_from
from everwork.core.queries import JobFilter, TypeInfo
from everwork.core.states import State
from everwork.exceptions import InvalidInput, NotFound
from everwork.service.access.api_key import ApiKey, NewKey
from everwork.service.access.audit import AuditEntry
from everwork.service.access.keys import KeyRing
from everwork.service.access.principal import Permission
from everwork.service.access.sessions import EndedSessions, OpenSession
from everwork.service.bulk import deletion
from everwork.service.fleet.admin import ADMIN, LOOK, FleetAdmin
from everwork.service.policies import merged_fields, put_policy, stored_fields
from everwork.service.service import JobService
from everwork.service.upkeep import Upkeep, registered_triggers, run_upkeep
from everwork.service.verb import ITSELF, UNBOUND, Caller, verb


class TypeView(NamedTuple):
    """A type, with the number of its jobs in each state."""

    info: TypeInfo
    counts: Mapping[State, int]


class PolicyView(NamedTuple):
    """The effective policy of a type; `fields` are those set for this type."""

    policy: TypePolicy
    fields: Mapping[str, Any]

    @property
    def is_own(self) -> bool:
        """Whether the type has its own policy."""
        return bool(self.fields)


class GroupView(NamedTuple):
    """An additional group of a type: its jobs, and when a worker last polled for the type."""

    type: str
    group: str
    counts: Mapping[State, int]
    last_asked_ms: int | None


class Admin(FleetAdmin):
    """Operations on the store that a caller may use."""

    __slots__ = ("_holder", "_keys", "_sessions", "_type_rules")

    def __init__(self, service: JobService, keys: KeyRing, caller: Caller) -> None:
        super().__init__(service._engine, service.audit, caller)  # noqa: SLF001 - of this package
        self._keys = keys
        self._holder = service.holder
        self._sessions = service.sessions
        self._type_rules = service.type_rules

    # Maintenance -------------------------------------------------------------------------------------

    @verb(Permission.TICK, ADMIN, tenants=UNBOUND)
    async def tick(self) -> Upkeep:
        """Run all maintenance that is due, and fire registered triggers that are due. It runs no jobs."""
        triggers = await registered_triggers(self._engine)
        return await run_upkeep(self._engine, self._holder, triggers, self._type_rules)

    # Types --------------------------------------------------------------------------------------

    @verb(*LOOK, tenants=UNBOUND)
    async def types(self) -> list[TypeView]:
        """Every type in the store, by name."""
        counts = await self._counts(by_group=False)
        return [TypeView(info, counts[info.type, ""]) for info in await self._engine.types()]

    @verb(ADMIN, tenants=UNBOUND, audit="types.pause")
    async def pause(self, type: str) -> None:
        """Pause a type, known or not; running jobs are not affected."""
        await self._engine.pause(checks.name("type", type), True)

    @verb(ADMIN, tenants=UNBOUND, audit="types.resume")
    async def resume(self, type: str) -> None:
        """Resume a type."""
        await self._require_type(type)
        await self._engine.pause(type, False)

    @verb(ADMIN, tenants=UNBOUND, audit="types.delete")
    async def delete_type(self, type: str) -> int:
        """Delete a type that is not in use, with its finished jobs, policy and statistics; returns the number of jobs.

        Refused while it has unfinished jobs, a policy in the server's settings file, a schedule or running workers.
        """
        await self._require_type(type)
        await self._require_unused(type)
        deleted = await self._delete_finished(type)
        if await self._engine.delete_type(type) is Verdict.WRONG_STATE:
            raise InvalidInput("type", f"{checks.shown(type)} is in use: a job of this type was just created")
        return deleted

    @verb(ADMIN, tenants=UNBOUND, audit="types.breaker-open")
    async def open_breaker(self, type: str, seconds: float = CircuitBreaker().seconds) -> float:
        """Open a type's breaker for some seconds; then one job probes whether it can close."""
        checks.name("type", type)
        open_ms = checks.milliseconds("seconds", seconds, 1.0, BREAKER_SECONDS_MAX)
        await self._require_type(type)
        await self._engine.open_breaker(type, open_ms)
        return seconds

    @verb(ADMIN, tenants=UNBOUND, audit="types.breaker-reset")
    async def reset_breaker(self, type: str) -> bool:
        """Close a type's breaker; False if it was not open."""
        await self._require_type(type)
        return await self._engine.reset_breaker(type)

    @verb(*LOOK, tenants=UNBOUND)
    async def policy(self, type: str) -> PolicyView:
        """The effective policy of a type."""
        info = await self._require_type(type)
        return PolicyView(decode_policy(info.policy), stored_fields(info.policy))

    @verb(ADMIN, tenants=UNBOUND, audit="types.policy", audited=ITSELF)
    async def set_policy(self, type: str, given: Mapping[str, Any], *, changes_only: bool = False) -> PolicyView:
        """Set a type's policy. Unset fields are reset to their defaults or, with `changes_only`, kept."""
        checks.name("type", type)
        require_object("policy", given)
        stored = next((info.policy for info in await self._engine.types() if info.type == type), None)
        after = merged_fields(stored_fields(stored) if changes_only else {}, given)
        view = PolicyView(policy_from(after), after)
        text = encode_policy_fields(after) if after else None
        await self._audited("types.policy", type, lambda: put_policy(self._engine, type, stored, text), after)
        return view

    @verb(ADMIN, tenants=UNBOUND, audit="types.policy-clear")
    async def clear_policy(self, type: str) -> None:
        """Delete a type's policy, so that the default applies."""
        stored = (await self._require_type(type)).policy
        await put_policy(self._engine, type, stored, None)

    # Groups -------------------------------------------------------------------------------------

    @verb(*LOOK, tenants=UNBOUND)
    async def groups(self) -> list[GroupView]:
        """The additional groups of all types, by type and name."""
        counts = await self._counts(by_group=True)
        return [
            GroupView(info.type, group, counts[info.type, group], info.last_asked_ms)
            for info in await self._engine.types()
            for group in sorted(info.groups)
        ]

    @verb(ADMIN, tenants=UNBOUND, audit="groups.drop", audited=ITSELF)
    async def drop_group(self, type: str, group: str) -> int:
        """Delete a group; returns how many of its pending jobs were cancelled."""
        checks.name("type", type)
        checks.name("group", group)
        if group not in (await self._require_type(type)).groups:
            raise NotFound(f"type '{type}': group", group)
        return await self._audited("groups.drop", f"{type}/{group}", lambda: self._engine.drop_group(type, group))

    # Keys and audit -----------------------------------------------------------------------------

    @verb(ADMIN, tenants=UNBOUND, audit="keys.create", audited=ITSELF)
    async def create_key(
        self,
        name: str,
        permissions: Sequence[str],
        *,
        tenants: Sequence[str] = (),
        expires_at_ms: int | None = None,
        rate_per_second: float | None = None,
    ) -> NewKey:
        """Create an API key; its text is returned once and never stored."""
        limits: dict[str, Any] = {"expires_at_ms": expires_at_ms, "rate_per_second": rate_per_second}

        async def create() -> NewKey:
            new = await self._keys.create(name, permissions, tenants=tenants, creator=self.principal, **limits)
            detail = {"name": name, "permissions": list(permissions), "tenants": list(tenants)}
            given = {"expires_at_ms": new.key.expires_at_ms, "rate_per_second": new.key.rate_per_second}
            await self._record("keys.create", new.key.id, detail | given)
            return new

        return await shielded(create())

    @verb(ADMIN, tenants=UNBOUND)
    async def list_keys(self) -> Sequence[ApiKey]:
        """Every API key, without secrets."""
        return await self._keys.list()

    @verb(ADMIN, tenants=UNBOUND, audit="keys.revoke")
    async def revoke_key(self, id: str) -> ApiKey:
        """Revoke a key."""
        return await self._keys.revoke(checks.name("id", id), self.principal)

    @verb(ADMIN, tenants=UNBOUND)
    async def sessions(self) -> Sequence[OpenSession]:
        """The open sessions of the dashboard, newest first."""
        return await self._sessions.opened(await self._keys.list())

    @verb(ADMIN, tenants=UNBOUND, audit="sessions.end")
    async def end_session(self, id: str) -> OpenSession:
        """End a session of the dashboard."""
        return await self._sessions.end_by_id(id, await self._keys.list(), self.principal)

    @verb(ADMIN, tenants=UNBOUND, audit="sessions.end-all", audited=ITSELF)
    async def end_sessions(self) -> EndedSessions:
        """End all dashboard sessions, except those with more permissions than the caller; see `Sessions.end_all`."""

        async def end() -> EndedSessions:
            ended = await self._sessions.end_all(await self._keys.list(), self.principal)
            await self._record("sessions.end-all", "*", asdict(ended))
            return ended

        return await shielded(end())

    @verb(ADMIN, tenants=UNBOUND)
    async def audit(self, limit: int, below: str | None = None) -> list[AuditEntry]:
        """The newest entries of the audit log, or those older than the entry `below`."""
        return await self._audit.last(limit, below)

    # Internals -------------------------------------------------------------------------------------

    async def _require_type(self, type: str) -> TypeInfo:
        checks.name("type", type)
        found = next((info for info in await self._engine.types() if info.type == type), None)
        if found is None:
            raise NotFound("type", type)
        return found

    async def _require_unused(self, type: str) -> None:
        counts = (await self._counts(by_group=False))[type, ""]
        if unfinished := counts[State.PENDING] + counts[State.PROCESSING]:
            raise _in_use(type, f"has {unfinished:,} unfinished job{'s' * (unfinished > 1)}; cancel them first")
        if type in self._type_rules.declared.types:
            raise _in_use(type, "is configured in the server's settings file; remove it there first")
        triggers = [view.entry.title for view in await self._fleet.triggers() if view.entry.type == type]
        if triggers:
            names = ", ".join(triggers[:3])
            raise _in_use(type, f"has a schedule: trigger {names}; delete its worker first (everwork workers forget)")
        running = [one.name for one in await self._fleet.takers(type)]
        if running:
            raise _in_use(type, f"has running workers: {', '.join(running[:3])}; stop them first")

    async def _delete_finished(self, type: str) -> int:
        deleted, cursor = 0, None
        while True:
            page = await self._engine.find(JobFilter(type=type), LIST_LIMIT_MAX, cursor)
            judged = await deletion(self._engine)(page.jobs) if page.jobs else []
            deleted += sum(one.verdict is Verdict.ACCEPTED for one in judged)
            cursor = page.next
            if cursor is None:
                return deleted

    async def _counts(self, *, by_group: bool) -> defaultdict[tuple[str, str], dict[State, int]]:
        counts: defaultdict[tuple[str, str], dict[State, int]] = defaultdict(lambda: dict.fromkeys(State, 0))
        for count in await self._engine.count():
            counts[count.type, count.group if by_group else ""][count.state] += count.jobs
        return counts


def _in_use(type: str, reason: str) -> InvalidInput:
    return InvalidInput("type", f"{checks.shown(type)} {reason}")
