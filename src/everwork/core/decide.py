"""Decides what happens after a failed attempt; no other module does."""

from __future__ import annotations

from typing import NamedTuple, assert_never

from everwork.core.classify import BUILT_IN, Strategy, delay_ms, match_rules
from everwork.core.leasing import Failure, Judged, Verdict
from everwork.core.limits import ERROR_CHARS_MAX
from everwork.core.measures import ASKED, LAPSED, REJECTED, THROWN, UNCLASSIFIED
from everwork.core.outcome import (
    LEASE_EXPIRED,
    REJECTED_TEXT,
    RETRY_REQUESTED,
    DecidedOutcome,
    Failed,
    Lapse,
    Reject,
    Retry,
    Throw,
    kind_of,
)
from everwork.core.policy import TypePolicy
from everwork.core.retry import raised_attempts
from everwork.core.states import Cause, State, after
from everwork.core.texts import traceback_text


class Known(NamedTuple):
    """What the engine knows about a job whose attempt has just ended."""

    key: int
    attempt: int
    attempts: int
    max_attempts: int


class Decision(NamedTuple):
    """What happens to the job. `state` is FAILED, or PENDING after `backoff_ms`; `kind` is for the history.

    `variables` None: the job keeps its own.
    """

    kind: str
    state: State
    max_attempts: int
    backoff_ms: int
    error: str
    code: str | None = None
    variables: str | None = None
    is_counted: bool = False
    """Whether the type's breaker counts it."""
    category: str = UNCLASSIFIED
    """The category of the failure, for the statistics (`core.measures`)."""
    traceback: str | None = None

    def accepted(self, known: Known) -> Judged:
        """The judgment on an outcome that is accepted and stored as decided here."""
        retry_ms = self.backoff_ms if self.state is State.PENDING else None
        failure = Failure(known.attempts, self.max_attempts, retry_ms, self.error)
        return Judged(Verdict.ACCEPTED, State.PROCESSING, failure=failure)


def decide(known: Known, outcome: DecidedOutcome, policy: TypePolicy) -> Decision:
    """Decide what happens after a failed attempt."""
    match outcome:
        case Failed():
            return _failed(known, outcome, policy)
        case Retry():
            rest = _rest(known, outcome, Cause.FAIL, outcome.error or RETRY_REQUESTED)
            return _retried(known, rest._replace(category=ASKED), outcome.delay_ms, policy)
        case Lapse():
            error = f"{LEASE_EXPIRED} worker '{outcome.worker}' did not report in time"
            rest = _rest(known, outcome, Cause.LAPSE, error)._replace(is_counted=True, category=LAPSED)
            return _retried(known, rest, None, policy)
        case Reject():
            rest = _rest(known, outcome, Cause.REJECT, outcome.error or REJECTED_TEXT)
            return rest._replace(category=REJECTED)
        case Throw():
            rest = _rest(known, outcome, Cause.THROW, outcome.error or outcome.code)
            return rest._replace(code=outcome.code, variables=outcome.variables, category=THROWN)
        case _:
            assert_never(outcome)


def _failed(known: Known, outcome: Failed, policy: TypePolicy) -> Decision:
    rest = _rest(known, outcome, Cause.FAIL, outcome.error)
    strategy, applied = _classified(outcome, policy)
    category = UNCLASSIFIED if strategy is None else strategy.value
    rest = rest._replace(variables=outcome.variables, is_counted=outcome.is_counted, category=category)
    if outcome.retries is not None:
        rest = rest._replace(max_attempts=raised_attempts(known.attempts, outcome.retries))
    if outcome.final:
        return rest
    backoff_ms = outcome.backoff_ms
    if outcome.classes is not None:
        if applied is Strategy.PERMANENT or (strategy is None and (policy.strict or outcome.strict)):
            return rest
        if applied is not None and backoff_ms is None:
            backoff_ms = delay_ms(applied, known.attempts)
    return _retried(known, rest, backoff_ms, policy)


def _classified(outcome: Failed, policy: TypePolicy) -> tuple[Strategy | None, Strategy | None]:
    """The strategy of an error by any rule, and the one to apply: built-in rules never override a declared delay."""
    if outcome.classes is None:
        return None, None
    declared = match_rules(outcome.classes, outcome.error, policy.errors)
    strategy = declared or match_rules(outcome.classes, outcome.error, BUILT_IN)
    return strategy, declared if policy.is_delay_declared else strategy


def _rest(known: Known, outcome: DecidedOutcome, cause: Cause, error: str) -> Decision:
    """Failed and not retried."""
    state = after(State.PROCESSING, cause)
    rest = Decision(kind_of(outcome), state, known.max_attempts, 0, error[:ERROR_CHARS_MAX])
    if isinstance(outcome, Lapse) or not outcome.traceback:
        return rest
    return rest._replace(traceback=traceback_text(outcome.traceback))


def _retried(known: Known, rest: Decision, delay_ms: int | None, policy: TypePolicy) -> Decision:
    """Pending again if attempts are left, otherwise failed."""
    if known.attempts >= rest.max_attempts:
        return rest
    if delay_ms is None:
        delay_ms = policy.retry.backoff_ms(known.attempts, key=known.key, attempt=known.attempt)
    return rest._replace(state=after(rest.state, Cause.RETRY), backoff_ms=delay_ms)
