"""One run of a manager: processes, leases, triggers, registry entries, and the stop."""

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

from everwork.aio.clocks import host_clock_ms
from everwork.aio.loops import BackgroundLoop, first_of
from everwork.aio.retrying import engine_outage, retrying
from everwork.exceptions import BadConfiguration, EngineError, EngineUnavailable
from everwork.manager.child import ChildSpec
from everwork.manager.cleanup import clean_up
from everwork.manager.declaration import Queues, declare_workers
from everwork.manager.leases import LeaseKeeper
from everwork.manager.process import Process, Reconnect
from everwork.manager.process_handle import Context, ProcessHandle
from everwork.manager.signals import StopRequests
from everwork.manager.supervisor import Supervisor
from everwork.manager.validation import UNGUARDED_TEXT, Declared
from everwork.manager.watchdog import Watchdog
from everwork.manager.worker import AbstractWorker
from everwork.manager.worker_pool import WorkerSpec
from everwork.runtime.ledger import Phase
from everwork.service.fleet.entries import ManagerEntry, ProcessEntry
from everwork.service.fleet.live import BEAT_SECONDS
from everwork.service.service import JobService
from everwork.service.triggers.loop import Scheduled
from everwork.spool.settings import Offline

VERSION: Final = version("everwork")
SWITCH_SECONDS_MIN: Final = 0.5
SLOTS_PER_CALL: Final = 4
"""A process holds running jobs, as many prefetched ones, and as many of both that have ended and are being settled."""
SLOTS_SPARE: Final = 16
LAST_CALL_SECONDS: Final = 4.0
LOST_SECONDS: Final = 0.5
CANCELS_MAX: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerSpec:
    """What a manager runs, validated."""

    uuid: str
    name: str
    """Unique to this run, unlike the uuid."""
    url: str
    processes: Sequence[Process]
    workers: Mapping[type[AbstractWorker], Declared]
    triggers: Sequence[Scheduled]
    context: Context
    reconnect: Reconnect
    lease_ms: int
    log_format: Literal["console", "json"] | None
    log_level: str
    offline: Offline | None = None


