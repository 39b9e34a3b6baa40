"""Policies and backoff: the delays of the design, and what holds for every policy."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everwork.core.limits import ATTEMPTS_MAX, DELAY_MS_MAX, KEY_MAX
from everwork.core.retry import DEFAULT_POLICY, RetryPolicy
from everwork.exceptions import InvalidInput

DELAY_SECONDS_MAX = DELAY_MS_MAX / 1000

attempts_used = st.integers(1, ATTEMPTS_MAX)
keys = st.integers(1, KEY_MAX)
attempt_numbers = st.integers(1, 100_000)
policies = st.builds(
    RetryPolicy,
    max_attempts=st.integers(1, ATTEMPTS_MAX),
    base=st.floats(0, DELAY_SECONDS_MAX),
    factor=st.floats(1, 100),
    cap=st.floats(0, DELAY_SECONDS_MAX),
    jitter=st.floats(0, 1),
)


def test_the_default_delays_double_from_five_seconds_to_five_minutes() -> None:
    delays = [DEFAULT_POLICY.backoff_ms(attempts) for attempts in range(1, 9)]
    assert delays == [5_000, 10_000, 20_000, 40_000, 80_000, 160_000, 300_000, 300_000]


def test_the_default_policy_has_five_attempts_and_no_jitter() -> None:
    assert RetryPolicy(max_attempts=5, base=5.0, factor=2.0, cap=300.0, jitter=0.0) == DEFAULT_POLICY


def test_a_policy_with_factor_one_always_waits_the_same() -> None:
    policy = RetryPolicy(base=1.5, factor=1.0)
    assert {policy.backoff_ms(attempts) for attempts in range(1, 101)} == {1_500}


def test_the_cap_holds_from_the_first_attempt() -> None:
    assert RetryPolicy(base=60.0, cap=7.0).backoff_ms(1) == 7_000


def test_no_counted_attempt_is_answered_like_the_first() -> None:
    assert DEFAULT_POLICY.backoff_ms(0) == DEFAULT_POLICY.backoff_ms(1)


@pytest.mark.parametrize("attempts", [100, 101, 156, 201, 10_000])
def test_the_steepest_policy_stays_at_its_cap_for_any_number_of_attempts(attempts: int) -> None:
    assert RetryPolicy(factor=100.0).backoff_ms(attempts) == 300_000


def test_without_jitter_every_job_waits_the_same() -> None:
    assert {DEFAULT_POLICY.backoff_ms(3, key=key, attempt=3) for key in range(1, 200)} == {20_000}


def test_jitter_spreads_the_jobs_over_its_share() -> None:
    policy = RetryPolicy(jitter=0.5)
    delays = [policy.backoff_ms(1, key=key, attempt=1) for key in range(1, 1_001)]
    assert len(set(delays)) > 700
    assert 2_500 <= min(delays) < 2_600
    assert 4_900 < max(delays) <= 5_000


def test_jitter_spreads_the_attempts_of_one_job() -> None:
    policy = RetryPolicy(factor=1.0, jitter=0.5)
    assert len({policy.backoff_ms(1, key=1, attempt=attempt) for attempt in range(1, 51)}) > 40


@given(policy=policies, attempts=attempts_used, key=keys, attempt=attempt_numbers)
def test_the_same_input_always_gives_the_same_delay(policy: RetryPolicy, attempts: int, key: int, attempt: int) -> None:
    again = RetryPolicy(policy.max_attempts, policy.base, policy.factor, policy.cap, policy.jitter)
    assert policy.backoff_ms(attempts, key=key, attempt=attempt) == again.backoff_ms(attempts, key=key, attempt=attempt)


@given(policy=policies, attempts=attempts_used, key=keys, attempt=attempt_numbers)
def test_a_delay_is_never_negative_nor_over_the_cap(policy: RetryPolicy, attempts: int, key: int, attempt: int) -> None:
    assert 0 <= policy.backoff_ms(attempts, key=key, attempt=attempt) <= round(policy.cap * 1000)


@given(policy=policies, attempts=attempts_used, key=keys, attempt=attempt_numbers)
def test_jitter_takes_away_at_most_its_share(policy: RetryPolicy, attempts: int, key: int, attempt: int) -> None:
    plain_ms = RetryPolicy(policy.max_attempts, policy.base, policy.factor, policy.cap).backoff_ms(attempts)
    delay_ms = policy.backoff_ms(attempts, key=key, attempt=attempt)
    assert plain_ms * (1 - policy.jitter) - 1 <= delay_ms <= plain_ms


@given(policy=policies, attempts=st.integers(1, ATTEMPTS_MAX - 1))
def test_without_jitter_delays_never_shrink(policy: RetryPolicy, attempts: int) -> None:
    plain = RetryPolicy(policy.max_attempts, policy.base, policy.factor, policy.cap)
    assert plain.backoff_ms(attempts) <= plain.backoff_ms(attempts + 1)


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("max_attempts", 0, "from 1 to 100"),
        ("max_attempts", 101, "from 1 to 100"),
        ("max_attempts", 2.5, "whole number"),
        ("max_attempts", True, "whole number"),
        ("base", -1, "from 0 to"),
        ("base", "5", "number"),
        ("base", float("nan"), "number"),
        ("base", float("inf"), "number"),
        ("base", DELAY_SECONDS_MAX + 1, "from 0 to"),
        ("factor", 0.5, "from 1 to 100"),
        ("factor", 101, "from 1 to 100"),
        ("cap", -0.1, "from 0 to"),
        ("cap", None, "number"),
        ("jitter", 1.1, "from 0 to 1"),
        ("jitter", -0.1, "from 0 to 1"),
    ],
)
def test_a_policy_with_a_bad_value_is_refused_by_its_field(field: str, value: object, allowed: str) -> None:
    bad: dict[str, Any] = {field: value}
    with pytest.raises(InvalidInput, match=allowed) as caught:
        RetryPolicy(**bad)
    assert caught.value.field == field


@pytest.mark.parametrize(
    "good",
    [
        {"max_attempts": 1},
        {"max_attempts": 100},
        {"base": 0},
        {"factor": 1},
        {"factor": 100},
        {"cap": 0},
        {"jitter": 1},
    ],
    ids=str,
)
def test_a_policy_may_stand_on_its_bounds(good: dict[str, Any]) -> None:
    assert RetryPolicy(**good).backoff_ms(1) >= 0
