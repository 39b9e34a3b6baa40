"""Charts as SVG: stacked bars and lines. Colors come from the stylesheet."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Final, NamedTuple, Protocol

from markupsafe import Markup, escape

WIDTH: Final = 480
HEIGHT: Final = 190
LEFT: Final = 58
RIGHT: Final = 6
TOP: Final = 10
BOTTOM: Final = 24
PLOT_WIDTH: Final = WIDTH - LEFT - RIGHT
PLOT_HEIGHT: Final = HEIGHT - TOP - BOTTOM
FLOOR: Final = TOP + PLOT_HEIGHT
STEPS: Final = 4
"""Approximate number of grid lines."""
ROUND_MS: Final = (1, 10, 100, 1_000, 10_000, 60_000, 600_000, 3_600_000, 14_400_000, 86_400_000)
"""Possible grid lines for durations; shorter values are drawn on the lowest line."""
BAR_WIDTH_MAX: Final = 24.0
POINTS_MIN: Final = 3
"""With fewer points, totals are drawn instead of a chart over time."""
GAP_HEIGHT: Final = 5
"""The height of the strip that marks uncounted slots."""
NO_ATTEMPTS: Final = "No finished attempts in this period."
FILLS: Final = "Charts appear here as soon as an attempt finishes."
UNKNOWN: Final = "not counted (no server was running)"


class Series(NamedTuple):
    """The values in one color. `name`: CSS class; `whole`: the total in the legend; `amount`: the total as a number.

    A value is None if it is unknown for its slot.
    """

    name: str
    label: str
    values: Sequence[float | None]
    whole: str = ""
    amount: float = 0


class Slot(NamedTuple):
    """A time slot: its tooltip title, and its label on the time axis, if any."""

    title: str
    mark: str = ""
    is_running: bool = False
    """Whether the slot has not ended yet."""


Format = Callable[[float], str]


class Scale(Protocol):
    """The value axis: grid lines and the position of values."""

    @property
    def ticks(self) -> Sequence[float]:
        """The values of the grid lines."""

    def y(self, value: float) -> float:
        """The y coordinate of a value."""


class Remarks(NamedTuple):
    """The texts of a chart: a placeholder if it has no values, and a note beside the legend."""

    empty: str = NO_ATTEMPTS
    note: str = ""


class Frame(NamedTuple):
    """What all parts of a chart share: slots, description, scale, and value format."""

    slots: Sequence[Slot]
    about: str
    scale: Scale
    tick_label: Format
    value_label: Format
    remarks: Remarks

    @property
    def width(self) -> float:
        """The width of one slot."""
        return PLOT_WIDTH / max(len(self.slots), 1)


def bars(
    series: Sequence[Series], slots: Sequence[Slot], about: str, format_: Format, *, remarks: Remarks | None = None
) -> Markup:
    """Draw stacked bars. Uncounted slots are marked, except those before the first counted one."""
    sums = [sum(one.values[at] or 0 for one in series) for at in range(len(slots))]
    frame = Frame(slots, about, CountScale(max(sums, default=0)), compact, format_, remarks or Remarks())
    counted = [at for at in range(len(slots)) if any(one.values[at] is not None for one in series)]
    gaps = [at for at in range(counted[0], len(slots)) if at not in counted] if counted else []
    drawn = [bar for at in range(len(slots)) for bar in _bars(series, at, frame)]
    return _totals(series, frame) if drawn and has_few_points(series) else _chart(drawn, series, frame, gaps)


def lines(
    series: Sequence[Series], slots: Sequence[Slot], about: str, format_: Format, *, remarks: Remarks | None = None
) -> Markup:
    """Draw a line per series of durations, interrupted where values are missing."""
    known = [value for one in series for value in one.values if value is not None]
    scale = DurationScale(min(known, default=0), max(known, default=0))
    frame = Frame(slots, about, scale, format_, format_, remarks or Remarks())
    if has_few_points(series):
        return _totals(series, frame)
    return _chart([_line(one, frame) for one in series], series, frame, [])


def has_few_points(series: Sequence[Series]) -> bool:
    """Whether the totals of the series are drawn instead of a chart over time."""
    points = sum(any(value is not None for value in values) for values in zip(*(s.values for s in series), strict=True))
    return 0 < points < POINTS_MIN


def share(part: float, whole: float, name: str = "") -> Markup:
    """Draw a small bar for a share; `name` is the CSS class of its color."""
    width = 100 * min(max(part / whole, 0.0), 1.0) if whole else 0.0
    return Markup(
        '<svg class="share{}" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">'
        '<rect width="{:.1f}" height="8"/></svg>'
    ).format(f" {name}" if name else "", width)


def compact(value: float) -> str:
    """Format a number briefly, for an axis."""
    for least, size, unit in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if value >= least:
            return f"{value / size:g} {unit}"
    return f"{value:,.0f}"


class CountScale:
    """A linear scale from zero to just above the highest value, with round grid lines."""

    def __init__(self, highest: float) -> None:
        rough = max(highest / STEPS, 1.0)
        size = 10.0 ** math.floor(math.log10(rough))
        self.step: float = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= rough)
        self.top: float = self.step * max(1, math.ceil(highest / self.step))

    @property
    def ticks(self) -> list[float]:
        """From zero to the top."""
        return [self.step * at for at in range(round(self.top / self.step) + 1)]

    def y(self, value: float) -> float:
        """Linear in the value."""
        return FLOOR - PLOT_HEIGHT * value / self.top


class DurationScale:
    """A logarithmic scale of durations, so that an outlier does not flatten the median."""

    def __init__(self, shortest: float, longest: float) -> None:
        low = max((one for one in ROUND_MS if one <= shortest), default=ROUND_MS[0])
        high = min((one for one in ROUND_MS if one >= longest and one > low), default=ROUND_MS[-1])
        self.ticks = [one for one in ROUND_MS if low <= one <= high]

    def y(self, value: float) -> float:
        """Linear in the logarithm."""
        low, high = math.log(self.ticks[0]), math.log(self.ticks[-1])
        at = min(max(math.log(max(value, 1e-3)), low), high)
        return FLOOR - PLOT_HEIGHT * (at - low) / (high - low)


# Bars and lines -------------------------------------------------------------------------------------


def _bars(series: Sequence[Series], at: int, frame: Frame) -> Iterator[Markup]:
    floor = 0.0
    for one in series:
        value = one.values[at] or 0
        if value:
            yield _bar(one.name, at, frame, (floor, floor + value))
        floor += value


def _bar(name: str, at: int, frame: Frame, values: tuple[float, float]) -> Markup:
    low, high = map(frame.scale.y, values)
    width = min(frame.width - min(2.0, frame.width * 0.2), BAR_WIDTH_MAX)
    classes = f"{name} running" if frame.slots[at].is_running else name
    rect = Markup('<rect class="{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"/>')
    return rect.format(classes, LEFT + (at + 0.5) * frame.width - width / 2, high, width, max(low - high, 0.6))


def _gaps(slots: Sequence[int], frame: Frame) -> Iterator[Markup]:
    """One strip above the time axis per run of adjacent slots."""
    rect = Markup('<rect class="unknown" x="{:.1f}" y="{}" width="{:.1f}" height="{}"/>')
    for _, run in groupby(enumerate(slots), lambda pair: pair[1] - pair[0]):
        adjacent = [at for _, at in run]
        width = len(adjacent) * frame.width
        yield rect.format(LEFT + adjacent[0] * frame.width, FLOOR - GAP_HEIGHT, width, GAP_HEIGHT)


def _line(one: Series, frame: Frame) -> Markup:
    """The segments of a line; a single point is drawn as a line across its slot, not as a dot."""
    drawn: list[str] = []
    for is_known, run in groupby(enumerate(one.values), lambda pair: pair[1] is not None):
        points = [(LEFT + (at + 0.5) * frame.width, frame.scale.y(value or 0)) for at, value in run if is_known]
        if len(points) == 1:
            [(x, y)] = points
            points = [(x - 0.4 * frame.width, y), (x + 0.4 * frame.width, y)]
        if points:
            drawn.append("M" + " L".join(f"{x:.1f} {y:.1f}" for x, y in points))
    return Markup('<path class="line {}" d="{}"/>').format(one.name, " ".join(drawn)) if drawn else Markup("")


# Axes, legend and table ------------------------------------------------------------------------------


def _chart(drawn: Sequence[Markup], series: Sequence[Series], frame: Frame, gaps: Sequence[int]) -> Markup:
    if not any(drawn):
        return _empty(frame, gaps)
    head = Markup('<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">')
    inside = [_grid(frame), *_gaps(gaps, frame), *drawn, _hits(series, frame), _marks(frame), Markup("</svg>")]
    rest = [_legend(series, frame, has_gaps=bool(gaps)), _table(series, frame)]
    return Markup("").join([head.format(WIDTH, HEIGHT, frame.about), *inside, *rest])


def _totals(series: Sequence[Series], frame: Frame) -> Markup:
    """A bar per series for all slots together, and a table of the slots."""
    highest = max(one.amount for one in series)
    row = Markup('<tr><th scope="row">{}</th><td>{}</td><td class="num">{}</td></tr>')
    rows = [row.format(one.label, share(one.amount, highest, one.name), one.whole) for one in series]
    table = Markup('<table class="causes totals" aria-label="{}"><tbody>{}</tbody></table>')
    note = Markup('<p class="note">{}</p>').format(frame.remarks.note) if frame.remarks.note else Markup("")
    return table.format(frame.about, Markup("").join(rows)) + note + _table(series, frame)


def _empty(frame: Frame, gaps: Sequence[int]) -> Markup:
    """The text shown instead of an empty chart."""
    more = f"Some of this time was {UNKNOWN}." if gaps else FILLS
    block = Markup('<div class="chart-empty"><p>{}</p><p class="quietly">{}</p></div>')
    return block.format(frame.remarks.empty, more)


def _grid(frame: Frame) -> Markup:
    line = Markup('<line class="{}" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>')
    text = Markup('<text x="{}" y="{:.1f}" text-anchor="end">{}</text>')
    axis = line.format("axis", LEFT, WIDTH - RIGHT, FLOOR, FLOOR)
    drawn = []
    for value in frame.scale.ticks:
        y = frame.scale.y(value)
        drawn.append(axis if y == FLOOR else line.format("grid", LEFT, WIDTH - RIGHT, y, y))
        drawn.append(text.format(LEFT - 5, y + 4, frame.tick_label(value)))
    return Markup("").join(drawn)


def _marks(frame: Frame) -> Markup:
    text = Markup('<text x="{:.1f}" y="{}" text-anchor="{}" class="{}">{}</text>')
    last = len(frame.slots) - 1
    drawn = []
    for number, at in enumerate(at for at, slot in enumerate(frame.slots) if slot.mark):
        anchor = "end" if at == last else "middle"
        classes = "minor" if number % 2 and at != last else "major"
        x = LEFT + (at + 1 if anchor == "end" else at + 0.5) * frame.width
        drawn.append(text.format(x, HEIGHT - 8, anchor, classes, frame.slots[at].mark))
    return Markup("").join(drawn)


def _hits(series: Sequence[Series], frame: Frame) -> Markup:
    """The tooltips of the slots."""
    rect = Markup('<rect class="hit" x="{:.1f}" y="{}" width="{:.1f}" height="{}"><title>{}</title></rect>')
    is_counted = isinstance(frame.scale, CountScale)
    drawn = []
    for at, slot in enumerate(frame.slots):
        values = [f"{one.label}: {_value(one, at, frame)}" for one in series]
        if all(one.values[at] is None for one in series):
            values = [UNKNOWN if is_counted else "no finished attempts"]
        title = escape("\n".join([_title(slot), *values]))
        drawn.append(rect.format(LEFT + at * frame.width, TOP, frame.width, PLOT_HEIGHT, title))
    return Markup("").join(drawn)


def _legend(series: Sequence[Series], frame: Frame, *, has_gaps: bool) -> Markup:
    item = Markup('<li><span class="swatch {}"></span>{} <b>{}</b></li>')
    items = [item.format(one.name, one.label, one.whole) for one in series]
    if frame.remarks.note:
        items.append(Markup("<li>{}</li>").format(frame.remarks.note))
    if has_gaps:
        items.append(Markup('<li><span class="swatch unknown"></span>{}</li>').format(UNKNOWN))
    return Markup('<ul class="legend">{}</ul>').format(Markup("").join(items))


def _table(series: Sequence[Series], frame: Frame) -> Markup:
    """The values as a table, for screen readers and for exact figures; empty slots are omitted."""
    shown = [at for at in range(len(frame.slots)) if any(one.values[at] for one in series)]
    if not shown:
        return Markup("")
    heads = Markup("").join(Markup('<th scope="col" class="num">{}</th>').format(one.label) for one in series)
    rows = Markup("").join(_row(series, at, frame) for at in reversed(shown))
    return Markup(
        '<details class="figures"><summary>Show as table</summary><div class="table" tabindex="0" role="region" '
        'aria-label="Values of the chart"><table><thead><tr><th scope="col">Time</th>{}</tr></thead>'
        "<tbody>{}</tbody></table></div></details>"
    ).format(heads, rows)


def _row(series: Sequence[Series], at: int, frame: Frame) -> Markup:
    cells = [Markup('<td class="num">{}</td>').format(_value(one, at, frame)) for one in series]
    return Markup("<tr><td>{}</td>{}</tr>").format(_title(frame.slots[at]), Markup("").join(cells))


def _title(slot: Slot) -> str:
    return f"{slot.title}, so far" if slot.is_running else slot.title


def _value(one: Series, at: int, frame: Frame) -> str:
    value = one.values[at]
    return "none" if value is None else frame.value_label(value)
