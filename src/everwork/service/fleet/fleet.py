"""The fleet of a store: its workers, triggers and running processes, and which of them are disabled."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Final, TypeVar

from everwork.core.checks import shown
from everwork.core.job import NewJob
from everwork.core.leasing import Verdict
from everwork.core.limits import DEFAULT_GROUP, FIRES_STEP_MAX, LIST_LIMIT_MAX
from everwork.core.queries import JobFilter
from everwork.core.schedule import GRACE_MS
from everwork.core.states import State
from everwork.engines.rules import TRIGGER_MARK
from everwork.engines.values import Fire, Registered, TriggerMark
from everwork.exceptions import InvalidInput, NotFound
from everwork.logs import get_logger
from everwork.service.fleet.entries import (
    MANAGED,
    Off,
    ProcessEntry,
    TriggerEntry,
    TriggerView,
    WorkerEntry,
    WorkerView,
    entry_body,
    own_source,
    read_entries,
    trigger_names,
)
from everwork.service.fleet.live import FIRING, RESTART, LiveFleet
from everwork.service.triggers.fires import TriggerFire, by_hand, fire_key, fires_of_many, last_fires

RESTART_TTL_MS: Final = 60_000
"""How long a restart request waits for the process's manager."""

WORKER: Final = "worker"
TRIGGER: Final = "trigger"
WORKER_OFF: Final = "worker-off"
TRIGGER_OFF: Final = "trigger-off"
OWNER: Final = "owner"
_KINDS_OF_A_WORKER: Final = (OWNER, TRIGGER_MARK, TRIGGER_OFF, TRIGGER, WORKER_OFF, WORKER)
"""Everything stored about a worker. Its own entry is deleted last, so that an interrupted call can be repeated."""

log = get_logger("everwork")

E = TypeVar("E", WorkerEntry, TriggerEntry)


