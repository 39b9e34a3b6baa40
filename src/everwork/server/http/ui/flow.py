"""Throughput and latency over time: points by minute from the sampler or by hour from the engine, and their charts."""

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
from everwork.server.http.ui.chart import Remarks, Series, Slot, bars, has_few_points, lines
from everwork.server.http.ui.render import duration, number, when
from everwork.server.http.ui.visit import Visit
from everwork.service.monitor.minutes import MINUTE_MS, OTHER_TYPES, Work, work_of
from everwork.service.monitor.sampler import MetricsSampler
from everwork.service.service import JobService

MINUTE_SLOTS: Final = 60
PERCENTILES: Final = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
"""The percentiles that are shown."""
COST_SHARE_MAX: Final = 0.02
"""The maximum share of time spent drawing the same charts; expensive ones are cached for longer."""
CACHE_SECONDS_MAX: Final = 60.0
CACHED_CHARTS_MAX: Final = 50
CACHED_TYPES_MAX: Final = 20
HOURS_REREAD: Final = 2
"""Hours to reread: attempts that started before the end of an hour can finish after it."""


class Range(NamedTuple):
    """A time range up to now, in slots of `slot_hours`; 0 means slots of minutes."""

    name: str
    label: str
    last: str
    """The name of the range in sentences."""
    slots: int
    slot: str
    """The name of a slot."""
    slot_hours: int = 0
    marked: int = 1
    """The distance between labels on the time axis, in slots."""

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


class Window(NamedTuple):
    """The minutes to draw, the minutes per percentile point, and the distance between labels on the time axis.

    Percentiles of single minutes are noisy, but a new store has nothing else.
    """

    minutes: int
    step: int
    marked: int


WINDOWS: Final = (Window(10, 1, 5), Window(30, 2, 10), Window(MINUTE_SLOTS, 5, 15))
"""The shortest window that includes all counted minutes is used, so that a new store does not show an empty hour."""


class Point(NamedTuple):
    """The attempts that finished in one slot; unknown if no server was running to count them."""

    start_ms: int
    work: Work
    measured: Measured
    is_known: bool = True


class Chart(NamedTuple):
    """A chart as HTML, and the unit of its values: `per minute` or `in total`."""

    html: Markup
    unit: str


class Charts(NamedTuple):
    """Charts of throughput, run time and queue wait, and their totals."""

    throughput: Chart
    execution: Chart
    wait: Chart
    total: Work
    measured: Measured


class _CachedCharts(NamedTuple):
    charts: Charts
    sample_number: int
    until: float


class HourlyCounts:
    """The engine's hourly counts of one type or of all; past hours are read once."""

    def __init__(self, type: str | None) -> None:
        self.counts: dict[int, Counter[str]] = {}
        self.now_ms = 0
        self._type = type
        self._first: int | None = None
        self._last = 0

    async def read(self, service: JobService, hours: int, at_ms: int) -> None:
        """Read at least the last `hours`; `at_ms` is approximately now."""
        now = at_ms // HOUR_MS
        is_known = self._first is not None and self._first <= now - hours + 1
        new = min(now - self._last + HOURS_REREAD, STATISTICS_KEEP_HOURS) if is_known else hours
        self.now_ms = await service.now()
        first = self.now_ms // HOUR_MS - new + 1
        if is_known and first > self._last:
            self._first = None
            return await self.read(service, hours, self.now_ms)
        oldest = self.now_ms // HOUR_MS - STATISTICS_KEEP_HOURS + 1
        self._first = max(oldest, self._first if is_known and self._first is not None else first)
        self._last = self.now_ms // HOUR_MS
        counts: dict[int, Counter[str]] = defaultdict(Counter)
        # Read one hour more than needed, because another may have started since.
        for one in await service.hour_totals(min(max(new, 1) + 1, STATISTICS_KEEP_HOURS), self._type):
            if one.hour >= first:
                counts[one.hour][one.name] = one.jobs
        self.counts = {hour: past for hour, past in self.counts.items() if self._first <= hour < first} | counts
        return None


