"""Charts as SVG, out of numbers: bars that stand on each other, and lines. Colours are the stylesheet's."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from markupsafe import Markup, escape

WIDTH: Final = 480
HEIGHT: Final = 190
LEFT: Final = 58
RIGHT: Final = 6
TOP: Final = 10
BOTTOM: Final = 24
PLOT_WIDTH: Final = WIDTH - LEFT - RIGHT
PLOT_HEIGHT: Final = HEIGHT - TOP - BOTTOM
STEPS: Final = 4
"""About so many lines of the grid."""


class Series(NamedTuple):
    """What is drawn in one colour: `name` is its class in the stylesheet. None: nothing is known for the slot."""

    name: str
    label: str
    values: Sequence[float | None]


class Slot(NamedTuple):
    """A stretch of time: what it is called when pointed at, and what stands under it, if anything does."""

    title: str
    mark: str = ""


Told = Callable[[float], str]


def bars(series: Sequence[Series], slots: Sequence[Slot], about: str, told: Told) -> Markup:
    """Bars of several colours, each on top of the one before."""
    sums = [sum(one.values[at] or 0 for one in series) for at in range(len(slots))]
    scale = Scale(max(sums, default=0))
    width = PLOT_WIDTH / max(len(slots), 1)
    drawn: list[Markup] = []
    for at in range(len(slots)):
        floor = 0.0
        for one in series:
            value = one.values[at] or 0
            if value:
                drawn.append(_bar(one.name, LEFT + at * width, width, (scale.y(floor + value), scale.y(floor))))
            floor += value
    return _chart(Markup("").join(drawn), series, slots, (scale, about, told))


def lines(series: Sequence[Series], slots: Sequence[Slot], about: str, told: Told) -> Markup:
    """A line for each series; it is broken where nothing is known."""
    scale = Scale(max((value for one in series for value in one.values if value is not None), default=0))
    drawn = [_line(one, scale, PLOT_WIDTH / max(len(slots), 1)) for one in series]
    return _chart(Markup("").join(drawn), series, slots, (scale, about, told))


class Scale:
    """The numbers at the side: round ones, from zero to just above the highest value."""

    def __init__(self, highest: float) -> None:
        rough = max(highest, 1e-9) / STEPS
        size = 10.0 ** math.floor(math.log10(rough))
        self.step: float = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= rough)
        self.top: float = self.step * max(1, math.ceil(highest / self.step - 1e-9))

    @property
    def ticks(self) -> list[float]:
        """Where the lines of the grid are."""
        return [self.step * at for at in range(round(self.top / self.step) + 1)]

    def y(self, value: float) -> float:
        """How far from the top a value is drawn."""
        return TOP + PLOT_HEIGHT * (1 - value / self.top)


def _bar(name: str, x: float, width: float, edges: tuple[float, float]) -> Markup:
    high, low = edges
    gap = min(2.0, width * 0.2)
    rect = Markup('<rect class="{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"/>')
    return rect.format(name, x + gap / 2, high, width - gap, max(low - high, 0.6))


def _line(one: Series, scale: Scale, width: float) -> Markup:
    drawn: list[str] = []
    is_on = False
    for at, value in enumerate(one.values):
        if value is not None:
            drawn.append(f"{'L' if is_on else 'M'}{LEFT + (at + 0.5) * width:.1f} {scale.y(value):.1f}")
            if not is_on:
                drawn.append("h0.01")  # A single point is seen, too.
        is_on = value is not None
    return Markup('<path class="line {}" d="{}"/>').format(one.name, " ".join(drawn)) if drawn else Markup("")


def _chart(drawn: Markup, series: Sequence[Series], slots: Sequence[Slot], rest: tuple[Scale, str, Told]) -> Markup:
    scale, about, told = rest
    head = Markup('<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">').format(WIDTH, HEIGHT, about)
    is_empty = not any(value for one in series for value in one.values)
    note = Markup('<text x="{}" y="{}" text-anchor="middle">no jobs ended in this time</text>').format(
        LEFT + PLOT_WIDTH / 2, TOP + PLOT_HEIGHT / 2
    )
    inside = [_grid(scale, told, is_empty=is_empty), note if is_empty else drawn, _marks(slots)]
    pointed = Markup("") if is_empty else _hits(series, slots, told)
    return Markup("").join([head, *inside, pointed, Markup("</svg>"), _legend(series), _table(series, slots, told)])


def _grid(scale: Scale, told: Told, *, is_empty: bool) -> Markup:
    line = Markup('<line class="{}" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>')
    text = Markup('<text x="{}" y="{:.1f}" text-anchor="end">{}</text>')
    drawn = []
    for value in [0.0] if is_empty else scale.ticks:
        y = TOP + PLOT_HEIGHT if is_empty else scale.y(value)
        drawn.append(line.format("grid" if value else "axis", LEFT, WIDTH - RIGHT, y, y))
        drawn.append(text.format(LEFT - 5, y + 4, told(value)))
    return Markup("").join(drawn)


def _marks(slots: Sequence[Slot]) -> Markup:
    width = PLOT_WIDTH / max(len(slots), 1)
    text = Markup('<text x="{:.1f}" y="{}" text-anchor="{}" class="{}">{}</text>')
    marked = [at for at, slot in enumerate(slots) if slot.mark]
    drawn = []
    for number, at in enumerate(marked):
        anchor = "end" if at == len(slots) - 1 else "middle"
        is_minor = number % 2 and at != len(slots) - 1
        x = LEFT + (at + 1 if anchor == "end" else at + 0.5) * width
        drawn.append(text.format(x, HEIGHT - 8, anchor, "minor" if is_minor else "major", slots[at].mark))
    return Markup("").join(drawn)


def _hits(series: Sequence[Series], slots: Sequence[Slot], told: Told) -> Markup:
    """What is read when a slot is pointed at."""
    width = PLOT_WIDTH / max(len(slots), 1)
    rect = Markup('<rect class="hit" x="{:.1f}" y="{}" width="{:.1f}" height="{}"><title>{}</title></rect>')
    drawn = []
    for at, slot in enumerate(slots):
        values = [f"{one.label}: {_value(one.values[at], told)}" for one in series]
        title = escape("\n".join([slot.title, *values]))
        drawn.append(rect.format(LEFT + at * width, TOP, width, PLOT_HEIGHT, title))
    return Markup("").join(drawn)


def _legend(series: Sequence[Series]) -> Markup:
    item = Markup('<li><span class="swatch {}"></span>{}</li>')
    items = Markup("").join(item.format(one.name, one.label) for one in series)
    return Markup('<ul class="legend">{}</ul>').format(items)


def _table(series: Sequence[Series], slots: Sequence[Slot], told: Told) -> Markup:
    """The same for those who cannot see it, or want the figures; stretches without any are left out."""
    shown = [at for at in range(len(slots)) if any(one.values[at] for one in series)]
    if not shown:
        return Markup("")
    heads = Markup("").join(Markup('<th scope="col" class="num">{}</th>').format(one.label) for one in series)
    rows = Markup("").join(_row(series, slots, at, told) for at in reversed(shown))
    return Markup(
        '<details class="figures"><summary>As a table</summary><div class="table" tabindex="0" role="region" '
        'aria-label="Figures of the chart"><table><thead><tr><th scope="col">Time</th>{}</tr></thead>'
        "<tbody>{}</tbody></table></div></details>"
    ).format(heads, rows)


def _row(series: Sequence[Series], slots: Sequence[Slot], at: int, told: Told) -> Markup:
    cells = [Markup('<td class="num">{}</td>').format(_value(one.values[at], told)) for one in series]
    return Markup("<tr><td>{}</td>{}</tr>").format(slots[at].title, Markup("").join(cells))


def _value(value: float | None, told: Told) -> str:
    return "no value" if value is None else told(value)
