"""The engine's side of a worker: fetches, settles and keeps leases, in the engine's thread.

One step settles what has ended and asks for as many jobs as there is room for, in one transaction.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from everwork.core.limits import ACTIVATE_MAX, LEASE_MS_DEFAULT, LIST_LIMIT_MAX
from everwork.core.outcome import Fail, Outcome, Release
from everwork.core.states import State
from everwork.core.texts import error_text
from everwork.engines.values import Activation, Demand, JobFilter, Judged, Lease, LeaseStatus, Settlement
from everwork.exceptions import EngineError
from everwork.logs import get_logger
from everwork.service.exchange import pause_ms
from everwork.service.loops import BackgroundLoop, engine_outage, pauses
from everwork.service.service import JobService
from everwork.workers.attempt import Attempt, Stop
from everwork.workers.executor import Report
from everwork.workers.function import JobFunction
from everwork.workers.news import News

log = get_logger("everwork")

HEARTBEAT_SECONDS = 0.5
PREFETCH_SECONDS = 0.1
"""Jobs are fetched ahead only if they will begin about this soon: elsewhere somebody may be free for them."""
UNBEGUN_SECONDS = 5.0
"""What has been fetched ahead and has not begun after this time goes back: the handlers' loop is blocked."""


class Room:
    """The room for one type: how many of its jobs are here, and how long one takes."""

    __slots__ = ("concurrency", "here", "seconds", "timeout", "type")

    def __init__(self, function: JobFunction[..., Any]) -> None:
        self.type = function.type
        self.concurrency = function.concurrency
        self.timeout = function.timeout
        self.here = 0
        self.seconds: float | None = None

    @property
    def left(self) -> int:
        """How many more jobs may be leased: free runners, and what they will get to soon."""
        ahead = 0
        if self.seconds is not None:
            ahead = int(self.concurrency * min(1.0, PREFETCH_SECONDS / max(self.seconds, 1e-6)))
        return self.concurrency + ahead - self.here

    def learn(self, seconds: float) -> None:
        """Take the duration of attempts that have just ended into account."""
        self.seconds = seconds if self.seconds is None else 0.7 * self.seconds + 0.3 * seconds


