"""A tick: upkeep, due triggers and a bounded number of jobs, for short-lived programs such as cron jobs."""

from __future__ import annotations

import math
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from everwork.aio.retrying import OUTAGE_SECONDS_MAX, backoff_delays
from everwork.core import checks
from everwork.core.leasing import Activation, Judged
from everwork.core.limits import LIST_LIMIT_MAX, TICK_JOBS_DEFAULT, TICK_JOBS_MAX
from everwork.core.outcome import Complete, Outcome, Release
from everwork.core.states import State
from everwork.exceptions import InvalidInput
from everwork.runtime.attempt import Attempt
from everwork.runtime.capacity import Capacity, FetchRequest
from everwork.runtime.fetcher import Fetcher
from everwork.runtime.portal import Use
from everwork.runtime.runtime import Runtime
from everwork.runtime.shutdown import StopSignal
from everwork.runtime.source import Report
from everwork.service.service import JobService

if TYPE_CHECKING:
    from everwork.app.engine_host import EngineHost
    from everwork.app.function_triggers import FunctionTrigger

VARIABLE: Final = "EVERWORK_JOBS_PER_TICK"
AttemptId = tuple[int, int]
"""A job's key and the number of its attempt."""
SWEEPS_MAX: Final = 100
FIRINGS_MAX: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class TickResult:
    """What a tick did: attempts that began, and how they ended.

    `lost`: the job was cancelled or its lease was lost meanwhile, so no outcome was stored. `released`: returned
    to the queue, begun or not, and not counted against their jobs.
    """

    ran: int = 0
    completed: int = 0
    failed: int = 0
    retried: int = 0
    lost: int = 0
    released: int = 0


class Tally:
    """The attempts of a tick; written in the engine's thread, read when the fetcher has ended."""

    def __init__(self) -> None:
        self.begun: set[AttemptId] = set()
        self.completed: set[AttemptId] = set()
        self.released: set[AttemptId] = set()
        self.failed: list[AttemptId] = []
        """Those that ended with a failure, to be retried or not."""

    def count(self, outcome: Outcome) -> None:
        """Count an outcome that the engine has accepted."""
        attempt = (outcome.key, outcome.attempt)
        match outcome:
            case Release():
                self.released.add(attempt)
            case Complete():
                self.completed.add(attempt)
            case _:
                self.failed.append(attempt)

    @property
    def lost(self) -> int:
        """How many began and have no outcome."""
        return len(self.begun.difference(self.completed, self.released, self.failed))


class TickFetcher(Fetcher):
    """A fetcher that leases a bounded number of jobs, and ends when nothing is due and nothing runs."""

    def __init__(self, *args: Any, jobs_max: int, tally: Tally, **named: Any) -> None:
        super().__init__(*args, **{**named, "delays": _bounded_delays})
        self._jobs_left = jobs_max
        self._tally = tally

    def take(self, reports: Sequence[Report]) -> None:
        """Take reports from the executor, and count the attempts that began."""
        self._tally.begun |= {(one.job.key, one.job.attempt) for one, _, _ in reports if one.begun_at is not None}
        super().take(reports)

    def _requests(self) -> list[FetchRequest]:
        """An equal share of what is left for each handler that may have more."""
        capacities, left, requests = self._pollable(), self._jobs_left, list[FetchRequest]()
        for at, capacity in enumerate(capacities):
            more = capacity.requests(math.ceil(left / (len(capacities) - at)), self._round)
            left -= sum(request.limit for request in more)
            requests += more
        return requests

    def _pollable(self) -> list[Capacity]:
        capacities = [capacity for capacity in self._capacities.values() if capacity.may_have_more(self._round)]
        if len(capacities) > self._jobs_left:
            random.shuffle(capacities)  # Not all can be polled: the next tick may choose others.
        return capacities

    def _lease(self, requests: Sequence[FetchRequest], activation: Activation) -> list[Attempt]:
        attempts = super()._lease(requests, activation)
        self._jobs_left -= len(attempts)
        return attempts

    def _pause_ms(self, requests: Sequence[FetchRequest], activation: Activation) -> int | None:
        """Go on while some handler may have more; stop when all are empty and idle, or enough jobs were leased."""
        pause_ms = super()._pause_ms(requests, activation)
        if self._jobs_left and (pause_ms is None or self._pollable()):
            if not self._pollable():
                self._begin_round()  # The engine has more than it returned.
            return None
        if not self._jobs_left or not (self._leased or self._outcomes):
            self.stop_fetching()
        return pause_ms

    def _record_verdicts(self, outcomes: Sequence[Outcome], judged: Sequence[Judged]) -> None:
        super()._record_verdicts(outcomes, judged)
        for outcome, one in zip(outcomes, judged, strict=True):
            if one.ok:
                self._tally.count(outcome)


