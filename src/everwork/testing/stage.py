"""The stage of a rehearsal: runs an application's jobs one at a time, with a virtual clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

from everwork.core import checks
from everwork.exceptions import BadConfiguration, InvalidInput
from everwork.testing.assertions import Assertions
from everwork.testing.clock import span_ms
from everwork.testing.harness import Harness
from everwork.testing.simulation import Run, Simulation

JOBS_MAX: Final = 1_000
STEPS_MAX: Final = 1_000_000
RUNS_SHOWN: Final = 5
RETRY: Final = "retry"


class StillBusy(AssertionError):
    """Raised by `Stage.drain` if more than `max_jobs` jobs were run; an assertion error."""


class Stage(Assertions):
    """Runs jobs in an async test; `async with rehearse(app) as stage` returns one.

    Methods that run handlers or let time pass are awaited (`drain`, `advance`, `run_one`); queries, assertions and
    faults are not.
    """

    def __init__(self, backstage: Harness) -> None:
        super().__init__(backstage)
        self._is_busy = False

    async def drain(
        self,
        *,
        until_empty: bool = False,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        max_jobs: int = JOBS_MAX,
        raise_errors: bool = False,
    ) -> list[Run]:
        """Run all due jobs, one at a time, until none is due; returns the attempts that were run.

        Args:
            until_empty: Whether to also skip over backoffs, delays, open breakers and leases, until no job can run.
            days, hours, minutes, seconds: Run jobs while this much time passes, as running workers would: `hours=24`.
            max_jobs: Raise `StillBusy` after more jobs than this.
            raise_errors: Whether to raise exceptions of handlers here, after their attempt is settled. `Retry` is not
                raised.
        """
        span = span_ms(days=days, hours=hours, minutes=minutes, seconds=seconds)
        if until_empty and span:
            raise InvalidInput("until_empty", "cannot be combined with days, hours, minutes or seconds")
        checks.whole_number("max_jobs", max_jobs, 1, STEPS_MAX)
        end_ms = None if until_empty else self.clock.now_ms + span
        runs: list[Run] = []
        async with self._simulation() as simulation:
            await self._harness.upkeep()
            while (run := await simulation.run_next(end_ms)) is not None:
                runs.append(run)
                if raise_errors and run.exception is not None and run.outcome != RETRY:
                    raise run.exception
                if len(runs) > max_jobs:
                    raise StillBusy(_still_busy_text(runs, max_jobs))
        return runs

    async def advance(self, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0) -> None:
        """Let time pass without workers: leases and jobs expire, triggers fire, dead letters are requeued."""
        end_ms = self.clock.now_ms + span_ms(days=days, hours=hours, minutes=minutes, seconds=seconds)
        await self._harness.upkeep()
        await self._harness.pass_until(end_ms)

    async def run_one(self) -> Run | None:
        """Run the next due job and return its attempt; None if no job is due."""
        async with self._simulation() as simulation:
            await self._harness.upkeep()
            return await simulation.run_next(self.clock.now_ms)

    @asynccontextmanager
    async def _simulation(self) -> AsyncIterator[Simulation]:
        if self._is_busy:
            raise BadConfiguration("the stage is busy: another call is running jobs on it")
        self._is_busy = True
        try:
            yield Simulation(self._harness, await self._harness.handlers())
        finally:
            self._is_busy = False


def _still_busy_text(runs: list[Run], max_jobs: int) -> str:
    last = "\n".join(f"  job {run.key} of type '{run.type}', attempt {run.attempt}" for run in runs[-RUNS_SHOWN:])
    return f"more than {max_jobs:,} jobs were run; if that is intended, pass a higher max_jobs. The last ones:\n{last}"


T = TypeVar("T")


class SyncStage(Assertions):
    """`Stage` for synchronous tests: each call blocks; handlers run in the stage's own event loop."""

    def __init__(self, backstage: Harness) -> None:
        super().__init__(backstage)
        self._stage = Stage(backstage)
        self._runner = asyncio.Runner()

    def drain(
        self,
        *,
        until_empty: bool = False,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        max_jobs: int = JOBS_MAX,
        raise_errors: bool = False,
    ) -> list[Run]:
        """Run all due jobs; see `Stage.drain`."""
        return self._run(
            self._stage.drain(
                until_empty=until_empty,
                days=days,
                hours=hours,
                minutes=minutes,
                seconds=seconds,
                max_jobs=max_jobs,
                raise_errors=raise_errors,
            )
        )

    def advance(self, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0) -> None:
        """Let time pass without workers; see `Stage.advance`."""
        self._run(self._stage.advance(days=days, hours=hours, minutes=minutes, seconds=seconds))

    def run_one(self) -> Run | None:
        """Run the next due job and return its attempt; None if no job is due."""
        return self._run(self._stage.run_one())

    def close(self) -> None:
        """Shut down the workers and close the event loop."""
        try:
            if self._harness.is_started:
                self._run(self._harness.shutdown())
        finally:
            self._runner.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if is_in_loop():
            work.close()
            raise BadConfiguration(
                "an event loop is already running in this thread: use `async with rehearse(...)` and await"
            )
        return self._runner.run(work)


def is_in_loop() -> bool:
    """Whether an event loop is running in this thread, in which case the caller must not block."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
