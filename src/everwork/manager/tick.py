"""Ticks of a manager: its workers run a bounded number of jobs in the calling process, without child processes."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from everwork.aio.retrying import bounded_delays
from everwork.app.engine_host import TransactionStore
from everwork.app.tick import TickResult, tick_result
from everwork.engines.open import open_engine
from everwork.exceptions import BadConfiguration
from everwork.logs import get_logger
from everwork.manager.declaration import Queues, declare_workers
from everwork.manager.process import Process
from everwork.manager.validation import Declared
from everwork.manager.worker import AbstractWorker
from everwork.manager.worker_pool import WorkerPool, WorkerSpec
from everwork.runtime.capacity import Budget
from everwork.runtime.fetcher import Fetcher
from everwork.runtime.handler import Handler
from everwork.runtime.job_log import JobLog
from everwork.runtime.portal import Portal
from everwork.runtime.runtime import Runtime
from everwork.runtime.shutdown import StopSignal
from everwork.service.service import JobService
from everwork.service.triggers.loop import Scheduled
from everwork.spool.settings import Offline

log = get_logger("everwork")


class ManagerTicks:
    """The ticks of one manager; several can run concurrently, each with its own connection and workers."""

    def __init__(
        self,
        uuid: str,
        url: str,
        processes: Sequence[Process],
        workers: Mapping[type[AbstractWorker], Declared],
        triggers: Sequence[Scheduled],
        *,
        lease_ms: int,
        offline: Offline | None = None,
    ) -> None:
        self._uuid = uuid
        self._url = url
        self._processes = processes
        self._workers = workers
        self._triggers = triggers
        self._lease_ms = lease_ms
        self._offline = offline
        self._stops: set[StopSignal] = set()

    async def run(self, jobs_max: int, shutdown_timeout: float) -> TickResult:
        """Connect, do maintenance, start the workers, run up to `jobs_max` jobs, shut down."""
        stopped = StopSignal()
        self._stops.add(stopped)
        name = f"{socket.gethostname()}-{secrets.token_hex(5)}"
        portal = Portal(partial(self._service, name), upkeep=False)
        try:
            prepared = _Prepared()
            if await stopped.comes_before(self._prepare(portal, prepared)):
                return TickResult()
            tick = _Tick(name, portal, self._pools(prepared), stopped)
            transactions = TransactionStore(open_engine(self._url))
            return await tick.run(Budget(jobs_max), transactions, self._lease_ms, shutdown_timeout)
        finally:
            self._stops.discard(stopped)
            await asyncio.to_thread(portal.close)

    def _service(self, name: str) -> JobService:
        return JobService(open_engine(self._url, own_loop=True), name, offline=self._offline)

    def stop(self) -> bool:
        """Stop all ticks: running jobs finish, no others start; a second call cancels them. False if there are none."""
        stops = tuple(self._stops)
        for stopped in stops:
            stopped.request()
        return bool(stops)

    async def _prepare(self, portal: Portal[JobService], prepared: _Prepared) -> None:
        async def prepare(service: JobService) -> None:
            service.require_connected()
            bound = log.bind(manager=self._uuid)
            prepared.queues = await declare_workers(service, self._workers, self._triggers, bound)
            prepared.off = (await service.fleet.off()).workers
            await service.run_upkeep(self._triggers)

        opening = asyncio.wrap_future(portal.open(prepare))
        opening.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # The tick may be stopped.
        await asyncio.shield(opening)

    def _pools(self, prepared: _Prepared) -> list[WorkerPool]:
        """The workers by process, because each has its own middleware; a worker in several belongs to the first."""
        left = {worker for worker, one in self._workers.items() if one.settings.id not in prepared.off}
        pools: list[WorkerPool] = []
        for process in self._processes:
            own = [worker for worker in process.workers if worker in left]
            left.difference_update(own)
            if own:
                specs = [self._worker_spec(worker, prepared.queues) for worker in own]
                pools.append(WorkerPool(specs, log.bind(manager=self._uuid), process.middleware, process.lifespan))
        return pools

    def _worker_spec(self, worker: type[AbstractWorker], queues: Queues) -> WorkerSpec:
        return WorkerSpec.of(self._workers[worker].settings, worker, queues[worker], 0)


@dataclass(slots=True)
class _Prepared:
    """The store's reply: the queues of the workers, and which workers are disabled."""

    queues: Queues = field(default_factory=dict)
    off: frozenset[str] = frozenset()


@dataclass(slots=True)
class _Tick:
    """One tick, in the event loop of its caller."""

    name: str
    portal: Portal[JobService]
    pools: Sequence[WorkerPool]
    stopped: StopSignal
    handlers: list[Handler] = field(default_factory=list)

    async def run(
        self, budget: Budget, transactions: TransactionStore, lease_ms: int, shutdown_timeout: float
    ) -> TickResult:
        """Start the workers, run jobs, and shut the workers down."""
        try:
            if await self.stopped.comes_before(self._start()) or not self.handlers:
                return TickResult()
            await self._runtime(budget, transactions, lease_ms).run(shutdown_timeout)
            return await self.portal.call(partial(tick_result, budget))
        finally:
            await asyncio.gather(*(pool.shutdown() for pool in self.pools))

    async def _start(self) -> None:
        """Start the workers. If one fails, the others still run; if all fail, this raises."""
        starts = await asyncio.gather(*(pool.start_once(self.handlers.append) for pool in self.pools))
        problems = {name: problem for one in starts for name, problem in one.items()}
        if problems and not self.handlers:
            texts = "; ".join(f"{name}: {problem}" for name, problem in problems.items())
            raise BadConfiguration(f"no worker could start: {texts}")

    def _runtime(self, budget: Budget, transactions: TransactionStore, lease_ms: int) -> Runtime:
        make_fetcher = partial(
            Fetcher,
            self.portal.service,
            self.name,
            job_log=JobLog(self.name),
            owns_name=True,
            budget=budget,
            lease_ms=lease_ms,
            delays=bounded_delays,
        )
        return Runtime(make_fetcher, self.portal, self.stopped, transactions, handlers=self.handlers)
