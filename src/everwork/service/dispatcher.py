"""Batches the outcomes and long polls of all callers into engine steps, one step at a time."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, Protocol

from everwork.core.job import LeasedJob
from everwork.core.leasing import WAIT_MS_MAX, Activation, Demand, Judged, pause_ms
from everwork.core.limits import ACTIVATE_BYTES_MAX, LEASE_STEP_MAX, PAYLOAD_BYTES_MAX, SETTLE_BATCH_MAX
from everwork.core.outcome import Outcome
from everwork.engines.contract import Engine
from everwork.exceptions import EngineError
from everwork.service.access.budgets import PollLimits
from everwork.service.access.principal import Party

DEMANDS_MAX: Final = 128
"""The maximum number of polls of one queue that one step serves."""
CROWD_MIN: Final = 4
"""With at least this many callers in one step, the steps that follow wait to gather more."""
CROWD_SECONDS: Final = 0.005
"""For how long after such a step the following ones wait. If only the next one waited, steps on a fast store could stay
small: fewer callers arrive during a short step, so the next is short, too."""
GATHER_SECONDS: Final = 0.002
"""How long each of these steps waits; this saves half of the commits and a fifth of the CPU time."""
IDLE_SECONDS: Final = 10.0
JOBS_MIN: Final = ACTIVATE_BYTES_MAX // PAYLOAD_BYTES_MAX
"""How many jobs one step may always lease, even if the last ones were of the maximum size."""


class Reporter(Protocol):
    """Receives figures per step, never per job. Called on the hot path: it must not raise or block."""

    def committed(self, step: str, items: int, seconds: float) -> None:
        """One engine step ("create", "settle", "activate") handled this many items for all callers."""

    def polled(self, seconds: float, jobs: int) -> None:
        """A poll was answered with this many jobs."""


class _Silent:
    """Reports nothing."""

    def committed(self, step: str, items: int, seconds: float) -> None:
        """Nothing."""

    def polled(self, seconds: float, jobs: int) -> None:
        """Nothing."""


SILENT: Final[Reporter] = _Silent()


class Answer(NamedTuple):
    """One caller's share of a step's result."""

    judged: list[Judged]
    shares: list[list[LeasedJob]]
    pause_ms: int


class _Request(NamedTuple):
    outcomes: Sequence[Outcome]
    demands: Sequence[Demand]
    answer: asyncio.Future[Answer]


class StepBatcher:
    """Runs engine steps one after the other; items that arrive during a step go into the next."""

    def __init__(
        self, engine: Engine, release: Callable[[Sequence[LeasedJob]], None], reporter: Reporter = SILENT
    ) -> None:
        self._engine = engine
        self._release = release
        self._reporter = reporter
        self._requests: list[_Request] = []
        self._crowded_until = -math.inf
        self.jobs_max = JOBS_MIN
        """How many jobs the next step may lease, estimated from the largest job of the last step; one caller alone may
        lease more."""
        self._task: asyncio.Task[None] | None = None

    def settle(self, outcomes: Sequence[Outcome]) -> asyncio.Future[Answer]:
        """Add outcomes to the next step; they are settled even if the caller is cancelled."""
        return self._add(outcomes, ())

    async def lease(self, demands: Sequence[Demand]) -> Answer:
        """Add demands to the next step; returns the caller's share of the step's result."""
        answer = self._add((), demands)
        try:
            return await answer
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                # The answer arrived at the same moment as the caller's cancellation.
                self._release([job for share in answer.result().shares for job in share])
            raise

    async def close(self) -> None:
        """Wait until every caller is answered."""
        while self._task is not None:
            await asyncio.wait([self._task])

    def _add(self, outcomes: Sequence[Outcome], demands: Sequence[Demand]) -> asyncio.Future[Answer]:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Answer] = loop.create_future()
        self._requests.append(_Request(outcomes, demands, answer))
        if self._task is None:
            self._task = loop.create_task(self._run(), name="everwork-steps")
        return answer

    async def _run(self) -> None:
        is_backlogged = False
        try:
            while self._requests:
                # Include callers that were woken by the same message or answer.
                is_gathering = not is_backlogged and time.perf_counter() < self._crowded_until
                await asyncio.sleep(GATHER_SECONDS if is_gathering else 0)
                requests = self._next()
                is_backlogged = bool(self._requests)
                await self._step(requests)
                if len(requests) >= CROWD_MIN:
                    self._crowded_until = time.perf_counter() + CROWD_SECONDS
        finally:
            self._task = None

    def _next(self) -> list[_Request]:
        """The callers of the next step: at least one, and no more than the engine's limits allow."""
        outcomes = jobs = 0
        for at, request in enumerate(self._requests):
            outcomes += len(request.outcomes)
            if request.demands:  # Most requests have outcomes only.
                jobs += sum([demand.limit for demand in request.demands])
            if at and (outcomes > SETTLE_BATCH_MAX or jobs > self.jobs_max):
                requests, self._requests = self._requests[:at], self._requests[at:]
                return requests
        requests, self._requests = self._requests, []
        return requests

    async def _step(self, requests: list[_Request]) -> None:
        outcomes = [outcome for request in requests for outcome in request.outcomes]
        demands = [demand for request in requests for demand in request.demands]
        began = time.perf_counter()
        try:
            if outcomes:
                judged, activation = await self._engine.settle(outcomes, demands)
            else:
                judged, activation = [], await self._engine.activate(demands)
        except Exception as error:  # noqa: BLE001 - it goes to the callers
            if len(requests) == 1 or isinstance(error, EngineError):
                _fail(requests, error)
            else:
                # One invalid request fails the whole step, so run a separate step for each.
                for request in requests:
                    await self._step([request])
            return
        if activation.jobs:
            largest = max([len(job.variables) for job in activation.jobs])
            self.jobs_max = max(JOBS_MIN, min(LEASE_STEP_MAX, ACTIVATE_BYTES_MAX // (largest + 1)))
        self._answer(requests, judged, activation)
        if outcomes or activation.jobs:
            step, items = ("settle", len(outcomes)) if outcomes else ("activate", len(activation.jobs))
            self._reporter.committed(step, items, time.perf_counter() - began)

    def _answer(self, requests: list[_Request], judged: list[Judged], activation: Activation) -> None:
        pause = pause_ms(activation)
        shares = _shares(activation)
        at = 0
        for request in requests:
            mine = [next(shares) for _ in request.demands] if request.demands else []
            if not request.answer.done():
                request.answer.set_result(Answer(judged[at : at + len(request.outcomes)], mine, pause))
            else:
                self._release([job for share in mine for job in share])
            at += len(request.outcomes)


class _Poll:
    """One caller waiting for jobs."""

    __slots__ = ("answer", "demand", "is_expired", "is_in_step")

    def __init__(self, demand: Demand) -> None:
        self.demand = demand
        self.is_in_step = False
        self.is_expired = False
        self.answer: asyncio.Future[list[LeasedJob]] = asyncio.get_running_loop().create_future()

    def deliver(self, jobs: list[LeasedJob]) -> bool:
        """Deliver jobs; False if the caller is no longer waiting."""
        if self.answer.done():
            return False
        self.answer.set_result(jobs)
        return True

    def expire(self) -> None:
        """Time out; a poll that is part of a running step waits for that step's answer."""
        self.is_expired = True
        if not self.is_in_step:
            self.deliver([])


class _PollQueue:
    """The polls for one type, group and set of tenants, served first come, first served."""

    def __init__(self, dispatcher: Dispatcher, sample: Demand) -> None:
        self._dispatcher = dispatcher
        self._type = sample.type
        self.key = queue_key(sample)
        self.polls: dict[_Poll, None] = {}
        self._wakeup = asyncio.Event()
        self._reach = 1
        self.task = asyncio.get_running_loop().create_task(self._run(), name=f"everwork-place-{sample.type}")

    def add(self, poll: _Poll) -> None:
        """Add a poll and wake the loop."""
        self.polls[poll] = None
        self._wakeup.set()

    def leave(self, poll: _Poll) -> None:
        """Remove a poll."""
        self.polls.pop(poll, None)

    async def _run(self) -> None:
        while await self._has_polls():
            self._wakeup.clear()
            try:
                await self._serve()
            except Exception as error:  # noqa: BLE001 - it goes to the callers
                self._fail(error)

    async def _serve(self) -> None:
        mark = self._dispatcher.engine.mark()
        polls = self._first()
        for poll in polls:
            poll.is_in_step = True
        answer = await self._dispatcher.steps.lease([poll.demand for poll in polls])
        if self._hand_out(polls, answer.shares):
            await self._wait(answer.pause_ms, mark)

    async def _has_polls(self) -> bool:
        """Wait for polls; False after a while without any. The queue stays until then: callers usually poll again."""
        while not self.polls:
            self._wakeup.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wakeup.wait(), IDLE_SECONDS)
                continue
            if not self.polls:
                self._dispatcher.forget(self)
                return False
        return True

    def _first(self) -> list[_Poll]:
        """The oldest polls: few of them while jobs are scarce, many while jobs are plentiful."""
        chosen: list[_Poll] = []
        jobs = 0
        for poll in self.polls:
            jobs += poll.demand.limit
            if chosen and (len(chosen) >= self._reach or jobs > self._dispatcher.steps.jobs_max):
                break
            chosen.append(poll)
        return chosen

    def _hand_out(self, polls: list[_Poll], shares: list[list[LeasedJob]]) -> bool:
        """Deliver to each poll its share of the jobs; returns whether there were too few."""
        is_short = False
        for poll, jobs in zip(polls, shares, strict=True):
            is_short = is_short or len(jobs) < poll.demand.limit
            poll.is_in_step = False
            if jobs or poll.is_expired:
                self.leave(poll)
                if not poll.deliver(jobs):
                    self._dispatcher.release(jobs)
        self._reach = max(1, self._reach // 2) if is_short else min(self._reach * 2, DEMANDS_MAX)
        return is_short

    async def _wait(self, pause_ms: int, mark: int) -> None:
        """Wait for jobs or for another poll."""
        if self._wakeup.is_set() or not self.polls:
            return
        wait = self._dispatcher.engine.wait([self._type], min(pause_ms, WAIT_MS_MAX), since=mark)
        woken = asyncio.get_running_loop().create_task(wait)
        woken.add_done_callback(self._woken)
        try:
            await self._wakeup.wait()
        finally:
            woken.remove_done_callback(self._woken)  # Its end must not wake the next wait.
            if not woken.done():
                woken.cancel()
                await asyncio.gather(woken, return_exceptions=True)
            elif not woken.cancelled():
                woken.exception()  # If the engine is unavailable, the next step fails and reports it to the callers.

    def _woken(self, _task: object) -> None:
        self._wakeup.set()

    def _fail(self, error: Exception) -> None:
        polls, self.polls = self.polls, {}
        for poll in polls:
            if not poll.answer.done():
                poll.answer.set_exception(error)


class Dispatcher:
    """Settles and leases for all callers of a process. Bound to one event loop."""

    def __init__(
        self,
        engine: Engine,
        release: Callable[[Sequence[LeasedJob]], None],
        limits: PollLimits,
        reporter: Reporter = SILENT,
    ) -> None:
        self.engine = engine
        self.release = release
        self._limits = limits
        self._reporter = reporter
        self.steps = StepBatcher(engine, release, reporter)
        self._queues: dict[tuple[str, str, tuple[str, ...]], _PollQueue] = {}
        self._is_ending = False

    def settle(self, outcomes: Sequence[Outcome]) -> asyncio.Future[Answer]:
        """Settle attempts; `judged` of the answer has a verdict for each."""
        return self.steps.settle(outcomes)

    async def activate(self, demand: Demand, wait_ms: int, caller: str = "", party: Party = "") -> list[LeasedJob]:
        """Lease jobs; if none is due, wait. Jobs leased for a caller that has disconnected are released.

        `caller` is the id of the API key, and `party` identifies the keys that share its budget: each has a limit.
        """
        began = time.perf_counter()
        if wait_ms <= 0 or self._is_ending:
            jobs = (await self.steps.lease([demand])).shares[0]
        else:
            with self._limits.admitted(caller, demand.type, party):
                jobs = await self._wait_for_jobs(demand, wait_ms)
        self._reporter.polled(time.perf_counter() - began, len(jobs))
        return jobs

    async def _wait_for_jobs(self, demand: Demand, wait_ms: int) -> list[LeasedJob]:
        poll = _Poll(demand)
        queue = self._queue(demand)
        queue.add(poll)
        timer = asyncio.get_running_loop().call_later(wait_ms / 1000, poll.expire)
        try:
            return await poll.answer
        except asyncio.CancelledError:
            self._release_delivered(poll)
            raise
        finally:
            timer.cancel()
            queue.leave(poll)

    def waiting(self, type: str) -> int:
        """How many polls are waiting for a type."""
        return self._limits.waiting(type)

    def end_polls(self) -> None:
        """Answer all polls without jobs; later polls return immediately."""
        self._is_ending = True
        for queue in self._queues.values():
            for poll in list(queue.polls):
                poll.expire()

    def forget(self, queue: _PollQueue) -> None:
        """Drop a queue that had no polls for a while."""
        if self._queues.get(queue.key) is queue:
            del self._queues[queue.key]

    async def close(self) -> None:
        """End all polls, and finish the running steps."""
        self.end_polls()
        queues = list(self._queues.values())
        for queue in queues:
            queue.task.cancel()
        await asyncio.gather(*(queue.task for queue in queues), return_exceptions=True)
        for queue in queues:
            for poll in queue.polls:
                poll.deliver([])  # It was part of a running step, whose jobs are released.
        await self.steps.close()

    def _queue(self, demand: Demand) -> _PollQueue:
        key = queue_key(demand)
        queue = self._queues.get(key)
        if queue is None:
            self._queues[key] = queue = _PollQueue(self, demand)
        return queue

    def _release_delivered(self, poll: _Poll) -> None:
        """Release jobs that were delivered at the same moment as the caller's cancellation."""
        if poll.answer.done() and not poll.answer.cancelled() and poll.answer.exception() is None:
            self.release(poll.answer.result())


def queue_key(demand: Demand) -> tuple[str, str, tuple[str, ...]]:
    """Polls with the same key wait for the same jobs."""
    return demand.type, demand.group, demand.tenants


def _shares(activation: Activation) -> Iterator[list[LeasedJob]]:
    at = 0
    for share in activation.shares:
        yield activation.jobs[at : at + share]
        at += share


def _fail(requests: list[_Request], error: Exception) -> None:
    for request in requests:
        if not request.answer.done():
            request.answer.set_exception(error)
