"""Who works on a store: its workers and triggers, the processes that live, and what is switched off."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Final, TypeVar

import orjson

from everwork.core.checks import shown
from everwork.core.job import NewJob
from everwork.core.leasing import Verdict
from everwork.core.limits import DEFAULT_GROUP, FIRES_STEP_MAX, LIST_LIMIT_MAX
from everwork.core.queries import JobFilter
from everwork.core.schedule import GRACE_MS
from everwork.core.states import State
from everwork.engines.contract import Engine
from everwork.engines.values import Fire, Registered, TriggerMark
from everwork.exceptions import InvalidInput, NotFound
from everwork.logs import get_logger
from everwork.service.fleet.entries import (
    ManagerEntry,
    Off,
    ProcessEntry,
    ProcessView,
    TriggerEntry,
    TriggerView,
    WorkerEntry,
    WorkerView,
    entry_body,
    own_source,
    read_entries,
    trigger_names,
)
from everwork.service.triggers.fires import TriggerFire, by_hand, fire_key, fires_of_many, last_fires

FLEET_TTL_MS: Final = 20_000
"""How long a manager and its processes are taken for alive after their last word."""
RESTART_TTL_MS: Final = 60_000
"""How long a manager has to hear of a wish."""

WORKER: Final = "worker"
TRIGGER: Final = "trigger"
MANAGER: Final = "manager"
PROCESS: Final = "process"
FIRING: Final = "firing"
"""Who fires triggers and is no manager."""
RESTART: Final = "restart"
"""A wish: that the process of this name be replaced."""
WORKER_OFF: Final = "worker-off"
TRIGGER_OFF: Final = "trigger-off"
OWNER: Final = "owner"
TRIGGER_MARK: Final = "trigger-mark"
_LAST_IS_THE_CARD: Final = (OWNER, TRIGGER_MARK, TRIGGER_OFF, TRIGGER, WORKER_OFF, WORKER)
"""What a worker leaves behind. Without its card nobody could take away what a broken-off call has left."""

log = get_logger("everwork")

C = TypeVar("C", WorkerEntry, TriggerEntry)


class Fleet:
    """The registry's side of workers, over any engine. It keeps nothing: every answer is the store's."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    # What managers tell -------------------------------------------------------------------------

    async def declare(
        self, workers: Sequence[WorkerEntry], triggers: Sequence[TriggerEntry], functions: Iterable[str] = ()
    ) -> None:
        """Let everybody know these workers, job functions (by type) and all their triggers; only changes are written.

        Triggers that they no longer have are not shown any more; their marks stay, for a version that is rolled back.
        """
        stored = {entry[:2]: entry.body for kind in (WORKER, TRIGGER) for entry in await self._entries(kind)}
        # Before the cards are written: if this is broken off, whoever comes next finds the same to do.
        await self._begin_changed(triggers)
        wanted: dict[tuple[str, str], str] = {(WORKER, card.id): entry_body(card) for card in workers}
        wanted |= {(TRIGGER, card.name): entry_body(card) for card in triggers}
        for (kind, name), body in wanted.items():
            if stored.get((kind, name)) != body:
                await self._engine.register(kind, name, body)
        declared = {card.id for card in workers} | set(map(function_id, functions))
        for kind, name in stored.keys() - wanted.keys():
            if kind == TRIGGER and _worker_of(name) in declared:
                await self._engine.unregister(kind, name)

    async def beat(self, manager: ManagerEntry, processes: Sequence[ProcessEntry]) -> None:
        """Say that a manager and its processes live, and how they are."""
        told = [(MANAGER, manager.name, entry_body(manager))]
        told += [(PROCESS, one.name, entry_body(one)) for one in processes]
        await asyncio.gather(*(self._engine.register(*entry, FLEET_TTL_MS) for entry in told))

    async def leave(self, manager_name: str, process_names: Sequence[str]) -> None:
        """Say that processes have ended, and then their manager."""
        await self.end_processes(process_names)
        await self._engine.unregister(MANAGER, manager_name)

    async def end_processes(self, names: Sequence[str]) -> None:
        """Say that processes have ended."""
        for name in names:
            await self._engine.unregister(PROCESS, name)

    async def register_firing(self, name: str, triggers: Sequence[str]) -> None:
        """Say that somebody who is no manager lives and fires these triggers."""
        await self._engine.register(FIRING, name, orjson.dumps(sorted(triggers)).decode(), FLEET_TTL_MS)

    async def end_firing(self, name: str) -> None:
        """Say that they are fired no more."""
        await self._engine.unregister(FIRING, name)

    async def restarts(self) -> frozenset[str]:
        """The processes that somebody wants to be replaced."""
        return await self._names(RESTART)

    async def take_restart(self, name: str) -> bool:
        """Take such a wish away to obey it; False if it is not there any more."""
        return await self._engine.unregister(RESTART, name)

    # What everybody may ask ---------------------------------------------------------------------

    async def workers(self) -> list[WorkerView]:
        """Every worker that was ever declared, by title."""
        cards, off, processes = await asyncio.gather(self._workers(), self._names(WORKER_OFF), self.processes())
        views = [
            WorkerView(
                card,
                card.id not in off,
                sum(card.id in one.workers and card.id not in one.broken for one in processes),
                tuple(f"{one.name}: {one.broken[card.id]}" for one in processes if card.id in one.broken),
            )
            for card in cards
        ]
        return sorted(views, key=lambda view: (view.entry.title, view.entry.id))

    async def triggers(self) -> list[TriggerView]:
        """Every trigger that was declared, by worker and id. Asking changes nothing."""
        from everwork.service.triggers.outlook import trigger_view  # noqa: PLC0415 - only those pay for schedules who have some

        cards, off, entries, served, clock = await asyncio.gather(
            self._triggers(),
            self._names(TRIGGER_OFF),
            self._entries(TRIGGER_MARK),
            self._served(),
            self._engine.trigger_marks([]),
        )
        marks = {entry.name: _mark(entry) for entry in entries}
        return [
            trigger_view(card, marks.get(card.name), clock.now_ms, is_on=card.name not in off, served=served)
            for card in cards
        ]

    async def last_fires(self, reference: str, limit: int) -> list[TriggerFire]:
        """The latest jobs of a trigger, by name or title, newest first; see `fires`."""
        return await last_fires(self._engine, await self.trigger(reference), limit)

    async def fires_of_many(self, cards: Sequence[TriggerEntry], limit: int) -> dict[str, list[TriggerFire]]:
        """The same of several triggers, by name, as far as there is time for it."""
        return await fires_of_many(self._engine, cards, limit)

    async def processes(self) -> list[ProcessEntry]:
        """Every process that lives, by name."""
        return read_entries(ProcessEntry, await self._entries(PROCESS))

    async def process(self, name: str) -> ProcessEntry:
        """One process that lives."""
        for card in await self.processes():
            if card.name == name:
                return card
        raise NotFound("process", name)

    async def process_views(self) -> list[ProcessView]:
        """The same, with when each was last heard of."""
        entries, wishes = await asyncio.gather(self._entries(PROCESS), self.restarts())
        return [
            ProcessView(card, _heard_ms(entry, card), card.is_replaced or card.name in wishes)
            for entry in entries
            for card in read_entries(ProcessEntry, [entry])
        ]

    async def managers(self) -> list[ManagerEntry]:
        """Every manager that lives, by name."""
        return read_entries(ManagerEntry, await self._entries(MANAGER))

    async def count_live(self) -> tuple[int, int]:
        """How many managers and processes are running."""
        return len(await self._entries(MANAGER)), len(await self._entries(PROCESS))

    async def lacks(self, worker_ids: Iterable[str]) -> bool:
        """Whether any of these workers is not known, or not any more."""
        return not frozenset(worker_ids) <= await self._names(WORKER)

    async def off(self) -> Off:
        """What is switched off."""
        return Off(*await asyncio.gather(self._names(WORKER_OFF), self._names(TRIGGER_OFF)))

    async def triggers_off(self) -> frozenset[str]:
        """Which triggers are switched off, by name."""
        return (await self.off()).triggers

    async def workers_for(self, type: str, group: str = DEFAULT_GROUP) -> list[WorkerView]:
        """Those for whom jobs of a type (and group) wait, by title."""
        views, entries = await asyncio.gather(self.workers(), self._entries(OWNER))
        owner = group or next((entry.body for entry in entries if entry.name == type), None)
        return [view for view in views if type in view.entry.types and owner in (None, view.entry.id)]

    # What people do -----------------------------------------------------------------------------

    async def switch_worker(self, reference: str, is_on: bool) -> bool:
        """Let a worker, by id or title, take jobs or not; whether that is a change."""
        card = await self.worker(reference)
        if is_on:
            return await self._engine.unregister(WORKER_OFF, card.id)
        return await self._switch_off(WORKER_OFF, card.id)

    async def switch_trigger(self, reference: str, is_on: bool) -> bool:
        """Let a trigger, by name or title, fire or not; whether that is a change. What it missed while off is gone."""
        name = (await self.trigger(reference)).name
        if not is_on:
            return await self._switch_off(TRIGGER_OFF, name)
        if name not in await self._names(TRIGGER_OFF):
            return False
        # While it is still off: nobody else lets its time points pass, and a manager must not catch up with them.
        now_ms = (await self._engine.trigger_marks([name])).now_ms
        await self._engine.fire([Fire(name, now_ms, None)])
        return await self._engine.unregister(TRIGGER_OFF, name)

    async def fire(self, reference: str) -> int:
        """Let a trigger, by name or title, create its job now, besides its time points; the job's key."""
        card = await self.trigger(reference)
        dedupe_key = fire_key(card.worker_id, card.id, by_hand())
        [created] = await self._engine.create([NewJob(card.type, card.variables, dedupe_key=dedupe_key)])
        return created.key

    async def restart(self, name: str) -> ProcessEntry:
        """Ask the manager of a process to let another take its place; what it runs it may finish."""
        card = await self.process(name)
        if card.state == "stopping":
            raise InvalidInput("process", f"{shown(name)} is on its way out already")
        await self._engine.register(RESTART, name, "{}", RESTART_TTL_MS)
        return card

    async def forget_worker(self, reference: str) -> int:
        """Forget a worker that nobody runs: its triggers and groups, too; how many waiting jobs were cancelled.

        Those of its own source are among them: nobody else would take them.
        """
        card = await self.forgettable(reference)
        await self._require_idle(card)
        cancelled = await self._cancel_pending(own_source(card.id))
        for info in await self._engine.types():
            if card.id in info.groups:
                cancelled += await self._engine.drop_group(info.type, card.id)
        for kind in _LAST_IS_THE_CARD:
            for entry in await self._entries(kind):
                if _belongs_to(entry, card.id):
                    await self._engine.unregister(kind, entry.name)
        return cancelled

    async def worker(self, reference: str) -> WorkerEntry:
        """The worker that somebody means by an id or a title."""
        cards = await self._workers()
        return _meant(reference, "worker", {card.id: card for card in cards})

    async def trigger(self, reference: str) -> TriggerEntry:
        """The trigger that somebody means by a name or a title."""
        cards = await self._triggers()
        return _meant(reference, "trigger", {card.name: card for card in cards})

    async def forgettable(self, reference: str) -> WorkerEntry:
        """The worker, or the job function with a schedule, that somebody means by an id or a title."""
        workers, triggers = await asyncio.gather(self._workers(), self._triggers())
        functions = [card for card in triggers if card.worker_id == function_id(card.title)]
        cards = {card.worker_id: WorkerEntry(id=card.worker_id, title=card.title) for card in functions}
        return _meant(reference, "worker", cards | {card.id: card for card in workers})

    # Inside -------------------------------------------------------------------------------------

    async def _begin_changed(self, triggers: Sequence[TriggerEntry]) -> None:
        """Let a schedule that has changed, or is back, begin now: by it no time point was missed.

        Only who changes the card does so, once: managers of two versions do not fight. Points that are just due are
        left to those who run.
        """
        known = {card.name: card.schedule for card in await self._triggers()}
        changed = {card.name for card in triggers if known.get(card.name) != card.schedule}
        begun = sorted(changed & await self._names(TRIGGER_MARK)) if changed else []
        now_ms = (await self._engine.trigger_marks([])).now_ms if begun else 0
        for start in range(0, len(begun), FIRES_STEP_MAX):
            names = begun[start : start + FIRES_STEP_MAX]
            await self._engine.fire([Fire(name, now_ms - GRACE_MS, None) for name in names])

    async def _require_idle(self, card: WorkerEntry) -> None:
        """A manager whose processes are just being restarted would go on with a worker that nobody knows."""
        running = [one.name for one in await self.processes() if card.id in one.workers]
        if running:
            raise InvalidInput("worker", f"{card.title!r} runs in process {', '.join(running[:3])}; stop it first")
        managers = [one.name for one in await self.managers() if card.id in one.workers]
        if managers:
            raise InvalidInput("worker", f"{card.title!r} is run by manager {', '.join(managers[:3])}; stop it first")

    async def _cancel_pending(self, type: str) -> int:
        wanted, cancelled, cursor = JobFilter(type=type, states=frozenset([State.PENDING])), 0, None
        while True:
            page = await self._engine.find(wanted, LIST_LIMIT_MAX, cursor)
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
        """The ids of workers, and the names of triggers, that somebody who lives looks after."""
        managers, firing = await asyncio.gather(self.managers(), self._entries(FIRING))
        named = {name for entry in firing for name in trigger_names(entry)}
        return frozenset(named.union(*(manager.workers for manager in managers)))

    async def _workers(self) -> list[WorkerEntry]:
        return read_entries(WorkerEntry, await self._entries(WORKER))

    async def _triggers(self) -> list[TriggerEntry]:
        return read_entries(TriggerEntry, await self._entries(TRIGGER))

    async def _names(self, kind: str) -> frozenset[str]:
        return frozenset(entry.name for entry in await self._entries(kind))

    async def _entries(self, kind: str) -> list[Registered]:
        return await self._engine.registered(kind)


