"""How work flowed: points in time, by minute from the pulse or by hour from the engine, and the charts of them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

from markupsafe import Markup

from everwork.core.limits import HOUR_MS
from everwork.core.measures import Measured, measured, percentile_ms
from everwork.engines.values import Stats
from everwork.server.http.ui.chart import Series, Slot, bars, lines
from everwork.server.http.ui.render import duration, number
from everwork.server.http.ui.visit import Visit
from everwork.service.minutes import MINUTE_MS, Work, work_of

MINUTE_SLOTS: Final = 60
LATENCY_MINUTES: Final = 5
"""Percentiles of so many minutes are one point: of a single one they would jump about."""
SHARES: Final = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
"""Percentiles that are shown: half of the attempts took at most p50, 95 of 100 at most p95, 99 of 100 at most p99."""


class Range(NamedTuple):
    """A stretch of time up to now, in slots of so many hours; 0 hours: in minutes."""

    name: str
    label: str
    slots: int
    slot_hours: int = 0
    marked: int = 1
    """Under every so many slots stands when it was."""

    @property
    def is_days(self) -> bool:
        """Whether a slot is a day."""
        return self.slot_hours >= 24


RANGES: Final = (
    Range("1h", "1 hour", MINUTE_SLOTS, 0, 15),
    Range("24h", "24 hours", 24, 1, 6),
    Range("7d", "7 days", 28, 6, 4),
    Range("30d", "30 days", 30, 24, 5),
)


class Point(NamedTuple):
    """What ended in one slot, which began at `start_ms`."""

    start_ms: int
    work: Work
    measured: Measured


class Charts(NamedTuple):
    """How much was done, how long it took, and how long it had waited."""

    throughput: Markup
    execution: Markup
    wait: Markup
    total: Work
    measured: Measured


def range_of(visit: Visit) -> Range:
    """The range that was asked for; else the first."""
    return next((one for one in RANGES if one.name == visit.asked("range")), RANGES[0])


async def charts(visit: Visit, asked: Range, type: str | None = None) -> Charts:
    """The charts of one type, or of all together. The visitor must be one who sees all tenants."""
    if asked.slot_hours:
        stats = await visit.desk.stats(asked.slots * asked.slot_hours)
        points = _by_hours(stats, asked, type)
        steps = [(point.start_ms, point.measured) for point in points]
    else:
        points = _by_minutes(visit, type)
        steps = [_together(points[at : at + LATENCY_MINUTES]) for at in range(0, len(points), LATENCY_MINUTES)]
    return _drawn(asked, points, steps)


def _by_minutes(visit: Visit, type: str | None) -> list[Point]:
    pulse = visit.parts.pulse
    known: dict[int, Counter[str]] = defaultdict(Counter)
    for minute in pulse.minutes:
        for some in minute.counts.values() if type is None else [minute.counts.get(type, {})]:
            known[minute.minute].update(some)
    last = pulse.reading.at_ms // MINUTE_MS if pulse.reading else 0
    return [_point(at * MINUTE_MS, known.get(at, {})) for at in range(last - MINUTE_SLOTS + 1, last + 1)]


def _by_hours(stats: Stats, asked: Range, type: str | None) -> list[Point]:
    counts: dict[int, Counter[str]] = defaultdict(Counter)
    for row in stats.hours:
        if type in (None, row.type):
            counts[row.hour].update({name: getattr(row, name) for name in Work._fields})
    for measure in stats.measures:
        if type in (None, measure.type):
            counts[measure.hour][measure.what] += measure.jobs
    size = asked.slot_hours
    last = stats.generated_at_ms // HOUR_MS // size
    points: list[Point] = []
    for slot in range(last - asked.slots + 1, last + 1):
        together: Counter[str] = Counter()
        for hour in range(slot * size, (slot + 1) * size):
            together.update(counts.get(hour, {}))
        points.append(_point(slot * size * HOUR_MS, together))
    return points


def _point(start_ms: int, counts: Mapping[str, int]) -> Point:
    return Point(start_ms, work_of(counts), measured(counts.items()))


def _together(points: Sequence[Point]) -> tuple[int, Measured]:
    return points[0].start_ms, _summed(points)


def _summed(points: Sequence[Point]) -> Measured:
    failures: Counter[str] = Counter()
    for point in points:
        failures.update(point.measured.failures)
    return Measured(
        tuple(map(sum, zip(*(point.measured.execution for point in points), strict=True))),
        tuple(map(sum, zip(*(point.measured.wait for point in points), strict=True))),
        failures,
    )


def _drawn(asked: Range, points: Sequence[Point], steps: Sequence[tuple[int, Measured]]) -> Charts:
    slots = _slots(asked, [point.start_ms for point in points], asked.marked)
    every = max(1, asked.marked * len(steps) // len(points))
    steps_slots = _slots(asked, [start_ms for start_ms, _ in steps], every)
    total = Work(*(sum(values) for values in zip(*(point.work for point in points), strict=True)))
    executions = [told.execution for _, told in steps]
    waits = [told.wait for _, told in steps]
    return Charts(
        _throughput(asked, points, slots, total),
        _percentiles(asked, executions, steps_slots, "How long attempts ran"),
        _percentiles(asked, waits, steps_slots, "How long jobs waited, from when they were due to when they began"),
        total,
        _summed(points),
    )


def _throughput(asked: Range, points: Sequence[Point], slots: Sequence[Slot], total: Work) -> Markup:
    series = [
        Series("completed", "completed", [point.work.completed for point in points]),
        Series("retried", "failed, to be tried again", [point.work.retried for point in points]),
        Series("failed", "failed for good", [point.work.failed for point in points]),
    ]
    about = (
        f"Attempts that ended in the last {asked.label}: {number(total.completed)} completed, "
        f"{number(total.retried)} failed and tried again, {number(total.failed)} failed for good"
    )
    return bars(series, slots, about, number)


def _percentiles(asked: Range, counts: Sequence[Sequence[int]], slots: Sequence[Slot], what: str) -> Markup:
    series = [Series(name, name, [percentile_ms(one, share) for one in counts]) for name, share in SHARES]
    return lines(series, slots, f"{what}, in the last {asked.label}", duration)


def _slots(asked: Range, starts_ms: Sequence[int], marked: int) -> list[Slot]:
    last = len(starts_ms) - 1
    return [
        Slot(_named(asked, start_ms), _mark(asked, start_ms, starts_ms[-1]) if (last - at) % marked == 0 else "")
        for at, start_ms in enumerate(starts_ms)
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
