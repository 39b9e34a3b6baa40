"""The circuit breaker of a type: when it opens, which job probes whether it may close, and when it closes.

Engines store its state and apply these rules in their own transactions, because the whole fleet shares it; the
conformance tests compare each engine with this module.

- Closed: counted failures add up, a success resets the count; after `failures` in a row it opens.
- Open: no job starts for `seconds`. Attempts that end meanwhile change nothing.
- Half-open, after that: one probe in the whole fleet. Its success closes the breaker, its counted failure opens it
  again. After a probe that ended in any other way (released, cancelled, rejected) another job may be the probe.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from everwork.core import checks
from everwork.core.limits import BREAKER_FAILURES_MAX, BREAKER_SECONDS_MAX


@dataclass(frozen=True, slots=True)
class CircuitBreaker:
    """After `failures` failures in a row, no job of the type starts for `seconds`; then one job probes.

    Exceptions, timeouts and lapsed leases count; `Fail`, `Reject`, `Retry`, thrown errors and bad arguments do not.
    """

    failures: int = 3
    seconds: float = 60.0

    def __post_init__(self) -> None:
        checks.whole_number("breaker_failures", self.failures, 1, BREAKER_FAILURES_MAX)
        checks.number("breaker_seconds", self.seconds, 1.0, BREAKER_SECONDS_MAX)

    @property
    def open_ms(self) -> int:
        """How long it stays open."""
        return round(self.seconds * 1000)


class BreakerState(Enum):
    """The state of a breaker."""

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


def after_success(breaker: Breaker, *, is_probe: bool) -> Breaker:
    """The breaker after a success: the probe's closes it, any other only resets the count of a closed one."""
    return CLOSED if is_probe or breaker.open_until_ms is None else breaker


def after_failures(breaker: Breaker, failures: int, *, is_probe: bool, rule: CircuitBreaker, now_ms: int) -> Breaker:
    """The breaker after counted failures; `is_probe`: the probe is among them."""
    if is_probe:
        return opened(breaker, rule.open_ms, now_ms)
    if breaker.open_until_ms is not None:
        return breaker
    counted = breaker._replace(failures=breaker.failures + failures)
    return opened(counted, rule.open_ms, now_ms) if counted.failures >= rule.failures else counted


def opened(breaker: Breaker, open_ms: int, now_ms: int) -> Breaker:
    """The breaker, open for `open_ms`."""
    return Breaker(breaker.failures, now_ms + open_ms)
