"""What engines count by hour and type: queue waits, run times and failure causes of finished attempts."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

BOUNDS_MS: Final = (
    5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 300_000, 1_800_000, 3_600_000,
)  # fmt: skip
"""The inclusive upper bounds of the buckets; one more holds longer durations. They are stored, so they never change."""
BUCKETS: Final = len(BOUNDS_MS) + 1
LONGEST_MS: Final = 4 * BOUNDS_MS[-1]
"""Represents the durations in the last bucket, which has no upper bound."""

EXECUTION: Final = "e"
WAIT: Final = "w"
FAILURE: Final = "f"

OTHER_WORKERS: Final = "(other)"
"""The name under which workers beyond `WORKER_ROWS_MAX` are counted."""

UNCLASSIFIED: Final = "unclassified"
ASKED: Final = "retry_asked"
LAPSED: Final = "lapsed"
REJECTED: Final = "rejected"
THROWN: Final = "thrown"
"""Categories of failures, in addition to the strategies of `core.classify`."""


def bucket_of(duration_ms: int) -> int:
    """The index of a duration's bucket."""
    return bisect_left(BOUNDS_MS, duration_ms)


def execution(bucket: int) -> str:
    """The name of the counter of attempts whose run time is in a bucket."""
    return f"{EXECUTION}{bucket:02d}"


def wait(bucket: int) -> str:
    """The name of the counter of attempts whose queue wait, from due to start, is in a bucket."""
    return f"{WAIT}{bucket:02d}"


def failure(category: str) -> str:
    """The name of the counter of failed attempts of a category."""
    return f"{FAILURE}:{category}"


@dataclass(frozen=True, slots=True)
class Measured:
    """Counts of ended attempts: by run time, by queue wait, and by category of failure."""

    execution: tuple[int, ...] = (0,) * BUCKETS
    wait: tuple[int, ...] = (0,) * BUCKETS
    failures: Mapping[str, int] = field(default_factory=dict)


def measured(counts: Iterable[tuple[str, int]]) -> Measured:
    """Sum up named counts; names from other versions are left out."""
    sums: Counter[str] = Counter()
    for what, jobs in counts:
        sums[what] += jobs
    failures = {what[2:]: jobs for what, jobs in sorted(sums.items()) if what.startswith(f"{FAILURE}:")}
    return Measured(
        tuple(sums[execution(bucket)] for bucket in range(BUCKETS)),
        tuple(sums[wait(bucket)] for bucket in range(BUCKETS)),
        failures,
    )


def percentile_ms(counts: Sequence[int], share: float, total_ms: int | None = None) -> float | None:
    """The percentile (`share` 0 to 1) of durations, as precise as the buckets; None without counts.

    `total_ms`, the sum of the durations, keeps it from being longer than any of them can have been.
    """
    if not any(counts):
        return None
    left, lower = share * sum(counts), 0
    for upper, jobs in zip((*BOUNDS_MS, LONGEST_MS), counts, strict=True):
        if jobs and left <= jobs:
            found = lower + (upper - lower) * max(left, 0.0) / jobs
            return found if total_ms is None else min(found, _longest_ms(counts, lower, jobs - left, total_ms))
        left -= jobs
        lower = upper
    return float(LONGEST_MS)


def _longest_ms(counts: Sequence[int], lower: int, longer: float, total_ms: int) -> float:
    """The longest possible duration of the shortest of the `longer` longest attempts in a bucket, if all others are
    as short as possible.
    """
    least_ms = sum(jobs * bound for jobs, bound in zip(counts, (0, *BOUNDS_MS), strict=True))
    longest_ms = lower + max(total_ms - least_ms, 0) / max(longer, 1.0)
    return max(longest_ms, 1.0)  # Durations are whole milliseconds, so a duration of 0 is not instantaneous.
