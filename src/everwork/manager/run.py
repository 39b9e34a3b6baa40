"""One run of a manager: its processes, their leases, its triggers, its entries in the registry, and the stop."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Final, Literal

from everwork.aio.loops import BackgroundLoop, first_of
from everwork.aio.retrying import engine_outage
from everwork.app.entries import subscribe, trigger_entries, worker_entry
from everwork.exceptions import BadConfiguration, EngineError, EngineUnavailable
from everwork.manager.child import ChildSpec
from everwork.manager.cleanup import clear_up
from everwork.manager.leases import LeaseKeeper
from everwork.manager.process import Process, Reconnect
from everwork.manager.process_handle import Context, ProcessHandle
from everwork.manager.supervisor import Supervisor
from everwork.manager.validation import UNGUARDED_TEXT, Declared, rules_unheard
from everwork.manager.watchdog import Watchdog
from everwork.manager.worker import AbstractWorker
from everwork.manager.worker_pool import WorkerSpec
from everwork.runtime.handler import QueueKey
from everwork.runtime.ledger import Phase
from everwork.service.fleet.entries import ManagerEntry, ProcessEntry
from everwork.service.policies import PolicyFields
from everwork.service.service import JobService
from everwork.service.triggers.loop import Scheduled

VERSION: Final = version("everwork")
BEAT_SECONDS: Final = 5.0
SWITCH_SECONDS_MIN: Final = 0.5
SLOTS_PER_PLACE: Final = 3
"""A process holds what runs, as much fetched ahead, and what has ended and is being settled."""
SLOTS_SPARE: Final = 16
FAREWELL_SECONDS: Final = 4.0
LOST_SECONDS: Final = 0.5
CANCELS_MAX: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerSpec:
    """What a manager runs, checked."""

    uuid: str
    name: str
    """Of this run of it: unlike the uuid, nobody else has it."""
    url: str
    processes: Sequence[Process]
    workers: Mapping[type[AbstractWorker], Declared]
    triggers: Sequence[Scheduled]
    context: Context
    reconnect: Reconnect
    lease_ms: int
    log_format: Literal["console", "json"] | None
    log_level: str


class ManagerRun:
    """Runs once, in the event loop of whoever runs the manager."""

    def __init__(self, setup: ManagerSpec, service: JobService, log: Any) -> None:
        self._setup = setup
        self._service = service
        self._fleet = service.fleet
        self._host = socket.gethostname()
        self._name = setup.name
        self._log = log.bind(manager=setup.uuid)
        self._started_at_ms = _now_ms()
        self._worker_ids = tuple(sorted(one.settings.id for one in setup.workers.values()))
        self._places: dict[type[AbstractWorker], tuple[QueueKey, ...]] = {}
        self._off: frozenset[str] = frozenset()
        self._told: set[str] = set()
        self._has_lost_store = False
        self._supervisors = [self._supervisor(process) for process in setup.processes]
        self._watch = Watchdog(self._supervisors, self._log)
        self._keeper = LeaseKeeper(service, self._children, setup.lease_ms)
        self._beat = BackgroundLoop("everwork-registry", self._tell_registry, BEAT_SECONDS)
        self._switches = BackgroundLoop("everwork-switches", self._read_switches, _switch_seconds(setup))
        self._triggers = service.trigger_loop(setup.triggers)

    async def run(self, soft: asyncio.Event, hard: asyncio.Event) -> None:
        """Prepare, start everything, work until told to stop, and stop in stages. Who cancels it hurries the stop."""

        def hurry() -> None:
            soft.set()
            hard.set()

        await outlast(lambda: self._live(soft, hard), hurry)

    async def _live(self, soft: asyncio.Event, hard: asyncio.Event) -> None:
        opening = asyncio.ensure_future(self._prepare())
        try:
            await first_of(soft, work=opening)
            if not opening.done():
                return
            opening.result()
            await self._work(soft, hard)
        finally:
            opening.cancel()
            await self._ask_store(_ended(opening))
            await self._ask_store(self._service.close())

    async def _prepare(self) -> None:
        """Reach the store, and let everybody know what runs here. An engine that is away is waited for."""
        outage = engine_outage(self._setup.uuid)
        problem = EngineUnavailable("the reconnect strategy allows no attempt")
        for seconds in self._setup.reconnect.pauses():
            try:
                await self._service.open()
                await self._declare()
            except EngineUnavailable as error:
                if not self._service.is_remote:
                    raise  # A file does not come by waiting.
                problem = error
                outage.tell(error)
                await self._service.close()
                await asyncio.sleep(seconds)
            else:
                outage.over()
                return
        raise problem

    async def _declare(self) -> None:
        policies: dict[str, PolicyFields] = {}
        for worker, one in self._setup.workers.items():
            settings = one.settings
            subscribed = await subscribe(self._service, settings)
            self._places[worker] = subscribed.places
            policies |= subscribed.policies
            if subscribed.said and subscribed.foreign:
                self._log.warning(
                    "a worker's policy does not hold where another worker came first",
                    worker=settings.id,
                    title=settings.title,
                    sources=subscribed.foreign,
                )
            if unheard := rules_unheard(settings):
                self._log.warning(
                    "a worker without retry fails for good at its first error: nobody asks its rules about errors",
                    worker=settings.id,
                    title=settings.title,
                    fields=unheard,
                )
        await self._service.declare_policies(policies)
        declared = [one.settings for one in self._setup.workers.values()]
        foreign = {one.name for one in self._setup.triggers if one.plan.is_foreign}
        triggers = [entry for one in declared for entry in trigger_entries(one, foreign)]
        await self._fleet.declare([worker_entry(one) for one in declared], triggers)
        self._off = (await self._fleet.off()).workers

    # Running ------------------------------------------------------------------------------------

    async def _work(self, soft: asyncio.Event, hard: asyncio.Event) -> None:
        loops = (self._watch.loop, self._keeper.loop, self._beat, self._switches)
        for supervisor in self._supervisors:
            supervisor.start()
        for loop in loops:
            loop.start()
        self._triggers.start()
        self._log.info("the manager runs", processes=len(self._supervisors), workers=len(self._setup.workers))
        try:
            await self._until_over(soft)
        except asyncio.CancelledError:
            hard.set()  # Whoever cancels does not want to wait for what runs.
            raise
        finally:
            await outlast(lambda: self._end(loops, hard), hard.set, again=CANCELS_MAX)
        if self._is_unguarded:
            raise BadConfiguration(UNGUARDED_TEXT)
        if self._has_given_up:
            raise EngineUnavailable("every process has given up: the engine stayed away for too long")

    @property
    def _is_unguarded(self) -> bool:
        return any(supervisor.is_unguarded for supervisor in self._supervisors)

    @property
    def _has_given_up(self) -> bool:
        return all(supervisor.has_given_up for supervisor in self._supervisors)

    async def _until_over(self, soft: asyncio.Event) -> None:
        """Wait for the stop, for the end of every process, or for the first that shows that none can be started."""
        while not soft.is_set() and not self._is_unguarded:
            living = [supervisor.gone for supervisor in self._supervisors if not supervisor.gone.is_set()]
            if not living:
                return
            await first_of(soft, *living)

    async def _end(self, loops: Sequence[BackgroundLoop], hard: asyncio.Event) -> None:
        await self._triggers.abort()
        await self._stop(hard)
        for loop in loops:
            await loop.abort()
        if not self._has_given_up:  # Else the engine is away, and what is written of this manager expires.
            await self._ask_store(self._fleet.leave(self._name, sorted(self._told)))
        self._log.info("the manager has stopped")

    async def _stop(self, hard: asyncio.Event) -> None:
        """All processes at once, each in its stages; a second request skips the first stage."""
        self._log.info("the manager stops", processes=len(self._supervisors))
        stopping = asyncio.gather(*(supervisor.stop() for supervisor in self._supervisors))
        await first_of(hard, work=stopping)
        if not stopping.done():
            self._hurry()
        await stopping

    def _hurry(self) -> None:
        for supervisor in self._supervisors:
            supervisor.urgent.set()

    async def _ask_store(self, last: Coroutine[Any, Any, None]) -> None:
        """One of the last things to be done, which no stop waits for for long: the store may be away or held."""
        asking = asyncio.ensure_future(last)
        await asyncio.wait([asking], timeout=LOST_SECONDS if self._has_lost_store else FAREWELL_SECONDS)
        if not asking.done():
            asking.cancel()
            if not self._has_lost_store:
                self._log.error("the store does not answer: the manager ends without it")
            self._has_lost_store = True
        elif not asking.cancelled() and not isinstance(asking.exception(), EngineError | None):
            self._log.error("the manager's end went wrong", exc_info=asking.exception())

    # Processes ----------------------------------------------------------------------------------

    def _supervisor(self, process: Process) -> Supervisor:
        patience = max(self._setup.workers[worker].settings.execution_timeout for worker in process.workers)
        return Supervisor(process, patience, spawn=lambda: self._spawn(process), clear_up=self._clear_up, log=self._log)

    def _spawn(self, process: Process) -> ProcessHandle:
        posts = tuple(self._post(worker, index) for index, worker in enumerate(process.workers))
        orders = ChildSpec(
            url=self._setup.url,
            name=f"{self._host}-{secrets.token_hex(5)}",
            posts=posts,
            shutdown_timeout=process.shutdown_timeout,
            reconnect=process.reconnect,
            lease_ms=self._setup.lease_ms,
            log_format=self._setup.log_format,
            log_level=self._setup.log_level,
            middleware=tuple(process.middleware),
        )
        off = {post.index for post in posts if post.id in self._off}
        concurrency = sum(self._setup.workers[worker].settings.concurrency for worker in process.workers)
        slots = concurrency * SLOTS_PER_PLACE + SLOTS_SPARE
        return ProcessHandle(self._setup.context, orders, slots=slots, off=off, tell=self._beat.hurry)

    def _post(self, worker: type[AbstractWorker], index: int) -> WorkerSpec:
        return WorkerSpec.of(self._setup.workers[worker].settings, worker, self._places[worker], index)

    async def _clear_up(self, spawned: ProcessHandle) -> None:
        await clear_up(self._service, spawned, self._log)

    def _children(self) -> Iterator[ProcessHandle]:
        """Those that have not ended; the attempts of the others are nobody's any more."""
        for supervisor in self._supervisors:
            yield from (spawned for spawned in supervisor.live if not spawned.ended.is_set())

    # The registry -------------------------------------------------------------------------------

    async def _tell_registry(self) -> bool:
        entries = [
            self._process_entry(supervisor, spawned)
            for supervisor in self._supervisors
            for spawned in supervisor.live
            if not spawned.ended.is_set()
        ]
        gone = self._told - {entry.name for entry in entries}
        self._told |= {entry.name for entry in entries}
        await self._fleet.beat(self._card(), entries)
        await self._declare_anew()
        await self._fleet.end_processes(sorted(gone))
        self._told -= gone
        await self._hear_wishes()
        return False

    async def _declare_anew(self) -> None:
        """Heal a registry that has lost the workers of this manager: they could not be seen nor switched."""
        if not await self._fleet.lacks(self._worker_ids):
            return
        before = dict(self._places)
        await self._declare()
        self._log.warning("the store did not know the workers of this manager: they are declared anew")
        if before != self._places:
            self._log.error("workers have other groups now; their processes see them when they are started again")

    def _card(self) -> ManagerEntry:
        return ManagerEntry(
            name=self._name,
            uuid=self._setup.uuid,
            host=self._host,
            pid=os.getpid(),
            version=VERSION,
            started_at_ms=self._started_at_ms,
            workers=self._worker_ids,
        )

    def _process_entry(self, supervisor: Supervisor, spawned: ProcessHandle) -> ProcessEntry:
        vitals = spawned.ledger.vitals()
        return ProcessEntry(
            name=spawned.name,
            manager=self._name,
            host=self._host,
            pid=spawned.pid,
            state=spawned.phase.name.lower(),
            workers=tuple(post.id for post in spawned.posts),
            broken=spawned.problems(),
            started_at_ms=_now_ms() - round((time.monotonic() - spawned.started_at) * 1000),
            running=vitals.held,
            ended=vitals.ended,
            restarts=supervisor.restarts,
            # Before anything is loaded, what it holds says nothing.
            memory_bytes=None if spawned.phase is Phase.STARTING else self._watch.memory_of(spawned),
            quiet_ms=round(spawned.quiet * 1000),
            is_replaced=self._watch.is_replaced(spawned.name),
        )

    async def _hear_wishes(self) -> None:
        """Replace the processes of which somebody wishes it."""
        wishes = await self._fleet.restarts()
        for spawned in list(self._children()) if wishes else ():
            if spawned.name in wishes and await self._fleet.take_restart(spawned.name):
                self._watch.replace_soon(spawned.name)

    async def _read_switches(self) -> bool:
        self._off = (await self._fleet.off()).workers
        for spawned in self._children():
            if spawned.switch({post.index for post in spawned.posts if post.id in self._off}):
                spawned.look()
        return False


def _switch_seconds(setup: ManagerSpec) -> float:
    """How often it is looked whether a worker is switched on or off: as its settings promise it."""
    wanted = [
        min(one.settings.status_cache_ttl or SWITCH_SECONDS_MIN, one.settings.status_check_interval)
        for one in setup.workers.values()
    ]
    return max(min(wanted), SWITCH_SECONDS_MIN)


async def outlast(work: Callable[[], Coroutine[Any, Any, None]], hurry: Callable[[], None], again: int = 0) -> None:
    """Wait for work that must come to its end: who cancels the wait, even again and again, only hurries it.

    Whoever cancels all tasks of a loop hits the work, too: then it is taken up `again`, so many times at most.
    """
    is_cancelled = False
    task = asyncio.ensure_future(work())
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            is_cancelled = True
            hurry()
        if task.done() and task.cancelled() and again:
            again -= 1
            hurry()
            task = asyncio.ensure_future(work())
    if not is_cancelled:
        task.result()
        return
    await _ended(task)
    raise asyncio.CancelledError


async def _ended(work: asyncio.Future[None]) -> None:
    await asyncio.wait([work])
    if not work.cancelled():
        work.exception()  # It was told, or nobody wants to know any more.


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
