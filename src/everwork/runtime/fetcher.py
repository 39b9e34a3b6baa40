"""The engine side of a worker: fetches and settles jobs and keeps their leases, in the engine's thread.

One step settles finished attempts and leases as many jobs as there is capacity for, in one transaction.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence

from everwork.aio.retrying import Delays, backoff_delays
from everwork.aio.wakeup import Wakeup
from everwork.core.job import LeasedJob
from everwork.core.leasing import Activation, Demand, pause_ms
from everwork.core.limits import LEASE_MS_DEFAULT
from everwork.core.outcome import Outcome, Release
from everwork.exceptions import EngineError
from everwork.runtime.attempt import Attempt
from everwork.runtime.capacity import UNLIMITED, AttemptId, Budget, Capacity, FetchRequest
from everwork.runtime.hand_over import HandOver
from everwork.runtime.handler import Handler, QueueKey
from everwork.runtime.heartbeat import Heartbeat, LivenessBeat
from everwork.runtime.job_log import JobLog, OutcomeLog
from everwork.runtime.late import LateOutcomes
from everwork.runtime.ledger import Ledger
from everwork.runtime.settler import Settler, WaitingOutcomes
from everwork.runtime.source import Deliver, JobStore, Report, StopAttempt

UNSTARTED_SECONDS = 5.0
"""Prefetched jobs that have not started after this time are released: the handlers' loop is blocked."""


