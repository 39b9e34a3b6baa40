"""How work flowed: points in time, by minute from the pulse or by hour from the engine, and the charts of them."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

from markupsafe import Markup

from everwork.core.limits import HOUR_MS, STATISTICS_KEEP_HOURS
from everwork.core.measures import Measured, measured, percentile_ms
from everwork.core.queries import Measure, Stats
from everwork.server.http.ui.chart import Series, Slot, bars, lines
from everwork.server.http.ui.render import duration, number
from everwork.server.http.ui.visit import Visit
from everwork.service.monitor.minutes import MINUTE_MS, OTHER_TYPES, Work, work_of
from everwork.service.monitor.sampler import MetricsSampler
from everwork.service.service import JobService

MINUTE_SLOTS: Final = 60
LATENCY_MINUTES: Final = 5
"""Percentiles of so many minutes are one point: of a single one they would jump about."""
SHARES: Final = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
"""Percentiles that are shown: half of the attempts took at most p50, 95 of 100 at most p95, 99 of 100 at most p99."""
DEAR_SHARE: Final = 0.02
"""Which part of the time may go into one and the same charts: dear ones are shown for a while."""
SHOWN_SECONDS_MAX: Final = 60.0
REMEMBERED_MAX: Final = 50
PASTS_MAX: Final = 20
HOURS_AGAIN: Final = 2
"""So many of the hours that were read last may have grown since: who began before an hour's end may end after it."""


class Range(NamedTuple):
    """A stretch of time up to now, in slots of so many hours; 0 hours: in minutes."""

    name: str
    label: str
    last: str
    """How people call it."""
    slots: int
    slot: str
    """What a slot is called."""
    slot_hours: int = 0
    marked: int = 1
    """Under every so many slots stands when it was."""

    @property
    def is_days(self) -> bool:
        """Whether a slot is a day."""
        return self.slot_hours >= 24


RANGES: Final = (
    Range("1h", "1 hour", "the last hour", MINUTE_SLOTS, "minute", 0, 15),
    Range("24h", "24 hours", "the last 24 hours", 24, "hour", 1, 6),
    Range("7d", "7 days", "the last 7 days", 28, "6 hours", 6, 4),
    Range("30d", "30 days", "the last 30 days", 30, "day", 24, 5),
)


class Point(NamedTuple):
    """What ended in one slot, which began at `start_ms`; nobody knows it if no server was there to count."""

    start_ms: int
    work: Work
    measured: Measured
    is_known: bool = True


class Charts(NamedTuple):
    """How much was done, how long it took, and how long it had waited."""

    throughput: Markup
    execution: Markup
    wait: Markup
    total: Work
    measured: Measured


class _Shown(NamedTuple):
    charts: Charts
    reading: int
    until: float


class Past:
    """What the engine has counted by hour, of one type or of all. Hours that are over are read once."""

    def __init__(self, type: str | None) -> None:
        self.counts: dict[int, Counter[str]] = {}
        self.now_ms = 0
        self._type = type
        self._first: int | None = None
        self._last = 0

    async def read(self, service: JobService, hours: int, at_ms: int) -> None:
        """Know at least the last so many hours. `at_ms` is about now."""
        now = at_ms // HOUR_MS
        is_known = self._first is not None and self._first <= now - hours + 1
        new = min(now - self._last + HOURS_AGAIN, STATISTICS_KEEP_HOURS) if is_known else hours
        stats = await service.stats(max(new, 1))
        self.now_ms = stats.generated_at_ms
        first = self.now_ms // HOUR_MS - new + 1
        if is_known and first > self._last:
            self._first = None
            return await self.read(service, hours, self.now_ms)
        oldest = self.now_ms // HOUR_MS - STATISTICS_KEEP_HOURS + 1
        self._first = max(oldest, self._first if is_known and self._first is not None else first)
        self._last = self.now_ms // HOUR_MS
        # One hour more than needed, for another may have begun since.
        measures = await service.measures(min(new + 1, STATISTICS_KEEP_HOURS), self._type)
        kept = {hour: counts for hour, counts in self.counts.items() if self._first <= hour < first}
        # A month of many types is half a million rows: the event loop has others to serve.
        self.counts = kept | await asyncio.to_thread(self._fresh, stats, measures, first)
        return None

    def _fresh(self, stats: Stats, measures: Sequence[Measure], first: int) -> dict[int, Counter[str]]:
        counts: dict[int, Counter[str]] = defaultdict(Counter)
        for row in stats.hours:
            if self._type in (None, row.type) and row.hour >= first:
                for name in Work._fields:
                    counts[row.hour][name] += getattr(row, name)
        for measure in measures:
            if measure.hour >= first:
                counts[measure.hour][measure.what] += measure.jobs
        return counts


