"""The policy of a type: what may be said, what is refused, and what it comes to."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everwork.codec.json import decode_policy, encode_policy
from everwork.core.breaker import CircuitBreaker
from everwork.core.classify import ErrorRule, Strategy
from everwork.core.limits import ERROR_RULES_MAX, FAILED_RETRY_ROUNDS_MAX, RATE_JOBS_MAX, RUNNING_MAX
from everwork.core.policy import (
    DEFAULT_TYPE_POLICY,
    POLICY_FIELDS,
    Rate,
    TypePolicy,
    declared_fields,
    fields_of,
    policy_from,
    require_breaker,
    require_type_policy,
    with_retry,
)
from everwork.core.retry import RetryPolicy
from everwork.core.states import State
from everwork.exceptions import InvalidInput

HOUR_MS = 3_600_000
RULE = {"strategy": "permanent", "text": "no such card"}
FULL: dict[str, Any] = {
    "max_attempts": 7,
    "base": 1.5,
    "factor": 3.0,
    "cap": 60.0,
    "jitter": 0.1,
    "breaker_failures": 4,
    "breaker_seconds": 30.0,
    "errors": [RULE, {"strategy": "temporary", "exception": "TimeoutError"}],
    "strict": True,
    "failed_job_retry_hours": 24.0,
    "failed_job_retry_rounds": 2,
    "keep_completed_hours": 1.0,
    "keep_failed_hours": 48.0,
    "max_running": 5,
    "max_running_per_key": 1,
    "rate_jobs": 100,
    "rate_seconds": 1.0,
}


def test_a_policy_of_which_nothing_is_said_is_the_usual_one() -> None:
    assert policy_from({}) == policy_from(dict.fromkeys(POLICY_FIELDS)) == DEFAULT_TYPE_POLICY
    assert (DEFAULT_TYPE_POLICY.breaker, DEFAULT_TYPE_POLICY.rate, DEFAULT_TYPE_POLICY.is_limited) == (
        None,
        None,
        False,
    )
    assert (DEFAULT_TYPE_POLICY.failed_job_retry_ms, declared_fields(DEFAULT_TYPE_POLICY)) == (None, {})


def test_every_field_may_be_said_and_is_told_back() -> None:
    assert set(FULL) == set(POLICY_FIELDS)
    policy = policy_from(FULL)
    assert fields_of(policy) == declared_fields(policy) == FULL
    assert policy == TypePolicy(
        retry=RetryPolicy(7, 1.5, 3.0, 60.0, 0.1),
        breaker=CircuitBreaker(4, 30.0),
        errors=(ErrorRule("permanent", text="no such card"), ErrorRule(Strategy.TEMPORARY, exception=TimeoutError)),
        strict=True,
        failed_job_retry_hours=24.0,
        failed_job_retry_rounds=2,
        keep_completed_hours=1.0,
        keep_failed_hours=48.0,
        max_running=5,
        max_running_per_key=1,
        rate=Rate(100, 1.0),
    )


@given(names=st.sets(st.sampled_from([name for name in POLICY_FIELDS if name != "rate_seconds"])))
def test_whatever_is_said_comes_back_from_what_differs(names: set[str]) -> None:
    policy = policy_from({name: FULL[name] for name in names})
    assert policy_from(declared_fields(policy)) == policy == policy_from(fields_of(policy))


def test_half_a_breaker_has_the_usual_other_half() -> None:
    assert policy_from({"breaker_failures": 5}).breaker == CircuitBreaker(5, 60.0)
    assert policy_from({"breaker_seconds": 5}).breaker == CircuitBreaker(3, 5)


def test_a_rate_is_per_minute_unless_it_says_otherwise() -> None:
    rate = policy_from({"rate_jobs": 5}).rate
    assert rate is not None
    assert (rate.jobs, rate.window_ms) == (5, 60_000)


@pytest.mark.parametrize("name", ["max_running", "max_running_per_key", "rate_jobs"])
def test_a_policy_with_any_limit_is_limited(name: str) -> None:
    assert policy_from({name: 1}).is_limited


def test_hours_become_milliseconds() -> None:
    policy = policy_from(FULL)
    assert policy.failed_job_retry_ms == 24 * HOUR_MS
    kept = [policy.keep_ms(state) for state in (State.COMPLETED, State.CANCELLED, State.FAILED)]
    assert kept == [HOUR_MS, HOUR_MS, 48 * HOUR_MS]
    assert DEFAULT_TYPE_POLICY.keep_ms(State.FAILED) is None


def test_the_retries_of_one_job_leave_the_rest_of_its_type_s_policy() -> None:
    policy = with_retry(policy_from(FULL), RetryPolicy(base=9.0))
    assert fields_of(policy) == FULL | fields_of(policy_from({"base": 9.0})) | {
        name: value for name, value in FULL.items() if name not in ("max_attempts", "base", "factor", "cap", "jitter")
    }


BAD: list[tuple[str, object]] = [
    ("max_attempts", 0),
    ("max_attempts", 101),
    ("max_attempts", "5"),
    ("base", -1),
    ("base", float("inf")),
    ("factor", 0.5),
    ("cap", -0.1),
    ("cap", float("nan")),
    ("jitter", 1.1),
    ("breaker_failures", 0),
    ("breaker_failures", True),
    ("breaker_seconds", 0),
    ("breaker_seconds", 0.5),
    ("strict", "yes"),
    ("strict", 1),
    ("failed_job_retry_hours", 0),
    ("failed_job_retry_hours", -24),
    ("failed_job_retry_hours", float("inf")),
    ("failed_job_retry_rounds", 0),
    ("failed_job_retry_rounds", FAILED_RETRY_ROUNDS_MAX + 1),
    ("failed_job_retry_rounds", 1.5),
    ("keep_completed_hours", 0),
    ("keep_failed_hours", -1),
    ("keep_failed_hours", "90 days"),
    ("max_running", 0),
    ("max_running", -1),
    ("max_running", 2.5),
    ("max_running", RUNNING_MAX + 1),
    ("max_running_per_key", 0),
    ("max_running_per_key", [1]),
    ("rate_jobs", 0),
    ("rate_jobs", RATE_JOBS_MAX + 1),
    ("errors", "timeout"),
    ("errors", {"strategy": "permanent", "text": "x"}),
    ("errors", [{"strategy": "permanent", "says": "x"}]),
    ("errors", ["permanent"]),
    ("errors", [RULE] * (ERROR_RULES_MAX + 1)),
    ("errors", [{"strategy": "permanent"}]),
    ("failed_job_retry_hours", 90 * 24),
]


@pytest.mark.parametrize(("field", "value"), BAD, ids=lambda value: str(value)[:40])
def test_a_bad_value_is_refused_by_its_field(field: str, value: object) -> None:
    with pytest.raises(InvalidInput) as caught:
        policy_from({field: value})
    assert caught.value.field == field


def test_dead_letters_that_come_back_must_be_kept_until_then() -> None:
    with pytest.raises(InvalidInput, match="failed_job_retry_hours: must be less than keep_failed_hours, 24"):
        policy_from({"failed_job_retry_hours": 24, "keep_failed_hours": 24})
    assert policy_from({"failed_job_retry_hours": 24, "keep_failed_hours": 25}).failed_job_retry_hours == 24


@pytest.mark.parametrize("name", ["a b", "", ".", "requests.", "3rd.Error", "permanent!"])
def test_a_name_that_no_class_can_have_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match=r"errors\.exception"):
        policy_from({"errors": [{"strategy": "permanent", "exception": name}]})


@pytest.mark.parametrize("seconds", [0, 0.5, -1, float("nan"), "60", 10**9])
def test_a_bad_window_is_refused_by_its_field(seconds: object) -> None:
    with pytest.raises(InvalidInput) as caught:
        policy_from({"rate_jobs": 5, "rate_seconds": seconds})
    assert caught.value.field == "rate_seconds"


def test_a_window_without_a_number_of_jobs_is_refused() -> None:
    with pytest.raises(InvalidInput, match="rate_seconds") as caught:
        policy_from({"rate_seconds": 60})
    assert caught.value.field == "rate_jobs"


@pytest.mark.parametrize("name", ["retries", "max_retries", "breaker", "rate", "Base", "", "x" * 10_000])
def test_an_unknown_field_is_refused_with_those_that_are_allowed(name: str) -> None:
    with pytest.raises(InvalidInput, match="max_attempts, base, factor") as caught:
        policy_from({name: 1})
    assert (caught.value.field, name[:20] in str(caught.value), len(str(caught.value)) < 1_000) == (
        "policy",
        True,
        True,
    )


@pytest.mark.parametrize(
    ("rule", "field"),
    [
        ({"text": "x"}, "errors.strategy"),
        ({"strategy": "never", "text": "x"}, "errors.strategy"),
        ({"strategy": "permanent", "text": ""}, "errors.text"),
        ({"strategy": "permanent", "exception": 5}, "errors.exception"),
    ],
    ids=str,
)
def test_a_bad_rule_is_refused_by_its_field(rule: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        policy_from({"errors": [rule]})
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("field", "value"),
    [("retry", {"base": 5}), ("retry", None), ("breaker", 3), ("breaker", True), ("rate", 5), ("rate", (5, 60))],
    ids=str,
)
def test_a_part_of_the_wrong_type_is_refused_by_its_name(field: str, value: object) -> None:
    with pytest.raises(InvalidInput) as caught:
        TypePolicy(**{field: value})  # type: ignore[arg-type]
    assert caught.value.field == field


def test_what_is_no_policy_or_breaker_is_refused() -> None:
    with pytest.raises(InvalidInput, match="TypePolicy or None"):
        require_type_policy("policy", {"base": 5})
    with pytest.raises(InvalidInput, match="CircuitBreaker or None"):
        require_breaker("breaker", 3)
    assert (require_type_policy("policy", None), require_breaker("breaker", None)) == (None, None)


@pytest.mark.parametrize(
    ("policy", "is_declared"),
    [
        (TypePolicy(), False),
        (TypePolicy(retry=RetryPolicy()), True),
        (TypePolicy(retry=RetryPolicy(max_attempts=3)), True),
        (with_retry(TypePolicy(), RetryPolicy(base=60)), True),
        (TypePolicy(retry=replace(TypePolicy().retry, base=60)), True),
        (TypePolicy(retry=replace(TypePolicy().retry, max_attempts=3)), False),
        (policy_from({"max_attempts": 3}), False),
        (policy_from({"max_running": 3, "base": None}), False),
        *((policy_from({name: 1}), True) for name in ("base", "factor", "cap", "jitter")),
    ],
    ids=str,
)
def test_a_delay_is_declared_by_a_retry_policy_or_a_field_about_delays(policy: TypePolicy, is_declared: bool) -> None:
    assert policy.is_delay_declared is is_declared
    assert decode_policy(encode_policy(policy)).is_delay_declared is is_declared
    for same in (replace(policy, max_running=7), deepcopy(policy)):
        assert same.is_delay_declared is is_declared
