"""Charts as SVG: what is drawn where, what is told to those who point or read, and what stays text."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from everwork.server.http.ui.chart import (
    FLOOR,
    PLOT_HEIGHT,
    TOP,
    UNKNOWN,
    CountScale,
    DurationScale,
    Remarks,
    Series,
    Slot,
    bars,
    compact,
    has_few_points,
    lines,
    share,
)
from everwork.server.http.ui.render import duration, number

SLOTS = [Slot("09:00", "\u22122 min"), Slot("09:01"), Slot("09:02", "now", is_running=True)]


def drawn(chart: str) -> ElementTree.Element:
    """The picture of a chart, which must be well-formed."""
    return ElementTree.fromstring(chart[: chart.index("</svg>") + 6])


def shapes(chart: str, tag: str, name: str) -> list[dict[str, str]]:
    """The attributes of what has a class."""
    return [one.attrib for one in drawn(chart).iter(tag) if name in one.attrib.get("class", "").split()]


def test_bars_stand_on_each_other_and_are_as_high_as_their_share_of_the_scale() -> None:
    chart = bars([Series("completed", "done", [2, 0, 1]), Series("failed", "failed", [2, 0, 0])], SLOTS, "Work", number)
    [low, _], [high] = shapes(chart, "rect", "completed"), shapes(chart, "rect", "failed")
    assert float(low["height"]) == float(high["height"]) == PLOT_HEIGHT / 2
    assert float(high["y"]) + float(high["height"]) == float(low["y"])
    assert [one.text for one in drawn(chart).iter("text")] == ["0", "1", "2", "3", "4", "\u22122 min", "now"]


def test_the_slot_that_is_not_over_is_drawn_and_told_as_such() -> None:
    chart = bars([Series("completed", "done", [2, 0, 1])], SLOTS, "Work", number)
    assert len(shapes(chart, "rect", "running")) == 1
    assert [one.text for one in drawn(chart).iter("title")] == [
        "09:00\ndone: 2",
        "09:01\ndone: 0",
        "09:02, so far\ndone: 1",
    ]


def test_slots_that_were_not_counted_are_no_zeros_and_are_marked_from_the_first_counted_one_on() -> None:
    slots = [Slot(str(at)) for at in range(7)]
    chart = bars([Series("completed", "done", [None, 1, None, None, 0, 3, None])], slots, "Work", number)
    first, second = shapes(chart, "rect", "unknown")
    assert float(first["width"]) == pytest.approx(2 * float(second["width"]), abs=0.2)
    assert float(first["height"]) < PLOT_HEIGHT / 10  # A strip on the axis, no gray block.
    titles = [one.text for one in drawn(chart).iter("title")]
    assert (titles[0], titles[3:5]) == (f"0\n{UNKNOWN}", [f"3\n{UNKNOWN}", "4\ndone: 0"])
    assert chart.count(UNKNOWN) == 5  # Four slots, and the legend.


def test_a_line_is_broken_where_nothing_is_known_and_a_single_point_is_a_level_stroke() -> None:
    slots = [Slot(str(at)) for at in range(6)]
    chart = lines([Series("p50", "p50", [10, 100, None, 1_000, None, None])], slots, "Durations", duration)
    [path] = shapes(chart, "path", "p50")
    assert re.fullmatch(r"M[\d.]+ 166\.0 L[\d.]+ 88\.0 M[\d.]+ 10\.0 L[\d.]+ 10\.0", path["d"])
    assert (TOP, FLOOR) == (10, 166)
    assert "<circle" not in chart


def test_fewer_than_three_points_are_shown_as_totals_with_bars_and_words() -> None:
    remarks = Remarks(note="Counted since 09:01.")
    counts = [Series("completed", "completed", [None, 3, 1], "4", 4), Series("failed", "failed", [None, 1, 0], "1", 1)]
    times = [Series("p50", "p50", [None, 20.0, None], "20 ms", 20), Series("p99", "p99", [None, 80, None], "80 ms", 80)]
    for chart, widths, values in (
        (bars(counts, SLOTS, "Work", number, remarks=remarks), [100.0, 25.0], ["4", "1"]),
        (lines(times, SLOTS, "Run time", duration, remarks=remarks), [25.0, 100.0], ["20 ms", "80 ms"]),
    ):
        assert 'class="chart"' not in chart
        assert [float(width) for width in re.findall(r'<rect width="([\d.]+)"', chart)] == widths
        assert re.findall(r'<td class="num">([^<]+)</td></tr>', chart)[:2] == values
        assert "Counted since 09:01." in chart
        assert "Show as table" in chart


@pytest.mark.parametrize(("values", "is_few"), [([None] * 3, False), ([0, None, None], True), ([1, 2, None], True),
                                                ([1, 0, 2], False)])  # fmt: skip
def test_three_counted_slots_make_a_chart(values: list[float | None], is_few: bool) -> None:
    assert has_few_points([Series("a", "a", values), Series("b", "b", values)]) is is_few


def test_a_bar_of_few_slots_is_no_block() -> None:
    slots = [Slot(str(at)) for at in range(3)]
    chart = bars([Series("completed", "done", [1, 1, 1])], slots, "Work", number)
    assert {one["width"] for one in shapes(chart, "rect", "completed")} == {"24.0"}


def test_the_scale_of_counts_has_whole_round_numbers() -> None:
    ticks = {highest: CountScale(highest).ticks for highest in (0, 1, 3, 4, 17, 250, 1_234_567)}
    assert ticks == {
        0: [0, 1],
        1: [0, 1],
        3: [0, 1, 2, 3],
        4: [0, 1, 2, 3, 4],
        17: [0, 5, 10, 15, 20],
        250: [0, 100, 200, 300],
        1_234_567: [0, 500_000, 1_000_000, 1_500_000],
    }
    assert [compact(value) for value in (0, 9_999, 10_000, 1_500_000, 2e9)] == ["0", "9,999", "10 k", "1.5 M", "2 G"]


def test_the_scale_of_durations_goes_by_powers_of_ten_and_keeps_all_values_inside() -> None:
    scale = DurationScale(40, 20_000)
    assert [duration(tick) for tick in scale.ticks] == ["10 ms", "100 ms", "1 s", "10 s", "1 min"]
    assert scale.y(100) - scale.y(1_000) == pytest.approx(scale.y(1_000) - scale.y(10_000))
    for shortest, longest in ((0, 0), (0.2, 3), (10, 10), (60_000, 90_000_000)):
        scale = DurationScale(shortest, longest)
        assert len(scale.ticks) >= 2
        assert TOP <= scale.y(longest) <= scale.y(shortest) <= FLOOR


def test_a_chart_without_values_says_so_in_words_and_when_there_will_be_something() -> None:
    empty = [bars([Series("a", "a", [0, 0, 0])], SLOTS, "Work", number), lines([], SLOTS, "Times", duration)]
    for chart in empty:
        assert "No finished attempts in this period." in chart
        assert "as soon as an attempt finishes" in chart
        assert "<svg" not in chart
        assert "<details" not in chart
    gap = bars([Series("a", "a", [0, None, 0, 0])], [*SLOTS, Slot("09:03")], "Work", number)
    assert f"Some of this time was {UNKNOWN}." in gap


def test_the_figures_stand_in_a_table_too_the_newest_first() -> None:
    chart = bars([Series("completed", "done", [1_000, 0, 2], "1,002")], SLOTS, "Work", number)
    cells = re.findall(r"<td[^>]*>([^<]*)</td>", chart)
    assert cells == ["09:02, so far", "2", "09:00", "1,000"]
    assert "done <b>1,002</b>" in chart


def test_labels_stay_text() -> None:
    hostile = '<script>"&'
    remarks = Remarks(hostile, hostile)
    for slots in (1, 3):
        series, named = [Series("completed", hostile, [1] * slots, hostile)], [Slot(hostile, hostile)] * slots
        chart = bars(series, named, hostile, lambda _: hostile, remarks=remarks)
        assert "<script>" not in chart
        assert ElementTree.fromstring(f"<div>{chart}</div>")[0].attrib["aria-label"] == hostile
    assert "<script>" not in bars([], [], hostile, lambda _: hostile, remarks=remarks)


def test_a_share_is_never_wider_than_its_whole() -> None:
    widths = [float(drawn(share(part, whole))[0].attrib["width"]) for part, whole in ((1, 4), (9, 4), (1, 0))]
    assert widths == [25.0, 100.0, 0.0]
