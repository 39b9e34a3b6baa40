"""The policy of a type: how its jobs are retried, limited and kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from everwork.core import checks, policy_fields
from everwork.core.breaker import CircuitBreaker
from everwork.core.classify import ErrorRule
from everwork.core.limits import ERROR_RULES_MAX, FAILED_KEEP_MS, HOUR_MS
from everwork.core.retry import DEFAULT_POLICY, DefaultDelays, RetryPolicy
from everwork.core.states import State
from everwork.exceptions import InvalidInput

_REQUIRED_FIELDS: Final = ("strict", "failed_job_retry_rounds")
_OPTIONAL_FIELDS: Final = (
    "failed_job_retry_hours",
    "keep_completed_hours",
    "keep_failed_hours",
    "max_running",
    "max_running_per_key",
)


@dataclass(frozen=True, slots=True)
class Rate:
    """A rate limit: at most `jobs` jobs of a type (and group) start in each window of `seconds` (default: 60), across
    the whole fleet.
    """

    jobs: int
    seconds: float = 60.0

    def __post_init__(self) -> None:
        policy_fields.check("rate_jobs", self.jobs)
        policy_fields.check("rate_seconds", self.seconds)

    @property
    def window_ms(self) -> int:
        """The length of a window."""
        return round(self.seconds * 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class TypePolicy:
    """How the jobs of a type are retried, limited and kept.

    Args:
        retry: How often and after what delay failed jobs are retried.
        breaker: Pauses the type after a number of consecutive failures. Default: none.
        errors: Rules for error classes or texts; they apply before `retry`.
        strict: Whether errors that match no rule are permanent.
        failed_job_retry_hours: Dead letters are requeued automatically this many hours after they failed, unless they
            were rejected. Default: never.
        failed_job_retry_rounds: The maximum number of automatic requeues for each dead letter.
        keep_completed_hours: How long completed and cancelled jobs are kept. Default: 7 days.
        keep_failed_hours: How long dead letters are kept. Default: 90 days.
        max_running: Maximum number of jobs running concurrently in the whole fleet. Default: no limit.
        max_running_per_key: The same for jobs with the same limit key.
        rate: Maximum number of jobs started per time window. Default: no limit.
    """

    retry: RetryPolicy = DEFAULT_POLICY
    breaker: CircuitBreaker | None = None
    errors: tuple[ErrorRule, ...] = ()
    strict: bool = False
    failed_job_retry_hours: float | None = None
    failed_job_retry_rounds: int = 1
    keep_completed_hours: float | None = None
    keep_failed_hours: float | None = None
    max_running: int | None = None
    max_running_per_key: int | None = None
    rate: Rate | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "errors", _rules(self.errors))
        _require("retry", self.retry, RetryPolicy)
        require_breaker("breaker", self.breaker)
        if self.rate is not None:
            _require("rate", self.rate, Rate)
        for name in _REQUIRED_FIELDS:
            policy_fields.check(name, getattr(self, name))
        for name in _OPTIONAL_FIELDS:
            if getattr(self, name) is not None:
                policy_fields.check(name, getattr(self, name))
        self._require_return_before_removal()

    def _require_return_before_removal(self) -> None:
        kept_ms = self.keep_ms(State.FAILED) or FAILED_KEEP_MS
        if self.failed_job_retry_ms is not None and self.failed_job_retry_ms >= kept_ms:
            problem = f"must be less than keep_failed_hours, {kept_ms / HOUR_MS:g}: they would be deleted before that"
            raise InvalidInput("failed_job_retry_hours", f"{problem}, not {self.failed_job_retry_hours:g}")

    @property
    def is_delay_declared(self) -> bool:
        """Whether the delay of retries is declared, by a `RetryPolicy` or one of `DELAY_FIELDS`.

        If so, no built-in error rule changes it.
        """
        retry = self.retry
        # `replace` keeps the class, even if it changes a delay.
        return not isinstance(retry, DefaultDelays) or retry != DefaultDelays(retry.max_attempts)

    @property
    def failed_job_retry_ms(self) -> int | None:
        """How long after its failure a dead letter is requeued automatically; None: never."""
        hours = self.failed_job_retry_hours
        return None if hours is None else round(hours * HOUR_MS)

    @property
    def is_limited(self) -> bool:
        """Whether a claim must count running jobs."""
        return (self.max_running, self.max_running_per_key, self.rate) != (None, None, None)

    def keep_ms(self, state: State) -> int | None:
        """How long jobs that finished in this state are kept; None: the engine's default."""
        hours = self.keep_failed_hours if state is State.FAILED else self.keep_completed_hours
        return None if hours is None else round(hours * HOUR_MS)


RETRY_FIELDS: Final = tuple(one.name for one in fields(RetryPolicy))
DELAY_FIELDS: Final = tuple(name for name in RETRY_FIELDS if name != "max_attempts")
POLICY_FIELDS: Final = tuple(one.name for one in policy_fields.FIELDS)
"""The fields of a policy in files, commands and the API: one level, plain values."""