class TickRunner:
    """The ticks of one application; several may run concurrently."""

    def __init__(self, host: EngineHost, make: Callable[..., Runtime[Fetcher]]) -> None:
        self._host = host
        self._make = make
        self.runtimes: set[Runtime[Fetcher]] = set()
        self._stops: set[StopSignal] = set()

    async def run(self, prepare: Use[JobService, None], jobs_max: int, shutdown_timeout: float) -> TickResult:
        """Prepare, then run up to `jobs_max` jobs."""
        stopped = StopSignal()
        self._stops.add(stopped)
        try:
            if await stopped.comes_before(self._host.call(prepare)):
                return TickResult()
            return await self._run(stopped, jobs_max, shutdown_timeout)
        finally:
            self._stops.discard(stopped)

    async def _run(self, stopped: StopSignal, jobs_max: int, shutdown_timeout: float) -> TickResult:
        tally = Tally()
        runtime = self._make(stopped, partial(TickFetcher, jobs_max=jobs_max, tally=tally))
        self.runtimes.add(runtime)
        try:
            await runtime.run(shutdown_timeout)
        finally:
            self.runtimes.discard(runtime)
        return await self._host.call(partial(_result, tally))

    @property
    def is_live(self) -> bool:
        """Whether any tick runs or is about to."""
        return bool(self._stops)

    def stop(self) -> None:
        """Stop all: finish what runs, begin nothing; the second call cancels what runs."""
        for stopped in tuple(self._stops):
            stopped.request()


async def upkeep(service: JobService, triggers: Sequence[FunctionTrigger]) -> None:
    """What a long-running process does continuously: lapsed leases, expiries, automatic requeues, due triggers."""
    for _ in range(SWEEPS_MAX):
        if not await service.sweep():
            break
    if triggers:
        await _fire(service, triggers)


async def _fire(service: JobService, triggers: Sequence[FunctionTrigger]) -> None:
    await service.trigger_loop([one.scheduled for one in triggers]).catch_up(FIRINGS_MAX)


def jobs_per_tick(given: object) -> int:
    """How many jobs a tick may run: as given, or from the environment, or the default."""
    if given is not None:
        return checks.whole_number("max_jobs", given, 1, TICK_JOBS_MAX)
    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        return TICK_JOBS_DEFAULT
    if not (text.isascii() and text.isdigit()):
        raise InvalidInput(VARIABLE, f"must be a whole number from 1 to {TICK_JOBS_MAX}, not {checks.shown(text)}")
    return checks.whole_number(VARIABLE, int(text), 1, TICK_JOBS_MAX)


async def _result(tally: Tally, service: JobService) -> TickResult:
    """The result; only the engine knows whether a failed attempt will be retried."""
    failed = 0
    for start in range(0, len(tally.failed), LIST_LIMIT_MAX):
        part = tally.failed[start : start + LIST_LIMIT_MAX]
        jobs = await service.get_many([key for key, _ in part])
        for (_, number), job in zip(part, jobs, strict=True):
            failed += job is None or (job.attempt == number and job.state is State.FAILED)
    return TickResult(
        ran=len(tally.begun),
        completed=len(tally.completed),
        failed=failed,
        retried=len(tally.failed) - failed,
        lost=tally.lost,
        released=len(tally.released),
    )


def _bounded_delays() -> Iterator[float]:
    """Delays that end: a tick raises if the engine stays unavailable, and its leases lapse."""
    ends = time.monotonic() + OUTAGE_SECONDS_MAX
    for seconds in backoff_delays():
        if time.monotonic() + seconds > ends:
            return
        yield seconds