class ManagerRun:
    """One run of a manager, in the event loop of its caller."""

    def __init__(self, spec: ManagerSpec, service: JobService, log: Any) -> None:
        self._spec = spec
        self._service = service
        self._fleet = service.fleet
        self._host = socket.gethostname()
        self._name = spec.name
        self._log = log.bind(manager=spec.uuid)
        self._started_at_ms = host_clock_ms()
        self._worker_ids = tuple(sorted(one.settings.id for one in spec.workers.values()))
        self._queues: Queues = {}
        self._off: frozenset[str] = frozenset()
        self._reported: set[str] = set()
        self._has_lost_store = False
        self._supervisors = [self._supervisor(process) for process in spec.processes]
        self._watchdog = Watchdog(self._supervisors, self._log)
        self._lease_keeper = LeaseKeeper(service, self._children, spec.lease_ms)
        self._beat = BackgroundLoop("everwork-registry", self._update_registry, BEAT_SECONDS)
        self._switches = BackgroundLoop("everwork-switches", self._read_switches, _switch_seconds(spec))
        self._triggers = service.trigger_loop(spec.triggers)

    async def run(self, stops: StopRequests) -> None:
        """Prepare, start everything, run until stopped, and stop in stages. Cancellation speeds up the stop."""
        await run_to_end(lambda: self._run(stops), stops.hurry)

    async def _run(self, stops: StopRequests) -> None:
        opening = asyncio.ensure_future(self._prepare())
        try:
            await first_of(stops.soft, work=opening)
            if not opening.done():
                return
            opening.result()
            await self._work(stops)
        finally:
            opening.cancel()
            await self._call_store_last(_wait_ended(opening))
            await self._call_store_last(self._service.close())

    async def _prepare(self) -> None:
        """Connect to the store and declare the workers, waiting while the engine is unavailable."""
        if not self._service.is_remote:
            await self._connect()  # Waiting does not help if the store is a file.
        else:
            outage = engine_outage(self._spec.uuid)
            await retrying(self._connect, delays=self._spec.reconnect.pauses, outage=outage)

    async def _connect(self) -> None:
        try:
            await self._service.open()
            await self._declare()
        except EngineUnavailable:
            await self._service.close()
            raise

    async def _declare(self) -> None:
        self._queues = await declare_workers(self._service, self._spec.workers, self._spec.triggers, self._log)
        self._off = (await self._fleet.off()).workers

    # Running ------------------------------------------------------------------------------------

    async def _work(self, stops: StopRequests) -> None:
        loops = (self._watchdog.loop, self._lease_keeper.loop, self._beat, self._switches)
        for supervisor in self._supervisors:
            supervisor.start()
        for loop in loops:
            loop.start()
        self._triggers.start()
        self._log.info("manager started", processes=len(self._supervisors), workers=len(self._spec.workers))
        try:
            await self._until_over(stops.soft)
        except asyncio.CancelledError:
            stops.hurry()  # A caller that cancels does not want to wait for running jobs.
            raise
        finally:
            await run_to_end(lambda: self._end(loops, stops), stops.hurry, again=CANCELS_MAX)
        if self._is_unguarded:
            raise BadConfiguration(UNGUARDED_TEXT)
        if self._has_given_up:
            raise EngineUnavailable("every process has exited: the engine was unavailable for too long")

    @property
    def _is_unguarded(self) -> bool:
        return any(supervisor.is_unguarded for supervisor in self._supervisors)

    @property
    def _has_given_up(self) -> bool:
        return all(supervisor.has_given_up for supervisor in self._supervisors)

    async def _until_over(self, soft: asyncio.Event) -> None:
        """Wait for the stop, for the end of every process, or until it is clear that none can be started."""
        while not soft.is_set() and not self._is_unguarded:
            running = [supervisor.gone for supervisor in self._supervisors if not supervisor.gone.is_set()]
            if not running:
                return
            await first_of(soft, *running)

    async def _end(self, loops: Sequence[BackgroundLoop], stops: StopRequests) -> None:
        await self._triggers.abort()
        await self._stop(stops)
        for loop in loops:
            await loop.abort()
        if not self._has_given_up:  # Otherwise the engine is unavailable, and this manager's entries expire.
            await self._call_store_last(self._fleet.leave(self._name, sorted(self._reported)))
        self._log.info("manager stopped")

    async def _stop(self, stops: StopRequests) -> None:
        """Stop all processes concurrently, each in stages; further requests skip stages."""
        self._log.info("manager stopping", processes=len(self._supervisors))
        stopping = asyncio.gather(*(supervisor.stop() for supervisor in self._supervisors))
        await first_of(stops.hard, work=stopping)
        if not stopping.done():
            for supervisor in self._supervisors:
                supervisor.urgent.set()
            await first_of(stops.immediate, work=stopping)
        if not stopping.done():
            for supervisor in self._supervisors:
                supervisor.immediate.set()
        await stopping

    async def _call_store_last(self, last: Coroutine[Any, Any, None]) -> None:
        """Make one of the last calls of a stop, and wait only briefly: the store may be unavailable or locked."""
        task = asyncio.ensure_future(last)
        await asyncio.wait([task], timeout=LOST_SECONDS if self._has_lost_store else LAST_CALL_SECONDS)
        if not task.done():
            task.cancel()
            if not self._has_lost_store:
                self._log.error("the store does not respond, stopping without it")
            self._has_lost_store = True
        elif not task.cancelled() and not isinstance(task.exception(), EngineError | None):
            self._log.error("manager could not be stopped cleanly", exc_info=task.exception())

    # Processes ----------------------------------------------------------------------------------

    def _supervisor(self, process: Process) -> Supervisor:
        call_timeout = max(self._spec.workers[worker].settings.execution_timeout for worker in process.workers)
        return Supervisor(
            process, call_timeout, spawn=lambda: self._spawn(process), clean_up=self._clean_up, log=self._log
        )

    def _spawn(self, process: Process) -> ProcessHandle:
        workers = tuple(self._worker_spec(worker, index) for index, worker in enumerate(process.workers))
        child_spec = ChildSpec(
            url=self._spec.url,
            manager=self._spec.uuid,
            name=f"{self._host}-{secrets.token_hex(5)}",
            workers=workers,
            shutdown_timeout=process.shutdown_timeout,
            reconnect=process.reconnect,
            lease_ms=self._spec.lease_ms,
            log_format=self._spec.log_format,
            log_level=self._spec.log_level,
            middleware=tuple(process.middleware),
            lifespan=process.lifespan,
            offline=self._spec.offline,
        )
        off = {worker.index for worker in workers if worker.id in self._off}
        concurrency = sum(self._spec.workers[worker].settings.concurrency for worker in process.workers)
        slots = concurrency * SLOTS_PER_CALL + SLOTS_SPARE
        return ProcessHandle(self._spec.context, child_spec, slots=slots, off=off, on_change=self._beat.wake)

    def _worker_spec(self, worker: type[AbstractWorker], index: int) -> WorkerSpec:
        return WorkerSpec.of(self._spec.workers[worker].settings, worker, self._queues[worker], index)

    async def _clean_up(self, handle: ProcessHandle) -> None:
        await clean_up(self._service, handle, self._log)

    def _children(self) -> Iterator[ProcessHandle]:
        """The processes that have not ended."""
        for supervisor in self._supervisors:
            yield from (handle for handle in supervisor.live if not handle.ended.is_set())

    # The registry -------------------------------------------------------------------------------

    async def _update_registry(self) -> bool:
        entries = [
            self._process_entry(supervisor, handle)
            for supervisor in self._supervisors
            for handle in supervisor.live
            if not handle.ended.is_set()
        ]
        gone = self._reported - {entry.name for entry in entries}
        self._reported |= {entry.name for entry in entries}
        await self._fleet.beat(self._manager_entry(), entries)
        await self._declare_again()
        await self._fleet.end_processes(sorted(gone))
        self._reported -= gone
        await self._handle_restart_requests()
        return False

    async def _declare_again(self) -> None:
        """Repair a registry that has lost this manager's workers: they could no longer be seen, enabled or disabled."""
        if not await self._fleet.lacks(self._worker_ids):
            return
        before = dict(self._queues)
        await self._declare()
        self._log.warning("the store no longer had the workers of this manager; they were declared again")
        if before != self._queues:
            self._log.error("worker groups have changed, restart the manager to apply them")

    def _manager_entry(self) -> ManagerEntry:
        return ManagerEntry(
            name=self._name,
            uuid=self._spec.uuid,
            host=self._host,
            pid=os.getpid(),
            version=VERSION,
            started_at_ms=self._started_at_ms,
            workers=self._worker_ids,
        )

    def _process_entry(self, supervisor: Supervisor, handle: ProcessHandle) -> ProcessEntry:
        vitals = handle.ledger.vitals()
        return ProcessEntry(
            name=handle.name,
            manager=self._name,
            host=self._host,
            pid=handle.pid,
            state=handle.phase.name.lower(),
            workers=tuple(spec.id for spec in handle.workers),
            broken=handle.problems(),
            started_at_ms=host_clock_ms() - round((time.monotonic() - handle.started_at) * 1000),
            running=vitals.held,
            ended=vitals.ended,
            restarts=supervisor.restarts,
            # Before the program is loaded, its memory use is meaningless.
            memory_bytes=None if handle.phase is Phase.STARTING else self._watchdog.memory_of(handle),
            quiet_ms=round(handle.quiet * 1000),
            is_replaced=self._watchdog.is_replaced(handle.name),
        )

    async def _handle_restart_requests(self) -> None:
        """Replace the processes for which a restart was requested."""
        requested = await self._fleet.restarts()
        for handle in list(self._children()) if requested else ():
            if handle.name in requested and await self._fleet.take_restart(handle.name):
                self._watchdog.replace_soon(handle.name)

    async def _read_switches(self) -> bool:
        self._off = (await self._fleet.off()).workers
        for handle in self._children():
            if handle.switch({spec.index for spec in handle.workers if spec.id in self._off}):
                handle.notify()
        return False


def _switch_seconds(spec: ManagerSpec) -> float:
    """How often to read which workers are disabled: the shortest interval in the workers' settings."""
    intervals = [
        min(one.settings.status_cache_ttl or SWITCH_SECONDS_MIN, one.settings.status_check_interval)
        for one in spec.workers.values()
    ]
    return max(min(intervals), SWITCH_SECONDS_MIN)


async def run_to_end(work: Callable[[], Coroutine[Any, Any, None]], hurry: Callable[[], None], again: int = 0) -> None:
    """Run work that must finish: cancelling the caller only calls `hurry`.

    If the work itself is cancelled because all tasks of the loop are, it is restarted up to `again` times.
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
    await _wait_ended(task)
    raise asyncio.CancelledError


async def _wait_ended(work: asyncio.Future[None]) -> None:
    await asyncio.wait([work])
    if not work.cancelled():
        work.exception()  # Retrieved: it was already reported, or no longer matters.
