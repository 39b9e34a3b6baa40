"""The chart of a run: small multiples over time as SVG, one line per process, faults as ticks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import Final, NamedTuple

from tests.soak.judge import WARM_UP_SHARE
from tests.soak.series import Point, Series

WIDTH: Final = 1_200
COLUMNS: Final = 2
MARGIN: Final = 24
TOP: Final = 96
PLOT_HEIGHT: Final = 150
LEFT: Final = 62
LEGEND: Final = 34
CELL_HEIGHT: Final = PLOT_HEIGHT + 116
STEPS: Final = 4
COLORS: Final = ("#2563eb", "#d97706", "#059669", "#9333ea", "#dc2626", "#0891b2", "#65a30d", "#db2777", "#57534e")
INK, GRID, QUIET, WARM = "#1c1917", "#e7e5e4", "#78716c", "#f5f5f4"
FONT: Final = "font-family=\"system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif\""
MIB: Final = 1_048_576


class Chart(NamedTuple):
    """One of the small multiples: its title, its unit, the divisor of its values, and its lines by label."""

    title: str
    unit: str
    divisor: float
    lines: dict[str, Sequence[Point]]
    is_log: bool = False
    """A logarithmic axis; values below 1 are drawn at the bottom."""


class Scale:
    """The value axis: round grid lines from zero, or powers of ten, to just above the highest value."""

    def __init__(self, highest: float, *, is_log: bool) -> None:
        self._is_log = is_log
        if is_log:
            self.ticks = [10.0**power for power in range(max(1, math.ceil(math.log10(max(highest, 1)))) + 1)]
            return
        rough = max(highest / STEPS, 1e-3)
        size = 10.0 ** math.floor(math.log10(rough))
        step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= rough)
        self.ticks = [step * at for at in range(max(1, math.ceil(highest / step)) + 1)]

    def share(self, value: float) -> float:
        """The height of a value, from 0 to 1."""
        if self._is_log:
            return math.log10(max(value, 1)) / math.log10(self.ticks[-1])
        return value / self.ticks[-1]


def picture(series: Series, title: str) -> str:
    """The whole chart."""
    charts = [chart for chart in _charts(series) if chart.lines]
    rows = math.ceil(len(charts) / COLUMNS)
    height = TOP + rows * CELL_HEIGHT + MARGIN
    moments = [seconds for seconds, _ in series.faults()]
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" {FONT}>',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        _text(MARGIN, 38, title, 20, INK, weight=600),
        _text(MARGIN, 64, f"{len(moments)} faults, each a tick below its chart. Gray: warm-up, not judged.", 13, QUIET),
    ]
    for at, chart in enumerate(charts):
        x = MARGIN + (at % COLUMNS) * (WIDTH - 2 * MARGIN) / COLUMNS
        drawn.append(_drawn(chart, x, TOP + (at // COLUMNS) * CELL_HEIGHT, series.ends_at, moments))
    return "\n".join([*drawn, "</svg>", ""])


def _charts(series: Series) -> list[Chart]:
    processes = [subject for subject, measure, _ in series.lines() if measure == "descriptors" and subject != "load"]

    def by_process(measure: str) -> dict[str, Sequence[Point]]:
        return {name: points for name in processes if (points := series.points(name, measure))}

    def of(pairs: Iterable[tuple[str, str, str]]) -> dict[str, Sequence[Point]]:
        return {label: points for label, subject, measure in pairs if (points := series.points(subject, measure))}

    def name(latency: str) -> str:
        return latency.removeprefix("latency ")

    latencies = sorted({subject for subject, _, _ in series.lines() if subject.startswith("latency ")})
    rows = [(measure, points) for subject, measure, points in series.lines()
            if subject == "store" and measure.startswith("rows ")]  # fmt: skip
    most = sorted(rows, key=lambda row: -max(point.value for point in row[1]))[: len(COLORS)]
    return [
        Chart("Resident memory", "MiB", MIB, by_process("rss_bytes")),
        Chart("Open descriptors", "", 1, by_process("descriptors")),
        Chart("Threads", "", 1, by_process("threads")),
        Chart("Asyncio tasks", "", 1, by_process("tasks")),
        Chart("Rows of the store", "", 1, {measure.removeprefix("rows "): points for measure, points in most}, True),
        Chart("Size of the store", "MiB", MIB, of([("store", "store", "store_bytes"), ("WAL", "store", "wal_bytes")])),
        Chart("Latency, median", "ms", 1, of([(name(one), one, "p50_ms") for one in latencies]), True),
        Chart("Latency, 99th percentile", "ms", 1, of([(name(one), one, "p99_ms") for one in latencies]), True),
    ]


def _drawn(chart: Chart, x: float, y: float, ends_at: float, faults: Sequence[float]) -> str:
    width = (WIDTH - 2 * MARGIN) / COLUMNS - LEFT - MARGIN
    left, floor = x + LEFT, y + PLOT_HEIGHT + 22
    values = [point.value / chart.divisor for points in chart.lines.values() for point in points]
    scale = Scale(max(values, default=0), is_log=chart.is_log)

    def at_x(seconds: float) -> float:
        return left + width * seconds / max(ends_at, 1)

    def at_y(value: float) -> float:
        return floor - PLOT_HEIGHT * scale.share(value)

    unit = f" ({chart.unit})" if chart.unit else ""
    warm = f'x="{left:.1f}" y="{floor - PLOT_HEIGHT:.1f}" width="{width * WARM_UP_SHARE:.1f}" height="{PLOT_HEIGHT}"'
    drawn = [_text(x, y + 8, chart.title + unit, 15, INK, weight=600), f'<rect {warm} fill="{WARM}"/>']
    for value in scale.ticks:
        drawn.append(_line(left, at_y(value), left + width, at_y(value), GRID))
        drawn.append(_text(left - 8, at_y(value) + 4, f"{value:,g}", 12, QUIET, anchor="end"))
    drawn += [
        _text(at_x(moment), floor + 26, _clock(moment, ends_at), 12, QUIET, anchor="middle")
        for moment in _moments(ends_at)
    ]
    drawn += [_line(at_x(seconds), floor + 4, at_x(seconds), floor + 11, "#dc2626") for seconds in faults]
    legend_x, legend_y = left, floor + LEGEND + 12
    for number, (label, points) in enumerate(chart.lines.items()):
        color = COLORS[number % len(COLORS)]
        path = " ".join(f"{at_x(point.seconds):.1f},{at_y(point.value / chart.divisor):.1f}" for point in points)
        drawn.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.6" opacity="0.9"/>')
        space = 22 + 6.6 * len(label)
        if legend_x + space > left + width + MARGIN:
            legend_x, legend_y = left, legend_y + 16
        drawn.append(f'<rect x="{legend_x:.1f}" y="{legend_y - 8:.1f}" width="10" height="10" rx="2" fill="{color}"/>')
        drawn.append(_text(legend_x + 14, legend_y + 1, label, 12, INK))
        legend_x += space
    return "\n".join(drawn)


def _moments(ends_at: float) -> list[float]:
    steps = (1, 2, 5, 10, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 14_400, 43_200)
    step = next((one for one in steps if ends_at / one <= 8), 86_400)
    return [step * at for at in range(int(ends_at / step) + 1)]


def _clock(seconds: float, ends_at: float) -> str:
    if ends_at < 120:
        return f"{seconds:g} s"
    return f"{seconds / 60:g} min" if ends_at < 7_200 else f"{seconds / 3_600:g} h"


def _line(x1: float, y1: float, x2: float, y2: float, color: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{color}"/>'


def _text(x: float, y: float, text: str, size: int, color: str, *, anchor: str = "start", weight: int = 400) -> str:
    style = f'font-size="{size}" fill="{color}" text-anchor="{anchor}" font-weight="{weight}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(text)}</text>'
