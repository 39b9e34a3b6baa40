"""Administration of workers, triggers and processes for one caller."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from everwork.aio.loops import shielded
from everwork.core import checks
from everwork.core.limits import TITLE_CHARS_MAX
from everwork.engines.contract import Engine
from everwork.exceptions import NotFound
from everwork.service.access.audit import Audit
from everwork.service.access.principal import Permission
from everwork.service.fleet.entries import (
    ManagerEntry,
    ProcessEntry,
    ProcessView,
    TriggerEntry,
    TriggerView,
    WorkerEntry,
    WorkerView,
)
from everwork.service.fleet.fleet import Fleet
from everwork.service.fleet.running import RUNNING_JOBS_MAX, RunningJobs, by_lease_name, running_jobs
from everwork.service.triggers.fires import FIRES_MAX, TriggerFire
from everwork.service.verb import ITSELF, UNBOUND, Caller, ForCaller, verb

FIRES_DEFAULT: Final = 5
LOOK: Final = (Permission.JOBS_READ, Permission.ADMIN)
"""The permissions to view the fleet; either one is enough."""
ADMIN: Final = Permission.ADMIN


class WorkerSwitch(NamedTuple):
    """A worker that was enabled or disabled; `is_changed` is False if it was already in that state."""

    entry: WorkerEntry
    is_on: bool
    is_changed: bool


class TriggerSwitch(NamedTuple):
    """A trigger that was enabled or disabled; `is_changed` is False if it was already in that state."""

    entry: TriggerEntry
    is_on: bool
    is_changed: bool


class FleetAdmin(ForCaller):
    """Operations on workers, triggers and processes that a caller may use."""

    __slots__ = ("_audit", "_engine", "_fleet")
    _audit: Audit

    def __init__(self, engine: Engine, audit: Audit, caller: Caller) -> None:
        super().__init__(caller)
        self._engine = engine
        self._fleet = Fleet(engine)
        self._audit = audit

    @verb(*LOOK, tenants=UNBOUND)
    async def workers(self) -> list[WorkerView]:
        """Every worker that a manager has declared, by title."""
        return await self._fleet.workers()

    @verb(*LOOK, tenants=UNBOUND)
    async def triggers(self) -> list[TriggerView]:
        """Every trigger of these workers."""
        return await self._fleet.triggers()

    @verb(*LOOK, tenants=UNBOUND)
    async def managers(self) -> list[ManagerEntry]:
        """The running managers."""
        return await self._fleet.managers()

    @verb(*LOOK, tenants=UNBOUND)
    async def processes(self) -> list[ProcessView]:
        """The running processes, streams and pollers, each with its last heartbeat."""
        return await self._fleet.process_views()

    @verb(*LOOK, tenants=UNBOUND)
    async def left_out(self) -> int:
        """At least how many streams and pollers are not listed because their servers have too many."""
        return await self._fleet.left_out()

    @verb(*LOOK, tenants=UNBOUND)
    async def running(self, limit: int = RUNNING_JOBS_MAX) -> RunningJobs:
        """The jobs that are leased now, with worker and start time."""
        checks.whole_number("limit", limit, 1, RUNNING_JOBS_MAX)
        return await running_jobs(self._engine, by_lease_name(await self._fleet.processes()), limit)

    @verb(*LOOK, tenants=UNBOUND)
    async def trigger(self, trigger: str) -> TriggerView:
        """One trigger, by name or title."""
        name = (await self._trigger(trigger)).name
        found = next((view for view in await self._fleet.triggers() if view.entry.name == name), None)
        if found is None:
            raise NotFound("trigger", trigger)
        return found

    @verb(*LOOK, tenants=UNBOUND)
    async def fires(self, trigger: str, limit: int = FIRES_DEFAULT) -> list[TriggerFire]:
        """The latest jobs of a trigger, by name or title; newest first."""
        checks.whole_number("limit", limit, 1, FIRES_MAX)
        return await self._fleet.last_fires(checks.text("trigger", trigger, TITLE_CHARS_MAX), limit)

    @verb(*LOOK, tenants=UNBOUND)
    async def fires_of_many(self, entries: Sequence[TriggerEntry], limit: int) -> dict[str, list[TriggerFire]]:
        """The latest jobs of several triggers, by name; triggers not reached within the time limit are missing."""
        return await self._fleet.fires_of_many(entries, limit)

    @verb(ADMIN, tenants=UNBOUND, audit="processes.restart", audited=ITSELF)
    async def restart_process(self, name: str) -> ProcessEntry:
        """Request that a process be replaced; its running jobs finish first."""
        entry = await self._fleet.process(checks.name("process", name))
        return await self._audited(
            "processes.restart", name, lambda: self._fleet.restart(name), {"manager": entry.manager}
        )

    @verb(ADMIN, tenants=UNBOUND, audit=("workers.on", "workers.off"), audited=ITSELF)
    async def switch_worker(self, worker: str, is_on: bool) -> WorkerSwitch:
        """Enable or disable a worker, by id or title; running jobs are not affected."""
        entry = await self._fleet.worker(checks.text("worker", worker, TITLE_CHARS_MAX))
        action = "workers.on" if is_on else "workers.off"
        is_changed = await self._audited(
            action, entry.id, lambda: self._fleet.switch_worker(entry.id, is_on), _title(entry)
        )
        return WorkerSwitch(entry, is_on, is_changed)

    @verb(ADMIN, tenants=UNBOUND, audit="workers.forget", audited=ITSELF)
    async def forget_worker(self, worker: str) -> tuple[WorkerEntry, int]:
        """Delete a worker that no process runs, and its triggers; returns how many pending jobs were cancelled."""
        entry = await self._fleet.forgettable(checks.text("worker", worker, TITLE_CHARS_MAX))
        forget = self._audited("workers.forget", entry.id, lambda: self._fleet.forget_worker(entry.id), _title(entry))
        return entry, await forget

    @verb(ADMIN, tenants=UNBOUND, audit=("triggers.on", "triggers.off"), audited=ITSELF)
    async def switch_trigger(self, trigger: str, is_on: bool) -> TriggerSwitch:
        """Enable or disable a trigger, by name or title."""
        entry = await self._trigger(trigger)
        action = "triggers.on" if is_on else "triggers.off"
        switch = self._audited(action, entry.name, lambda: self._fleet.switch_trigger(entry.name, is_on), _title(entry))
        return TriggerSwitch(entry, is_on, await switch)

    @verb(ADMIN, tenants=UNBOUND, audit="triggers.fire", audited=ITSELF)
    async def fire_trigger(self, trigger: str) -> tuple[TriggerEntry, int]:
        """Fire a trigger, by name or title, in addition to its schedule; returns the job's key."""
        entry = await self._trigger(trigger)

        async def fire() -> int:
            key = await self._fleet.fire(entry.name)
            await self._record("triggers.fire", entry.name, {**_title(entry), "key": str(key)})
            return key

        return entry, await shielded(fire())

    async def _trigger(self, reference: str) -> TriggerEntry:
        return await self._fleet.trigger(checks.text("trigger", reference, TITLE_CHARS_MAX))


def _title(entry: WorkerEntry | TriggerEntry) -> dict[str, str]:
    return {"title": entry.title}
