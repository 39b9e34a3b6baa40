"""What follows a failed attempt, for every outcome and every number of attempts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everwork.core.decide import Decision, Known, decide
from everwork.core.limits import ATTEMPTS_MAX, ERROR_CHARS_MAX
from everwork.core.outcome import DecidedOutcome, Failed, Lapse, Reject, Retry, Throw
from everwork.core.policy import DEFAULT_TYPE_POLICY as USUAL
from everwork.core.policy import TypePolicy
from everwork.core.retry import RetryPolicy, raised_attempts, remaining_retries
from everwork.core.states import State

KEY, ATTEMPT = 7, 3

RETRYABLE: list[DecidedOutcome] = [
    Failed(KEY, ATTEMPT, "boom"),
    Retry(KEY, ATTEMPT, "again"),
    Lapse(KEY, ATTEMPT, "w1"),
]
FINAL: list[DecidedOutcome] = [
    Failed(KEY, ATTEMPT, "boom", final=True),
    Failed(KEY, ATTEMPT, "boom", retries=0),
    Reject(KEY, ATTEMPT, "nonsense"),
    Throw(KEY, ATTEMPT, "E42", "no money"),
]
KINDS: list[tuple[DecidedOutcome, str]] = [
    (Failed(KEY, ATTEMPT, "boom"), "fail"),
    (Retry(KEY, ATTEMPT), "retry"),
    (Lapse(KEY, ATTEMPT, "w1"), "lapse"),
    (Reject(KEY, ATTEMPT), "reject"),
    (Throw(KEY, ATTEMPT, "E42"), "throw"),
]


def known(attempts: int, max_attempts: int) -> Known:
    return Known(KEY, ATTEMPT, attempts, max_attempts)


def decided(outcome: DecidedOutcome, attempts: int = 1, max_attempts: int = 5) -> Decision:
    return decide(known(attempts, max_attempts), outcome, USUAL)


def kind(value: object) -> str:
    return type(value).__name__


@pytest.mark.parametrize(("outcome", "recorded"), KINDS, ids=str)
@pytest.mark.parametrize("attempts", [1, 5])
def test_every_outcome_is_recorded_by_its_kind(outcome: DecidedOutcome, recorded: str, attempts: int) -> None:
    assert decided(outcome, attempts).kind == recorded


@pytest.mark.parametrize("outcome", RETRYABLE, ids=kind)
@pytest.mark.parametrize("attempts", range(1, 5))
def test_while_attempts_are_left_the_job_goes_back_to_pending(outcome: DecidedOutcome, attempts: int) -> None:
    decision = decided(outcome, attempts)
    assert decision.state is State.PENDING
    assert decision.backoff_ms == 5_000 * 2 ** (attempts - 1)
    assert decision.max_attempts == 5


@pytest.mark.parametrize("outcome", RETRYABLE, ids=kind)
@pytest.mark.parametrize(("attempts", "max_attempts"), [(1, 1), (5, 5), (6, 5), (100, 100)])
def test_the_last_attempt_leaves_the_job_failed(outcome: DecidedOutcome, attempts: int, max_attempts: int) -> None:
    decision = decided(outcome, attempts, max_attempts)
    assert (decision.state, decision.backoff_ms, decision.max_attempts) == (State.FAILED, 0, max_attempts)


@pytest.mark.parametrize("outcome", FINAL, ids=str)
def test_a_final_outcome_fails_whatever_attempts_are_left(outcome: DecidedOutcome) -> None:
    decision = decided(outcome, 1, 100)
    assert (decision.state, decision.backoff_ms) == (State.FAILED, 0)


@pytest.mark.parametrize("retries", [1, 2, 50, 99])
def test_fail_with_retries_leaves_that_many_more(retries: int) -> None:
    decision = decided(Failed(KEY, ATTEMPT, "boom", retries=retries), attempts=1, max_attempts=1)
    assert (decision.state, decision.max_attempts) == (State.PENDING, 1 + retries)
    assert remaining_retries(State.PENDING, 1, decision.max_attempts) == retries


def test_fail_with_retries_may_also_leave_fewer() -> None:
    assert decided(Failed(KEY, ATTEMPT, "boom", retries=1), attempts=1, max_attempts=50).max_attempts == 2


def test_fail_with_zero_retries_ends_the_job_at_the_attempts_it_used() -> None:
    decision = decided(Failed(KEY, ATTEMPT, "boom", retries=0), attempts=2, max_attempts=9)
    assert (decision.state, decision.max_attempts) == (State.FAILED, 2)


def test_final_beats_the_retries_that_came_with_it() -> None:
    assert decided(Failed(KEY, ATTEMPT, "boom", retries=9, final=True)).state is State.FAILED


def test_retries_cannot_lift_the_attempts_over_a_hundred() -> None:
    decision = decided(Failed(KEY, ATTEMPT, "boom", retries=100), attempts=99, max_attempts=99)
    assert (decision.state, decision.max_attempts) == (State.PENDING, ATTEMPTS_MAX)


def test_after_a_hundred_counted_attempts_no_wish_helps() -> None:
    decision = decided(Failed(KEY, ATTEMPT, "boom", retries=100), attempts=100, max_attempts=100)
    assert (decision.state, decision.max_attempts) == (State.FAILED, ATTEMPTS_MAX)


@pytest.mark.parametrize("delay_ms", [0, 1, 86_400_000])
def test_the_worker_s_own_delay_beats_the_policy(delay_ms: int) -> None:
    assert decided(Failed(KEY, ATTEMPT, "boom", backoff_ms=delay_ms)).backoff_ms == delay_ms
    assert decided(Retry(KEY, ATTEMPT, delay_ms=delay_ms)).backoff_ms == delay_ms


def test_the_delay_comes_from_the_policy_with_its_jitter() -> None:
    policy = TypePolicy(retry=RetryPolicy(base=10.0, jitter=0.9))
    decision = decide(known(2, 5), Failed(KEY, ATTEMPT, "boom"), policy)
    assert decision.backoff_ms == policy.retry.backoff_ms(2, key=KEY, attempt=ATTEMPT)
    assert decision.backoff_ms != policy.retry.backoff_ms(2, key=KEY + 1, attempt=ATTEMPT)


def test_the_error_code_of_a_throw_is_kept() -> None:
    decision = decided(Throw(KEY, ATTEMPT, "E42", "no money"))
    assert (decision.code, decision.error) == ("E42", "no money")


@pytest.mark.parametrize("outcome", [outcome for outcome, _ in KINDS if not isinstance(outcome, Throw)], ids=kind)
def test_only_a_throw_has_an_error_code(outcome: DecidedOutcome) -> None:
    assert decided(outcome).code is None


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (Retry(KEY, ATTEMPT), "retry"),
        (Reject(KEY, ATTEMPT), "rejected"),
        (Throw(KEY, ATTEMPT, "E42"), "E42"),
        (Lapse(KEY, ATTEMPT, "w1"), "w1"),
    ],
    ids=kind,
)
def test_an_outcome_without_a_text_still_explains_itself(outcome: DecidedOutcome, words: str) -> None:
    assert words in decided(outcome).error


@pytest.mark.parametrize(
    "outcome",
    [Failed(KEY, ATTEMPT, "x" * 9_000), Reject(KEY, ATTEMPT, "x" * 9_000), Throw(KEY, ATTEMPT, "E", "x" * 9_000)],
    ids=kind,
)
def test_an_error_text_is_cut_at_its_limit(outcome: DecidedOutcome) -> None:
    assert decided(outcome).error == "x" * ERROR_CHARS_MAX


@pytest.mark.parametrize(
    ("state", "shown"),
    [
        (State.PENDING, 3),
        (State.PROCESSING, 4),
        (State.COMPLETED, 0),
        (State.FAILED, 0),
        (State.CANCELLED, 0),
    ],
)
def test_retries_are_shown_by_the_state(state: State, shown: int) -> None:
    assert remaining_retries(state, attempts=2, max_attempts=5) == shown


def test_a_job_created_with_three_retries_shows_three_two_one_at_its_activations() -> None:
    assert [remaining_retries(State.PROCESSING, attempts, 3) for attempts in (1, 2, 3)] == [3, 2, 1]


@given(attempts=st.integers(0, ATTEMPTS_MAX), retries=st.integers(0, 100))
def test_raised_attempts_never_fall_below_what_was_used_nor_pass_a_hundred(attempts: int, retries: int) -> None:
    raised = raised_attempts(attempts, retries)
    assert attempts <= raised <= ATTEMPTS_MAX
    assert raised == attempts + retries or raised == ATTEMPTS_MAX


delays = st.none() | st.integers(0, 1_000_000)
any_outcome = st.one_of(
    st.builds(
        Failed, st.just(KEY), st.just(ATTEMPT), st.text(), st.none() | st.integers(0, 100), delays, st.booleans()
    ),
    st.builds(Retry, st.just(KEY), st.just(ATTEMPT), st.text(), delays),
    st.builds(Lapse, st.just(KEY), st.just(ATTEMPT), st.text()),
    st.builds(Reject, st.just(KEY), st.just(ATTEMPT), st.text()),
    st.builds(Throw, st.just(KEY), st.just(ATTEMPT), st.text(), st.text()),
)


@given(first=st.integers(1, ATTEMPTS_MAX), outcomes=st.lists(any_outcome, min_size=1, max_size=150))
def test_no_sequence_of_outcomes_passes_the_attempts_allowed(first: int, outcomes: list[DecidedOutcome]) -> None:
    max_attempts = first
    for attempts, outcome in enumerate(outcomes, 1):
        assert attempts <= max_attempts <= ATTEMPTS_MAX
        decision = decide(known(attempts, max_attempts), outcome, USUAL)
        max_attempts = decision.max_attempts
        if decision.state is State.FAILED:
            break


@given(first=st.integers(1, ATTEMPTS_MAX), greedy=st.integers(1, 100))
def test_a_worker_that_always_asks_for_more_still_ends_after_a_hundred_attempts(first: int, greedy: int) -> None:
    attempts, max_attempts, state = 0, first, State.PENDING
    while state is State.PENDING and attempts <= ATTEMPTS_MAX:
        attempts += 1
        decision = decide(known(attempts, max_attempts), Failed(KEY, ATTEMPT, "boom", retries=greedy), USUAL)
        max_attempts, state = decision.max_attempts, decision.state
    assert (attempts, state) == (ATTEMPTS_MAX, State.FAILED)


@given(outcome=any_outcome, attempts=st.integers(1, 100), max_attempts=st.integers(1, 100))
def test_a_decision_is_always_failed_or_pending_and_repeatable(
    outcome: DecidedOutcome, attempts: int, max_attempts: int
) -> None:
    decision = decided(outcome, attempts, max_attempts)
    assert decision.state in {State.FAILED, State.PENDING}
    assert decision.backoff_ms >= 0
    assert decision == decided(outcome, attempts, max_attempts)
