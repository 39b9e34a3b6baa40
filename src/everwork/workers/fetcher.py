"""The engine's side of a worker: fetches, settles and keeps leases, in the engine's thread.

One step settles what has ended and asks for as many jobs as there is room for, in one transaction.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from everwork.core.limits import ACTIVATE_MAX, LEASE_MS_DEFAULT
from everwork.core.outcome import Outcome
from everwork.engines.values import Activation, Demand, Lease, LeaseStatus, Settlement
from everwork.exceptions import EngineError
from everwork.logs import get_logger
from everwork.service.loops import BackgroundLoop
from everwork.service.service import WAIT_MS_MAX, JobService, pause_ms
from everwork.workers.attempt import Attempt, Stop
from everwork.workers.executor import Report
from everwork.workers.function import JobFunction

log = get_logger("everwork")

HEARTBEAT_SECONDS = 0.5
PREFETCH_SECONDS = 0.1
"""Jobs are fetched ahead only if they will begin about this soon: elsewhere somebody may be free for them."""
RETRY_SECONDS_MAX = 5.0


class Source:
    """What is fetched of one type: how many are here, and how long one takes."""

    __slots__ = ("concurrency", "here", "seconds", "timeout", "type")

    def __init__(self, function: JobFunction[..., Any]) -> None:
        self.type = function.type
        self.concurrency = function.concurrency
        self.timeout = function.timeout
        self.here = 0
        self.seconds: float | None = None

    @property
    def room(self) -> int:
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
    ) -> None:
        self._service = service
        self._worker = worker
        self._sources = {type: Source(function) for type, function in functions.items()}
        self._deliver = deliver
        self._stop = stop
        self._loop = asyncio.get_running_loop()
        self._here: dict[int, Attempt] = {}
        self._outcomes: list[Outcome] = []
        self._news = asyncio.Event()
        self._is_stopping = False
        self._is_abandoning = False
        self._heartbeat = BackgroundLoop("everwork-heartbeat", self._beat, HEARTBEAT_SECONDS)

    async def run(self) -> None:
        """Fetch and settle until stopped, and until everything that is here has been reported."""
        self._heartbeat.start()
        try:
            while not (self._is_stopping and self._is_done):
                self._news.clear()
                mark = self._service.engine.mark()
                activation = await self._step()
                is_quiet = activation is not None and not activation.jobs and not self._outcomes
                if activation is not None and is_quiet and not (self._is_stopping and self._is_done):
                    await self._wait(activation, mark)
        finally:
            await self._heartbeat.stop()

    @property
    def _is_done(self) -> bool:
        return not self._outcomes and (not self._here or self._is_abandoning)

    def take(self, reports: Sequence[Report]) -> None:
        """Take reports from the executor; they are settled with the next step."""
        now = time.monotonic()
        spent: dict[str, list[float]] = {}
        for attempt, outcome in reports:
            job = attempt.job
            if self._here.get(job.key) is attempt:
                del self._here[job.key]
            self._sources[job.type].here -= 1
            if outcome is not None:
                self._outcomes.append(outcome)
            if attempt.begun_at is not None:
                spent.setdefault(job.type, []).append(now - attempt.begun_at)
        for type, seconds in spent.items():
            self._sources[type].learn(sum(seconds) / len(seconds))
        self._news.set()

    def stop_fetching(self) -> None:
        """Ask for nothing more."""
        self._is_stopping = True
        self._news.set()

    def abandon(self) -> None:
        """Do not wait for attempts that will not stop: their leases lapse."""
        self._is_abandoning = True
        self.stop_fetching()

    # Steps --------------------------------------------------------------------------------------

    async def _step(self) -> Activation | None:
        """Settle what has ended, fetch what there is room for; None if there was nothing to ask."""
        outcomes, self._outcomes = self._outcomes, []
        demands = [] if self._is_stopping else self._demands()
        if not outcomes and not demands:
            await self._news.wait()
            return None
        settlement = await self._persist(outcomes, demands)
        for outcome, judged in zip(outcomes, settlement.judged, strict=True):
            if not judged.ok:
                log.warning(
                    "an outcome was refused",
                    key=outcome.key,
                    attempt=outcome.attempt,
                    outcome=type(outcome).__name__,
                    verdict=judged.verdict.value,
                )
        if settlement.activation.jobs:
            self._deliver(self._lease(settlement.activation))
        return settlement.activation

    async def _persist(self, outcomes: list[Outcome], demands: list[Demand]) -> Settlement:
        """Settle for certain: when the engine is away, wait and try again; a repeat changes nothing."""
        delay = 0.1
        while True:
            try:
                return await self._service.engine.settle(outcomes, demands)
            except EngineError as error:
                log.error("the engine is unavailable, trying again", error=str(error), seconds=delay)
                await asyncio.sleep(delay)
                delay = min(delay * 2, RETRY_SECONDS_MAX)

    def _demands(self) -> list[Demand]:
        return [
            Demand(source.type, self._worker, min(room, ACTIVATE_MAX), LEASE_MS_DEFAULT)
            for source in self._sources.values()
            if (room := source.room) > 0
        ]

    def _lease(self, activation: Activation) -> list[Attempt]:
        now = time.monotonic()
        attempts = []
        for job in activation.jobs:
            source = self._sources[job.type]
            source.here += 1
            self._here[job.key] = attempt = Attempt(job, now, source.timeout)
            attempts.append(attempt)
        return attempts

    async def _wait(self, activation: Activation, mark: int) -> None:
        """Wait for news from the executor, or for work, or for the next job to become due."""
        news = asyncio.ensure_future(self._news.wait())
        timeout_ms = WAIT_MS_MAX if self._is_stopping else pause_ms(activation)
        work = asyncio.ensure_future(self._service.engine.wait(list(self._sources), timeout_ms, since=mark))
        try:
            await asyncio.wait((news, work), return_when=asyncio.FIRST_COMPLETED)
        finally:
            news.cancel()
            work.cancel()

    # Leases -------------------------------------------------------------------------------------

    async def _beat(self) -> bool:
        """Extend the leases that need it, and learn which are cancelled or lost."""
        now = time.monotonic()
        held = [a for a in self._here.values() if now - a.leased_at > HEARTBEAT_SECONDS]
        if not held:
            return False
        due = [a for a in held if now - a.extended_at > LEASE_MS_DEFAULT / 3000 and not a.is_overdue(now)]
        statuses = await self._service.engine.extend(_leases(due), LEASE_MS_DEFAULT) if due else []
        for attempt in due:
            attempt.extended_at = now
        rest = [a for a in held if a not in set(due)]
        statuses += await self._service.engine.check(_leases(rest)) if rest else []
        for attempt, status in zip(due + rest, statuses, strict=True):
            if status is not LeaseStatus.HELD and self._here.get(attempt.job.key) is attempt:
                self._stop(attempt, Stop.CANCELLED if status is LeaseStatus.CANCELLED else Stop.LOST)
        return False


def _leases(attempts: Sequence[Attempt]) -> list[Lease]:
    return [Lease(attempt.job.key, attempt.job.attempt) for attempt in attempts]