def policy_from(values: Mapping[str, Any]) -> TypePolicy:
    """The policy with these fields. Missing and null fields get their defaults; each error names its field."""
    for name in values:
        if name not in POLICY_FIELDS:
            raise InvalidInput(
                "policy", f"{checks.shown(name)}: unknown policy field; allowed: {', '.join(POLICY_FIELDS)}"
            )
    given = {name: value for name, value in values.items() if value is not None}
    is_delay_declared = not given.keys().isdisjoint(DELAY_FIELDS)
    make_retry = RetryPolicy if is_delay_declared else DefaultDelays  # A number of attempts alone declares no delay.
    retry = make_retry(**{name: given.pop(name) for name in RETRY_FIELDS if name in given})
    breaker = _take(given, "breaker_", ("failures", "seconds"))
    rate = _take(given, "rate_", ("jobs", "seconds"))
    if rate and "jobs" not in rate:
        raise InvalidInput("rate_jobs", "is required with rate_seconds: how many jobs may start in that time")
    return TypePolicy(
        retry=retry,
        breaker=CircuitBreaker(**breaker) if breaker else None,
        rate=Rate(**rate) if rate else None,
        errors=rules_from(given.pop("errors", ())),
        **given,
    )


def fields_of(policy: TypePolicy) -> dict[str, Any]:
    """Every field of a policy, as in files, commands and the API; null where nothing is set."""
    breaker, rate = policy.breaker, policy.rate
    return {
        **{name: getattr(policy.retry, name) for name in RETRY_FIELDS},
        "breaker_failures": breaker and breaker.failures,
        "breaker_seconds": breaker and breaker.seconds,
        "errors": [_rule_fields(rule) for rule in policy.errors],
        "strict": policy.strict,
        "failed_job_retry_hours": policy.failed_job_retry_hours,
        "failed_job_retry_rounds": policy.failed_job_retry_rounds,
        "keep_completed_hours": policy.keep_completed_hours,
        "keep_failed_hours": policy.keep_failed_hours,
        "max_running": policy.max_running,
        "max_running_per_key": policy.max_running_per_key,
        "rate_jobs": rate and rate.jobs,
        "rate_seconds": rate and rate.seconds,
    }


def declared_fields(policy: TypePolicy) -> dict[str, Any]:
    """The fields that a policy declares: those that differ from the default, and all of a declared `RetryPolicy`."""
    default = fields_of(DEFAULT_TYPE_POLICY)
    retry = RETRY_FIELDS if policy.is_delay_declared else ()
    return {name: value for name, value in fields_of(policy).items() if name in retry or value != default[name]}


def rules_from(values: object) -> tuple[ErrorRule, ...]:
    """Rules for errors, as in files and the API: `{"strategy": ..., "exception" or "text": ...}`."""
    if not isinstance(values, list | tuple):
        raise InvalidInput("errors", f"must be a list of rules, not {checks.shown(values)}")
    return tuple(_rule(value) for value in values)


def require_type_policy(field: str, value: object) -> TypePolicy | None:
    """A policy or None; anything else is refused by name."""
    if value is not None and not isinstance(value, TypePolicy):
        raise InvalidInput(field, f"must be a TypePolicy or None, not {checks.shown(value)}")
    return value


def require_breaker(field: str, value: object) -> CircuitBreaker | None:
    """A breaker or None; anything else is refused by name."""
    if value is not None and not isinstance(value, CircuitBreaker):
        raise InvalidInput(field, f"must be a CircuitBreaker or None, not {checks.shown(value)}")
    return value


def with_retry(policy: TypePolicy, retry: RetryPolicy) -> TypePolicy:
    """The same policy with the retries of one job."""
    return replace(policy, retry=retry)


def _rule(value: object) -> ErrorRule:
    if isinstance(value, ErrorRule):
        return value
    if not isinstance(value, Mapping) or not set(value) <= {"strategy", "exception", "text"}:
        raise InvalidInput("errors", f"each must have strategy and either exception or text, not {checks.shown(value)}")
    if "strategy" not in value:
        raise InvalidInput("errors.strategy", "is required")
    return ErrorRule(value["strategy"], exception=value.get("exception"), text=value.get("text"))


def _rule_fields(rule: ErrorRule) -> dict[str, str]:
    if rule.exception is not None:
        return {"strategy": rule.strategy.value, "exception": rule.exception}
    return {"strategy": rule.strategy.value, "text": str(rule.text)}


def _rules(errors: object) -> tuple[ErrorRule, ...]:
    rules = rules_from(errors)
    if len(rules) > ERROR_RULES_MAX:
        raise InvalidInput("errors", f"must be at most {ERROR_RULES_MAX} rules, not {len(rules)}")
    return rules


def _require(field: str, value: object, required: type) -> None:
    if not isinstance(value, required):
        raise InvalidInput(field, f"must be a {required.__name__}, not {checks.shown(value)}")


def _take(given: dict[str, Any], prefix: str, names: tuple[str, ...]) -> dict[str, Any]:
    """Remove and return the fields with a prefix."""
    return {name: given.pop(prefix + name) for name in names if prefix + name in given}


DEFAULT_TYPE_POLICY: Final = TypePolicy()
_DEFAULTS: Final = fields_of(DEFAULT_TYPE_POLICY)


def default_text(field: policy_fields.PolicyField) -> str:
    """What applies if a field is not set."""
    value = _DEFAULTS[field.name]
    return field.unset or (str(value).lower() if isinstance(value, bool) else f"{value:g}")
