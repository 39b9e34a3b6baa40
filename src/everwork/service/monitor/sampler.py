"""Samples a store's metrics every two seconds, and stores them by minute."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from everwork.aio.loops import BackgroundLoop
from everwork.core.queries import Count, Measure, Oldest, Stats, TypeInfo
from everwork.engines.contract import Engine
from everwork.exceptions import EngineError
from everwork.service.monitor.minutes import (
    MINUTE_MS,
    Growth,
    Minute,
    Span,
    bounded_minute,
    merged,
    minute_body,
    minute_from,
    minute_name,
    span_of,
)

READ_SECONDS: Final = 2.0
SLOW_SECONDS: Final = 0.02
"""If sampling takes longer than this, because there are very many types, the sample is reused for a while."""
READ_SHARE: Final = 0.02
"""The fraction of time that may be spent on slow samples."""
RECENT_SECONDS_MAX: Final = 10.0
MINUTES_KEPT: Final = 180
MINUTE_KIND: Final = "minute"
MINUTE_TTL_MS: Final = MINUTES_KEPT * MINUTE_MS
TURN: Final = "pulse"
TURN_MS: Final = 90_000
FAREWELL_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class Sample:
    """The store at one time, by its own clock. `number` increases with each sample."""

    number: int
    at_ms: int
    counts: list[Count]
    types: list[TypeInfo]
    oldest: list[Oldest]


class MetricsSampler:
    """The latest sample, and the finished attempts of the last three hours by minute. Bound to one event loop.

    Minutes come from the engine's counts for the whole fleet. One server at a time writes them to the registry, where
    a starting server finds them.
    """

    def __init__(self, engine: Engine, holder: str) -> None:
        self._engine = engine
        self._holder = holder
        self._loop = BackgroundLoop("everwork-pulse", self._tick, READ_SECONDS)
        self._wakeup = asyncio.Event()
        self._sampling_in_turn = asyncio.Lock()
        self._next: asyncio.Task[Sample] | None = None
        self._growth = Growth()
        self._past: deque[Minute] = deque(maxlen=MINUTES_KEPT - 1)
        self._running: dict[str, Counter[str]] = defaultdict(Counter)
        self._began_ms: int | None = None
        self._unsaved: deque[Minute] = deque(maxlen=MINUTES_KEPT)
        self._shown: tuple[int, Minute] | None = None
        self._has_loaded = False
        self._read_at = self._cost_seconds = 0.0
        self.totals: Mapping[str, Counter[str]] = defaultdict(Counter)
        self.latest: Sample | None = None

    async def open(self) -> None:
        """Load the stored minutes, take the first sample, and start the loop."""
        with suppress(EngineError):  # The loop logs the error and retries.
            await self._load()
            await self.fresh()
        self._loop.start()

    async def close(self) -> None:
        """Stop the loop, and store the running minute for the next server."""
        await self._loop.abort()
        if self._next is not None:
            self._next.cancel()
        if self._past_and_running:
            self._unsaved.append(self._past_and_running[-1])
        with suppress(EngineError, TimeoutError):
            async with asyncio.timeout(FAREWELL_SECONDS):
                if await self._save():
                    await self._engine.take_turn(TURN, self._holder, 1)

    @property
    def minutes(self) -> Sequence[Minute]:
        """The last minutes, oldest first, ending with the running minute; minutes without a sample are missing."""
        return self._past_and_running

    def span(self, minutes: int, type: str | None = None) -> Span:
        """Finished attempts of the last minutes, including the running one, of one type or of all."""
        if self.latest is None:
            return span_of([], 0.0)
        first = self.latest.at_ms // MINUTE_MS - minutes + 1
        chosen = [minute for minute in self._past_and_running[-minutes:] if minute.minute >= first]
        seen_ms = (len(chosen) - 1) * MINUTE_MS + self.latest.at_ms % MINUTE_MS
        if self._began_ms is not None and self._began_ms // MINUTE_MS >= first:
            seen_ms -= self._began_ms % MINUTE_MS
        return span_of(chosen, max(seen_ms, 0) / 1000, type)

    async def fresh(self) -> Sample:
        """Take a new sample. Callers share only a sample that has not started yet, so none gets an outdated one."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._read_in_turn(), name="everwork-pulse-reading")
            self._next.add_done_callback(_consume_error)
        return await asyncio.shield(self._next)

    async def recent(self) -> Sample:
        """The latest sample if samples are slow, otherwise a fresh one."""
        if self.latest is not None and self._cost_seconds > SLOW_SECONDS:
            age = time.monotonic() - self._read_at
            if age < min(self._cost_seconds / READ_SHARE, RECENT_SECONDS_MAX):
                return self.latest
        return await self.fresh()

    async def wait_change(self, after: int, timeout: float) -> bool:
        """Wait for a sample with a higher number; False after the timeout."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while self.latest is None or self.latest.number <= after:
                    await self._wakeup.wait()
        return self.latest is not None and self.latest.number > after

    # Reading ------------------------------------------------------------------------------------

    async def _tick(self) -> bool:
        if not self._has_loaded:
            await self._load()
        await self.recent()
        if self._unsaved and not await self._save():
            await self._adopt()
        return False

    async def _read_in_turn(self) -> Sample:
        async with self._sampling_in_turn:
            self._next = None  # Later callers need a newer sample.
            began = time.monotonic()
            stats, hours = await self._stats()
            measures = await self._engine.measures(hours)
            types, oldest = await self._engine.types(), await self._engine.oldest()
            number = 1 if self.latest is None else self.latest.number + 1
            self._roll(stats.generated_at_ms)
            self._count(stats, measures, hours)
            self._forget_totals(types)
            self.latest = Sample(number, stats.generated_at_ms, stats.counts, types, oldest)
            self._read_at = time.monotonic()
            self._cost_seconds = self._read_at - began
            wakeup, self._wakeup = self._wakeup, asyncio.Event()
            wakeup.set()
            return self.latest

    async def _stats(self) -> tuple[Stats, int]:
        """Read the hours that may have changed, which is nearly always only the current one."""
        hours = self._growth.hours(None if self.latest is None else self.latest.at_ms)
        stats = await self._engine.stats(hours)
        if (needed := self._growth.hours(stats.generated_at_ms)) > hours:
            return await self._engine.stats(needed), needed
        return stats, hours

    def _roll(self, at_ms: int) -> None:
        """Close the running minute if it has ended."""
        before, number = self.latest, at_ms // MINUTE_MS
        if before is None or number < before.at_ms // MINUTE_MS:
            self._begin(at_ms, [] if before is None else [self._running_minute(before)])
        elif number > before.at_ms // MINUTE_MS:
            self._past.append(self._running_minute(before))
            self._unsaved.append(self._past[-1])
            self._running = defaultdict(Counter)

    def _begin(self, at_ms: int, running: Sequence[Minute]) -> None:
        """Continue a stored minute, or one that the clock was set back to; later minutes are dropped."""
        number = at_ms // MINUTE_MS
        same = [minute for minute in self._past if minute.minute == number]
        self._began_ms = None if same else at_ms
        self._running = merged([*same, *running])
        self._past = deque((one for one in self._past if one.minute < number), self._past.maxlen)
        self._unsaved = deque((one for one in self._unsaved if one.minute < number), self._unsaved.maxlen)

    def _count(self, stats: Stats, measures: Sequence[Measure], hours: int) -> None:
        for type, counts in self._growth.step(stats, measures, hours).items():
            self._running[type].update(counts)
            self.totals[type].update(counts)

    def _forget_totals(self, types: Sequence[TypeInfo]) -> None:
        """Drop the totals of deleted types."""
        if len(self.totals) > len(types):
            known = {info.type for info in types}
            self.totals = defaultdict(Counter, {type: one for type, one in self.totals.items() if type in known})

    @property
    def _past_and_running(self) -> list[Minute]:
        sample = self.latest
        if sample is None:
            return list(self._past)
        if self._shown is None or self._shown[0] != sample.number:
            self._shown = sample.number, self._running_minute(sample)
        return [*self._past, self._shown[1]]

    def _running_minute(self, sample: Sample) -> Minute:
        return bounded_minute(sample.at_ms // MINUTE_MS, self._running)

    # Storage ------------------------------------------------------------------------------------

    async def _load(self) -> None:
        """Load the minutes that other servers stored; the registry drops them after three hours."""
        entries = await self._engine.last_registered(MINUTE_KIND, MINUTES_KEPT)
        own = {minute.minute for minute in self.minutes}
        found = [minute for one in entries if (minute := minute_from(one.name, one.body)) and minute.minute not in own]
        self._past = deque(sorted([*found, *self._past], key=lambda one: one.minute), self._past.maxlen)
        self._has_loaded = True

    async def _save(self) -> bool:
        """Write unsaved minutes, if it is this server's turn."""
        if not await self._engine.take_turn(TURN, self._holder, TURN_MS):
            return False
        while self._unsaved:
            await self._write(self._unsaved[0])
            self._unsaved.popleft()
        return True

    async def _adopt(self) -> None:
        """Adopt the minutes of the server whose turn it is to write; ours may be partial.

        Minutes that it skipped because it hung or was down are written here.
        """
        missing = self._past[-1].minute - self._unsaved[0].minute + 2
        entries = await self._engine.last_registered(MINUTE_KIND, min(missing, MINUTES_KEPT))
        stored = {minute.minute: minute for one in entries if (minute := minute_from(one.name, one.body))}
        last = max(stored, default=0)
        for minute in [one for one in self._unsaved if one.minute < last and one.minute not in stored]:
            await self._write(minute)
        self._past = deque((stored.get(minute.minute, minute) for minute in self._past), self._past.maxlen)
        self._unsaved = deque((one for one in self._unsaved if one.minute > last), self._unsaved.maxlen)

    async def _write(self, minute: Minute) -> None:
        await self._engine.register(MINUTE_KIND, minute_name(minute.minute), minute_body(minute), MINUTE_TTL_MS)


def _consume_error(task: asyncio.Task[Sample]) -> None:
    """Retrieve the exception: if no caller is left to do so, asyncio would log a warning."""
    if not task.cancelled():
        task.exception()
