"""Outcomes and long polls of all callers share the engine's steps: one step at a time carries what came meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, Protocol

from everwork.core.job import LeasedJob
from everwork.core.leasing import WAIT_MS_MAX, Activation, Demand, Judged, pause_ms
from everwork.core.limits import ACTIVATE_MAX, SETTLE_BATCH_MAX
from everwork.core.outcome import Outcome
from everwork.engines.contract import Engine
from everwork.exceptions import EngineError, TooManyRequests

DEMANDS_MAX: Final = 128
"""How many callers of one place are served by one step."""
CROWD_MIN: Final = 4
"""So many callers in one step are a crowd."""
GATHER_SECONDS: Final = 0.002
"""In a crowd the next step waits a moment for the rest of it: half the commits, a fifth of the CPU."""
IDLE_SECONDS: Final = 10.0
BUSY_RETRY_MS: Final = 1_000


class Reporter(Protocol):
    """Hears of steps, never of single jobs: it is called on the hot path, and must not raise or wait."""

    def committed(self, step: str, items: int, seconds: float) -> None:
        """One step of the engine ("create", "settle", "activate") carried so many items, whoever they came from."""

    def polled(self, seconds: float, jobs: int) -> None:
        """Somebody who asked for jobs was answered after so long, with so many."""


class _Silent:
    """Tells nobody."""

    def committed(self, step: str, items: int, seconds: float) -> None:
        """Nothing."""

    def polled(self, seconds: float, jobs: int) -> None:
        """Nothing."""


SILENT: Final[Reporter] = _Silent()


class Answer(NamedTuple):
    """What a step brought to one of those who took part in it."""

    judged: list[Judged]
    shares: list[list[LeasedJob]]
    pause_ms: int


class _Part(NamedTuple):
    outcomes: Sequence[Outcome]
    demands: Sequence[Demand]
    answer: asyncio.Future[Answer]


class StepBatcher:
    """The engine's steps, one after the other; what comes while one is under way goes into the next."""

    def __init__(
        self, engine: Engine, abandoned: Callable[[Sequence[LeasedJob]], None], reporter: Reporter = SILENT
    ) -> None:
        self._engine = engine
        self._abandoned = abandoned
        self._reporter = reporter
        self._parts: list[_Part] = []
        self._crowd = 0
        self._task: asyncio.Task[None] | None = None

    async def take(self, outcomes: Sequence[Outcome], demands: Sequence[Demand]) -> Answer:
        """Take part in the next step."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._parts.append(_Part(outcomes, demands, answer))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="everwork-steps")
        try:
            return await answer
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                # The answer came in the very moment in which the caller went away.
                self._abandoned([job for share in answer.result().shares for job in share])
            raise

    async def close(self) -> None:
        """Wait until everything that has come is answered."""
        while self._task is not None:
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            while self._parts:
                # Whoever has just been woken by the same message or answer shall be part of the step, too.
                await asyncio.sleep(GATHER_SECONDS if self._crowd >= CROWD_MIN else 0)
                parts = self._next()
                self._crowd = len(parts)
                await self._step(parts)
        finally:
            self._task = None

    def _next(self) -> list[_Part]:
        """Those who take part in the next step: at least one, and no more than one step can bear."""
        outcomes = jobs = 0
        for at, part in enumerate(self._parts):
            outcomes += len(part.outcomes)
            jobs += sum(demand.limit for demand in part.demands)
            if at and (outcomes > SETTLE_BATCH_MAX or jobs > ACTIVATE_MAX):
                parts, self._parts = self._parts[:at], self._parts[at:]
                return parts
        parts, self._parts = self._parts, []
        return parts

    async def _step(self, parts: list[_Part]) -> None:
        outcomes = [outcome for part in parts for outcome in part.outcomes]
        demands = [demand for part in parts for demand in part.demands]
        began = time.perf_counter()
        try:
            if outcomes:
                judged, activation = await self._engine.settle(outcomes, demands)
            else:
                judged, activation = [], await self._engine.activate(demands)
        except Exception as error:  # noqa: BLE001 - it goes to those whose call it was
            if len(parts) == 1 or isinstance(error, EngineError):
                _fail(parts, error)
            else:
                # One of them spoils the step: each goes by itself.
                for part in parts:
                    await self._step([part])
            return
        self._tell(parts, judged, activation)
        if outcomes or activation.jobs:
            step, items = ("settle", len(outcomes)) if outcomes else ("activate", len(activation.jobs))
            self._reporter.committed(step, items, time.perf_counter() - began)

    def _tell(self, parts: list[_Part], judged: list[Judged], activation: Activation) -> None:
        pause = pause_ms(activation)
        shares = _shares(activation)
        at = 0
        for part in parts:
            mine = [next(shares) for _ in part.demands]
            if not part.answer.done():
                part.answer.set_result(Answer(judged[at : at + len(part.outcomes)], mine, pause))
            else:
                self._abandoned([job for share in mine for job in share])
            at += len(part.outcomes)


class _Poll:
    """One caller who waits for jobs."""

    __slots__ = ("answer", "demand", "is_asked_for", "is_expired")

    def __init__(self, demand: Demand) -> None:
        self.demand = demand
        self.is_asked_for = False
        self.is_expired = False
        self.answer: asyncio.Future[list[LeasedJob]] = asyncio.get_running_loop().create_future()

    def give(self, jobs: list[LeasedJob]) -> bool:
        """Hand jobs over; False if the caller has gone."""
        if self.answer.done():
            return False
        self.answer.set_result(jobs)
        return True

    def expire(self) -> None:
        """The time is over; if the engine is being asked just now, its answer is waited for."""
        self.is_expired = True
        if not self.is_asked_for:
            self.give([])


class _PollQueue:
    """Those who wait for one type, group and set of tenants, served in the order in which they came."""

    def __init__(self, exchange: Dispatcher, sample: Demand) -> None:
        self._dispatcher = exchange
        self._type = sample.type
        self.key = place_of(sample)
        self.asks: dict[_Poll, None] = {}
        self._wakeup = asyncio.Event()
        self._reach = 1
        self.task = asyncio.get_running_loop().create_task(self._run(), name=f"everwork-place-{sample.type}")

    def add(self, ask: _Poll) -> None:
        """Let a caller wait here; the engine is asked at once."""
        self.asks[ask] = None
        self._wakeup.set()

    def leave(self, ask: _Poll) -> None:
        """A caller waits no longer."""
        self.asks.pop(ask, None)

    async def _run(self) -> None:
        while await self._has_asks():
            self._wakeup.clear()
            try:
                await self._serve()
            except Exception as error:  # noqa: BLE001 - it goes to those who wait
                self._fail(error)

    async def _serve(self) -> None:
        mark = self._dispatcher.engine.mark()
        asks = self._first()
        for ask in asks:
            ask.is_asked_for = True
        answer = await self._dispatcher.steps.take((), [ask.demand for ask in asks])
        if self._hand_out(asks, answer.shares):
            await self._wait(answer.pause_ms, mark)

    async def _has_asks(self) -> bool:
        """Stay for a while when nobody waits: the same callers will come again."""
        while not self.asks:
            self._wakeup.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wakeup.wait(), IDLE_SECONDS)
                continue
            if not self.asks:
                self._dispatcher.forget(self)
                return False
        return True

    def _first(self) -> list[_Poll]:
        """Those who came first: few while work is scarce, many while there is plenty."""
        chosen: list[_Poll] = []
        jobs = 0
        for ask in self.asks:
            jobs += ask.demand.limit
            if chosen and (len(chosen) >= self._reach or jobs > ACTIVATE_MAX):
                break
            chosen.append(ask)
        return chosen

    def _hand_out(self, asks: list[_Poll], shares: list[list[LeasedJob]]) -> bool:
        """Give everybody his share; answer whether there was too little."""
        is_short = False
        for ask, jobs in zip(asks, shares, strict=True):
            is_short = is_short or len(jobs) < ask.demand.limit
            ask.is_asked_for = False
            if jobs or ask.is_expired:
                self.leave(ask)
                if not ask.give(jobs):
                    self._dispatcher.abandoned(jobs)
        self._reach = max(1, self._reach // 2) if is_short else min(self._reach * 2, DEMANDS_MAX)
        return is_short

    async def _wait(self, pause_ms: int, mark: int) -> None:
        """Wait for work or for another caller; those who are waiting have had their look."""
        if self._wakeup.is_set() or not self.asks:
            return
        loop = asyncio.get_running_loop()
        woken = loop.create_task(self._dispatcher.engine.wait([self._type], min(pause_ms, WAIT_MS_MAX), since=mark))
        news = loop.create_task(self._wakeup.wait())
        try:
            await asyncio.wait([woken, news], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (woken, news):
                task.cancel()
            # An engine that is away is met again at the next step, which tells those who wait.
            await asyncio.gather(woken, news, return_exceptions=True)

    def _fail(self, error: Exception) -> None:
        asks, self.asks = self.asks, {}
        for ask in asks:
            if not ask.answer.done():
                ask.answer.set_exception(error)


class Dispatcher:
    """Where callers of one process leave outcomes and wait for jobs. It lives in one event loop."""

    def __init__(
        self,
        engine: Engine,
        abandoned: Callable[[Sequence[LeasedJob]], None],
        pollers_max: int,
        reporter: Reporter = SILENT,
    ) -> None:
        self.engine = engine
        self.abandoned = abandoned
        self._pollers_max = pollers_max
        self._reporter = reporter
        self.steps = StepBatcher(engine, abandoned, reporter)
        self._places: dict[tuple[str, str, tuple[str, ...]], _PollQueue] = {}
        self._waiting: defaultdict[str, int] = defaultdict(int)
        self._is_ending = False

    async def settle(self, outcomes: Sequence[Outcome]) -> list[Judged]:
        """End attempts."""
        return (await self.steps.take(outcomes, ())).judged

    async def lease(self, demand: Demand, wait_ms: int) -> list[LeasedJob]:
        """Lease jobs; with nothing to do, wait for some. What a caller who has gone would have got goes back."""
        began = time.perf_counter()
        jobs = await self._lease(demand, wait_ms)
        self._reporter.polled(time.perf_counter() - began, len(jobs))
        return jobs

    async def _lease(self, demand: Demand, wait_ms: int) -> list[LeasedJob]:
        if wait_ms <= 0 or self._is_ending:
            return (await self.steps.take((), [demand])).shares[0]
        if self.waiting(demand.type) >= self._pollers_max:
            raise TooManyRequests(
                f"{self._pollers_max:,} callers wait for jobs of type '{demand.type}' already, more are not allowed",
                BUSY_RETRY_MS,
            )
        ask = _Poll(demand)
        place = self._place(demand)
        place.add(ask)
        timer = asyncio.get_running_loop().call_later(wait_ms / 1000, ask.expire)
        self._waiting[demand.type] += 1
        try:
            return await ask.answer
        except asyncio.CancelledError:
            self._take_back(ask)
            raise
        finally:
            timer.cancel()
            place.leave(ask)
            self._left(demand.type)

    def waiting(self, type: str) -> int:
        """How many callers wait for a type."""
        return self._waiting.get(type, 0)

    def end_polls(self) -> None:
        """Let everybody go who waits, with nothing; nobody waits from now on."""
        self._is_ending = True
        for place in self._places.values():
            for ask in list(place.asks):
                ask.expire()

    def forget(self, place: _PollQueue) -> None:
        """A place where nobody has waited for a while is given up."""
        if self._places.get(place.key) is place:
            del self._places[place.key]

    async def close(self) -> None:
        """End every wait, and finish the steps that have begun."""
        self.end_polls()
        places = [place.task for place in self._places.values()]
        for task in places:
            task.cancel()
        await asyncio.gather(*places, return_exceptions=True)
        await self.steps.close()

    def _place(self, demand: Demand) -> _PollQueue:
        key = place_of(demand)
        place = self._places.get(key)
        if place is None:
            self._places[key] = place = _PollQueue(self, demand)
        return place

    def _take_back(self, ask: _Poll) -> None:
        """Jobs that were handed over in the very moment in which the caller went away."""
        if ask.answer.done() and not ask.answer.cancelled() and ask.answer.exception() is None:
            self.abandoned(ask.answer.result())

    def _left(self, type: str) -> None:
        self._waiting[type] -= 1
        if not self._waiting[type]:
            del self._waiting[type]


def place_of(demand: Demand) -> tuple[str, str, tuple[str, ...]]:
    """What callers have in common who wait for the same jobs."""
    return demand.type, demand.group, demand.tenants


def _shares(activation: Activation) -> Iterator[list[LeasedJob]]:
    at = 0
    for share in activation.shares:
        yield activation.jobs[at : at + share]
        at += share


def _fail(parts: list[_Part], error: Exception) -> None:
    for part in parts:
        if not part.answer.done():
            part.answer.set_exception(error)