class _Remembered:
    """The charts that one server has drawn lately, and what they were drawn from; one at a time is drawn."""

    def __init__(self) -> None:
        self.drawing = asyncio.Lock()
        self.shown: OrderedDict[tuple[str, str | None], _Shown] = OrderedDict()
        self._pasts: OrderedDict[str | None, Past] = OrderedDict()

    def past(self, type: str | None) -> Past:
        """What is known of a type's hours."""
        found = self._pasts.setdefault(type, Past(type))
        self._pasts.move_to_end(type)
        while len(self._pasts) > PASTS_MAX:
            self._pasts.popitem(last=False)
        return found


_remembered: Final[WeakKeyDictionary[MetricsSampler, _Remembered]] = WeakKeyDictionary()


def range_of(visit: Visit) -> Range:
    """The range that was asked for; else the first."""
    return next((one for one in RANGES if one.name == visit.asked("range")), RANGES[0])


async def charts(visit: Visit, asked: Range, type: str | None = None) -> Charts:
    """The charts of one type, or of all together. The visitor must be one who may see what concerns all tenants.

    They are drawn once for all who look, and again when there is another reading, but not too often if that is dear.
    """
    sampler = visit.parts.sampler
    mine = _remembered.setdefault(sampler, _Remembered())
    async with mine.drawing:
        known = mine.shown.get((asked.name, type))
        reading = 0 if sampler.reading is None else sampler.reading.number
        if known is not None and (known.reading == reading or time.monotonic() < known.until):
            return known.charts
        began = time.monotonic()
        drawn = await _charts(visit, mine, asked, type)
        now = time.monotonic()
        until = now + min((now - began) / DEAR_SHARE, SHOWN_SECONDS_MAX)
        mine.shown[asked.name, type] = _Shown(drawn, reading, until)
        mine.shown.move_to_end((asked.name, type))
        while len(mine.shown) > REMEMBERED_MAX:
            mine.shown.popitem(last=False)
        return drawn


async def _charts(visit: Visit, mine: _Remembered, asked: Range, type: str | None) -> Charts:
    sampler = visit.parts.sampler
    if asked.slot_hours:
        past = mine.past(type)
        reading = sampler.reading or await sampler.fresh()
        await past.read(visit.parts.service, asked.slots * asked.slot_hours, reading.at_ms)
        points = _by_hours(past, asked)
        return _drawn(asked, points, points)
    points = _by_minutes(sampler, type)
    steps = [_together(points[at : at + LATENCY_MINUTES]) for at in range(0, len(points), LATENCY_MINUTES)]
    return _drawn(asked, points, steps)


# Points ---------------------------------------------------------------------------------------------


def _by_minutes(sampler: MetricsSampler, type: str | None) -> list[Point]:
    known: dict[int, Counter[str]] = defaultdict(Counter)
    for minute in sampler.minutes[-MINUTE_SLOTS:]:
        if type is None or type in minute.counts or OTHER_TYPES not in minute.counts:
            for some in minute.counts.values() if type is None else [minute.counts.get(type, {})]:
                known[minute.minute].update(some)
            known[minute.minute].update({})  # Of an idle minute it is known that nothing ended.
    last = sampler.reading.at_ms // MINUTE_MS if sampler.reading else 0
    return [
        _point(at * MINUTE_MS, known.get(at, {}))._replace(is_known=at in known)
        for at in range(last - MINUTE_SLOTS + 1, last + 1)
    ]


