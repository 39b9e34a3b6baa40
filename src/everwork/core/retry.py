"""How often and when a failed job is retried: policy, backoff, and the arithmetic of retries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from everwork.core import checks, policy_fields
from everwork.core.limits import ATTEMPTS_DEFAULT, ATTEMPTS_MAX
from everwork.core.states import State
from everwork.exceptions import InvalidInput


@dataclass(frozen=True, slots=True, eq=False)
class RetryPolicy:
    """How often and after what delay a failed job is retried, whatever its error.

    The delay after the n-th counted attempt is `min(base * factor ** (n - 1), cap)` seconds; by default 5, 10, 20, 40.

    Args:
        max_attempts: Maximum number of attempts, including the first: 1 to 100.
        base: Seconds before the first retry.
        factor: The delay is multiplied by this for each further retry.
        cap: The longest delay, in seconds.
        jitter: Up to this share of the delay, from 0 to 1, is subtracted; always the same for a job and attempt.
    """

    max_attempts: int = ATTEMPTS_DEFAULT
    base: float = 5.0
    factor: float = 2.0
    cap: float = 300.0
    jitter: float = 0.0

    def __post_init__(self) -> None:
        for name in ("max_attempts", "base", "factor", "cap", "jitter"):
            policy_fields.check(name, getattr(self, name))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RetryPolicy) and self._values == other._values

    def __hash__(self) -> int:
        return hash(self._values)

    @property
    def _values(self) -> tuple[float, ...]:
        return self.max_attempts, self.base, self.factor, self.cap, self.jitter

    def backoff_ms(self, attempts: int, *, key: int = 0, attempt: int = 0) -> int:
        """The delay after `attempts` counted attempts; key and attempt seed the jitter."""
        exponent = min(max(attempts, 1) - 1, 150)  # 100 ** 150 is still a float.
        seconds = min(self.base * self.factor**exponent, self.cap)
        if self.jitter:
            seconds *= 1.0 - self.jitter * _fraction(key, attempt)
        return round(seconds * 1000)


class DefaultDelays(RetryPolicy):
    """A retry policy with default rather than declared delays: built-in error rules may change them."""

    __slots__ = ()


DEFAULT_POLICY: Final = DefaultDelays()


def require_policy(field: str, value: object) -> RetryPolicy | None:
    """A retry policy or None; anything else is refused by name."""
    if value is not None and not isinstance(value, RetryPolicy):
        raise InvalidInput(field, f"must be a RetryPolicy or None, not {checks.shown(value)}")
    return value


def raised_attempts(attempts: int, retries: int) -> int:
    """The max_attempts that leaves `retries` more; counted attempts never exceed ATTEMPTS_MAX."""
    return max(attempts, min(attempts + retries, ATTEMPTS_MAX))


def remaining_retries(state: State, attempts: int, max_attempts: int) -> int:
    """Retries as the API shows them."""
    match state:
        case State.PENDING:
            return max_attempts - attempts
        case State.PROCESSING:
            return max_attempts - attempts + 1
        case _:
            return 0


def _fraction(key: int, attempt: int) -> float:
    """A pseudo-random number in [0, 1) that depends only on its arguments."""
    mixed = (key * 0x9E3779B97F4A7C15 + attempt * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return ((mixed ^ (mixed >> 31)) >> 11) / 2**53