class Fetcher:
    """Runs in the store's event loop; calls the executor through the two given functions."""

    def __init__(
        self,
        store: JobStore,
        worker: str,
        deliver: Deliver,
        stop: StopAttempt,
        *,
        job_log: JobLog,
        owns_name: bool = False,
        ledger: Ledger | None = None,
        budget: Budget | None = None,
        lease_ms: int = LEASE_MS_DEFAULT,
        delays: Delays = backoff_delays,
    ) -> None:
        self._store = store
        self._worker = worker
        self._ledger = ledger
        self._lease_ms = lease_ms
        self._budget = budget
        self._capacities: dict[str, Capacity] = {}
        self._deliver = deliver
        self._stop = stop
        self._leased: dict[tuple[int, int], Attempt] = {}
        """Leased attempts, until their outcomes are settled."""
        self._outcome_log = OutcomeLog(job_log, self._leased)
        self._wakeup = Wakeup()
        self._outcomes = WaitingOutcomes(self._leased, self._wakeup)
        self._is_stopping = False
        self._late = LateOutcomes(store, self._leased, lambda: self._outcomes.waiting, ledger=ledger, lease_ms=lease_ms)
        self._settler = Settler(
            store,
            self._late,
            self._outcome_log,
            delays=delays,
            outcomes=self._outcomes,
            is_stopping=lambda: self._is_stopping,
        )
        self._beat: Heartbeat | LivenessBeat = (
            Heartbeat(store, self._leased, self._release_overdue, stop, doubtful=self._late.doubtful, lease_ms=lease_ms)
            if ledger is None
            else LivenessBeat(ledger, self._release_overdue)
        )
        self._round = 0
        self._mark = 0
        self._wakes_at = math.inf
        self._handed = 0
        """How many jobs were handed over since the last step began."""
        self._hand_over = HandOver(
            store,
            worker,
            owns_name=owns_name,
            parks=budget is None,
            take=self._take_handed,
            release=self._release_unknown,
            known=self._known,
            wake=self._wakeup.notify,
        )

    def add(self, handler: Handler) -> None:
        """Add a handler, even while others are running."""
        self._capacities[handler.name] = capacity = Capacity(handler)
        self._outcome_log.has_listeners |= handler.on_end is not None
        capacity.is_off = self._ledger is not None and self._ledger.is_off(handler.index)
        self._wakeup.notify()

    async def run(self) -> None:
        """Fetch and settle until stopped and every leased attempt has been reported."""
        self._beat.start()
        self._begin_round()
        self._late.start()
        try:
            while not self._is_done:
                self._wakeup.clear()
                if self._hand_over.must_unpark or (self._is_stopping and self._hand_over.is_parked):
                    await self._hand_over.unpark(is_last=self._is_stopping)
                    if self._is_done:
                        break
                timeout_ms = await self._step()
                if self._budget is None:
                    await self._outcomes.gather(lambda: self._is_stopping)
                if timeout_ms is not None:
                    if not self._outcomes.waiting and not self._is_done:
                        await self._wait(timeout_ms)
                    self._begin_round()
        finally:
            await self._beat.end()
            await self._late.end()

    def _begin_round(self) -> None:
        """Begin a round: every queue is polled again before the next wait, and new jobs end that wait."""
        self._round += 1
        self._mark = self._store.mark()
        self._wakes_at = math.inf

    @property
    def _is_done(self) -> bool:
        if not self._is_stopping or self._outcomes.waiting:
            return False
        return self._settler.abandoned.is_set() or not (self._leased or self._hand_over.is_parked)

    def take(self, reports: Sequence[Report]) -> None:
        """Take reports from the executor, to be settled with the next step."""
        if self._budget is not None:
            self._budget.note_begun(reports)
        now = time.monotonic()
        spent: defaultdict[str, list[float]] = defaultdict(list)
        for attempt, outcome, is_free in reports:
            self._record_end(attempt, outcome, is_free)
            if is_free:
                name = attempt.handler.name
                self._capacities[name].leased -= 1
                if attempt.begun_at is not None:
                    spent[name].append(now - attempt.begun_at)
        for name, seconds in spent.items():
            self._capacities[name].add_duration(sum(seconds) / len(seconds))
        if self._late.is_late:
            self._late.keep([outcome for _, outcome, _ in reports if outcome is not None])
        self._wakeup.notify()

    def _record_end(self, attempt: Attempt, outcome: Outcome | None, is_free: bool) -> None:
        """With an outcome, keep the attempt until the outcome is settled; without one, drop it now."""
        attempt.is_free = is_free
        if outcome is not None:
            attempt.is_ending = True
            self._outcomes.add(outcome, attempt)
        elif not attempt.is_ending:
            self._leased.pop((attempt.job.key, attempt.job.attempt), None)
            if self._ledger is not None:
                attempt.close(self._ledger)

    def stop_fetching(self) -> None:
        """Lease no more jobs, and release those that have not started, even while a handler blocks its loop."""
        self._lease_no_more()
        self._release_unstarted(list(self._leased.values()))

    def release_running(self) -> None:
        """Release running jobs, too: the process is about to exit."""
        self._lease_no_more()
        for attempt in list(self._leased.values()):
            if not attempt.is_ending:
                self._record_end(attempt, Release(attempt.job.key, attempt.job.attempt), is_free=True)

    def abandon(self) -> None:
        """Stop waiting for attempts that do not stop and for an unavailable engine; their leases expire."""
        self._settler.abandoned.set()
        self._late.keep_unsettled()
        self._lease_no_more()

    def _lease_no_more(self) -> None:
        self._is_stopping = True
        self._wakeup.notify()

    # Steps --------------------------------------------------------------------------------------

    async def _step(self) -> int | None:
        """Settle finished attempts and lease jobs; return how long to wait for more, None for no wait."""
        outcomes = self._outcomes.next_batch()
        if outcomes and self._budget is not None:
            self._begin_round()  # Their handlers may have created jobs in queues that were empty before.
        requests = [] if self._is_stopping or self._late.may_have_lapsed(outcomes) else self._requests()
        if not outcomes and not requests:
            await self._wakeup.wait()
            self._begin_round()
            return None
        settled, self._handed, began = outcomes.copy(), 0, time.monotonic()
        settlement = await self._settler.step(outcomes, [self._demand(request) for request in requests])
        if settlement is None:
            return None
        judged = settlement.judged
        if self._late.doubtful and (lapsed := self._late.lapsed_meanwhile(outcomes, judged)):
            outcomes, judged, settled = self._outcomes.put_back(lapsed, outcomes, judged, settled)
        if self._late.is_late:
            self._late.settled(outcomes, judged)
        self._outcome_log.settled(outcomes, judged)
        if self._budget is not None:
            self._budget.count_accepted(outcomes, judged)
        self._forget(settled)
        attempts = self._lease(requests, settlement.activation)
        if attempts:
            if self._is_stopping or any(request.capacity.is_off for request in requests):  # Since the step began.
                self._release_unstarted(
                    [a for a in attempts if self._is_stopping or self._capacities[a.handler.name].is_off]
                )
            self._deliver(attempts)
        if self._settler.is_answer_lost:
            self._settler.is_answer_lost = not await self._hand_over.release_orphans()
        wait_ms = self._pause_ms(requests, settlement.activation)
        self._outcomes.expect(requests, settlement.activation.shares, time.monotonic() - began)
        return wait_ms if self._budget is None else self._pause_within(self._budget, wait_ms)

    def _forget(self, settled: Sequence[Outcome]) -> None:
        """Drop attempts whose outcomes are settled or permanently refused."""
        for outcome in settled:
            attempt = self._leased.pop((outcome.key, outcome.attempt), None)
            if attempt is not None:
                attempt.is_ending = False
                if self._ledger is not None:
                    attempt.close(self._ledger)

    def _pause_ms(self, requests: Sequence[FetchRequest], activation: Activation) -> int | None:
        """How long to wait. A queue that returned fewer jobs than requested is empty unless the engine reports more."""
        due_ms = activation.next_due_ms
        if activation.jobs and due_ms is not None and due_ms <= activation.now_ms:
            return None
        now = time.monotonic()
        self._wakes_at = min(self._wakes_at, now + pause_ms(activation) / 1000)
        capacities = [request.capacity for request in requests] if self._ledger is None else self._capacities.values()
        if any(capacity.may_have_more(self._round) for capacity in capacities):
            return None
        return max(1, math.ceil((self._wakes_at - now) * 1000))

    def _pause_within(self, budget: Budget, wait_ms: int | None) -> int | None:
        """Continue while any handler may have more jobs; stop when all are empty and idle, or the budget is spent."""
        pollable = budget.pollable(self._capacities.values(), self._round)
        if budget.jobs_left and (wait_ms is None or pollable):
            if not pollable:
                self._begin_round()  # The engine has more than it returned.
            return None
        if not budget.jobs_left or not (self._leased or self._outcomes.waiting):
            self._lease_no_more()
        return wait_ms

    # Jobs that were leased outside of a step's reply --------------------------------------------------

    def _take_handed(self, job: LeasedJob) -> bool:
        """Run a job that its create has leased to this worker; False if there is no room for it."""
        if (job.key, job.attempt) in self._leased:
            return True
        if self._is_stopping or (self._ledger is not None and self._ledger.free <= 0):
            return False
        key = QueueKey(job.type, job.group)
        for capacity in self._capacities.values():
            if capacity.free > 0 and any(queue.key == key for queue in capacity.queues):
                capacity.leased += 1
                self._handed += 1
                self._leased[job.key, job.attempt] = attempt = Attempt(job, time.monotonic(), capacity.handler)
                if self._ledger is not None:
                    attempt.enter(self._ledger)
                self._deliver([attempt])
                self._beat.begin()
                return True
        return False

    def _known(self) -> set[AttemptId]:
        return self._leased.keys() | {(outcome.key, outcome.attempt) for outcome in self._outcomes.waiting}

    def _release_unknown(self, attempts: Iterable[AttemptId]) -> None:
        self._outcomes.waiting += [Release(key, attempt) for key, attempt in attempts]

    def _requests(self) -> list[FetchRequest]:
        """The jobs to request: as many as the handlers and the ledger of this process have capacity for."""
        if self._budget is not None:
            return self._budget.requests(self._capacities.values(), self._round)
        free = UNLIMITED if self._ledger is None else self._ledger.free
        requests: list[FetchRequest] = []
        for capacity in self._capacities.values():
            more = capacity.requests(free, self._round)
            free -= sum(request.limit for request in more)
            requests += more
        if free == 0 and requests:
            # The ledger is too small for all of them: next time another handler goes first.
            first = next(iter(self._capacities))
            self._capacities[first] = self._capacities.pop(first)
        return requests

    def _demand(self, request: FetchRequest) -> Demand:
        key = request.queue.key
        # Several queues share the capacity: what is parked for all of them must fit.
        may_park = request.capacity.has_room_for_every_queue
        receiver = self._hand_over.receiver(key, may_park=may_park)
        return Demand(key.type, self._worker, request.limit, self._lease_ms, key.group, (), False, receiver, may_park)

    def _lease(self, requests: Sequence[FetchRequest], activation: Activation) -> list[Attempt]:
        now = time.monotonic()
        attempts: list[Attempt] = []
        jobs = iter(activation.jobs)
        for request, got in zip(requests, activation.shares, strict=False):
            request.capacity.record(request, got, self._round)
            handler = request.capacity.handler
            surplus = self._surplus(request.capacity, len(attempts) + got) if self._handed else 0
            for job in itertools.islice(jobs, got - surplus):
                self._leased[job.key, job.attempt] = attempt = Attempt(job, now, handler)
                attempts.append(attempt)
            if surplus:
                request.capacity.leased -= surplus
                self._release_unknown([(job.key, job.attempt) for job in itertools.islice(jobs, surplus)])
        if self._ledger is not None:
            for attempt in attempts:
                attempt.enter(self._ledger)
        if self._budget is not None:
            self._budget.jobs_left -= len(attempts)
        if attempts:
            self._beat.begin()
        return attempts

    def _surplus(self, capacity: Capacity, leased: int) -> int:
        """How many of the jobs just leased no longer fit, because jobs were handed over during the step."""
        surplus = capacity.overrun
        if self._ledger is not None:
            surplus = max(surplus, leased - self._ledger.free)
        return min(surplus, self._handed)

    async def _wait(self, timeout_ms: int) -> None:
        """Wait for the executor, or for jobs if there is capacity."""
        types = [] if self._is_stopping else self._types_with_capacity()
        if self._wakeup.is_notified or not types:
            await self._wakeup.wait()
            return
        try:
            watch = self._store.watch_jobs(types, timeout_ms, self._mark, self._wakeup.wake)
        except EngineError:
            # Only a wake-up is lost; the next step finds out whether the engine is unavailable.
            await self._wakeup.wait(next(backoff_delays()))
            return
        try:
            await self._wakeup.wait()
        finally:
            watch.cancel()  # Whatever comes now must not wake the next wait.

    def _types_with_capacity(self) -> list[str]:
        capacities = (capacity for capacity in self._capacities.values() if capacity.free > 0)
        return list(dict.fromkeys(queue.key.type for capacity in capacities for queue in capacity.queues))

    # Leases -------------------------------------------------------------------------------------

    def check_flags(self) -> None:
        """Apply the parent's flags: attempts that were cancelled or lost, workers that were enabled or disabled."""
        ledger = self._ledger
        if ledger is None:
            return
        for attempt in self._leased.values():
            why = None if attempt.slot is None or attempt.is_ending else ledger.flag_of(attempt.slot)
            if why is not None:
                self._stop(attempt, why)
        for capacity in self._capacities.values():
            capacity.is_off = ledger.is_off(capacity.handler.index)
        self._release_unstarted([a for a in self._leased.values() if self._capacities[a.handler.name].is_off])
        self._wakeup.notify()

    def _release_overdue(self, now: float) -> None:
        """The handlers' loop is blocked: release unstarted jobs to run elsewhere. Their capacity stays in use."""
        self._release_unstarted([a for a in self._leased.values() if now - a.leased_at > UNSTARTED_SECONDS])

    def _release_unstarted(self, attempts: Sequence[Attempt]) -> None:
        """Release the attempts that have not started."""
        for attempt in attempts:
            if attempt.begun_at is None and attempt.take():
                self._record_end(attempt, Release(attempt.job.key, attempt.job.attempt), is_free=True)
                self._wakeup.notify()