class Fetcher:
    """Lives in the service's event loop; talks to the executor by the two callables it is given."""

    def __init__(
        self,
        service: JobService,
        worker: str,
        functions: Mapping[str, JobFunction[..., Any]],
        deliver: Callable[[Sequence[Attempt]], None],
        stop: Callable[[Attempt, Stop], None],
        *,
        owns_name: bool = False,
    ) -> None:
        self._service = service
        self._worker = worker
        self._owns_name = owns_name
        self._may_have_strays = False
        self._rooms = {type: Room(function) for type, function in functions.items()}
        self._deliver = deliver
        self._stop = stop
        self._here: dict[tuple[int, int], Attempt] = {}
        self._outcomes: list[Outcome] = []
        self._spoilt: set[tuple[int, int]] = set()
        self._news = News()
        self._abandoned = asyncio.Event()
        self._is_stopping = False
        self._outage = engine_outage("fetcher")
        self._heartbeat = BackgroundLoop("everwork-heartbeat", self._beat, HEARTBEAT_SECONDS)

    async def run(self) -> None:
        """Fetch and settle until stopped, and until everything that is here has been reported."""
        self._heartbeat.start()
        try:
            while not self._is_done:
                self._news.clear()
                mark = self._service.engine.mark()
                timeout_ms = await self._step()
                if timeout_ms is not None and not self._outcomes and not self._is_done:
                    await self._wait(timeout_ms, mark)
        finally:
            await self._heartbeat.abort()

    @property
    def _is_done(self) -> bool:
        return self._is_stopping and not self._outcomes and (not self._here or self._abandoned.is_set())

    def take(self, reports: Sequence[Report]) -> None:
        """Take reports from the executor; they are settled with the next step."""
        now = time.monotonic()
        spent: dict[str, list[float]] = {}
        for attempt, outcome, is_free in reports:
            job = attempt.job
            self._here.pop((job.key, job.attempt), None)
            if outcome is not None:
                self._outcomes.append(outcome)
            if is_free:
                self._rooms[job.type].here -= 1
                if attempt.begun_at is not None:
                    spent.setdefault(job.type, []).append(now - attempt.begun_at)
        for type, seconds in spent.items():
            self._rooms[type].learn(sum(seconds) / len(seconds))
        self._news.tell()

    def stop_fetching(self) -> None:
        """Ask for nothing more."""
        self._is_stopping = True
        self._news.tell()

    def abandon(self) -> None:
        """Wait no longer for attempts that will not stop, nor for an engine that is away: leases lapse."""
        self._abandoned.set()
        self.stop_fetching()

    # Steps --------------------------------------------------------------------------------------

    async def _step(self) -> int | None:
        """Settle what has ended, fetch what there is room for; how long to wait for more, None: not at all."""
        outcomes, self._outcomes = self._outcomes, []
        demands = [] if self._is_stopping else self._demands()
        if not outcomes and not demands:
            await self._news.wait()
            return None
        settlement = await self._persist(outcomes, demands)
        if settlement is None:
            return None
        for outcome, judged in zip(outcomes, settlement.judged, strict=True):
            if not judged.ok:
                _log_refusal(outcome, judged)
        if settlement.activation.jobs:
            self._deliver(self._lease(settlement.activation))
        if self._may_have_strays:
            await self._hand_back_strays()
        return self._pause_ms(demands, settlement.activation)

    def _pause_ms(self, demands: Sequence[Demand], activation: Activation) -> int | None:
        """Whoever got less than he asked for has got all there was, unless the engine says that more is due now."""
        jobs, due_ms = activation.jobs, activation.next_due_ms
        if jobs and due_ms is not None and due_ms <= activation.now_ms:
            return None
        has_room = [d for d in demands if len(jobs) >= d.limit and self._rooms[d.type].left > 0]
        is_met = any(sum(job.type == d.type for job in jobs) >= d.limit for d in has_room)
        return None if is_met else pause_ms(activation)

    async def _hand_back_strays(self) -> None:
        """Jobs may have been leased by a step whose answer was lost: nobody here knows of them, so they go back.

        Only if no other process has this worker's name: its jobs look the same.
        """
        known = set(self._here)
        try:
            held = await self._held()
        except EngineError:
            return  # Looked for again after the next step.
        known |= {(outcome.key, outcome.attempt) for outcome in self._outcomes}
        self._outcomes += [Release(key, attempt) for key, attempt in dict.fromkeys(held) if (key, attempt) not in known]
        self._may_have_strays = False

    async def _held(self) -> list[tuple[int, int]]:
        """The attempts that this worker holds, as the engine knows them."""
        wanted = JobFilter(worker=self._worker, states=frozenset([State.PROCESSING]))
        held: list[tuple[int, int]] = []
        cursor: int | None = None
        while True:
            page = await self._service.list(wanted, LIST_LIMIT_MAX, cursor)
            held += [(job.key, job.attempt) for job in page.jobs]
            cursor = page.next
            if cursor is None:
                return held

    async def _persist(self, outcomes: list[Outcome], demands: list[Demand]) -> Settlement | None:
        """Settle for certain: while the engine is away, wait and try again; a repeat changes nothing."""
        delays = pauses()
        while True:
            try:
                settlement = await self._service.engine.settle(outcomes, demands)
                self._outage.over()
                return settlement
            except EngineError as error:
                if self._abandoned.is_set() and outcomes:
                    log.error("outcomes are lost with the engine, their leases lapse", outcomes=len(outcomes))
                if self._abandoned.is_set() or (self._is_stopping and not outcomes):
                    return None
                self._outage.tell(error)
                self._may_have_strays = self._owns_name
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._abandoned.wait(), next(delays))
            except Exception as error:
                if not outcomes:
                    raise
                outcomes[:] = await self._without_culprit(outcomes, error)
                demands = []

    async def _without_culprit(self, outcomes: list[Outcome], error: Exception) -> list[Outcome]:
        """A batch that is refused as a whole is halved until the bad outcome stands alone, and becomes a failure."""
        if len(outcomes) == 1:
            key, attempt = outcomes[0].key, outcomes[0].attempt
            log.error("an outcome cannot be stored", key=key, attempt=attempt, exc_info=error)
            if (key, attempt) in self._spoilt:
                return []  # Not even as a failure: the lease lapses.
            self._spoilt.add((key, attempt))
            return [Fail(key, attempt, error_text(f"its outcome cannot be stored: {error}"), final=True)]
        middle = len(outcomes) // 2
        checked: list[Outcome] = []
        for half in (outcomes[:middle], outcomes[middle:]):
            try:
                await self._service.engine.settle(half)
            except EngineError:
                pass  # All of it is tried again by whoever asked.
            except Exception as problem:  # noqa: BLE001 - the search goes on in this half
                half = await self._without_culprit(half, problem)  # noqa: PLW2901 - what it has become
            checked += half
        return checked

    def _demands(self) -> list[Demand]:
        return [
            Demand(room.type, self._worker, min(left, ACTIVATE_MAX), LEASE_MS_DEFAULT)
            for room in self._rooms.values()
            if (left := room.left) > 0
        ]

    def _lease(self, activation: Activation) -> list[Attempt]:
        now = time.monotonic()
        attempts = []
        for job in activation.jobs:
            room = self._rooms[job.type]
            room.here += 1
            self._here[job.key, job.attempt] = attempt = Attempt(job, now, room.timeout)
            attempts.append(attempt)
        return attempts

    async def _wait(self, timeout_ms: int, mark: int) -> None:
        """Wait for news from the executor, or for work that there is room for."""
        types = [] if self._is_stopping else [room.type for room in self._rooms.values() if room.left > 0]
        if self._news.is_there or not types:
            await self._news.wait()
            return
        work = asyncio.ensure_future(self._service.engine.wait(types, timeout_ms, since=mark))
        work.add_done_callback(self._news.wake)
        try:
            await self._news.wait()
        finally:
            work.cancel()
        if work.done() and not work.cancelled() and work.exception() is not None:
            # Only a wake-up is lost. The next step finds out whether more is.
            await self._news.wait(next(pauses()))

    # Leases -------------------------------------------------------------------------------------

    async def _beat(self) -> bool:
        """Give back what does not begin, extend the leases that need it, learn which are cancelled or lost."""
        now = time.monotonic()
        self._take_back(now)
        held = [a for a in self._here.values() if now - a.leased_at > HEARTBEAT_SECONDS]
        due = [a for a in held if now - a.extended_at > LEASE_MS_DEFAULT / 3000 and not a.is_overdue(now)]
        if due:
            self._learn(due, await self._service.engine.extend(_leases(due), LEASE_MS_DEFAULT))
            for attempt in due:
                attempt.extended_at = now
        extended = set(due)
        rest = [a for a in held if a not in extended]
        if rest:
            self._learn(rest, await self._service.engine.check(_leases(rest)))
        return False

    def _take_back(self, now: float) -> None:
        """The handlers' loop is blocked: what it has not begun can run elsewhere. Its place here stays taken."""
        late = [a for a in self._here.values() if a.begun_at is None and now - a.leased_at > UNBEGUN_SECONDS]
        for attempt in late:
            if attempt.take():
                del self._here[attempt.job.key, attempt.job.attempt]
                self._outcomes.append(Release(attempt.job.key, attempt.job.attempt))
                self._news.tell()

    def _learn(self, attempts: Sequence[Attempt], statuses: Sequence[LeaseStatus]) -> None:
        for attempt, status in zip(attempts, statuses, strict=True):
            if status is not LeaseStatus.HELD:
                self._stop(attempt, Stop.CANCELLED if status is LeaseStatus.CANCELLED else Stop.LOST)


def _leases(attempts: Sequence[Attempt]) -> list[Lease]:
    return [Lease(attempt.job.key, attempt.job.attempt) for attempt in attempts]


def _log_refusal(outcome: Outcome, judged: Judged) -> None:
    log.warning(
        "an outcome was refused",
        key=outcome.key,
        attempt=outcome.attempt,
        outcome=type(outcome).__name__,
        verdict=judged.verdict.value,
    )
