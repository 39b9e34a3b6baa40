"""Buckets of durations, and percentiles out of them."""

from __future__ import annotations

import pytest

from everwork.core.measures import BOUNDS_MS, BUCKETS, LONGEST_MS, bucket_of, measured, percentile_ms


@pytest.mark.parametrize(("duration_ms", "bucket"), [(0, 0), (5, 0), (6, 1), (3_600_000, 15), (3_600_001, 16)])
def test_a_bucket_has_its_upper_bound(duration_ms: int, bucket: int) -> None:
    assert bucket_of(duration_ms) == bucket


def test_names_that_nobody_knows_are_left_out() -> None:
    told = measured([("e00", 2), ("w16", 3), ("f:lapsed", 1), ("f:lapsed", 1), ("z99", 7)])
    assert (told.execution[0], told.wait[BUCKETS - 1], dict(told.failures)) == (2, 3, {"lapsed": 2})
    assert sum(told.execution) + sum(told.wait) == 5


def test_nothing_has_no_percentile() -> None:
    assert percentile_ms([0] * BUCKETS, 0.5) is None


def test_a_percentile_lies_in_the_bucket_where_it_is_reached() -> None:
    counts = [90, 0, 0, 0, 10, *[0] * (BUCKETS - 5)]
    assert percentile_ms(counts, 0.45) == 2.5
    assert percentile_ms(counts, 0.9) == 5
    assert percentile_ms(counts, 0.95) == (BOUNDS_MS[3] + BOUNDS_MS[4]) / 2
    assert percentile_ms(counts, 1.0) == BOUNDS_MS[4]


def test_what_is_longer_than_every_bucket_has_a_bound_all_the_same() -> None:
    assert percentile_ms([*[0] * (BUCKETS - 1), 1], 1.0) == LONGEST_MS


def test_a_percentile_is_no_longer_than_the_sum_of_durations_allows() -> None:
    counts = [0] * BUCKETS
    counts[bucket_of(8_000)] = 1
    assert percentile_ms(counts, 0.95) == 9_750
    assert percentile_ms(counts, 0.95, 8_000) == 8_000
    counts[bucket_of(100)] = 100
    assert percentile_ms(counts, 1.0, 8_000 + 100 * 51) == 8_100
    assert percentile_ms(counts, 1.0, 0) == 5_000
    assert percentile_ms([7, *[0] * (BUCKETS - 1)], 1.0, 0) == 1