def function_id(type: str) -> str:
    """The id under which the triggers of a job function stand: no worker has one like it."""
    return f"function-{sha256(type.encode()).hexdigest()[:16]}"


def _meant(reference: str, what: str, cards: dict[str, C]) -> C:
    if reference in cards:
        return cards[reference]
    names = [name for name, card in cards.items() if card.title == reference]
    if not names:
        raise NotFound(what, reference)
    if len(names) > 1:
        raise InvalidInput(what, f"{shown(reference)} is the title of several; name one of {', '.join(names)}")
    return cards[names[0]]


def _worker_of(name: str) -> str:
    """The worker that an entry names: by its id, or by its trigger's name."""
    return name.partition("/")[0]


def _belongs_to(entry: Registered, worker_id: str) -> bool:
    if entry.kind == OWNER:
        return entry.body == worker_id
    return _worker_of(entry.name) == worker_id


def _heard_ms(entry: Registered, card: ProcessEntry) -> int:
    """When a process gave its last sign of life, by the engine's clock."""
    return max(0, (entry.until_ms or 0) - FLEET_TTL_MS - card.quiet_ms)


def _mark(entry: Registered) -> TriggerMark | None:
    try:
        began, last = map(int, entry.body.split())
    except ValueError:
        log.error("a trigger's mark cannot be read", trigger=entry.name, body=shown(entry.body))
        return None
    return TriggerMark(began, last)
