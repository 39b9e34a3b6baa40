"""The circuit breaker of a type: when it opens, which job probes whether it may close, and when it closes.

Engines store its state and apply these rules in their own transactions, because the whole fleet shares it; the
conformance tests compare each engine with this module.

- Closed: counted failures add up, and a success resets the count; after `failures` in a row it opens.
- Open: no job starts for `seconds`. Attempts that end during this time change nothing.
- Half-open, after that: one probe across the whole fleet. Its success closes the breaker, its counted failure opens
  it again. If the probe ends in any other way (released, cancelled, rejected), another job can become the probe.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NamedTuple

from everwork.core import policy_fields
from everwork.exceptions import InvalidInput

FAILURES_DEFAULT: Final = 3
SECONDS_DEFAULT: Final = 60.0


@dataclass(frozen=True, slots=True, init=False)
class CircuitBreaker:
    """Pauses a job type across the whole fleet after a number of consecutive failures.

    After `failures` failures in a row, no job of the type starts for `seconds`; then one job is run as a probe. If it
    succeeds, the breaker closes; if it fails, it opens again. Exceptions, timeouts and expired leases count as
    failures; `Fail`, `Reject`, `Retry`, thrown errors and invalid arguments do not.

    Args:
        failures: Consecutive failures before the breaker opens. Default: 3.
        seconds: How long it stays open. Default: 60.
        failure_threshold: Another name for `failures`.
        recovery_timeout: Another name for `seconds`.
    """

    failures: int
    seconds: float

    def __init__(
        self,
        failures: int | None = None,
        seconds: float | None = None,
        *,
        failure_threshold: int | None = None,
        recovery_timeout: float | None = None,
    ) -> None:
        count = _one_of("failures", failures, "failure_threshold", failure_threshold, FAILURES_DEFAULT)
        time = _one_of("seconds", seconds, "recovery_timeout", recovery_timeout, SECONDS_DEFAULT)
        object.__setattr__(self, "failures", policy_fields.check("breaker_failures", count))
        object.__setattr__(self, "seconds", policy_fields.check("breaker_seconds", time))

    @property
    def open_ms(self) -> int:
        """How long it stays open."""
        return round(self.seconds * 1000)


def _one_of(name: str, value: Any, other_name: str, other: Any, default: Any) -> Any:
    """The value that was passed under one of two names for the same thing."""
    if value is not None and other is not None:
        raise InvalidInput(other_name, f"is an alias of {name}: pass only one of them")
    return default if value is None and other is None else other if value is None else value


class BreakerState(Enum):
    """The state of a circuit breaker: closed (jobs run), open (paused), or half-open (one job probes)."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


class Breaker(NamedTuple):
    """The stored state of a breaker. `open_until_ms` None: closed. The probe is an attempt of a job."""

    failures: int = 0
    open_until_ms: int | None = None
    probe_key: int | None = None
    probe_attempt: int = 0

    def state(self, now_ms: int) -> BreakerState:
        """The state at an instant."""
        if self.open_until_ms is None:
            return BreakerState.CLOSED
        return BreakerState.OPEN if self.open_until_ms > now_ms else BreakerState.HALF_OPEN

    def is_probe(self, key: int, attempt: int) -> bool:
        """Whether an attempt is the probe."""
        return (key, attempt) == (self.probe_key, self.probe_attempt)


CLOSED: Final = Breaker()


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerStatus:
    """The status of a type's circuit breaker, returned by `Everwork.breaker`.

    `failures` is the number of consecutive failures, `open_until_ms` when an open breaker lets a probe start, and
    `probe_key` the job that is the probe.
    """

    type: str
    state: BreakerState
    failures: int = 0
    open_until_ms: int | None = None
    probe_key: int | None = None

    def should_fail_fast(self) -> bool:
        """Whether no job of the type would start now: the breaker is open, or half-open and its probe is running."""
        return self.state is BreakerState.OPEN or self.probe_key is not None


def after_success(breaker: Breaker, *, is_probe: bool) -> Breaker:
    """The breaker after a success: the probe's closes it, any other only resets the count of a closed one."""
    return CLOSED if is_probe or breaker.open_until_ms is None else breaker


def after_failures(breaker: Breaker, failures: int, *, is_probe: bool, rule: CircuitBreaker, now_ms: int) -> Breaker:
    """The breaker after counted failures; `is_probe`: they include the probe's."""
    if is_probe:
        return opened(breaker, rule.open_ms, now_ms)
    if breaker.open_until_ms is not None:
        return breaker
    counted = breaker._replace(failures=breaker.failures + failures)
    return opened(counted, rule.open_ms, now_ms) if counted.failures >= rule.failures else counted


def opened(breaker: Breaker, open_ms: int, now_ms: int) -> Breaker:
    """The breaker, open for `open_ms`."""
    return Breaker(breaker.failures, now_ms + open_ms)
