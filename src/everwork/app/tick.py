"""Ticks: maintenance, due triggers and a bounded number of jobs, for short-lived programs such as cron jobs."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from everwork.core import checks
from everwork.core.limits import LIST_LIMIT_MAX, TICK_JOBS_DEFAULT, TICK_JOBS_MAX
from everwork.core.states import State
from everwork.exceptions import InvalidInput
from everwork.runtime.capacity import Budget
from everwork.runtime.dependencies.process import ProcessScope
from everwork.runtime.portal import Use
from everwork.runtime.runtime import Runtime
from everwork.runtime.shutdown import StopSignal
from everwork.service.service import JobService

if TYPE_CHECKING:
    from everwork.app.engine_host import EngineHost

VARIABLE: Final = "EVERWORK_JOBS_PER_TICK"


@dataclass(frozen=True, slots=True, kw_only=True)
class TickResult:
    """The summary of a tick: how many attempts it started, and how they ended.

    `lost` attempts have no stored outcome, because the job was cancelled or its lease expired. `released` ones were
    returned to the queue, whether started or not, and do not count as attempts.
    """

    ran: int = 0
    completed: int = 0
    failed: int = 0
    retried: int = 0
    lost: int = 0
    released: int = 0


class TickRunner:
    """The ticks of one application; several can run concurrently."""

    def __init__(
        self,
        host: EngineHost,
        make: Callable[[StopSignal, ProcessScope, Budget], Runtime],
        enter: Callable[[StopSignal, float], AbstractAsyncContextManager[ProcessScope | None]],
    ) -> None:
        self._host = host
        self._make = make
        self._enter = enter
        self.runtimes: set[Runtime] = set()
        self._stops: set[StopSignal] = set()

    async def run(self, prepare: Use[JobService, None], jobs_max: int, shutdown_timeout: float) -> TickResult:
        """Prepare, then run up to `jobs_max` jobs."""
        stopped = StopSignal()
        self._stops.add(stopped)
        try:
            if await stopped.comes_before(self._host.call(prepare)):
                return TickResult()
            async with self._enter(stopped, shutdown_timeout) as process:
                if process is None:
                    return TickResult()
                return await self._run(stopped, process, jobs_max, shutdown_timeout)
        finally:
            self._stops.discard(stopped)

    async def _run(
        self, stopped: StopSignal, process: ProcessScope, jobs_max: int, shutdown_timeout: float
    ) -> TickResult:
        budget = Budget(jobs_max)
        runtime = self._make(stopped, process, budget)
        self.runtimes.add(runtime)
        try:
            await runtime.run(shutdown_timeout)
        finally:
            self.runtimes.discard(runtime)
        return await self._host.call(partial(tick_result, budget))

    @property
    def is_live(self) -> bool:
        """Whether any tick is running or starting."""
        return bool(self._stops)

    def stop(self) -> None:
        """Stop all ticks: running jobs finish, no others start. The second call cancels running jobs."""
        for stopped in tuple(self._stops):
            stopped.request()


def jobs_per_tick(given: object) -> int:
    """The maximum number of jobs per tick: the argument, then the environment variable, then the default."""
    if given is not None:
        return checks.whole_number("max_jobs", given, 1, TICK_JOBS_MAX)
    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        return TICK_JOBS_DEFAULT
    if not (text.isascii() and text.isdigit()):
        raise InvalidInput(VARIABLE, f"must be a whole number from 1 to {TICK_JOBS_MAX}, not {checks.shown(text)}")
    return checks.whole_number(VARIABLE, int(text), 1, TICK_JOBS_MAX)


async def tick_result(budget: Budget, service: JobService) -> TickResult:
    """The summary of a tick; only the engine knows whether a failed attempt will be retried."""
    failed = 0
    for start in range(0, len(budget.failed), LIST_LIMIT_MAX):
        part = budget.failed[start : start + LIST_LIMIT_MAX]
        jobs = await service.get_many([key for key, _ in part])
        for (_, number), job in zip(part, jobs, strict=True):
            failed += job is None or (job.attempt == number and job.state is State.FAILED)
    return TickResult(
        ran=len(budget.begun),
        completed=len(budget.completed),
        failed=failed,
        retried=len(budget.failed) - failed,
        lost=budget.lost,
        released=len(budget.released),
    )
