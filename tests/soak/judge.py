"""The judge: finds series that keep growing.

The first half of a run is warm-up: caches fill, the allocator settles, rows reach their retention. In the second half,
a series fails if all of these hold:

1. *It is steep*: its slope (Theil-Sen: the median of the slopes between all pairs of points, which is robust against
   outliers) exceeds the limit of its measure per hour.
2. *It is large*: the growth in the judged time exceeds the measure's floor, below which growth cannot be distinguished
   from the steps in which memory is allocated and connections come and go.
3. *It is a trend*: by the Mann-Kendall test, points without a trend would look like this with a probability below
   1 in 1,000 (adjacent points are correlated, so the usual 1 in 20 would cause false alarms).
4. *It continues*: the lower quartile rises from the first third of the judged time to the second, and again to the
   last, at least half as steeply as the bound. A step (another arena, a longer queue after a fault) rises once and
   stays; a sawtooth (garbage collection, checkpoints of a write-ahead log) falls again.

The bound is relative to the level of the series if its measure has no natural size (rows, bytes of a store, latencies).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import combinations, pairwise
from statistics import median
from typing import Final, NamedTuple

from tests.soak.series import Point, Series

WARM_UP_SHARE: Final = 0.5
POINTS_MIN: Final = 8
"""With fewer points in the second half, a run is inconclusive, and has not passed."""
TREND_Z: Final = 3.09
"""One chance in 1,000, one-sided."""
PARTS: Final = 3
GOES_ON_SHARE: Final = 0.5
MIB: Final = 1_048_576


@dataclass(frozen=True, slots=True)
class Rule:
    """How much a measure may grow: `per_hour` and `floor` in its unit, `share_per_hour` as a share of its level."""

    measure: str
    per_hour: float
    floor: float
    reason: str
    share_per_hour: float = 0.0

    def bound(self, level: float) -> float:
        """The highest allowed slope per hour of a series at this level."""
        return max(self.per_hour, self.share_per_hour * level)


RULES: Final = (
    Rule("rss_bytes", 4 * MIB, 2 * MIB, "30 bytes per job at 40 jobs/s; the allocator's own steps are smaller"),
    Rule("anonymous_bytes", 4 * MIB, 2 * MIB, "the same without mapped files"),
    Rule("descriptors", 4, 3, "a descriptor lost every quarter of an hour is a leak; connections come and go"),
    Rule("sockets", 4, 3, "the same as for descriptors"),
    Rule("threads", 1, 2, "threads are started once; pools fill during the warm-up"),
    Rule("tasks", 12, 8, "losing one with every tenth live page makes 60; pools of runners fill up to their peak load"),
    Rule("rows *", 50, 50, "retention deletes as much as is created; rows follow the load", 0.05),
    Rule("store_bytes", 2 * MIB, 2 * MIB, "freed pages are reused; large payloads come at random", 0.1),
    Rule("wal_bytes", 64 * MIB, 64 * MIB, "a log that is never truncated grows by 1 GiB; Redis rewrites it at 64 MiB"),
    Rule("p50_ms", 1, 1, "no data that queries read grows, so nothing becomes slower", 0.2),
    Rule("p99_ms", 20, 20, "the same, with a margin for faults and other load on the machine", 0.5),
)
"""All limits. A measure that matches none is shown, not judged."""

BY_DESIGN: Final = {
    "rows registry audit": "the audit log is kept for 90 days",
    "rows registry minute": "per-minute samples are kept for 3 hours",
    "rows registry api_key": "revoked keys stay listed",
    "rows registry session": "sessions last 12 hours",
    "rows *hour*": "statistics are kept for 30 days, by worker; killed workers restart under another name",
    "rows *measure*": "statistics are kept for 30 days",
}
"""Rows that may grow because they are kept for longer than a run: shown, not judged."""
RESTARTED: Final = "server that is restarted"
NOT_JUDGED: Final = ("load", "manager's processes", RESTARTED)
"""The load's own records, sums over short-lived processes, and restarted servers: shown, not judged."""


class Judged(NamedTuple):
    """The verdict on one series. `slope` and `bound` are per hour; `why` says why it does not fail."""

    subject: str
    measure: str
    first: float
    last: float
    slope: float
    bound: float
    z: float
    fails: bool
    why: str


def judge(series: Series, rules: Sequence[Rule] = RULES) -> list[Judged]:
    """A verdict on every series that has a rule."""
    since = series.ends_at * WARM_UP_SHARE
    found = []
    for subject, measure, points in series.lines():
        rule = rule_of(measure, rules)
        judged = [point for point in points if point.seconds >= since]
        if subject in NOT_JUDGED:
            continue
        if rule is not None and len(judged) >= POINTS_MIN and points[0].seconds <= since:
            found.append(verdict(subject, measure, judged, rule))
    return sorted(found, key=lambda one: (not one.fails, one.subject, one.measure))


def rule_of(measure: str, rules: Sequence[Rule] = RULES) -> Rule | None:
    """The rule for a measure; None: it is not judged."""
    if any(fnmatchcase(measure, pattern) for pattern in BY_DESIGN):
        return None
    return next((rule for rule in rules if fnmatchcase(measure, rule.measure)), None)


def verdict(subject: str, measure: str, points: Sequence[Point], rule: Rule) -> Judged:
    """Judge the points after the warm-up."""
    values = [point.value for point in points]
    quarter = max(len(values) // 4, 1)
    first, last = median(values[:quarter]), median(values[-quarter:])
    slope, bound, z = slope_per_hour(points), rule.bound(median(values)), trend_z(values)
    hours = (points[-1].seconds - points[0].seconds) / 3_600
    tests: list[tuple[str, Callable[[], bool]]] = [
        ("within its bound", lambda: slope > bound),
        ("growth too small", lambda: slope * hours > rule.floor),
        ("no trend", lambda: z > TREND_Z),
        ("a step or a wave", lambda: _rise_of_floor(values) > bound * GOES_ON_SHARE * hours / PARTS),
    ]
    why = next((name for name, holds in tests if not holds()), "")
    return Judged(subject, measure, first, last, slope, bound, z, not why, why)


def slope_per_hour(points: Sequence[Point]) -> float:
    """Theil-Sen: the median of the slopes between all pairs of points."""
    pairs = ((a, b) for a, b in combinations(points, 2) if b.seconds > a.seconds)
    return 3_600 * median([(b.value - a.value) / (b.seconds - a.seconds) for a, b in pairs] or [0.0])


def _rise_of_floor(values: Sequence[float]) -> float:
    """The smaller of the two rises between the thirds."""
    size = len(values) / PARTS
    parts = [sorted(values[round(at * size) : round((at + 1) * size)]) for at in range(PARTS)]
    floors = [part[len(part) // 4] for part in parts]
    return min(later - earlier for earlier, later in pairwise(floors))


def trend_z(values: Sequence[float]) -> float:
    """Mann-Kendall: by how many standard deviations the rising pairs outnumber the falling ones, corrected for ties."""
    rises = sum((b > a) - (b < a) for a, b in combinations(values, 2))
    count = len(values)
    ties = sum(t * (t - 1) * (2 * t + 5) for t in (values.count(value) for value in set(values)))
    variance = (count * (count - 1) * (2 * count + 5) - ties) / 18
    if variance <= 0 or rises == 0:
        return 0.0
    return (rises - math.copysign(1, rises)) / math.sqrt(variance)
