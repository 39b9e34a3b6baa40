"""The use cases of a job's life, for every door: Python, command line, gRPC and REST."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeVar

from everwork.aio.batcher import Batcher
from everwork.aio.loops import BackgroundLoop
from everwork.aio.retrying import retry_while_unavailable
from everwork.codec.json import decode_policy
from everwork.core import checks
from everwork.core.job import HistoryEntry, Job, LeasedJob, NewJob
from everwork.core.leasing import Created, Demand, Judged, Lease, LeaseStatus, Settlement, Verdict, accepted
from everwork.core.limits import (
    ATTEMPTS_MAX,
    CREATE_BATCH_MAX,
    DELAY_MS_MAX,
    ERROR_CHARS_MAX,
    INSTANT_MS_MAX,
    LIST_LIMIT_DEFAULT,
    LIST_LIMIT_MAX,
    PAGE_BYTES_MAX,
    POLLERS_MAX,
    PRIORITY_MAX,
    PRIORITY_MIN,
    STATISTICS_KEEP_HOURS,
)
from everwork.core.outcome import Outcome, Release
from everwork.core.queries import Count, Explanation, JobFilter, Measure, Oldest, Page, Reason, Stats, TypeInfo
from everwork.core.states import FINISHED_STATES, State
from everwork.engines.contract import Engine
from everwork.engines.rules import with_automatic_requeue
from everwork.engines.values import Health
from everwork.exceptions import EngineError, InvalidInput, JobFailed, JobNotFound, ResultTimeout, WrongState
from everwork.service.dispatcher import SILENT, Dispatcher, Reporter
from everwork.service.explain import BlockedTypes, absent
from everwork.service.fleet.fleet import Fleet
from everwork.service.policies import Declared, Said, declare_policies, declare_settings
from everwork.service.result_waiter import ResultWaiter

if TYPE_CHECKING:
    from everwork.engines.contract import Clock
    from everwork.service.access.audit import Audit
    from everwork.service.access.keys import KeyRing
    from everwork.service.access.sessions import Sessions
    from everwork.service.monitor.doctor import Diagnosis
    from everwork.service.monitor.sampler import MetricsSampler
    from everwork.service.triggers.loop import Scheduled, TriggerLoop

SWEEP_SECONDS = 0.8

T = TypeVar("T")


class JobService:
    """What can be done with jobs. It lives in the event loop that opened it."""

    def __init__(
        self, engine: Engine, holder: str, *, pollers_max: int = POLLERS_MAX, reporter: Reporter = SILENT
    ) -> None:
        self._engine = engine
        self.holder = holder
        self.fleet = Fleet(engine)
        self._creates: Batcher[NewJob, Created] = Batcher(
            engine.create, CREATE_BATCH_MAX, partial(reporter.committed, "create")
        )
        self._dispatcher = Dispatcher(engine, self.hand_back, pollers_max, reporter)
        self._result_waiter = ResultWaiter(engine)
        self._upkeep = BackgroundLoop("everwork-upkeep", self._sweep, SWEEP_SECONDS)
        self._upkeep_at: float | None = None
        self._blocked_types = BlockedTypes(engine)
        self._hand_backs: set[asyncio.Task[None]] = set()

    async def open(self, *, upkeep: bool = True, create: bool = True) -> None:
        """Open the engine and begin to sweep; without `create`, only a store that has held jobs."""
        await self._engine.open(create=create)
        if upkeep:
            self._upkeep_at = time.monotonic()
            self._upkeep.start()

    async def close(self) -> None:
        """Stop sweeping, hand back what nobody took, and close the engine."""
        if self._upkeep_at is not None:
            await self._upkeep.abort()
        await self._dispatcher.close()
        await self._result_waiter.close()
        while self._hand_backs:
            await asyncio.wait(self._hand_backs)
        await self._engine.close()

    # A job's way --------------------------------------------------------------------------------

    async def create(self, jobs: Sequence[NewJob]) -> list[Created]:
        """Accept jobs, all or none; callers at the same time share a commit."""
        if len(jobs) > CREATE_BATCH_MAX:
            raise InvalidInput("jobs", f"must be at most {CREATE_BATCH_MAX:,} in one call, not {len(jobs):,}")
        return await self._creates.add(jobs)

    async def create_patiently(self, jobs: Sequence[NewJob]) -> list[Created]:
        """`create`, repeated for a while when the engine is away and nothing can be created twice."""
        return await patiently(lambda: self.create(jobs), jobs)

    async def lease(self, demand: Demand, wait_ms: int = 0) -> list[LeasedJob]:
        """Lease jobs; with nothing to do, wait for some as long as the caller allows.

        Who goes away in the middle strands nothing: what was leased for him is handed back.
        """
        return await self._dispatcher.lease(demand, wait_ms)

    async def settle(self, outcomes: Sequence[Outcome]) -> list[Judged]:
        """End attempts; callers at the same time share a step."""
        return await self._dispatcher.settle(outcomes)

    def hand_back(self, jobs: Sequence[LeasedJob]) -> None:
        """Let go of jobs that never reached their worker; nobody waits for it but `close`."""
        if jobs:
            task = asyncio.get_running_loop().create_task(self._hand_back(jobs))
            self._hand_backs.add(task)
            task.add_done_callback(self._hand_backs.discard)

    async def extend(self, key: int, attempt: int, lease_ms: int) -> Judged:
        """Let one lease end `lease_ms` from now; attempt 0 means the one that runs."""
        lease = Lease(key, attempt or (await self.get(key)).attempt)
        if (await self._engine.extend([lease], lease_ms))[0] is LeaseStatus.HELD:
            return Judged(Verdict.ACCEPTED, State.PROCESSING)
        job = await self.get(key)
        # Whoever named no attempt has lost none: the job is not running.
        is_lost = attempt > 0 and (job.attempt != attempt or job.state in (State.PENDING, State.PROCESSING))
        return Judged(Verdict.LEASE_LOST if is_lost else Verdict.WRONG_STATE, job.state)

    @property
    def upkeep_age_s(self) -> float | None:
        """How long ago upkeep was last done, or begun with; None if this service does none."""
        return None if self._upkeep_at is None else time.monotonic() - self._upkeep_at

    def waiting(self, type: str) -> int:
        """How many callers wait for jobs of a type."""
        return self._dispatcher.waiting(type)

    async def blockade(self, type: str) -> str | None:
        """What keeps a whole type from being given out; None if nothing does."""
        return await self._blocked_types.of(type)

    def end_polls(self) -> None:
        """Let everybody go who waits for jobs, with nothing; nobody waits from now on."""
        self._dispatcher.end_polls()

    async def result(self, key: int, timeout: float | None) -> str | None:
        """The result of a job, once it has one; the caller decides how long to wait."""
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

    # Changes ------------------------------------------------------------------------------------

    async def cancel(self, key: int, reason: str = "") -> State:
        """Cancel one job; the state it was in."""
        checks.text("reason", reason, ERROR_CHARS_MAX)
        return accepted(key, (await self._engine.cancel([checks.job_key(key)], reason))[0], "cancelled")

    async def requeue(self, key: int) -> State:
        """Bring one dead letter back."""
        return accepted(key, (await self._engine.requeue([checks.job_key(key)]))[0], "requeued")

    async def set_retries(self, key: int, retries: int) -> int:
        """Change how many attempts are left; the previous number."""
        checks.whole_number("retries", retries, 0, ATTEMPTS_MAX)
        judged = await self._engine.set_retries(checks.job_key(key), retries)
        if judged.verdict is Verdict.WRONG_STATE and judged.state is State.PENDING:
            raise WrongState(
                key, f"Job '{key}' is pending: 0 retries would leave it waiting for ever; cancel it instead"
            )
        accepted(key, judged, "given other retries")
        return judged.retries or 0

    async def reschedule(self, key: int, *, run_at_ms: int | None = None, delay_ms: int = 0) -> State:
        """Let one pending job run at another time; 0 ms from now is "run now"."""
        checks.whole_number("delay_ms", delay_ms, 0, DELAY_MS_MAX)
        if run_at_ms is not None:
            checks.whole_number("run_at_ms", run_at_ms, 0, INSTANT_MS_MAX)
        keys = [checks.job_key(key)]
        return accepted(
            key, (await self._engine.reschedule(keys, run_at_ms=run_at_ms, delay_ms=delay_ms))[0], "rescheduled"
        )

    async def set_priority(self, key: int, priority: int) -> State:
        """Change the priority of one pending job."""
        checks.whole_number("priority", priority, PRIORITY_MIN, PRIORITY_MAX)
        return accepted(key, (await self._engine.set_priority([checks.job_key(key)], priority))[0], "given a priority")

    async def delete(self, key: int) -> State:
        """Remove one finished job."""
        return accepted(key, (await self._engine.delete([checks.job_key(key)]))[0], "deleted")

    async def cancel_many(self, keys: Sequence[int], reason: str = "") -> list[Judged]:
        """Cancel pending and running jobs; one verdict per key."""
        return await self._engine.cancel(keys, reason)

    async def requeue_many(self, keys: Sequence[int]) -> list[Judged]:
        """Requeue dead letters; one verdict per key."""
        return await self._engine.requeue(keys)

    async def run_now_many(self, keys: Sequence[int]) -> list[Judged]:
        """Make pending jobs due now; one verdict per key."""
        return await self._engine.reschedule(keys)

    async def delete_many(self, keys: Sequence[int]) -> list[Judged]:
        """Delete finished jobs; one verdict per key."""
        return await self._engine.delete(keys)

    async def pause(self, type: str, paused: bool) -> None:
        """Pause or resume a type; running jobs are not affected."""
        await self._engine.pause(type, paused)

    # Questions ----------------------------------------------------------------------------------

    async def get(self, key: int) -> Job:
        """A job as it stands."""
        job = (await self._engine.get([checks.job_key(key)]))[0]
        if job is None:
            raise JobNotFound(key)
        return job

    async def get_many(self, keys: Sequence[int]) -> list[Job | None]:
        """Jobs as they stand; None for keys that do not exist."""
        return await self._engine.get(keys)

    async def owners(self, keys: Sequence[int]) -> list[str | None]:
        """The tenants of jobs; None for keys that do not exist."""
        return await self._engine.owners(keys)

    async def history(self, key: int) -> list[HistoryEntry]:
        """How a job's attempts ended."""
        return await self._engine.history(checks.job_key(key))

    async def explain(self, key: int) -> Explanation:
        """Why a job is not running."""
        explanation = await self._engine.explain(checks.job_key(key))
        if explanation is None:
            raise JobNotFound(key)
        if explanation.state is State.FAILED:
            return await self._explain_dead(explanation)
        if explanation.reason not in (Reason.QUEUED, Reason.NOT_ASKED):
            return explanation
        job = await self.get(key)
        return absent(explanation, await self.fleet.takers_of(job.type, job.group))

    async def _explain_dead(self, explanation: Explanation) -> Explanation:
        job, history = await self.get(explanation.key), await self.history(explanation.key)
        policy = next((info.policy for info in await self._engine.types() if info.type == job.type), None)
        return with_automatic_requeue(explanation, job, history, decode_policy(policy))

    async def stats(self, hours: int) -> Stats:
        """Counts, and what workers did lately."""
        return await self._engine.stats(checks.whole_number("hours", hours, 1, STATISTICS_KEEP_HOURS))

    async def measures(self, hours: int, type: str | None = None) -> list[Measure]:
        """How attempts went lately, of one type or of all; all tenants together."""
        return await self._engine.measures(checks.whole_number("hours", hours, 1, STATISTICS_KEEP_HOURS), type)

    async def look(self, wanted: JobFilter, limit: int, cursor: int | None = None) -> Page:
        """`find` in one step of the engine, however few jobs match: `next` tells where it stopped."""
        return await self._engine.find(wanted, limit, cursor)

    async def count(self) -> list[Count]:
        """How many jobs there are by type, group, tenant and state."""
        return await self._engine.count()

    async def oldest(self) -> list[Oldest]:
        """The oldest due job of each type and group."""
        return await self._engine.oldest()

    async def types(self) -> list[TypeInfo]:
        """Every type in the store, by name."""
        return await self._engine.types()

    async def now(self) -> int:
        """The store's time in milliseconds."""
        return await self._engine.now()

    async def health(self) -> Health:
        """What the engine reports about itself."""
        return await self._engine.health()

    @property
    def is_remote(self) -> bool:
        """Whether the store is reached over a network."""
        return self._engine.is_remote

    # For runtimes: whole batches, on the hot path. The engine's coroutine is returned as it is, so nothing is awaited
    # twice. -------------------------------------------------------------------------------------

    def step(self, outcomes: Sequence[Outcome], demands: Sequence[Demand] = ()) -> Coroutine[Any, Any, Settlement]:
        """Settle outcomes and lease jobs in one step of the engine, not shared with other callers."""
        return self._engine.settle(outcomes, demands)

    def extend_all(self, leases: Sequence[Lease], lease_ms: int) -> Coroutine[Any, Any, list[LeaseStatus]]:
        """Let leases end `lease_ms` from now; one status per lease."""
        return self._engine.extend(leases, lease_ms)

    def check(self, leases: Sequence[Lease]) -> Coroutine[Any, Any, list[LeaseStatus]]:
        """Whether leases still hold; one status per lease."""
        return self._engine.check(leases)

    def mark(self) -> int:
        """The number of wake-ups so far: `wait_for_jobs` returns immediately if there were more since."""
        return self._engine.mark()

    def wait_for_jobs(self, types: Sequence[str], timeout_ms: int, since: int) -> Coroutine[Any, Any, bool]:
        """Wait until jobs of these types may be due; False after the timeout."""
        return self._engine.wait(types, timeout_ms, since=since)

    async def held(self, worker: str) -> dict[tuple[int, int], None]:
        """The keys and attempts leased by a worker, in order; also those of a step whose answer was lost."""
        query = JobFilter(worker=worker, states=frozenset([State.PROCESSING]))
        held: dict[tuple[int, int], None] = {}
        cursor: int | None = None
        while True:
            page = await self.find(query, LIST_LIMIT_MAX, cursor)
            held |= {(job.key, job.attempt): None for job in page.jobs}
            cursor = page.next
            if cursor is None:
                return held

    async def subscribe(self, type: str, worker: str) -> str:
        """The group in which a worker class takes jobs of a type."""
        return await self._engine.subscribe(type, worker)

    async def declare_policies(self, policies: Mapping[str, Said]) -> None:
        """Store the policies that a program declares for types, overridden by the settings of its process."""
        await declare_policies(self._engine, policies)

    async def declare_settings(self, declared: Declared) -> None:
        """Store the policies that a settings file declares for types."""
        await declare_settings(self._engine, declared)

    async def sweep(self, holder: str | None = None) -> bool:
        """Do one step of upkeep; whether there is more to do."""
        return (await self._engine.sweep(holder or self.holder)).more

    # What else is kept in the store. Imported when used: applications and workers need none of it. ------------------

    @cached_property
    def audit(self) -> Audit:
        """The audit log."""
        from everwork.service.access.audit import Audit  # noqa: PLC0415

        return Audit(self._engine)

    @cached_property
    def sessions(self) -> Sessions:
        """The dashboard's sessions."""
        from everwork.service.access.sessions import Sessions  # noqa: PLC0415

        return Sessions(self._engine)

    def key_ring(self) -> KeyRing:
        """The API keys, not refreshed until it is opened."""
        from everwork.service.access.keys import KeyRing  # noqa: PLC0415

        return KeyRing(self._engine)

    def sampler(self) -> MetricsSampler:
        """A metrics sampler, which reads on request until it is opened."""
        from everwork.service.monitor.sampler import MetricsSampler  # noqa: PLC0415

        return MetricsSampler(self._engine, self.holder)

    def trigger_loop(self, triggers: Iterable[Scheduled]) -> TriggerLoop:
        """A loop that fires these triggers, except those that are switched off."""
        from everwork.service.triggers.loop import TriggerLoop  # noqa: PLC0415

        return TriggerLoop(self._engine, triggers, self.fleet.triggers_off)

    async def examine(self, host_clock: Clock) -> Diagnosis:
        """What the doctor finds."""
        from everwork.service.monitor.doctor import examine  # noqa: PLC0415

        return await examine(self._engine, host_clock)

    # Inside -------------------------------------------------------------------------------------

    async def _hand_back(self, jobs: Sequence[LeasedJob]) -> None:
        """Failing this, the leases lapse."""
        outcomes = [Release(job.key, job.attempt) for job in jobs]
        with suppress(EngineError):
            await retry_while_unavailable(lambda: self.settle(outcomes), None)

    async def _sweep(self) -> bool:
        has_more = await self.sweep()
        self._upkeep_at = time.monotonic()
        return has_more

    async def find(self, wanted: JobFilter, limit: int, cursor: int | None = None) -> Page:
        """Matching jobs, newest first: a full page, unless there are no more or they are large."""
        checks.whole_number("limit", limit, 1, LIST_LIMIT_MAX)
        jobs: list[Job] = []
        size = 0
        while True:
            page = await self._engine.find(wanted, min(limit - len(jobs), _step(len(jobs), size)), cursor)
            jobs += page.jobs
            size += sum(len(job.variables) + len(job.result or "") for job in page.jobs)
            cursor = page.next
            if cursor is None or len(jobs) >= limit or size >= PAGE_BYTES_MAX:
                return Page(jobs, cursor)


async def patiently(create: Callable[[], Awaitable[list[Created]]], jobs: Sequence[NewJob]) -> list[Created]:
    """Create jobs; if the engine is away, try again for a while, provided that each has a dedupe key.

    Without one nobody knows whether a create that got no answer has happened: that is the caller's to decide.
    """
    if not jobs or any(job.dedupe_key is None for job in jobs):
        return await create()
    return await retry_while_unavailable(create, None)


def _step(jobs: int, size: int) -> int:
    """How many jobs to read next: as many as fit into the page, going by those that are there."""
    return max(1, (PAGE_BYTES_MAX - size) * jobs // size) if size else LIST_LIMIT_DEFAULT


def _result(job: Job) -> str | None:
    if job.state is State.COMPLETED:
        return job.result
    raise JobFailed(job.key, f"Job '{job.key}' {job.state.label}: {job.last_error or 'no reason given'}")
