"""The rules of the circuit breaker, as pure functions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everwork.core.breaker import CLOSED, Breaker, BreakerState, CircuitBreaker, after_failures, after_success, opened
from everwork.core.limits import BREAKER_FAILURES_MAX, BREAKER_SECONDS_MAX
from everwork.exceptions import InvalidInput

NOW_MS, MINUTE_MS = 1_000_000, 60_000
RULE = CircuitBreaker()
OPEN = Breaker(3, NOW_MS + MINUTE_MS)
PROBED = Breaker(3, NOW_MS - 1, probe_key=7, probe_attempt=2)

breakers = st.one_of(
    st.builds(Breaker, st.integers(0, 2)),
    st.builds(Breaker, st.integers(0, 9), st.integers(1, 2 * NOW_MS), st.none() | st.integers(1, 9), st.integers(1, 9)),
)


def failed(breaker: Breaker, failures: int = 1, *, is_probe: bool = False) -> Breaker:
    return after_failures(breaker, failures, is_probe=is_probe, rule=RULE, now_ms=NOW_MS)


def test_the_usual_breaker_opens_after_three_failures_for_a_minute() -> None:
    assert (RULE.failures, RULE.open_ms) == (3, MINUTE_MS)
    assert failed(failed(failed(CLOSED))) == OPEN


def test_its_fields_have_other_names_too() -> None:
    assert CircuitBreaker(failure_threshold=5, recovery_timeout=30) == CircuitBreaker(5, 30.0)
    assert CircuitBreaker(failures=5, recovery_timeout=30) == CircuitBreaker(failure_threshold=5, seconds=30)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"failures": 1, "failure_threshold": 1}, "failure_threshold"),
        ({"seconds": 1, "recovery_timeout": 1}, "recovery_timeout"),
        ({"failure_threshold": 0}, "breaker_failures"),
        ({"recovery_timeout": 0.5}, "breaker_seconds"),
    ],
)
def test_each_is_given_once_and_within_its_bounds(given: dict[str, float], field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        CircuitBreaker(**given)  # type: ignore[arg-type]
    assert caught.value.field == field


@pytest.mark.parametrize(("failures", "state"), [(2, BreakerState.CLOSED), (3, BreakerState.OPEN)])
def test_failures_that_come_together_count_together(failures: int, state: BreakerState) -> None:
    assert failed(CLOSED, failures).state(NOW_MS) is state


def test_a_success_sets_the_count_back() -> None:
    assert after_success(Breaker(2), is_probe=False) == CLOSED


def test_an_open_breaker_is_half_open_when_its_time_is_over() -> None:
    states = [OPEN.state(NOW_MS + MINUTE_MS + ms) for ms in (-1, 0, 10**9)]
    assert states == [BreakerState.OPEN, BreakerState.HALF_OPEN, BreakerState.HALF_OPEN]


@pytest.mark.parametrize("breaker", [OPEN, PROBED], ids=["open", "half-open"])
def test_what_is_not_the_probe_changes_nothing(breaker: Breaker) -> None:
    assert after_success(breaker, is_probe=False) == breaker
    assert failed(breaker, 50) == breaker


def test_the_probe_s_success_closes_it() -> None:
    assert after_success(PROBED, is_probe=True) == CLOSED


def test_the_probe_s_failure_opens_it_again_and_forgets_the_probe() -> None:
    assert failed(PROBED, is_probe=True) == Breaker(3, NOW_MS + MINUTE_MS)


def test_a_probe_is_an_attempt_and_not_a_job() -> None:
    assert [PROBED.is_probe(7, 2), PROBED.is_probe(7, 1), PROBED.is_probe(8, 2)] == [True, False, False]
    assert not CLOSED.is_probe(7, 0)


def test_a_breaker_may_be_opened_from_every_state() -> None:
    assert {opened(one, 5, NOW_MS).open_until_ms for one in (CLOSED, OPEN, PROBED)} == {NOW_MS + 5}


@given(breaker=breakers, failures=st.integers(1, 9), is_probe=st.booleans())
def test_no_breaker_is_left_closed_at_or_over_its_number_of_failures(
    breaker: Breaker, failures: int, is_probe: bool
) -> None:
    after = failed(breaker, failures, is_probe=is_probe)
    assert after.open_until_ms is not None or after.failures < RULE.failures


@given(breaker=breakers, successes=st.integers(1, 3))
def test_successes_alone_never_open_it(breaker: Breaker, successes: int) -> None:
    after = breaker
    for _ in range(successes):
        after = after_success(after, is_probe=False)
    assert after == (CLOSED if breaker.open_until_ms is None else breaker)


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        ({"failures": 0}, "breaker_failures"),
        ({"failures": -1}, "breaker_failures"),
        ({"failures": 2.5}, "breaker_failures"),
        ({"failures": True}, "breaker_failures"),
        ({"failures": BREAKER_FAILURES_MAX + 1}, "breaker_failures"),
        ({"seconds": 0}, "breaker_seconds"),
        ({"seconds": -60}, "breaker_seconds"),
        ({"seconds": float("inf")}, "breaker_seconds"),
        ({"seconds": float("nan")}, "breaker_seconds"),
        ({"seconds": BREAKER_SECONDS_MAX + 1}, "breaker_seconds"),
        ({"seconds": "60"}, "breaker_seconds"),
    ],
    ids=str,
)
def test_a_breaker_that_makes_no_sense_is_refused_by_its_field(bad: dict[str, float], field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        CircuitBreaker(**bad)  # type: ignore[arg-type]
    assert caught.value.field == field
