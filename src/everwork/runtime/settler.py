"""One step of a fetcher, retried while the engine is unavailable; an outcome that cannot be stored is isolated."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from everwork.aio.loops import first_of
from everwork.aio.retrying import Delays, engine_outage
from everwork.core.leasing import Activation, Demand, Settlement
from everwork.core.outcome import Failed, Outcome
from everwork.core.texts import error_text
from everwork.exceptions import EngineError
from everwork.runtime.job_log import OutcomeLog
from everwork.runtime.late import LateOutcomes
from everwork.runtime.source import JobStore


class Settler:
    """Settles outcomes and leases jobs despite outages; `waiting` holds the outcomes for the next step."""

    def __init__(
        self,
        store: JobStore,
        late: LateOutcomes,
        log: OutcomeLog,
        *,
        delays: Delays,
        waiting: Callable[[], Sequence[Outcome]],
        is_stopping: Callable[[], bool],
    ) -> None:
        self._store = store
        self._late = late
        self._log = log
        self._delays = delays
        self._waiting = waiting
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
                if self._waiting() and not outcomes:
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
