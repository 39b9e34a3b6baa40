"""The settings of the application, from the environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from everwork.exceptions import BadConfiguration

RETRY_HOURS: Final = "GIFTCARD_FAILED_JOB_RETRY_HOURS"
JOBS_PER_RUN: Final = "GIFTCARD_JOBS_PER_CRON_RUN"
RETRY_HOURS_MAX: Final = 24.0 * 29
"""Dead letters are kept for 30 days."""
JOBS_PER_RUN_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class Settings:
    """Where the jobs are, when dead letters are requeued, and how many jobs one cron run processes."""

    url: str = "sqlite:///everwork.db"
    failed_job_retry_hours: float = 24.0
    jobs_per_cron_run: int = 10

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Settings:
        """The settings from environment variables; `everwork` commands read EVERWORK_ENGINE, too."""
        usual = cls()
        return cls(
            environ.get("EVERWORK_ENGINE") or usual.url,
            _number(environ, RETRY_HOURS, usual.failed_job_retry_hours, RETRY_HOURS_MAX),
            round(_number(environ, JOBS_PER_RUN, usual.jobs_per_cron_run, JOBS_PER_RUN_MAX, is_whole=True)),
        )


def _number(environ: Mapping[str, str], name: str, default: float, most: float, *, is_whole: bool = False) -> float:
    text = environ.get(name, "").strip()
    if not text:
        return default
    try:
        value = int(text) if is_whole else float(text)
    except ValueError:
        value = 0
    if not 0 < value <= most:
        kind = "a whole number" if is_whole else "a number"
        raise BadConfiguration(f"{name}: must be {kind} above 0, at most {most:g}, not {text!r}")
    return value
