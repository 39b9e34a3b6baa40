"""What a step of a fetcher settles, and the step itself.

A step is retried while the engine is unavailable; an outcome that cannot be stored is isolated.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from everwork.aio.loops import first_of
from everwork.aio.retrying import Delays, engine_outage
from everwork.aio.wakeup import Wakeup
from everwork.core.leasing import Activation, Demand, Judged, Settlement
from everwork.core.limits import EVENTS_MAX
from everwork.core.outcome import Complete, Failed, Outcome
from everwork.core.texts import error_text
from everwork.exceptions import EngineError
from everwork.runtime.attempt import Attempt
from everwork.runtime.capacity import AttemptId, FetchRequest
from everwork.runtime.job_log import OutcomeLog
from everwork.runtime.late import LateOutcomes
from everwork.runtime.source import JobStore

GATHER_SECONDS: Final = 0.002
"""In a backlog of quick jobs, how long a step waits at most for those that the last one leased."""
STRAGGLERS_FACTOR: Final = 8
"""The last eighth of them is not waited for: a few slow ones must not delay the others."""


class WaitingOutcomes:
    """Outcomes in the order in which they came, and the batch that the next step settles."""

    def __init__(self, leased: Mapping[AttemptId, Attempt], wakeup: Wakeup) -> None:
        self.waiting: list[Outcome] = []
        self._leased = leased
        self._wakeup = wakeup
        self._has_events = False
        self._expected = 0
        """How many jobs of a backlog the last step leased that are likely to end before another step would."""

    def add(self, outcome: Outcome, attempt: Attempt) -> None:
        """Add the outcome of an attempt of this process."""
        self.waiting.append(outcome)
        if attempt.collector is not None and attempt.collector.jobs:
            self._has_events = True

    def next_batch(self) -> list[Outcome]:
        """Take the outcomes of the next step: all of them, limited by the number of events that workers allow."""
        batch, self.waiting = self.waiting, []
        if self._has_events:
            end = self._end_of_batch(batch)
            batch, self.waiting = batch[:end], batch[end:]
            self._has_events = bool(self.waiting)
        return batch

    def _end_of_batch(self, outcomes: list[Outcome]) -> int:
        events, most = 0, EVENTS_MAX
        for at, outcome in enumerate(outcomes):
            if isinstance(outcome, Complete) and outcome.events:
                attempt = self._leased.get((outcome.key, outcome.attempt))
                most = most if attempt is None else min(most, attempt.handler.settle_events_max)
                events += len(outcome.events)
                if events > most and at > 0:
                    return at
        return len(outcomes)

    def put_back(
        self, lapsed: list[Outcome], outcomes: list[Outcome], judged: list[Judged], settled: list[Outcome]
    ) -> tuple[list[Outcome], list[Judged], list[Outcome]]:
        """Let the next step settle `lapsed` and renew the leases; returns the other arguments without them."""
        self.waiting[:0] = lapsed
        left = {(one.key, one.attempt) for one in lapsed}
        at = [index for index, one in enumerate(outcomes) if (one.key, one.attempt) not in left]
        settled = [one for one in settled if (one.key, one.attempt) not in left]
        return [outcomes[index] for index in at], [judged[index] for index in at], settled

    def expect(self, requests: Sequence[FetchRequest], shares: Sequence[int], step_seconds: float) -> None:
        """Note what a step leased from queues that gave as many as requested, if their jobs are quicker than it."""
        seconds = step_seconds + GATHER_SECONDS
        self._expected = 0
        for request, got in zip(requests, shares, strict=False):
            took = request.capacity.seconds
            if got == request.limit and took is not None and took < seconds:
                self._expected += got

    async def gather(self, is_stopping: Callable[[], bool]) -> None:
        """Wait briefly until most of the expected outcomes are there.

        Otherwise a step would settle some while the others run, the next step these, and so on, with twice the commits.
        """
        enough, self._expected = self._expected - self._expected // STRAGGLERS_FACTOR, 0
        ends, was_notified = time.monotonic() + GATHER_SECONDS, False
        while len(self.waiting) < enough and not is_stopping() and (left := ends - time.monotonic()) > 0:
            was_notified |= self._wakeup.is_notified
            self._wakeup.clear()
            await self._wakeup.wait(left)
        if was_notified:
            self._wakeup.notify()  # What happened in the meantime must still end the wait that follows.


class Settler:
    """Settles outcomes and leases jobs despite outages."""

    def __init__(
        self,
        store: JobStore,
        late: LateOutcomes,
        log: OutcomeLog,
        *,
        delays: Delays,
        outcomes: WaitingOutcomes,
        is_stopping: Callable[[], bool],
    ) -> None:
        self._store = store
        self._late = late
        self._log = log
        self._delays = delays
        self._outcomes = outcomes
        self._is_stopping = is_stopping
        self._outage = engine_outage("fetcher")
        self._unstorable: set[tuple[int, int]] = set()
        self.abandoned = asyncio.Event()
        """Set to stop waiting for an unavailable engine."""
        self.is_answer_lost = False
        """Whether a step may have leased jobs that are unknown here; the fetcher looks for them."""

    async def step(self, outcomes: list[Outcome], demands: list[Demand]) -> Settlement | None:
        """Settle, and retry while the engine is unavailable (settling is idempotent); None: another step goes first."""
        delays = self._delays()
        self._late.in_step = outcomes
        while True:
            try:
                settlement = await self._settle(outcomes, demands)
                self._late.in_step = ()
                self._outage.over()
                return settlement
            except EngineError as error:
                is_kept = await self._late.keep_in_outage(outcomes)
                if self.abandoned.is_set() and outcomes and not is_kept:
                    self._log.lost(outcomes)
                if self.abandoned.is_set() or (self._is_stopping() and not outcomes):
                    return None
                self._outage.report(error)
                self.is_answer_lost = True
                delay = next(delays, None)
                if delay is None:
                    raise  # No retries left.
                await first_of(self.abandoned, seconds=delay)
                if self._outcomes.waiting and not outcomes:
                    return None  # Attempts that have ended in the meantime are settled before more jobs are leased.
            except Exception as error:
                if not outcomes:
                    raise
                outcomes[:] = await self._isolate_bad_outcome(outcomes, error)
                demands = []

    async def _settle(self, outcomes: list[Outcome], demands: list[Demand]) -> Settlement:
        """One step; after an outage, outcomes are settled separately, because their leases may have expired."""
        if not self._late.may_have_lapsed(outcomes):
            return await self._store.step(outcomes, demands)
        return Settlement(await self._late.settle(outcomes), Activation([], 0, 0, (0,) * len(demands)))

    async def _isolate_bad_outcome(self, outcomes: list[Outcome], error: Exception) -> list[Outcome]:
        """Bisect a batch that the engine refuses until the bad outcome is found; it becomes a failure."""
        if len(outcomes) == 1:
            key, attempt = outcomes[0].key, outcomes[0].attempt
            self._log.unstorable(outcomes[0], error)
            if (key, attempt) in self._unstorable:
                return []  # Not even the failure can be stored: the lease expires.
            self._unstorable.add((key, attempt))
            return [Failed(key, attempt, error_text(f"its outcome cannot be stored: {error}"), final=True)]
        middle = len(outcomes) // 2
        checked: list[Outcome] = []
        for half in (outcomes[:middle], outcomes[middle:]):
            try:
                await self._store.step(half)
            except EngineError:
                pass  # The caller retries the whole batch.
            except Exception as problem:  # noqa: BLE001 - the search goes on in this half
                half = await self._isolate_bad_outcome(half, problem)  # noqa: PLW2901 - with the bad one replaced
            checked += half
        return checked
