"""What engines count by hour and type besides jobs: how long attempts waited and ran, and why they failed."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

BOUNDS_MS: Final = (
    5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 300_000, 1_800_000, 3_600_000,
)  # fmt: skip
"""Where the buckets of durations end, inclusive; one more bucket has what is longer. Stored: they never change."""
BUCKETS: Final = len(BOUNDS_MS) + 1
LONGEST_MS: Final = 4 * BOUNDS_MS[-1]
"""What stands for durations of the last bucket, which has no end."""

EXECUTION: Final = "e"
WAIT: Final = "w"
FAILURE: Final = "f"

UNCLASSIFIED: Final = "unclassified"
ASKED: Final = "retry_asked"
LAPSED: Final = "lapsed"
REJECTED: Final = "rejected"
THROWN: Final = "thrown"
"""Sorts of failures beside the strategies of `core.classify`."""


def bucket_of(duration_ms: int) -> int:
    """The number of the bucket that a duration belongs to."""
    return bisect_left(BOUNDS_MS, duration_ms)


def execution(bucket: int) -> str:
    """What attempts are counted as that ran so long."""
    return f"{EXECUTION}{bucket:02d}"


def wait(bucket: int) -> str:
    """What attempts are counted as that waited so long, from when their job was due to when they began."""
    return f"{WAIT}{bucket:02d}"


def failure(sort: str) -> str:
    """What failed attempts of a sort are counted as."""
    return f"{FAILURE}:{sort}"


@dataclass(frozen=True, slots=True)
class Measured:
    """Counts of attempts that have ended: by how long they ran, how long they waited, and by sort of failure."""

    execution: tuple[int, ...] = (0,) * BUCKETS
    wait: tuple[int, ...] = (0,) * BUCKETS
    failures: Mapping[str, int] = field(default_factory=dict)


def measured(counts: Iterable[tuple[str, int]]) -> Measured:
    """Named counts put in order; what another version has counted under names of its own is left out."""
    sums: Counter[str] = Counter()
    for what, jobs in counts:
        sums[what] += jobs
    failures = {what[2:]: jobs for what, jobs in sorted(sums.items()) if what.startswith(f"{FAILURE}:")}
    return Measured(
        tuple(sums[execution(bucket)] for bucket in range(BUCKETS)),
        tuple(sums[wait(bucket)] for bucket in range(BUCKETS)),
        failures,
    )


def percentile_ms(counts: Sequence[int], share: float) -> float | None:
    """The duration that so large a share (0 to 1) does not exceed, to the exactness of the buckets; None of nothing."""
    left = share * sum(counts)
    if not any(counts):
        return None
    lower = 0
    for upper, jobs in zip((*BOUNDS_MS, LONGEST_MS), counts, strict=True):
        if jobs and left <= jobs:
            return lower + (upper - lower) * max(left, 0.0) / jobs
        left -= jobs
        lower = upper
    return float(LONGEST_MS)
