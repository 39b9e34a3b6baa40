"""What administrators ask of workers, triggers and processes, and do to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from everwork.aio.loops import shielded
from everwork.core import checks
from everwork.core.limits import TITLE_CHARS_MAX
from everwork.engines.contract import Engine
from everwork.exceptions import NotFound
from everwork.service.access.audit import Audit, AuditedCaller
from everwork.service.access.principal import Principal
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
from everwork.service.fleet.running import RUNNING_JOBS_MAX, RunningJobs, at_work
from everwork.service.triggers.fires import FIRES_MAX, TriggerFire

FIRES_DEFAULT: Final = 5


class WorkerSwitch(NamedTuple):
    """A worker that was switched; `is_changed` False: it was like that before."""

    entry: WorkerEntry
    is_on: bool
    is_changed: bool


class TriggerSwitch(NamedTuple):
    """The same of a trigger."""

    entry: TriggerEntry
    is_on: bool
    is_changed: bool


class FleetAdmin(AuditedCaller):
    """The part of an administration that concerns those who work."""

    __slots__ = ("_engine", "_fleet")

    def __init__(self, engine: Engine, audit: Audit, principal: Principal, origin: str) -> None:
        super().__init__(audit, principal, origin)
        self._engine = engine
        self._fleet = Fleet(engine)

    async def workers(self) -> list[WorkerView]:
        """Every worker that a manager has ever declared, by title."""
        self._may_read()
        return await self._fleet.workers()

    async def triggers(self) -> list[TriggerView]:
        """Every trigger of these workers."""
        self._may_read()
        return await self._fleet.triggers()

    async def managers(self) -> list[ManagerEntry]:
        """The managers that live."""
        self._may_read()
        return await self._fleet.managers()

    async def processes(self) -> list[ProcessView]:
        """The processes that live, and when each was last heard of."""
        self._may_read()
        return await self._fleet.process_views()

    async def running(self, limit: int = RUNNING_JOBS_MAX) -> RunningJobs:
        """The jobs that are leased now, by whom, and since when."""
        self._may_read()
        checks.whole_number("limit", limit, 1, RUNNING_JOBS_MAX)
        names = {entry.name for entry in await self._fleet.processes()}
        return await at_work(self._engine, names, limit)

    async def trigger(self, trigger: str) -> TriggerView:
        """One trigger, by name or title."""
        self._may_read()
        name = (await self._fleet.trigger(checks.text("trigger", trigger, TITLE_CHARS_MAX))).name
        found = next((view for view in await self._fleet.triggers() if view.entry.name == name), None)
        if found is None:
            raise NotFound("trigger", trigger)
        return found

    async def fires(self, trigger: str, limit: int = FIRES_DEFAULT) -> list[TriggerFire]:
        """The latest jobs that a trigger, by name or title, has made; newest first."""
        self._may_read()
        checks.whole_number("limit", limit, 1, FIRES_MAX)
        return await self._fleet.last_fires(checks.text("trigger", trigger, TITLE_CHARS_MAX), limit)

    async def fires_of_many(self, entries: Sequence[TriggerEntry], limit: int) -> dict[str, list[TriggerFire]]:
        """The same of several triggers, by name, as far as there is time for it."""
        self._may_read()
        return await self._fleet.fires_of_many(entries, limit)

    async def restart_process(self, name: str) -> ProcessEntry:
        """Ask the manager of a process to let another take its place; what it runs it may finish."""
        self._may_change(process=name)
        entry = await self._fleet.process(name)
        return await self._noted(
            "processes.restart", name, lambda: self._fleet.restart(name), {"manager": entry.manager}
        )

    async def switch_worker(self, worker: str, is_on: bool) -> WorkerSwitch:
        """Let a worker, by id or title, take jobs or not; what runs goes on."""
        entry = await self._meant_worker(worker)
        action = "workers.on" if is_on else "workers.off"
        is_changed = await self._noted(
            action, entry.id, lambda: self._fleet.switch_worker(entry.id, is_on), _title(entry)
        )
        return WorkerSwitch(entry, is_on, is_changed)

    async def forget_worker(self, worker: str) -> tuple[WorkerEntry, int]:
        """Forget a worker that nobody runs, with its triggers; how many waiting jobs were cancelled."""
        self._may_change()
        entry = await self._fleet.forgettable(checks.text("worker", worker, TITLE_CHARS_MAX))
        forget = self._noted("workers.forget", entry.id, lambda: self._fleet.forget_worker(entry.id), _title(entry))
        return entry, await forget

    async def switch_trigger(self, trigger: str, is_on: bool) -> TriggerSwitch:
        """Let a trigger, by name or title, fire or not."""
        entry = await self._meant_trigger(trigger)
        action = "triggers.on" if is_on else "triggers.off"
        switch = self._noted(action, entry.name, lambda: self._fleet.switch_trigger(entry.name, is_on), _title(entry))
        return TriggerSwitch(entry, is_on, await switch)

    async def fire_trigger(self, trigger: str) -> tuple[TriggerEntry, int]:
        """Let a trigger, by name or title, create its job now, besides its time points; the job's key."""
        entry = await self._meant_trigger(trigger)

        async def fire() -> int:
            key = await self._fleet.fire(entry.name)
            await self._record("triggers.fire", entry.name, {**_title(entry), "key": str(key)})
            return key

        return entry, await shielded(fire())

    async def _meant_worker(self, reference: str) -> WorkerEntry:
        self._may_change()
        return await self._fleet.worker(checks.text("worker", reference, TITLE_CHARS_MAX))

    async def _meant_trigger(self, reference: str) -> TriggerEntry:
        self._may_change()
        return await self._fleet.trigger(checks.text("trigger", reference, TITLE_CHARS_MAX))


def _title(entry: WorkerEntry | TriggerEntry) -> dict[str, str]:
    return {"title": entry.title}
