"""Runs one attempt in a test: leases it, runs it as workers do, and settles it unless a fault prevents that."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from everwork.core import outcome as o
from everwork.core.job import LeasedJob
from everwork.core.leasing import Demand, Failure, Judged, Verdict
from everwork.core.limits import LEASE_MS_DEFAULT
from everwork.core.outcome import Outcome, kind_of
from everwork.exceptions import Fail
from everwork.runtime.attempt import Attempt, Stop
from everwork.runtime.executor import Executor
from everwork.runtime.handler import Handler, QueueKey
from everwork.runtime.job_log import JobLog
from everwork.runtime.source import Report
from everwork.service.service import JobService
from everwork.testing.faults import Fault
from everwork.testing.harness import HOLDER, Harness

ABANDON_SECONDS: Final = 0.1

_abandoned: list[asyncio.Task[Any]] = []
"""Strong references to abandoned tasks, because asyncio warns when a pending task is destroyed."""


class Run(NamedTuple):
    """One attempt that was run in a test, returned by `Stage.drain` and `Stage.run_one`.

    `key`, `type` and `attempt` identify it. `outcome` is its name in the job's history: `complete`, `fail`, `retry`,
    `reject` or `release`. `exception` is what the handler raised, including signals such as `Fail`; it is a
    `TimeoutError` after a timeout, and a `Fail` if the arguments or the result are invalid. `verdicts` are the store's
    replies to each report of the outcome, empty if an injected fault discarded the outcome.
    """

    key: int
    type: str
    attempt: int
    outcome: str
    error: str | None
    exception: BaseException | None
    verdicts: tuple[Verdict, ...]
    fault: str | None


class Simulation:
    """Runs attempts one at a time, in the running event loop; queues take turns."""

    def __init__(self, harness: Harness, handlers: Sequence[Handler]) -> None:
        self._harness = harness
        self._job_log = JobLog(HOLDER)
        self._turns: deque[tuple[QueueKey, Handler]] = deque((queue, one) for one in handlers for queue in one.queues)

    async def run_next(self, end_ms: int | None) -> Run | None:
        """Run the next job; if none is due, jump ahead in time, up to `end_ms` or while any job can run."""

        async def take(service: JobService) -> tuple[LeasedJob, Handler] | None:
            leased = await self._lease(service)
            while leased is None and await self._harness.jump(service, end_ms):
                leased = await self._lease(service)
            return leased

        leased = await self._harness.call(take)
        return None if leased is None else await self._run(*leased)

    async def _lease(self, service: JobService) -> tuple[LeasedJob, Handler] | None:
        """In the engine's loop: try every queue, starting with the one whose turn it is."""
        for _ in range(len(self._turns)):
            queue, handler = self._turns[0]
            self._turns.rotate(-1)
            demand = Demand(queue.type, HOLDER, 1, LEASE_MS_DEFAULT, queue.group)
            if jobs := (await service.step((), [demand])).activation.jobs:
                return jobs[0], handler
        return None

    async def _run(self, job: LeasedJob, handler: Handler) -> Run:
        fault = self._harness.faults.take(job.type)
        attempt, outcome = await self._call_handler(job, handler)
        verdicts: list[Verdict] = []
        if fault is Fault.LOSE_LEASE:
            await self._expire_lease(job)
        if fault is Fault.CRASH_BEFORE_SETTLE:
            self._log_failure(attempt, outcome, None)
        else:
            verdicts.append(await self._settle(attempt, outcome))
        if fault is Fault.DUPLICATE_DELIVERY:
            verdicts.append(await self._settle(*await self._call_handler(job, handler)))
        if fault is Fault.CRASH_AFTER_SETTLE:
            verdicts.append((await self._judged(outcome)).verdict)
        return Run(
            key=job.key,
            type=job.type,
            attempt=job.attempt,
            outcome=kind_of(outcome),
            error=None if isinstance(outcome, o.Complete | o.Release) else outcome.error,
            exception=_raised(attempt, outcome),
            verdicts=tuple(verdicts),
            fault=None if fault is None else fault.value,
        )

    async def _call_handler(self, job: LeasedJob, handler: Handler) -> tuple[Attempt, Outcome]:
        """Call the handler as workers do, with middleware, arguments and threads.

        Each attempt has its own executor, so that an attempt that ignores its timeout does not delay the others.
        """
        ended: asyncio.Queue[Report] = asyncio.Queue()
        executor = Executor(partial(_put, ended), self._harness.own, outage_pause=lambda _: 0.0)
        executor.add(handler)
        attempt = Attempt(job, time.monotonic(), handler)
        executor.accept([attempt])
        outcome, is_free = None, False
        try:
            while outcome is None:
                _, outcome, is_free = await ended.get()
        finally:
            executor.close()
            if not is_free:
                await _abandon(executor)
        return attempt, outcome

    async def _settle(self, attempt: Attempt, outcome: Outcome) -> Verdict:
        judged = await self._judged(outcome)
        self._log_failure(attempt, outcome, judged.failure)
        return judged.verdict

    async def _judged(self, outcome: Outcome) -> Judged:
        return (await self._harness.call(lambda service: service.step([outcome]))).judged[0]

    def _log_failure(self, attempt: Attempt, outcome: Outcome, failure: Failure | None) -> None:
        if not isinstance(outcome, o.Complete | o.Release):
            self._job_log.failed(attempt, outcome, failure)

    async def _expire_lease(self, job: LeasedJob) -> None:
        """Let the lease expire while the handler is running, and sweep."""
        clock = self._harness.clock
        clock.move_to(max(clock.now_ms, job.lease_until_ms))
        await self._harness.upkeep()


def _put(ended: asyncio.Queue[Report], reports: list[Report]) -> None:
    for report in reports:
        ended.put_nowait(report)


async def _abandon(executor: Executor) -> None:
    """Abandon runners that ignore their cancellation, so that the end of the event loop does not wait for them."""
    runners = [task for task in asyncio.all_tasks() if executor.is_runner(task)]
    if runners:
        await asyncio.wait(runners, timeout=ABANDON_SECONDS)
    for task in runners:
        if not task.done():
            _abandoned.append(task)
            asyncio._unregister_task(task)  # noqa: SLF001 - documented, for third-party task implementations


def _raised(attempt: Attempt, outcome: Outcome) -> BaseException | None:
    """The exception that the handler raised, or an equivalent one if the outcome has none."""
    if attempt.stop is Stop.TIMED_OUT and isinstance(outcome, o.Failed):
        return TimeoutError(outcome.error)
    if attempt.error is not None or isinstance(outcome, o.Complete | o.Release):
        return attempt.error
    return Fail(outcome.error)
