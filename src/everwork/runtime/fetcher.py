"""The engine's side of a worker: fetches, settles and keeps leases, in the engine's thread.

One step settles what has ended and asks for as many jobs as there is room for, in one transaction.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from everwork.aio.retrying import Delays, backoff_delays, engine_outage
from everwork.aio.wakeup import Wakeup
from everwork.core.leasing import Activation, Demand, Judged, Settlement, pause_ms
from everwork.core.limits import EVENTS_MAX, LEASE_MS_DEFAULT
from everwork.core.outcome import Complete, Failed, Outcome, Release, kind_of
from everwork.core.texts import error_text
from everwork.exceptions import EngineError
from everwork.runtime.attempt import Attempt, Stop
from everwork.runtime.capacity import ROOM_MAX, Capacity, FetchRequest
from everwork.runtime.executor import Report
from everwork.runtime.handler import Handler
from everwork.runtime.heartbeat import Heartbeat, LivenessBeat
from everwork.runtime.job_log import JobLog
from everwork.runtime.ledger import Ledger
from everwork.service.service import JobService

UNBEGUN_SECONDS = 5.0
"""What has been fetched ahead and has not begun after this time goes back: the handlers' loop is blocked."""


class Fetcher:
    """Lives in the service's event loop; talks to the executor by the two callables it is given."""

    def __init__(
        self,
        service: JobService,
        worker: str,
        deliver: Callable[[Sequence[Attempt]], None],
        stop: Callable[[Attempt, Stop], None],
        *,
        job_log: JobLog,
        owns_name: bool = False,
        ledger: Ledger | None = None,
        lease_ms: int = LEASE_MS_DEFAULT,
        pauses: Delays = backoff_delays,
    ) -> None:
        self._service = service
        self._worker = worker
        self._owns_name = owns_name
        self._may_have_strays = False
        self._job_log = job_log
        self._ledger = ledger
        self._lease_ms = lease_ms
        self._pauses = pauses
        self._rooms: dict[str, Capacity] = {}
        self._deliver = deliver
        self._stop = stop
        self._here: dict[tuple[int, int], Attempt] = {}
        """What is leased, until its outcome is settled."""
        self._outcomes: list[Outcome] = []
        self._spoilt: set[tuple[int, int]] = set()
        self._wakeup = Wakeup()
        self._abandoned = asyncio.Event()
        self._is_stopping = False
        self._outage = engine_outage("fetcher")
        self._beat: Heartbeat | LivenessBeat = (
            Heartbeat(service, self._here, self._take_back, stop, lease_ms=lease_ms)
            if ledger is None
            else LivenessBeat(ledger, self._take_back)
        )
        self._round = 0
        self._mark = 0
        self._wakes_at = math.inf
        self._has_events = False

    def add(self, handler: Handler) -> None:
        """Let a handler join, also while others run."""
        self._rooms[handler.name] = room = Capacity(handler)
        room.is_off = self._ledger is not None and self._ledger.is_off(handler.index)
        self._wakeup.notify()

    async def run(self) -> None:
        """Fetch and settle until stopped, and until everything that is here has been reported."""
        self._beat.start()
        self._begin_round()
        try:
            while not self._is_done:
                self._wakeup.clear()
                timeout_ms = await self._step()
                if timeout_ms is not None:
                    if not self._outcomes and not self._is_done:
                        await self._wait(timeout_ms)
                    self._begin_round()
        finally:
            await self._beat.end()

    def _begin_round(self) -> None:
        """From here on every place is asked before anybody waits; what comes meanwhile ends the wait."""
        self._round += 1
        self._mark = self._service.mark()
        self._wakes_at = math.inf

    @property
    def _is_done(self) -> bool:
        return self._is_stopping and not self._outcomes and (not self._here or self._abandoned.is_set())

    def take(self, reports: Sequence[Report]) -> None:
        """Take reports from the executor; they are settled with the next step."""
        now = time.monotonic()
        spent: dict[str, list[float]] = {}
        for attempt, outcome, is_free in reports:
            self._note_end(attempt, outcome, is_free)
            if is_free:
                name = attempt.handler.name
                self._rooms[name].here -= 1
                if attempt.begun_at is not None:
                    spent.setdefault(name, []).append(now - attempt.begun_at)
        for name, seconds in spent.items():
            self._rooms[name].learn(sum(seconds) / len(seconds))
        self._wakeup.notify()

    def _note_end(self, attempt: Attempt, outcome: Outcome | None, is_free: bool) -> None:
        """With an outcome it stays here until that is settled; without one nobody wants to hear of it any more."""
        attempt.is_free = is_free
        if outcome is not None:
            attempt.is_ending = True
            self._outcomes.append(outcome)
            if attempt.collector is not None and attempt.collector.jobs:
                self._has_events = True
        elif not attempt.is_ending:
            self._here.pop((attempt.job.key, attempt.job.attempt), None)
            if self._ledger is not None:
                attempt.close(self._ledger)

    def stop_fetching(self) -> None:
        """Ask for nothing more."""
        self._is_stopping = True
        self._wakeup.notify()

    def stop_taking(self) -> None:
        """Ask for nothing more, and give back what has not begun."""
        self.stop_fetching()
        self._hand_back(list(self._here.values()))

    def abandon(self) -> None:
        """Wait no longer for attempts that will not stop, nor for an engine that is away: leases lapse."""
        self._abandoned.set()
        self.stop_fetching()

    # Steps --------------------------------------------------------------------------------------

    async def _step(self) -> int | None:
        """Settle what has ended, fetch what there is room for; how long to wait for more, None: not at all."""
        outcomes = self._next_outcomes()
        asks = [] if self._is_stopping else self._asks()
        if not outcomes and not asks:
            await self._wakeup.wait()
            self._begin_round()
            return None
        settled = outcomes.copy()
        settlement = await self._persist(outcomes, [self._demand(ask) for ask in asks])
        if settlement is None:
            return None
        self._note_verdicts(outcomes, settlement.judged)
        self._let_go(settled)
        attempts = self._lease(asks, settlement.activation)
        if attempts:
            if self._is_stopping or any(ask.room.is_off for ask in asks):  # Since the step began.
                self._hand_back([a for a in attempts if self._is_stopping or self._rooms[a.handler.name].is_off])
            self._deliver(attempts)
        if self._may_have_strays:
            await self._hand_back_strays()
        return self._pause_ms(asks, settlement.activation)

    def _next_outcomes(self) -> list[Outcome]:
        """What one step settles: everything, but not more events than a worker's settings allow."""
        outcomes, self._outcomes = self._outcomes, []
        if self._has_events:
            end = self._end_of_batch(outcomes)
            outcomes, self._outcomes = outcomes[:end], outcomes[end:]
            self._has_events = bool(self._outcomes)
        return outcomes

    def _end_of_batch(self, outcomes: list[Outcome]) -> int:
        events, most = 0, EVENTS_MAX
        for at, outcome in enumerate(outcomes):
            if isinstance(outcome, Complete) and outcome.events:
                attempt = self._here.get((outcome.key, outcome.attempt))
                most = most if attempt is None else min(most, attempt.handler.settle_events_max)
                events += len(outcome.events)
                if events > most and at > 0:
                    return at
        return len(outcomes)

    def _let_go(self, settled: Sequence[Outcome]) -> None:
        """Their outcomes are settled, or refused for good."""
        for outcome in settled:
            attempt = self._here.pop((outcome.key, outcome.attempt), None)
            if attempt is not None:
                attempt.is_ending = False
                if self._ledger is not None:
                    attempt.close(self._ledger)

    def _pause_ms(self, asks: Sequence[FetchRequest], activation: Activation) -> int | None:
        """Who gave less than it was asked for has given all there was, unless the engine says that more is due now."""
        due_ms = activation.next_due_ms
        if activation.jobs and due_ms is not None and due_ms <= activation.now_ms:
            return None
        now = time.monotonic()
        self._wakes_at = min(self._wakes_at, now + pause_ms(activation) / 1000)
        rooms = [ask.room for ask in asks] if self._ledger is None else self._rooms.values()
        if any(room.may_have_more(self._round) for room in rooms):
            return None
        return max(1, math.ceil((self._wakes_at - now) * 1000))

    def _note_verdicts(self, outcomes: Sequence[Outcome], judged: Sequence[Judged]) -> None:
        for outcome, one in zip(outcomes, judged, strict=True):
            if not one.ok:
                self._job_log.warning(
                    "an outcome was refused",
                    self._name_of(outcome),
                    outcome.key,
                    outcome.attempt,
                    type=self._type_of(outcome),
                    outcome=kind_of(outcome),
                    verdict=one.verdict.value,
                )

    def _name_of(self, outcome: Outcome) -> str | None:
        attempt = self._here.get((outcome.key, outcome.attempt))
        return None if attempt is None else attempt.handler.name

    def _type_of(self, outcome: Outcome) -> str | None:
        attempt = self._here.get((outcome.key, outcome.attempt))
        return None if attempt is None else attempt.job.type

    async def _hand_back_strays(self) -> None:
        """Jobs may have been leased by a step whose answer was lost: nobody here knows of them, so they go back.

        Only if no other process has this worker's name: its jobs look the same.
        """
        known = set(self._here)
        try:
            held = await self._service.held(self._worker)
        except EngineError:
            return  # Looked for again after the next step.
        known |= {(outcome.key, outcome.attempt) for outcome in self._outcomes}
        self._outcomes += [Release(key, attempt) for key, attempt in held if (key, attempt) not in known]
        self._may_have_strays = False

    async def _persist(self, outcomes: list[Outcome], demands: list[Demand]) -> Settlement | None:
        """Settle for certain: while the engine is away, wait and try again; a repeat changes nothing."""
        delays = self._pauses()
        while True:
            try:
                settlement = await self._service.step(outcomes, demands)
                self._outage.over()
                return settlement
            except EngineError as error:
                if self._abandoned.is_set() and outcomes:
                    self._job_log.lost("outcomes are lost with the engine, their leases lapse", outcomes)
                if self._abandoned.is_set() or (self._is_stopping and not outcomes):
                    return None
                self._outage.report(error)
                self._may_have_strays = self._owns_name
                delay = next(delays, None)
                if delay is None:
                    raise  # Nobody wants to wait any longer.
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._abandoned.wait(), delay)
            except Exception as error:
                if not outcomes:
                    raise
                outcomes[:] = await self._without_culprit(outcomes, error)
                demands = []

    async def _without_culprit(self, outcomes: list[Outcome], error: Exception) -> list[Outcome]:
        """A batch that is refused as a whole is halved until the bad outcome stands alone, and becomes a failure."""
        if len(outcomes) == 1:
            key, attempt = outcomes[0].key, outcomes[0].attempt
            name = self._name_of(outcomes[0])
            kind = self._type_of(outcomes[0])
            self._job_log.error("an outcome cannot be stored", name, key, attempt, type=kind, exc_info=error)
            if (key, attempt) in self._spoilt:
                return []  # Not even as a failure: the lease lapses.
            self._spoilt.add((key, attempt))
            return [Failed(key, attempt, error_text(f"its outcome cannot be stored: {error}"), final=True)]
        middle = len(outcomes) // 2
        checked: list[Outcome] = []
        for half in (outcomes[:middle], outcomes[middle:]):
            try:
                await self._service.step(half)
            except EngineError:
                pass  # All of it is tried again by whoever asked.
            except Exception as problem:  # noqa: BLE001 - the search goes on in this half
                half = await self._without_culprit(half, problem)  # noqa: PLW2901 - what it has become
            checked += half
        return checked

    def _asks(self) -> list[FetchRequest]:
        """What there is room for, here and in the table of this process."""
        free = ROOM_MAX if self._ledger is None else self._ledger.free
        asks: list[FetchRequest] = []
        for room in self._rooms.values():
            more = room.asks(free, self._round)
            free -= sum(ask.limit for ask in more)
            asks += more
        if free == 0 and asks:
            # The table is too small for all: next time another handler is asked for first.
            first = next(iter(self._rooms))
            self._rooms[first] = self._rooms.pop(first)
        return asks

    def _demand(self, ask: FetchRequest) -> Demand:
        type, group = ask.well.place
        return Demand(type, self._worker, ask.limit, self._lease_ms, group)

    def _lease(self, asks: Sequence[FetchRequest], activation: Activation) -> list[Attempt]:
        now = time.monotonic()
        attempts: list[Attempt] = []
        jobs = iter(activation.jobs)
        for ask, got in zip(asks, activation.shares, strict=False):
            ask.room.note(ask, got, self._round)
            handler = ask.room.handler
            for job in itertools.islice(jobs, got):
                self._here[job.key, job.attempt] = attempt = Attempt(job, now, handler)
                attempts.append(attempt)
        if self._ledger is not None:
            for attempt in attempts:
                attempt.enter(self._ledger)
        return attempts

    async def _wait(self, timeout_ms: int) -> None:
        """Wait for news from the executor, or for work that there is room for."""
        types = [] if self._is_stopping else self._types_with_room()
        if self._wakeup.is_notified or not types:
            await self._wakeup.wait()
            return
        work = asyncio.ensure_future(self._service.wait_for_jobs(types, timeout_ms, since=self._mark))
        work.add_done_callback(self._wakeup.wake)
        try:
            await self._wakeup.wait()
        finally:
            work.cancel()
        if work.done() and not work.cancelled() and work.exception() is not None:
            # Only a wake-up is lost. The next step finds out whether more is.
            await self._wakeup.wait(next(backoff_delays()))

    def _types_with_room(self) -> list[str]:
        rooms = (room for room in self._rooms.values() if room.left > 0)
        return list(dict.fromkeys(well.place.type for room in rooms for well in room.wells))

    # Leases -------------------------------------------------------------------------------------

    def look_at_flags(self) -> None:
        """The parent has found attempts to be cancelled or lost, or has switched workers off or on."""
        ledger = self._ledger
        if ledger is None:
            return
        for attempt in self._here.values():
            why = None if attempt.slot is None or attempt.is_ending else ledger.flag_of(attempt.slot)
            if why is not None:
                self._stop(attempt, why)
        for room in self._rooms.values():
            room.is_off = ledger.is_off(room.handler.index)
        self._hand_back([a for a in self._here.values() if self._rooms[a.handler.name].is_off])
        self._wakeup.notify()

    def _take_back(self, now: float) -> None:
        """The handlers' loop is blocked: what it has not begun can run elsewhere. Its place here stays taken."""
        self._hand_back([a for a in self._here.values() if now - a.leased_at > UNBEGUN_SECONDS])

    def _hand_back(self, attempts: Sequence[Attempt]) -> None:
        """Release those that have not begun."""
        for attempt in attempts:
            if attempt.begun_at is None and attempt.take():
                self._note_end(attempt, Release(attempt.job.key, attempt.job.attempt), is_free=True)
                self._wakeup.notify()
