"""All operations on jobs, for every interface: Python, command line, gRPC and REST."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence, Sized
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any, Final, TypeVar

from everwork.aio.batcher import Batcher, Promise
from everwork.aio.loops import BackgroundLoop
from everwork.aio.retrying import retry_while_unavailable
from everwork.core import checks
from everwork.core.breaker import BreakerState, BreakerStatus
from everwork.core.job import LeasedJob, NewJob, StoredJob
from everwork.core.leasing import Created, Demand, Judged, Stamp
from everwork.core.limits import (
    CREATE_BATCH_MAX,
    CREATE_SHARED_MAX,
    DELAY_MS_MAX,
    LIST_LIMIT_DEFAULT,
    LIST_LIMIT_MAX,
    PAGE_BYTES_MAX,
    STATISTICS_KEEP_HOURS,
)
from everwork.core.outcome import Outcome, Release
from everwork.core.queries import JobFilter, Measure, Page, Stats, in_order
from everwork.core.states import FINISHED_STATES, State
from everwork.engines.contract import Engine
from everwork.exceptions import EngineError, InvalidInput, JobCancelled, JobFailed, JobNotFound, ResultTimeout
from everwork.service.access.budgets import Budgets
from everwork.service.access.principal import Party
from everwork.service.damaged import without_damaged
from everwork.service.dispatcher import SILENT, Dispatcher, Reporter
from everwork.service.explain import BlockedTypes
from everwork.service.job_types import DEFAULT_RULES, TypeLimits, TypeRetention, TypeRules
from everwork.service.new_names import ProducerLimits
from everwork.service.result_waiter import ResultWaiter
from everwork.service.store_access import StoreAccess
from everwork.spool.settings import Offline

SWEEP_SECONDS = 0.8
FORGET_FIRST_SECONDS: Final = 600.0
"""How long a process runs before it first looks for unused types and keys: few stores have any."""
FORGET_SECONDS: Final = 3_600.0
SEARCH_STEPS_MAX: Final = 10
"""The maximum number of engine steps for one search in variables, because few jobs may match."""

T = TypeVar("T")


class JobService(StoreAccess):
    """Creates, leases, settles, changes and finds jobs. Bound to the event loop that opened it."""

    def __init__(
        self,
        engine: Engine,
        holder: str,
        *,
        budgets: Budgets | None = None,
        reporter: Reporter = SILENT,
        offline: Offline | None = None,
        types: TypeRules = DEFAULT_RULES,
    ) -> None:
        """With `offline`, jobs and outcomes are stored in a local spool while the engine is unavailable."""
        super().__init__(engine, holder, offline)
        create = engine.create if self.outbox is None else self.outbox.create
        self._creates: Batcher[NewJob, Created] = Batcher(
            create, CREATE_SHARED_MAX, None if reporter is SILENT else partial(reporter.committed, "create")
        )
        self.budgets = budgets or Budgets()
        self._dispatcher = Dispatcher(engine, self.release_undelivered, self.budgets.polls, reporter)
        self._result_waiter = ResultWaiter(engine)
        self._upkeep = BackgroundLoop("everwork-upkeep", self._sweep, SWEEP_SECONDS)
        self._upkeep_at: float | None = None
        self._blocked_types = BlockedTypes(engine)
        self._releases: set[asyncio.Task[None]] = set()
        self.type_rules = types
        self.type_limits = TypeLimits(engine, types)
        self.producer_limits = ProducerLimits()
        self._forget_at = float("inf")

    async def open(self, *, upkeep: bool = True, create: bool = True) -> None:
        """Open the engine and start the sweep; without `create`, the store must already exist."""
        self._may_create = create
        await (self.connect() if self.outbox is None else self.outbox.open())
        self._creates.open()
        if upkeep:
            self._upkeep_at = time.monotonic()
            self._forget_at = self._upkeep_at + FORGET_FIRST_SECONDS
            self._upkeep.start()

    async def close(self) -> None:
        """Stop sweeping, release undelivered jobs, and close the engine."""
        self._creates.close()
        if self._upkeep_at is not None:
            await self._upkeep.abort()
        await self._dispatcher.close()
        await self.clients.close()
        await self._result_waiter.close()
        while self._releases:
            await asyncio.wait(self._releases)
        await self.close_audit()
        if self.outbox is not None:
            await self.outbox.close()
        await self._engine.close()

    # Life cycle ---------------------------------------------------------------------------------

    # `create` returns a coroutine instead of awaiting it: every layer costs the caller time.

    def create(self, jobs: Sequence[NewJob], stamp: Stamp | None = None) -> Coroutine[Any, Any, list[Created]]:
        """Create jobs, all or none; concurrent callers share a commit.

        A caller with a stamp repeats a failed call, so its call is not batched and its jobs are never spooled here.
        """
        require_one_batch(jobs)
        return self._creates.add(jobs) if stamp is None else self.create_stamped(jobs, stamp)

    def start_create(self, jobs: Sequence[NewJob], promise: Promise[Created]) -> None:
        """`create` for a caller in another thread or event loop, which waits for the promise."""
        require_one_batch(jobs)
        self._creates.put(jobs, promise)

    async def create_alone(self, jobs: Sequence[NewJob]) -> list[Created] | None:
        """`create` in the caller's thread, if there are no other callers; None if `create` must be used instead."""
        require_one_batch(jobs)
        return await self._engine.create_alone(jobs)

    def create_retrying(self, jobs: Sequence[NewJob]) -> Coroutine[Any, Any, list[Created]]:
        """`create`, retried through an outage if every job has a dedupe key.

        Without one, a create whose answer was lost may have succeeded: the caller decides whether to repeat it.
        """
        if is_repeatable(jobs) and self.outbox is None:
            return retry_while_unavailable(lambda: self.create(jobs), None)
        return self.create(jobs)

    async def activate(self, demand: Demand, wait_ms: int = 0, caller: str = "", party: Party = "") -> list[LeasedJob]:
        """Lease jobs; if none is due, wait up to `wait_ms`. `caller`: the API key's id; `party`: see `Principal.party`.

        If the caller disconnects, its leases are released.
        """
        if wait_ms <= 0:
            return await self._dispatcher.activate(demand, wait_ms, caller, party)
        with self.clients.polling(caller, demand):
            return await self._dispatcher.activate(demand, wait_ms, caller, party)

    async def settle(self, outcomes: Sequence[Outcome]) -> list[Judged]:
        """Settle attempts; concurrent callers share a step. After an outage, expired leases are restored."""
        judged = (await self._answered(self._dispatcher.settle(outcomes))).judged
        return await self._settle_lapsed(outcomes, judged) if self.is_late else judged

    async def deliverable(self, jobs: list[LeasedJob]) -> list[LeasedJob]:
        """The leased jobs, except those whose JSON was damaged in the store, which become dead letters."""
        try:
            return await without_damaged(jobs, self.settle)
        except BaseException:
            self.release_undelivered(jobs)
            raise

    def release_undelivered(self, jobs: Sequence[LeasedJob]) -> None:
        """Release jobs that never reached their worker, in the background; `close` waits for it."""
        if jobs:
            # Until then, only their keys and attempts are kept: the jobs may be large.
            releases = [Release(job.key, job.attempt) for job in jobs]
            task = asyncio.get_running_loop().create_task(self._release(releases))
            self._releases.add(task)
            task.add_done_callback(self._releases.discard)

    @property
    def upkeep_age_s(self) -> float | None:
        """Seconds since the last sweep, or since the start; None if this service does not sweep."""
        return None if self._upkeep_at is None else time.monotonic() - self._upkeep_at

    def waiting(self, type: str) -> int:
        """How many long polls are waiting for jobs of a type."""
        return self._dispatcher.waiting(type)

    async def blocked_reason(self, type: str, *, names_probe: bool = True) -> str | None:
        """Why no job of a type is leased: the type is paused or its breaker is open; None if neither applies."""
        return await self._blocked_types.reason(type, names_probe=names_probe)

    async def breaker(self, type: str) -> BreakerStatus:
        """The circuit breaker of a type; closed if the type is unknown."""
        checks.name("type", type)
        for info in await self._engine.types():
            if info.type == type:
                return BreakerStatus(
                    type=type,
                    state=info.breaker,
                    failures=info.breaker_failures,
                    open_until_ms=info.breaker_open_until_ms,
                    probe_key=info.breaker_probe_key,
                )
        return BreakerStatus(type=type, state=BreakerState.CLOSED)

    def end_polls(self) -> None:
        """Answer all long polls without jobs; later polls return immediately."""
        self._dispatcher.end_polls()

    async def result(self, key: int, timeout: float | None) -> str | None:
        """The result of a job, once it has finished; a timeout of None waits forever."""
        loop = asyncio.get_running_loop()
        ends = None if timeout is None else loop.time() + checks.number("timeout", timeout, 0, DELAY_MS_MAX / 1000)
        mark = self._engine.mark_finished()
        job = await retry_while_unavailable(lambda: self.get(key), ends)
        if job.state not in FINISHED_STATES:
            try:
                async with asyncio.timeout_at(ends):
                    job = await self._result_waiter.job(key, mark)
            except TimeoutError:
                job = await retry_while_unavailable(lambda: self.get(key), None)
        if job.state not in FINISHED_STATES:
            raise ResultTimeout(f"job '{key}' is still {job.state.label} after {timeout:g} s")
        return _result(job)

    # Queries ----------------------------------------------------------------------------------

    async def get(self, key: int) -> StoredJob:
        """A job in its current state."""
        job = (await self._engine.get([checks.job_key(key)]))[0]
        if job is None:
            raise JobNotFound(key)
        return job

    async def stats(self, hours: int) -> Stats:
        """Job counts, and worker activity in the last hours."""
        return await self._engine.stats(checks.whole_number("hours", hours, 1, STATISTICS_KEEP_HOURS))

    async def measures(self, hours: int, type: str | None = None) -> list[Measure]:
        """Run times, queue waits and errors of the last hours, of one type or of all, across tenants."""
        return await self._engine.measures(checks.whole_number("hours", hours, 1, STATISTICS_KEEP_HOURS), type)

    async def hour_totals(self, hours: int, type: str | None = None) -> list[Measure]:
        """The statistics of the last hours, by hour, of one type or of all together, across workers and tenants."""
        return await self._engine.hour_totals(checks.whole_number("hours", hours, 1, STATISTICS_KEEP_HOURS), type)

    async def find(self, filter_: JobFilter, limit: int, cursor: int | None = None) -> Page:
        """Matching jobs, in the filter's order: a full page, unless there are no more jobs or the jobs are large.

        A search in variables also ends after SEARCH_STEPS_MAX engine steps; `next` is where it stopped.
        """
        checks.whole_number("limit", limit, 1, LIST_LIMIT_MAX)
        filter_ = in_order(filter_, cursor)
        jobs: list[StoredJob] = []
        size = 0
        steps_max = None if filter_.variables_text is None else SEARCH_STEPS_MAX
        for step in count(1):
            page = await self._engine.find(filter_, min(limit - len(jobs), _step(len(jobs), size)), cursor)
            jobs += page.jobs
            size += sum(len(job.variables) + len(job.result or "") for job in page.jobs)
            cursor = page.next
            if cursor is None or len(jobs) >= limit or size >= PAGE_BYTES_MAX or step == steps_max:
                break
        return Page(jobs, cursor)

    async def held(self, worker: str) -> dict[tuple[int, int], None]:
        """The keys and attempts leased by a worker, in order, including those of a step whose answer was lost."""
        query = JobFilter(worker=worker, states=frozenset([State.PROCESSING]))
        held: dict[tuple[int, int], None] = {}
        cursor: int | None = None
        while True:
            page = await self.find(query, LIST_LIMIT_MAX, cursor)
            held |= {(job.key, job.attempt): None for job in page.jobs}
            cursor = page.next
            if cursor is None:
                return held

    # Internals -------------------------------------------------------------------------------------

    async def _release(self, releases: Sequence[Release]) -> None:
        """Release leased jobs; if the engine stays unavailable, their leases expire."""
        with suppress(EngineError):
            await retry_while_unavailable(lambda: self.settle(releases), None)

    async def _sweep(self) -> bool:
        has_more = await self.sweep()
        self._upkeep_at = now = time.monotonic()
        if now >= self._forget_at:
            self._forget_at = now + FORGET_SECONDS
            await TypeRetention(self._engine, self.holder, self.type_rules).tick()
            await self.forget_keys()
        return has_more


def is_repeatable(jobs: Sequence[NewJob]) -> bool:
    """Whether creating these jobs again creates no duplicates."""
    for job in jobs:  # A generator would cost more than the check, because most calls have one job.
        if job.dedupe_key is None:
            return False
    return bool(jobs)


def require_one_batch(jobs: Sized) -> None:
    """Refuse more jobs than one call may create."""
    if len(jobs) > CREATE_BATCH_MAX:
        raise InvalidInput("jobs", f"must be at most {CREATE_BATCH_MAX:,} in one call, not {len(jobs):,}")


def _step(jobs: int, size: int) -> int:
    """How many jobs to read next: as many as fit into the page, by the average size so far."""
    return max(1, (PAGE_BYTES_MAX - size) * jobs // size) if size else LIST_LIMIT_DEFAULT


def _result(job: StoredJob) -> str | None:
    if job.state is State.COMPLETED:
        return job.result
    error, reason = (JobCancelled, "cancelled") if job.state is State.CANCELLED else (JobFailed, "failed")
    raise error(job.key, f"Job '{job.key}' {reason}: {job.last_error or 'no reason given'}", job.last_error or "")