def _by_hours(past: Past, asked: Range) -> list[Point]:
    last = past.now_ms // HOUR_MS // asked.slot_hours
    points = []
    for slot in range(last - asked.slots + 1, last + 1):
        counts: Counter[str] = Counter()
        for hour in range(slot * asked.slot_hours, (slot + 1) * asked.slot_hours):
            counts.update(past.counts.get(hour, {}))
        points.append(_point(slot * asked.slot_hours * HOUR_MS, counts))
    return points


def _point(start_ms: int, counts: Mapping[str, int]) -> Point:
    return Point(start_ms, work_of(counts), measured(counts.items()))


def _together(points: Sequence[Point]) -> Point:
    """Several slots as one."""
    failures: Counter[str] = Counter()
    for point in points:
        failures.update(point.measured.failures)
    execution = tuple(map(sum, zip(*(point.measured.execution for point in points), strict=True)))
    wait = tuple(map(sum, zip(*(point.measured.wait for point in points), strict=True)))
    work = Work(*(sum(values) for values in zip(*(point.work for point in points), strict=True)))
    return Point(points[0].start_ms, work, Measured(execution, wait, failures), any(one.is_known for one in points))


# Charts ---------------------------------------------------------------------------------------------


def _drawn(asked: Range, points: Sequence[Point], steps: Sequence[Point]) -> Charts:
    """`steps` are the points of the percentiles."""
    whole = _together(points)
    slots = _slots(asked, points, asked.marked)
    steps_slots = _slots(asked, steps, max(1, asked.marked * len(steps) // len(points)))
    executions = [step.measured.execution for step in [*steps, whole]]
    waits = [step.measured.wait for step in [*steps, whole]]
    return Charts(
        _throughput(asked, points, slots, whole.work),
        _percentiles(executions, steps_slots, f"How long attempts ran in {asked.last}"),
        _percentiles(waits, steps_slots, f"How long jobs were due before their attempts began, in {asked.last}"),
        whole.work,
        whole.measured,
    )


def _throughput(asked: Range, points: Sequence[Point], slots: Sequence[Slot], total: Work) -> Markup:
    named = (
        ("completed", "completed", total.completed),
        ("retried", "failed, tried again", total.retried),
        ("failed", "failed for good", total.failed),
    )
    series = [
        Series(name, label, [getattr(one.work, name) if one.is_known else None for one in points], number(jobs))
        for name, label, jobs in named
    ]
    about = f"Attempts that ended in {asked.last}: {', '.join(f'{number(jobs)} {label}' for _, label, jobs in named)}"
    return bars(series, slots, about, number)


def _percentiles(counts: Sequence[Sequence[int]], slots: Sequence[Slot], about: str) -> Markup:
    """The last of the counts are those of the whole."""
    *parts, whole = counts
    series = [
        Series(name, name, [percentile_ms(one, part) for one in parts], duration(percentile_ms(whole, part)))
        for name, part in SHARES
    ]
    gist = f"{about}: {', '.join(f'{one.whole} at {one.label}' for one in series)}" if any(whole) else about
    return lines(series, slots, gist, duration)


def _slots(asked: Range, points: Sequence[Point], marked: int) -> list[Slot]:
    last, last_ms = len(points) - 1, points[-1].start_ms
    return [
        Slot(
            _named(asked, point.start_ms),
            _mark(asked, point.start_ms, last_ms) if (last - at) % marked == 0 else "",
            at == last,
        )
        for at, point in enumerate(points)
    ]


def _named(asked: Range, start_ms: int) -> str:
    form = "%Y-%m-%d" if asked.is_days else "%Y-%m-%d %H:%M"
    return f"{datetime.fromtimestamp(start_ms / 1000, UTC).strftime(form)} UTC"


def _mark(asked: Range, start_ms: int, last_ms: int) -> str:
    """How long ago a slot was, as it stands under the chart."""
    ago_ms = last_ms - start_ms
    if not ago_ms:
        return "now"
    size, unit = (MINUTE_MS, "min") if not asked.slot_hours else (HOUR_MS, "h")
    return f"\u2212{ago_ms // (24 * HOUR_MS)} d" if asked.slot_hours > 1 else f"\u2212{ago_ms // size} {unit}"