class Fleet(LiveFleet):
    """Workers, triggers, managers and processes in the registry. Stateless: every answer comes from the store."""

    # For managers -------------------------------------------------------------------------------

    async def declare(
        self, workers: Sequence[WorkerEntry], triggers: Sequence[TriggerEntry], functions: Iterable[str] = ()
    ) -> None:
        """Register these workers, job functions (by type) and all their triggers; only changes are written.

        Triggers that no longer exist are unregistered; their marks are kept in case the program is rolled back.
        """
        stored = {entry[:2]: entry.body for kind in (WORKER, TRIGGER) for entry in await self._entries(kind)}
        # Done before the entries are written, so that the next call repeats it after an interruption.
        await self._restart_changed(triggers)
        bodies: dict[tuple[str, str], str] = {(WORKER, one.id): entry_body(one) for one in workers}
        bodies |= {(TRIGGER, one.name): entry_body(one) for one in triggers}
        for (kind, name), body in bodies.items():
            if stored.get((kind, name)) != body:
                await self._engine.register(kind, name, body)
        declared = {one.id for one in workers} | set(map(function_id, functions))
        for kind, name in stored.keys() - bodies.keys():
            if kind == TRIGGER and _worker_of(name) in declared:
                await self._engine.unregister(kind, name)

    # Queries ------------------------------------------------------------------------------------

    async def workers(self) -> list[WorkerView]:
        """Every worker that was declared, by title."""
        workers, off, processes = await asyncio.gather(self._workers(), self._names(WORKER_OFF), self.processes())
        views = [
            WorkerView(
                worker,
                worker.id not in off,
                sum(worker.id in one.workers and worker.id not in one.broken for one in processes),
                tuple(f"{one.name}: {one.broken[worker.id]}" for one in processes if worker.id in one.broken),
            )
            for worker in workers
        ]
        return sorted(views, key=lambda view: (view.entry.title, view.entry.id))

    async def triggers(self) -> list[TriggerView]:
        """Every trigger that was declared, by worker and id. This only reads: no marks are created."""
        from everwork.service.triggers.outlook import trigger_view  # noqa: PLC0415 - schedules are costly to import

        triggers, off, entries, served, clock = await asyncio.gather(
            self._triggers(),
            self._names(TRIGGER_OFF),
            self._entries(TRIGGER_MARK),
            self._served(),
            self._engine.trigger_marks([]),
        )
        marks = {entry.name: _mark(entry) for entry in entries}
        return [
            trigger_view(one, marks.get(one.name), clock.now_ms, is_on=one.name not in off, served=served)
            for one in triggers
        ]

    async def last_fires(self, reference: str, limit: int) -> list[TriggerFire]:
        """The latest jobs of a trigger, by name or title, newest first; see `fires`."""
        return await last_fires(self._engine, await self.trigger(reference), limit)

    async def fires_of_many(self, triggers: Sequence[TriggerEntry], limit: int) -> dict[str, list[TriggerFire]]:
        """The latest jobs of several triggers, by name, up to a time limit."""
        return await fires_of_many(self._engine, triggers, limit)

    async def lacks(self, worker_ids: Iterable[str]) -> bool:
        """Whether any of these workers is not registered."""
        return not frozenset(worker_ids) <= await self._names(WORKER)

    async def off(self) -> Off:
        """What is disabled."""
        return Off(*await asyncio.gather(self._names(WORKER_OFF), self._names(TRIGGER_OFF)))

    async def triggers_off(self) -> frozenset[str]:
        """Which triggers are disabled, by name."""
        return (await self.off()).triggers

    async def workers_for(self, type: str, group: str = DEFAULT_GROUP) -> list[WorkerView]:
        """The workers that take jobs of a type (and group), by title."""
        views, entries = await asyncio.gather(self.workers(), self._entries(OWNER))
        owner = group or next((entry.body for entry in entries if entry.name == type), None)
        return [view for view in views if type in view.entry.types and owner in (None, view.entry.id)]

    async def takers(self, type: str, group: str = DEFAULT_GROUP) -> list[ProcessEntry]:
        """The running processes, streams and pollers that take jobs of a type (and group)."""
        processes, views = await asyncio.gather(self.processes(), self.workers_for(type, group))
        ids = {view.entry.id for view in views if view.is_on}
        return [
            one
            for one in processes
            if ids.intersection(one.workers).difference(one.broken) or (group == DEFAULT_GROUP and type in one.types)
        ]

    async def served_types(self) -> frozenset[str]:
        """The types that a running process, stream or poller takes."""
        processes, views = await asyncio.gather(self.processes(), self.workers())
        return types_taken(processes, views)

    # Changes ------------------------------------------------------------------------------------

    async def switch_worker(self, reference: str, is_on: bool) -> bool:
        """Enable or disable a worker, by id or title; returns whether this changed anything."""
        worker = await self.worker(reference)
        if is_on:
            return await self._engine.unregister(WORKER_OFF, worker.id)
        return await self._switch_off(WORKER_OFF, worker.id)

    async def switch_trigger(self, reference: str, is_on: bool) -> bool:
        """Enable or disable a trigger, by name or title; returns whether this changed anything.

        Scheduled times missed while it was disabled are not caught up.
        """
        name = (await self.trigger(reference)).name
        if not is_on:
            return await self._switch_off(TRIGGER_OFF, name)
        if name not in await self._names(TRIGGER_OFF):
            return False
        # Done while the trigger is still disabled, so that no manager catches up on the scheduled times it missed.
        now_ms = (await self._engine.trigger_marks([name])).now_ms
        await self._engine.fire([Fire(name, now_ms, None)])
        return await self._engine.unregister(TRIGGER_OFF, name)

    async def fire(self, reference: str) -> int:
        """Fire a trigger, by name or title, in addition to its schedule; returns the job's key."""
        trigger = await self.trigger(reference)
        dedupe_key = fire_key(trigger.worker_id, trigger.id, by_hand())
        [created] = await self._engine.create([NewJob(trigger.type, trigger.variables, dedupe_key=dedupe_key)])
        return created.key

    async def restart(self, name: str) -> ProcessEntry:
        """Request that a process be replaced; its running jobs finish first."""
        process = await self.process(name)
        if process.kind != MANAGED:
            problem = f"{shown(name)} is not started by a manager; restart its program on its own host"
            raise InvalidInput("process", problem)
        if process.state == "stopping":
            raise InvalidInput("process", f"{shown(name)} is already shutting down")
        await self._engine.register(RESTART, name, "{}", RESTART_TTL_MS)
        return process

    async def forget_worker(self, reference: str) -> int:
        """Delete a worker that no process runs, its triggers and groups; returns how many pending jobs were cancelled.

        This includes jobs from the worker's own source, which no other worker would take.
        """
        worker = await self.forgettable(reference)
        await self._require_idle(worker)
        cancelled = await self._cancel_pending(own_source(worker.id))
        for info in await self._engine.types():
            if worker.id in info.groups:
                cancelled += await self._engine.drop_group(info.type, worker.id)
        for kind in _KINDS_OF_A_WORKER:
            for entry in await self._entries(kind):
                if _belongs_to(entry, worker.id):
                    await self._engine.unregister(kind, entry.name)
        return cancelled

    async def worker(self, reference: str) -> WorkerEntry:
        """The worker with an id or a title."""
        return _resolve(reference, "worker", {one.id: one for one in await self._workers()})

    async def trigger(self, reference: str) -> TriggerEntry:
        """The trigger with a name or a title."""
        return _resolve(reference, "trigger", {one.name: one for one in await self._triggers()})

    async def forgettable(self, reference: str) -> WorkerEntry:
        """The worker, or the job function with a schedule, with an id or a title."""
        workers, triggers = await asyncio.gather(self._workers(), self._triggers())
        functions = [one for one in triggers if one.worker_id == function_id(one.title)]
        found = {one.worker_id: WorkerEntry(id=one.worker_id, title=one.title) for one in functions}
        return _resolve(reference, "worker", found | {one.id: one for one in workers})

    # Internals -------------------------------------------------------------------------------------

    async def _restart_changed(self, triggers: Sequence[TriggerEntry]) -> None:
        """Let changed or restored schedules start now, so that no earlier scheduled times count as missed.

        This is done once, by the caller that changes the entry, so that managers of two versions do not conflict.
        Times that have only just come due are left to the running trigger loops.
        """
        known = {one.name: one.schedule for one in await self._triggers()}
        changed = {one.name for one in triggers if known.get(one.name) != one.schedule}
        begun = sorted(changed & await self._names(TRIGGER_MARK)) if changed else []
        now_ms = (await self._engine.trigger_marks([])).now_ms if begun else 0
        for start in range(0, len(begun), FIRES_STEP_MAX):
            names = begun[start : start + FIRES_STEP_MAX]
            await self._engine.fire([Fire(name, now_ms - GRACE_MS, None) for name in names])

    async def _require_idle(self, worker: WorkerEntry) -> None:
        """Refuse a worker in use, even by a manager without processes: it may be restarting them with this worker."""
        running = [one.name for one in await self.processes() if worker.id in one.workers]
        if running:
            raise InvalidInput("worker", f"{worker.title!r} runs in process {', '.join(running[:3])}; stop it first")
        managers = [one.name for one in await self.managers() if worker.id in one.workers]
        if managers:
            raise InvalidInput("worker", f"{worker.title!r} is run by manager {', '.join(managers[:3])}; stop it first")

    async def _cancel_pending(self, type: str) -> int:
        filter_, cancelled, cursor = JobFilter(type=type, states=frozenset([State.PENDING])), 0, None
        while True:
            page = await self._engine.find(filter_, LIST_LIMIT_MAX, cursor)
            judged = await self._engine.cancel([job.key for job in page.jobs]) if page.jobs else []
            cancelled += sum(one.verdict is Verdict.ACCEPTED for one in judged)
            cursor = page.next
            if cursor is None:
                return cancelled

    async def _switch_off(self, kind: str, name: str) -> bool:
        if name in await self._names(kind):
            return False
        await self._engine.register(kind, name, "{}")
        return True

    async def _served(self) -> frozenset[str]:
        """The ids of workers and names of triggers that a running manager or application serves."""
        managers, firing = await asyncio.gather(self.managers(), self._entries(FIRING))
        named = {name for entry in firing for name in trigger_names(entry)}
        return frozenset(named.union(*(manager.workers for manager in managers)))

    async def _workers(self) -> list[WorkerEntry]:
        return read_entries(WorkerEntry, await self._entries(WORKER))

    async def _triggers(self) -> list[TriggerEntry]:
        return read_entries(TriggerEntry, await self._entries(TRIGGER))