class _ChartCache:
    """The recent charts of one server and their hourly counts; a lock ensures that only one is drawn at a time."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.charts: OrderedDict[tuple[str, str | None], _CachedCharts] = OrderedDict()
        self._hourly: OrderedDict[str | None, HourlyCounts] = OrderedDict()

    def hourly(self, type: str | None) -> HourlyCounts:
        """The hourly counts of a type."""
        found = self._hourly.setdefault(type, HourlyCounts(type))
        self._hourly.move_to_end(type)
        while len(self._hourly) > CACHED_TYPES_MAX:
            self._hourly.popitem(last=False)
        return found


_caches: Final[WeakKeyDictionary[MetricsSampler, _ChartCache]] = WeakKeyDictionary()


def range_of(visit: Visit) -> Range:
    """The requested range; by default the first."""
    return next((one for one in RANGES if one.name == visit.param("range")), RANGES[0])


async def charts(visit: Visit, range_: Range, type: str | None = None) -> Charts:
    """The charts of one type, or of all together, for visitors who may see all tenants.

    They are drawn once for all viewers, and again after the next sample, but less often if drawing is expensive.
    """
    sampler = visit.context.sampler
    cache = _caches.setdefault(sampler, _ChartCache())
    async with cache.lock:
        known = cache.charts.get((range_.name, type))
        sample_number = 0 if sampler.latest is None else sampler.latest.number
        if known is not None and (known.sample_number == sample_number or time.monotonic() < known.until):
            return known.charts
        started = time.monotonic()
        drawn = await _charts(visit, cache, range_, type)
        now = time.monotonic()
        until = now + min((now - started) / COST_SHARE_MAX, CACHE_SECONDS_MAX)
        cache.charts[range_.name, type] = _CachedCharts(drawn, sample_number, until)
        cache.charts.move_to_end((range_.name, type))
        while len(cache.charts) > CACHED_CHARTS_MAX:
            cache.charts.popitem(last=False)
        return drawn


async def _charts(visit: Visit, cache: _ChartCache, range_: Range, type: str | None) -> Charts:
    sampler = visit.context.sampler
    if range_.slot_hours:
        hourly = cache.hourly(type)
        sample = sampler.latest or await sampler.fresh()
        await hourly.read(visit.context.service, range_.slots * range_.slot_hours, sample.at_ms)
        points = _by_hours(hourly, range_)
        return _draw(range_, points, points, range_.slot)
    points = _by_minutes(sampler, type)
    window = window_of(points)
    points = points[-window.minutes :]
    steps = [_merged(points[at : at + window.step]) for at in range(0, len(points), window.step)]
    step = "minute" if window.step == 1 else f"{window.step} minutes"
    return _draw(range_._replace(marked=window.marked), points, steps, step)


def window_of(points: Sequence[Point]) -> Window:
    """The window that covers the counted minutes among the points; the last point is now."""
    counted = next((len(points) - at for at, point in enumerate(points) if point.is_known), 0)
    return next(one for one in WINDOWS if one.minutes >= counted)


# Points ---------------------------------------------------------------------------------------------


def _by_minutes(sampler: MetricsSampler, type: str | None) -> list[Point]:
    known: dict[int, Counter[str]] = defaultdict(Counter)
    for minute in sampler.minutes[-MINUTE_SLOTS:]:
        if type is None or type in minute.counts or OTHER_TYPES not in minute.counts:
            for some in minute.counts.values() if type is None else [minute.counts.get(type, {})]:
                known[minute.minute].update(some)
            known[minute.minute].update({})  # An idle minute is known to be empty.
    last = sampler.latest.at_ms // MINUTE_MS if sampler.latest else 0
    return [
        _point(at * MINUTE_MS, known.get(at, {}))._replace(is_known=at in known)
        for at in range(last - MINUTE_SLOTS + 1, last + 1)
    ]


def _by_hours(hourly: HourlyCounts, range_: Range) -> list[Point]:
    last = hourly.now_ms // HOUR_MS // range_.slot_hours
    points = []
    for slot in range(last - range_.slots + 1, last + 1):
        counts: Counter[str] = Counter()
        for hour in range(slot * range_.slot_hours, (slot + 1) * range_.slot_hours):
            counts.update(hourly.counts.get(hour, {}))
        points.append(_point(slot * range_.slot_hours * HOUR_MS, counts))
    return points


def _point(start_ms: int, counts: Mapping[str, int]) -> Point:
    return Point(start_ms, work_of(counts), measured(counts.items()))


def _merged(points: Sequence[Point]) -> Point:
    """Merge several slots into one."""
    failures: Counter[str] = Counter()
    for point in points:
        failures.update(point.measured.failures)
    execution = tuple(map(sum, zip(*(point.measured.execution for point in points), strict=True)))
    wait = tuple(map(sum, zip(*(point.measured.wait for point in points), strict=True)))
    work = Work(*(sum(values) for values in zip(*(point.work for point in points), strict=True)))
    return Point(points[0].start_ms, work, Measured(execution, wait, failures), any(one.is_known for one in points))


# Charts ---------------------------------------------------------------------------------------------


def _draw(range_: Range, points: Sequence[Point], steps: Sequence[Point], step: str) -> Charts:
    """Draw the charts; `steps` are the points of the percentiles."""
    whole, remarks = _merged(points), _remarks(range_, points)
    slots = _slots(range_, points, range_.marked)
    steps_slots = _slots(range_, steps, max(1, range_.marked * len(steps) // len(points)))

    def percentiles(name: str, durations: Sequence[tuple[Sequence[int], int]]) -> Chart:
        series = _percentiles(durations)
        return Chart(
            lines(series, steps_slots, _about(name, range_, series), duration, remarks=remarks), _unit(series, step)
        )

    counts = _counts(points)
    return Charts(
        Chart(
            bars(counts, slots, _about("Finished attempts", range_, counts), number, remarks=remarks),
            _unit(counts, range_.slot),
        ),
        percentiles("Run time", [(one.measured.execution, one.work.execution_ms) for one in [*steps, whole]]),
        percentiles("Queue wait", [(one.measured.wait, one.work.wait_ms) for one in [*steps, whole]]),
        whole.work,
        whole.measured,
    )


def _remarks(range_: Range, points: Sequence[Point]) -> Remarks:
    """The texts of a chart; for a new store, they mention when counting started."""
    first = next((point for point in points if point.is_known), points[-1])
    if first is points[0]:
        return Remarks(f"No finished attempts in {range_.last}.")
    since = Markup("since {}").format(when(first.start_ms, "minute"))
    return Remarks(Markup("No finished attempts {}.").format(since), Markup("Counted {}.").format(since))


def _about(name: str, range_: Range, series: Sequence[Series]) -> str:
    return f"{name} in {range_.last}: {', '.join(f'{one.label} {one.whole}' for one in series)}"


def _unit(series: Sequence[Series], slot: str) -> str:
    return "in total" if has_few_points(series) else f"per {slot}"


def _counts(points: Sequence[Point]) -> list[Series]:
    """Finished attempts by outcome."""
    series = []
    for name, label in (("completed", "completed"), ("retried", "failed, retried"), ("failed", "failed permanently")):
        values = [getattr(one.work, name) if one.is_known else None for one in points]
        total = sum(value or 0 for value in values)
        series.append(Series(name, label, values, number(total), total))
    return series


def _percentiles(durations: Sequence[tuple[Sequence[int], int]]) -> list[Series]:
    """Percentiles of durations, which are given as counts and a sum; the last ones are the totals."""
    series = []
    for name, share in PERCENTILES:
        *found, whole = [percentile_ms(counts, share, total_ms) for counts, total_ms in durations]
        series.append(Series(name, name, found, duration(whole), whole or 0))
    return series


def _slots(range_: Range, points: Sequence[Point], marked: int) -> list[Slot]:
    last, last_ms = len(points) - 1, points[-1].start_ms
    return [
        Slot(
            _slot_title(range_, point.start_ms),
            _mark(range_, point.start_ms, last_ms) if (last - at) % marked == 0 else "",
            at == last,
        )
        for at, point in enumerate(points)
    ]


def _slot_title(range_: Range, start_ms: int) -> str:
    format_ = "%Y-%m-%d" if range_.is_days else "%Y-%m-%d %H:%M"
    return f"{datetime.fromtimestamp(start_ms / 1000, UTC).strftime(format_)} UTC"


def _mark(range_: Range, start_ms: int, last_ms: int) -> str:
    """The label of a slot on the time axis: how long ago it was."""
    ago_ms = last_ms - start_ms
    if not ago_ms:
        return "now"
    size, unit = (MINUTE_MS, "min") if not range_.slot_hours else (HOUR_MS, "h")
    return f"\u2212{ago_ms // (24 * HOUR_MS)} d" if range_.slot_hours > 1 else f"\u2212{ago_ms // size} {unit}"
