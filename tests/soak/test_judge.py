"""The judge on synthetic series: series that grow fail, and those that only seem to grow do not."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.soak.judge import MIB, RULES, Judged, judge, rule_of, slope_per_hour, trend_z
from tests.soak.series import FILE, Point, Series, load

MINUTES: Final = 120
SEEDS: Final = range(50)
"""How often each series is tried with different random noise; no verdict may be wrong."""
Curve = Callable[[float, random.Random], float]


def judged(curve: Curve, *, measure: str = "rss_bytes", seed: int = 1, minutes: int = MINUTES) -> Judged:
    """The verdict on a series that follows a curve over hours."""
    series, rng = Series(), random.Random(seed)
    for minute in range(1, minutes + 1):
        series.add(minute * 60, "server-1", {measure: curve(minute / 60, rng)})
    [one] = judge(series)
    return one


def fills(hours: float) -> float:
    """Memory during the warm-up: it grows fast at first, then levels off."""
    return (60 + 30 * min(hours / 0.4, 1)) * MIB


FINE: Final[dict[str, Curve]] = {
    "flat": lambda hours, rng: fills(hours),
    "noisy": lambda hours, rng: fills(hours) + rng.gauss(0, 3 * MIB),
    "bursts": lambda hours, rng: fills(hours) + (40 * MIB if rng.random() < 0.1 else 0),
    "garbage collection": lambda hours, rng: fills(hours) + hours * 60 % 7 * 2 * MIB,
    "a checkpoint every half hour": lambda hours, rng: fills(hours) + hours * 60 % 30 * MIB,
    "a step back": lambda hours, rng: fills(hours) - (20 * MIB if hours > 1.5 else 0),
    "growth under the bound": lambda hours, rng: fills(hours) + hours * 2 * MIB + rng.gauss(0, 0.5 * MIB),
    "wandering": lambda hours, rng: fills(hours) + rng.uniform(0, 1) ** 3 * 10 * MIB,
}
LEAKS: Final[dict[str, Curve]] = {
    "slow": lambda hours, rng: fills(hours) + hours * 8 * MIB,
    "slow with noise": lambda hours, rng: fills(hours) + hours * 8 * MIB + rng.gauss(0, 1.5 * MIB),
    "under a sawtooth": lambda hours, rng: fills(hours) + hours * 12 * MIB + hours * 60 % 7 * MIB,
    "in steps of ten minutes": lambda hours, rng: fills(hours) + hours * 60 // 10 * 2 * MIB,
    "with bursts": lambda hours, rng: fills(hours) + hours * 10 * MIB + (40 * MIB if rng.random() < 0.1 else 0),
    "fast": lambda hours, rng: fills(hours) + hours * 500 * MIB,
}


@pytest.mark.parametrize("name", FINE)
def test_what_does_not_grow_passes(name: str) -> None:
    assert [seed for seed in SEEDS if judged(FINE[name], seed=seed).fails] == []


@pytest.mark.parametrize("step_mib", [3, 20, 200])
def test_one_step_after_the_warm_up_passes_at_any_time(step_mib: int) -> None:
    def stepped(at: float) -> Judged:
        return judged(lambda hours, rng: fills(hours) + (step_mib * MIB if hours > at else 0) + rng.gauss(0, 0.2 * MIB))

    assert [minute for minute in range(60, 120) if stepped(minute / 60).fails] == []


@pytest.mark.parametrize("name", LEAKS)
def test_a_leak_fails(name: str) -> None:
    assert [seed for seed in SEEDS if not judged(LEAKS[name], seed=seed).fails] == []


def test_a_descriptor_lost_every_ten_minutes_is_a_leak() -> None:
    assert judged(lambda hours, rng: 40 + int(hours * 6) + rng.randint(0, 3), measure="descriptors").fails


def test_descriptors_that_come_and_go_are_no_leak() -> None:
    assert not any(
        judged(lambda hours, rng: 40 + rng.randint(0, 20), measure="descriptors", seed=seed).fails for seed in SEEDS
    )


def test_a_thread_every_twenty_minutes_is_a_leak() -> None:
    assert judged(lambda hours, rng: 10 + int(hours * 3), measure="threads").fails


def test_rows_may_grow_only_in_proportion_to_their_level() -> None:
    def rows(per_hour: float) -> Judged:
        return judged(lambda hours, rng: 12_000 + hours * per_hour + rng.gauss(0, 100), measure="rows job")

    assert not rows(300).fails
    assert rows(3_000).fails


def test_a_latency_that_rises_steadily_fails() -> None:
    assert judged(lambda hours, rng: 5 + hours * 4 + rng.gauss(0, 1), measure="p50_ms").fails
    assert not judged(lambda hours, rng: 5 + rng.expovariate(1), measure="p50_ms").fails


def test_the_warm_up_is_not_judged() -> None:
    assert not judged(lambda hours, rng: min(hours, 1) * 500 * MIB).fails


def test_too_few_points_are_not_judged() -> None:
    series = Series()
    for minute in range(10):
        series.add(minute * 60, "server-1", {"rss_bytes": minute * 100 * MIB})
    assert judge(series) == []


def test_a_process_that_was_started_late_is_not_judged() -> None:
    series = Series()
    for minute in range(120):
        series.add(minute * 60, "server-1", {"threads": 4})
        if minute > 80:
            series.add(minute * 60, "late", {"rss_bytes": minute * 100 * MIB})
    assert {one.subject for one in judge(series)} == {"server-1"}


def test_what_is_kept_for_longer_than_a_run_is_not_judged() -> None:
    assert rule_of("rows registry audit") is None
    assert rule_of("rows registry session") is None
    assert rule_of("rows job") is not None


def test_every_rule_gives_its_reason() -> None:
    assert all(rule.reason and rule.floor > 0 and rule.per_hour > 0 for rule in RULES)


def test_the_documentation_states_the_bounds_as_they_are() -> None:
    stated = (Path(__file__).parents[2] / "docs" / "explanation" / "reliability.md").read_text()
    for rule in RULES:
        size = f"{rule.per_hour / MIB:g} MiB" if rule.measure.endswith("_bytes") else f"{rule.per_hour:g}"
        size += " ms" if rule.measure.endswith("_ms") else ""
        share = f"{100 * rule.share_per_hour:g} %, at least " if rule.share_per_hour else ""
        assert re.search(rf"^\| .* \| {share}{size}( \||,)", stated, re.MULTILINE), rule


def test_outliers_do_not_move_the_slope() -> None:
    points = [Point(hour * 3_600.0, 2.0 * hour + (1_000 if hour % 5 == 4 else 0)) for hour in range(20)]
    assert slope_per_hour(points) == pytest.approx(2, abs=0.5)


def test_ties_are_no_trend() -> None:
    assert trend_z([3.0] * 50) == 0
    assert trend_z([float(n) for n in range(30)]) > 5 > -5 > trend_z([float(-n) for n in range(30)])


def test_a_series_comes_back_from_its_file(tmp_path: Path) -> None:
    series = Series(tmp_path / FILE)
    series.add(60, "server-1", {"rss_bytes": 90 * MIB, "p50_ms": 1.25})
    series.add(61, "faults", {"worker killed": 1})
    again = load(tmp_path / FILE)
    assert list(again.lines()) == list(series.lines())
    assert again.faults() == [(61.0, "worker killed")]