def types_taken(processes: Iterable[ProcessEntry], workers: Iterable[WorkerView]) -> frozenset[str]:
    """The types taken by these processes, and by these workers if they are enabled and running."""
    types = {type for one in processes for type in one.types}
    return frozenset(types.union(*(view.entry.types for view in workers if view.is_on and view.processes)))


def function_id(type: str) -> str:
    """The worker id under which a job function's triggers are stored; it never equals the id of a worker class."""
    return f"function-{sha256(type.encode()).hexdigest()[:16]}"


def _resolve(reference: str, what: str, entries: dict[str, E]) -> E:
    if reference in entries:
        return entries[reference]
    names = [name for name, entry in entries.items() if entry.title == reference]
    if not names:
        raise NotFound(what, reference)
    if len(names) > 1:
        raise InvalidInput(what, f"{shown(reference)} is the title of several entries; use one of {', '.join(names)}")
    return entries[names[0]]


def _worker_of(name: str) -> str:
    """The worker id contained in the name of a worker's or a trigger's entry."""
    return name.partition("/")[0]


def _belongs_to(entry: Registered, worker_id: str) -> bool:
    if entry.kind == OWNER:
        return entry.body == worker_id
    return _worker_of(entry.name) == worker_id


def _mark(entry: Registered) -> TriggerMark | None:
    try:
        began, last = map(int, entry.body.split())
    except ValueError:
        log.error("the last scheduled time of a trigger cannot be read", trigger=entry.name, body=shown(entry.body))
        return None
    return TriggerMark(began, last)
