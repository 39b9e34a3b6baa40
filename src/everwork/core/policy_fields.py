"""The fields of a type's policy as people set them: label, unit, bounds and meaning, each declared once."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from everwork.core import checks
from everwork.core.limits import (
    ATTEMPTS_MAX,
    BREAKER_FAILURES_MAX,
    BREAKER_SECONDS_MAX,
    COMPLETED_KEEP_MS,
    DELAY_MS_MAX,
    FAILED_KEEP_MS,
    FAILED_RETRY_HOURS_MAX,
    FAILED_RETRY_ROUNDS_MAX,
    HOUR_MS,
    KEEP_HOURS_MAX,
    RATE_JOBS_MAX,
    RATE_SECONDS_MAX,
    RUNNING_MAX,
)
from everwork.exceptions import InvalidInput

Kind = Literal["integer", "number", "flag", "rules"]
UNBOUNDED: Final = 1_000_000
"""Upper bounds from here on are not worth mentioning until they are exceeded."""


class PolicyField(NamedTuple):
    """A field of a policy. `low` and `high` bound a number; `unset` describes what applies if the field is not set."""

    name: str
    section: str
    label: str
    hint: str
    kind: Kind = "number"
    low: float = 0
    high: float = 0
    unit: str = ""
    unset: str = ""

    @property
    def allowed(self) -> str:
        """The bounds in words; empty if it is not a number."""
        if self.kind not in ("integer", "number"):
            return ""
        return f"At least {self.low:g}" if self.high >= UNBOUNDED else f"{self.low:g} to {self.high:,g}"

    def check(self, value: object) -> object:
        """The value, if this field allows it; a combination with other fields can still be refused."""
        match self.kind:
            case "integer":
                return checks.whole_number(self.name, value, int(self.low), int(self.high))
            case "number":
                return checks.number(self.name, value, self.low, self.high)
            case "flag" if not isinstance(value, bool):
                raise InvalidInput(self.name, f"must be true or false, not {checks.shown(value)}")
        return value


_DELAY: Final = (0, DELAY_MS_MAX / 1000, "seconds")
_HOURS: Final = (0.001, KEEP_HOURS_MAX, "hours")
RETRIES: Final = "Retries"
BREAKER: Final = "Circuit breaker"
ERRORS: Final = "Error rules"
KEEPING: Final = "Dead letters and retention"
LIMITS: Final = "Concurrency and rate limits"

FIELDS: Final = (
    PolicyField("max_attempts", RETRIES, "Maximum attempts", "Includes the first attempt.", "integer", 1, ATTEMPTS_MAX),
    PolicyField("base", RETRIES, "First delay", "Delay before the second attempt.", "number", *_DELAY),
    PolicyField("factor", RETRIES, "Backoff factor", "Each further delay is multiplied by this.", "number", 1, 100),
    PolicyField("cap", RETRIES, "Maximum delay", "No delay is longer.", "number", *_DELAY),
    PolicyField("jitter", RETRIES, "Jitter", "Shortens each delay by up to this share.", "number", 0, 1),
    PolicyField(
        "breaker_failures", BREAKER, "Failures in a row", "The breaker opens after this many consecutive failures.",
        "integer", 1, BREAKER_FAILURES_MAX, unset="no breaker",
    ),
    PolicyField(
        "breaker_seconds", BREAKER, "Open for", "No job starts while the breaker is open; then one job probes.",
        "number", 1, BREAKER_SECONDS_MAX, "seconds", "60 if the breaker is set",
    ),
    PolicyField(
        "errors", ERRORS, "Rules",
        "How errors of an exception class, or errors that contain a text, are handled. The first match applies, "
        "exception classes before texts.",
        "rules", unset="built-in rules only",
    ),
    PolicyField("strict", ERRORS, "Strict", "Errors that match no rule are permanent: they are not retried.", "flag"),
    PolicyField(
        "failed_job_retry_hours", KEEPING, "Requeue after", "Dead letters are requeued automatically after this time.",
        "number", 0.001, FAILED_RETRY_HOURS_MAX, "hours", "never",
    ),
    PolicyField(
        "failed_job_retry_rounds", KEEPING, "Automatic requeues", "Maximum for each dead letter.",
        "integer", 1, FAILED_RETRY_ROUNDS_MAX,
    ),
    PolicyField(
        "keep_completed_hours", KEEPING, "Keep completed", "Completed and cancelled jobs are deleted after this time.",
        "number", *_HOURS, f"{COMPLETED_KEEP_MS // HOUR_MS:,}",
    ),
    PolicyField(
        "keep_failed_hours", KEEPING, "Keep failed", "Dead letters and rejected jobs are deleted after this time.",
        "number", *_HOURS, f"{FAILED_KEEP_MS // HOUR_MS:,}",
    ),
    PolicyField(
        "max_running", LIMITS, "Maximum running jobs", "Jobs that run concurrently, on all workers together.",
        "integer", 1, RUNNING_MAX, unset="no limit",
    ),
    PolicyField(
        "max_running_per_key", LIMITS, "Maximum per limit key", "Running jobs of each limit key.",
        "integer", 1, RUNNING_MAX, unset="no limit",
    ),
    PolicyField(
        "rate_jobs", LIMITS, "Rate limit", "Jobs that start in each window, on all workers together.",
        "integer", 1, RATE_JOBS_MAX, "jobs", "no limit",
    ),
    PolicyField(
        "rate_seconds", LIMITS, "Rate window", "The length of a window.",
        "number", 1, RATE_SECONDS_MAX, "seconds", "60 if a rate limit is set",
    ),
)  # fmt: skip
"""Every field, in the order in which files, commands and the API list them."""
_BY_NAME: Final = {one.name: one for one in FIELDS}


def named(name: str) -> PolicyField:
    """The field with this name."""
    return _BY_NAME[name]


def check(name: str, value: object) -> object:
    """The value of the field with this name, if it is allowed."""
    return _BY_NAME[name].check(value)
