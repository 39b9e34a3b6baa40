"""A tick: upkeep, due triggers, and a bounded number of jobs, for programs that cannot stay, such as a cron job."""

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
from everwork.runtime.executor import Report
from everwork.runtime.fetcher import Fetcher
from everwork.runtime.portal import Use
from everwork.runtime.runtime import Runtime, StopSignal
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

    `lost`: nobody wants to know how, because the job was cancelled or its lease was lost meanwhile. `released`: handed
    back, begun or not, and not counted against their jobs.
    """

    ran: int = 0
    completed: int = 0
    failed: int = 0
    retried: int = 0
    lost: int = 0
    released: int = 0


class Tally:
    """What a fetcher has seen; filled in the engine's thread, read when that has ended."""

    def __init__(self) -> None:
        self.begun: set[AttemptId] = set()
        self.completed: set[AttemptId] = set()
        self.released: set[AttemptId] = set()
        self.broken: list[AttemptId] = []
        """Those that failed in some way."""

    def count(self, outcome: Outcome) -> None:
        """Count an end that the engine has accepted."""
        attempt = (outcome.key, outcome.attempt)
        match outcome:
            case Release():
                self.released.add(attempt)
            case Complete():
                self.completed.add(attempt)
            case _:
                self.broken.append(attempt)

    @property
    def lost(self) -> int:
        """How many began and have no end."""
        return len(self.begun.difference(self.completed, self.released, self.broken))


class TickFetcher(Fetcher):
    """A fetcher that takes a bounded number of jobs, and ends when nothing more is due and nothing runs."""

    def __init__(self, *args: Any, most: int, tally: Tally, **named: Any) -> None:
        super().__init__(*args, **{**named, "pauses": _patience})
        self._most_left = most
        self._tally = tally

    def take(self, reports: Sequence[Report]) -> None:
        """Take reports from the executor, and count who has run."""
        self._tally.begun |= {(one.job.key, one.job.attempt) for one, _, _ in reports if one.begun_at is not None}
        super().take(reports)

    def _asks(self) -> list[FetchRequest]:
        """An equal share of what is left for each handler that may have more."""
        rooms, left, asks = self._open_rooms(), self._most_left, list[FetchRequest]()
        for at, room in enumerate(rooms):
            more = room.asks(math.ceil(left / (len(rooms) - at)), self._round)
            left -= sum(ask.limit for ask in more)
            asks += more
        return asks

    def _open_rooms(self) -> list[Capacity]:
        rooms = [room for room in self._rooms.values() if room.may_have_more(self._round)]
        if len(rooms) > self._most_left:
            random.shuffle(rooms)  # Not all can be asked: in the next tick it is another's turn.
        return rooms

    def _lease(self, asks: Sequence[FetchRequest], activation: Activation) -> list[Attempt]:
        attempts = super()._lease(asks, activation)
        self._most_left -= len(attempts)
        return attempts

    def _pause_ms(self, asks: Sequence[FetchRequest], activation: Activation) -> int | None:
        """As long as some handler may have more, go on; when all are empty and idle, or enough was taken, end."""
        pause_ms = super()._pause_ms(asks, activation)
        if self._most_left and (pause_ms is None or self._open_rooms()):
            if not self._open_rooms():
                self._begin_round()  # The engine has more than it gave.
            return None
        if not self._most_left or not (self._here or self._outcomes):
            self.stop_fetching()
        return pause_ms

    def _note_verdicts(self, outcomes: Sequence[Outcome], judged: Sequence[Judged]) -> None:
        super()._note_verdicts(outcomes, judged)
        for outcome, one in zip(outcomes, judged, strict=True):
            if one.ok:
                self._tally.count(outcome)


class TickRunner:
    """The ticks of one application; several may run at once."""

    def __init__(self, home: EngineHost, make: Callable[[StopSignal], Runtime]) -> None:
        self._host = home
        self._make = make
        self.runtimes: set[Runtime] = set()
        self._stops: set[StopSignal] = set()

    async def run(self, prepare: Use[None], most: int, shutdown_timeout: float) -> TickResult:
        """Prepare, then take and run up to so many jobs."""
        stopped = StopSignal()
        self._stops.add(stopped)
        try:
            if await stopped.comes_before(self._host.call(prepare)):
                return TickResult()
            return await self._run(stopped, most, shutdown_timeout)
        finally:
            self._stops.discard(stopped)

    async def _run(self, stopped: StopSignal, most: int, shutdown_timeout: float) -> TickResult:
        tally, runtime = Tally(), self._make(stopped)
        self.runtimes.add(runtime)
        try:
            await runtime.run(shutdown_timeout, fetcher_of=partial(TickFetcher, most=most, tally=tally))
        finally:
            self.runtimes.discard(runtime)
        return await self._host.call(partial(_ticked, tally))

    @property
    def is_live(self) -> bool:
        """Whether any runs, or is about to."""
        return bool(self._stops)

    def stop(self) -> None:
        """Ask all to stop: finish what runs, begin nothing; asked again, cancel what runs."""
        for stopped in tuple(self._stops):
            stopped.ask()


async def keep_up(service: JobService, triggers: Sequence[FunctionTrigger]) -> None:
    """What somebody who stays does all the time: lapsed leases, expiries, requeues by themselves, due triggers."""
    for _ in range(SWEEPS_MAX):
        if not await service.sweep():
            break
    if triggers:
        await _fire(service, triggers)


async def _fire(service: JobService, triggers: Sequence[FunctionTrigger]) -> None:
    await service.trigger_loop([one.scheduled for one in triggers]).catch_up(FIRINGS_MAX)


def jobs_per_tick(given: object) -> int:
    """How many jobs a tick may run; if nobody says, what the environment does."""
    if given is not None:
        return checks.whole_number("max_jobs", given, 1, TICK_JOBS_MAX)
    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        return TICK_JOBS_DEFAULT
    if not (text.isascii() and text.isdigit()):
        raise InvalidInput(VARIABLE, f"must be a whole number from 1 to {TICK_JOBS_MAX}, not {checks.shown(text)}")
    return checks.whole_number(VARIABLE, int(text), 1, TICK_JOBS_MAX)


async def _ticked(tally: Tally, service: JobService) -> TickResult:
    """The report; whether a failed attempt is followed by another is the engine's to say."""
    failed = 0
    for start in range(0, len(tally.broken), LIST_LIMIT_MAX):
        part = tally.broken[start : start + LIST_LIMIT_MAX]
        jobs = await service.get_many([key for key, _ in part])
        for (_, number), job in zip(part, jobs, strict=True):
            failed += job is None or (job.attempt == number and job.state is State.FAILED)
    return TickResult(
        ran=len(tally.begun),
        completed=len(tally.completed),
        failed=failed,
        retried=len(tally.broken) - failed,
        lost=tally.lost,
        released=len(tally.released),
    )


def _patience() -> Iterator[float]:
    """Nobody waits for ever for a tick: an engine that stays away is told, and leases lapse."""
    ends = time.monotonic() + OUTAGE_SECONDS_MAX
    for seconds in backoff_delays():
        if time.monotonic() + seconds > ends:
            return
        yield seconds
