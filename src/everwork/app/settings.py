"""Settings of worker classes, triggers and schedules. Errors name the invalid field."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import sha256
from typing import Annotated, Any, Final, Self
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from everwork.codec.json import encode_object
from everwork.core.breaker import CircuitBreaker
from everwork.core.checks import shown
from everwork.core.limits import (
    CONCURRENCY_MAX,
    DELAY_MS_MAX,
    EXECUTION_SECONDS_DEFAULT,
    NAME_CHARS_MAX,
    PAYLOAD_BYTES_MAX,
    SOURCES_MAX,
    TITLE_CHARS_MAX,
)
from everwork.core.policy import TypePolicy
from everwork.core.retry import RetryPolicy
from everwork.exceptions import InvalidInput
from everwork.service.policies import retry_in_code

INTERVAL_MS_MIN: Final = 100
EXPRESSION_CHARS_MAX: Final = 200
_ANY_DAY: Final = datetime(2026, 1, 1, tzinfo=UTC)
"""Whether an expression ever matches does not depend on the start day."""


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("must contain only printable characters, no line breaks or control characters")
    return text


Title = Annotated[str, StringConstraints(min_length=1, max_length=TITLE_CHARS_MAX), AfterValidator(_printable)]
Description = Annotated[str, StringConstraints(max_length=1000)]
Source = Annotated[str, StringConstraints(min_length=1, max_length=NAME_CHARS_MAX, pattern=r"^[a-zA-Z0-9_\-:]+$")]
Amount = Annotated[float, Field(ge=0, le=DELAY_MS_MAX / 1000, allow_inf_nan=False)]
Timeout = Annotated[float, Field(ge=0.1, le=86_400, allow_inf_nan=False)]
CheckInterval = Annotated[float, Field(ge=0.1, le=3_600, allow_inf_nan=False)]
CacheTtl = Annotated[float, Field(ge=0, le=DELAY_MS_MAX / 1000, allow_inf_nan=False)]
Lifetime = Annotated[float, Field(gt=0, le=DELAY_MS_MAX / 1000, allow_inf_nan=False)]


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Interval(_Settings):
    """A schedule with a fixed interval: `Interval(minutes=15)`. The sum of the fields must be 0.1 s to 3660 days."""

    weeks: Amount = 0
    days: Amount = 0
    hours: Amount = 0
    minutes: Amount = 0
    seconds: Amount = 0

    @property
    def total_ms(self) -> int:
        """The whole interval in milliseconds."""
        hours = (self.weeks * 7 + self.days) * 24 + self.hours
        return round(((hours * 60 + self.minutes) * 60 + self.seconds) * 1000)

    @model_validator(mode="after")
    def _check_interval(self) -> Self:
        if not INTERVAL_MS_MIN <= self.total_ms <= DELAY_MS_MAX:
            raise ValueError(
                "weeks, days, hours, minutes and seconds together must be from "
                f"{INTERVAL_MS_MIN / 1000:g} seconds to {DELAY_MS_MAX // 86_400_000} days"
            )
        return self


class Cron(_Settings):
    """A cron schedule in a time zone: `Cron(expression="0 9 * * 1-5", timezone="Europe/Berlin")`.

    Args:
        expression: Five fields (minute, hour, day, month, weekday), or six with seconds first.
        timezone: An IANA name. Default: the environment variable TZ, else UTC.
        custom: Whether the expression has its own syntax, parsed by the manager's `cron_schedule`.
    """

    custom: bool = False
    timezone: str | None = Field(default=None, validate_default=True)
    expression: str = Field(min_length=1, max_length=EXPRESSION_CHARS_MAX)

    @field_validator("timezone", mode="after")
    @classmethod
    def _check_zone(cls, name: str | None) -> str:
        if name is None:
            return _zone_here()
        if not is_zone(name):
            raise ValueError(f"must be an IANA time zone, such as 'Europe/Berlin', not {name[:80]!r}")
        return name

    @field_validator("expression", mode="after")
    @classmethod
    def _check_expression(cls, expression: str, info: ValidationInfo) -> str:
        if not info.data.get("custom"):
            check_expression(expression)
        return expression

    @property
    def zone(self) -> ZoneInfo:
        """The time zone as a `ZoneInfo`."""
        return ZoneInfo(self.timezone or "UTC")


def schedule_from(field: str, given: object, timezone: str | None = None) -> Cron | Interval:
    """A validated schedule, from a cron expression in a time zone, a `Cron` or an `Interval`."""
    if isinstance(given, Cron | Interval):
        return given
    if not isinstance(given, str):
        raise InvalidInput(field, f"must be a cron expression, a Cron or an Interval, not {shown(given)}")
    try:
        return Cron(expression=given, timezone=timezone)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]["msg"]
        raise InvalidInput(field, problem.removeprefix("Value error, ")) from None


class Trigger(_Settings):
    """Runs a worker class on a schedule.

    Args:
        title: A name, unique within the worker.
        description: Shown in the dashboard.
        schedule: An `Interval` or a `Cron`.
        kwargs: The arguments of each scheduled job.
        is_catchup: Whether scheduled times missed while no manager was running are caught up.
        lifetime: Seconds after which a scheduled job that has not started is cancelled. Default: never.
        status_check_interval: How often, in seconds, to check whether the trigger is enabled.
        status_cache_ttl: Seconds for which that status is cached; None: no cache.
    """

    title: Title
    description: Description = ""
    schedule: Interval | Cron
    kwargs: dict[str, Any] = Field(default_factory=dict)
    is_catchup: bool = True
    lifetime: Lifetime | None = None
    status_check_interval: CheckInterval = 60
    status_cache_ttl: CacheTtl | None = 5

    @field_validator("kwargs", mode="after")
    @classmethod
    def _check_kwargs(cls, kwargs: dict[str, Any]) -> dict[str, Any]:
        encode_object("kwargs", kwargs, PAYLOAD_BYTES_MAX)
        return kwargs

    @property
    def id(self) -> str:
        """Derived from the title: the same in every process."""
        return id_of(self.title)


class EventSettings(_Settings):
    """Limits for the events that a worker emits.

    `max_events_in_memory` is the maximum number of events per call, `max_batch_size` the number published in one batch.
    """

    max_events_in_memory: int = Field(default=5_000, ge=1, le=10_000)
    max_batch_size: int = Field(default=500, ge=1, le=10_000)


class WorkerSettings(_Settings):
    """The settings of a worker class, returned by `AbstractWorker._get_settings`.

    Args:
        title: A unique name. The worker's id is derived from it.
        description: Shown in the dashboard.
        sources: The sources (event names) that the worker subscribes to, in addition to its own source.
        execution_timeout: Time limit of one attempt, in seconds. Default: 180.
        status_check_interval: How often, in seconds, to check whether the worker is enabled.
        status_cache_ttl: Seconds for which that status is cached; None: no cache.
        event_settings: Limits for the events that the worker emits.
        triggers: Schedules that run the worker.
        concurrency: Maximum number of jobs running concurrently in one process.
        breaker: A `CircuitBreaker` that pauses the worker's sources after a number of consecutive failures.
        policy: A `TypePolicy`: limits, retention, error rules.
        retry: A `RetryPolicy`. Default: no retries, the first error fails the job permanently.
    """

    title: Title
    description: Description = ""
    sources: AbstractSet[Source] = Field(default=frozenset(), validate_default=True)
    execution_timeout: Timeout = EXECUTION_SECONDS_DEFAULT
    status_check_interval: CheckInterval = 60
    status_cache_ttl: CacheTtl | None = 5
    event_settings: EventSettings = EventSettings()
    triggers: list[Trigger] = Field(default_factory=list)
    concurrency: int = Field(default=1, ge=1, le=CONCURRENCY_MAX)
    breaker: CircuitBreaker | None = None
    policy: TypePolicy | None = None
    retry: RetryPolicy | None = Field(default=None, validate_default=True)

    @field_validator("sources", mode="after")
    @classmethod
    def _add_own_source(cls, sources: AbstractSet[str], info: ValidationInfo) -> frozenset[str]:
        title = info.data.get("title")
        own = set() if title is None else {source_of(id_of(title))}
        if len(sources - own) > SOURCES_MAX:
            raise ValueError(f"must be at most {SOURCES_MAX} sources, not {len(sources - own)}")
        return frozenset(sources | own)

    @field_validator("retry", mode="after")
    @classmethod
    def _default_to_policy_retry(cls, retry: RetryPolicy | None, info: ValidationInfo) -> RetryPolicy | None:
        return retry_in_code(retry, info.data.get("policy"), default=None)

    @field_validator("triggers", mode="after")
    @classmethod
    def _check_unique_titles(cls, triggers: list[Trigger]) -> list[Trigger]:
        titles = Counter(trigger.title for trigger in triggers)
        if twice := sorted(title for title, times in titles.items() if times > 1):
            raise ValueError(f"must have unique titles, but {twice[0]!r} is used {titles[twice[0]]} times")
        return triggers

    @property
    def id(self) -> str:
        """Derived from the title: the same in every process."""
        return id_of(self.title)

    @property
    def default_source(self) -> str:
        """The worker's own source, which no other worker has."""
        return source_of(self.id)


@lru_cache(maxsize=1024)
def id_of(title: str) -> str:
    """The id of a title: the first 16 hex digits of its SHA256."""
    return sha256(title.encode()).hexdigest()[:16]


def source_of(worker_id: str) -> str:
    """A worker's own source."""
    return f"worker:{worker_id}:source"


def check_expression(expression: str) -> None:
    """Refuse a cron expression that is invalid or never matches."""
    try:
        next(CronSim(expression, _ANY_DAY))
    except CronSimError as error:
        raise ValueError(f"must be a cron expression, such as '0 9 * * 1': {error} in {expression!r}") from None
    except StopIteration:
        raise ValueError(f"must match at least one day, but {expression!r} never matches") from None


def is_zone(name: str) -> bool:
    """Whether this is the name of a time zone."""
    try:
        ZoneInfo(name)
    except (ValueError, KeyError, OSError):  # No such zone; a path; a directory of zones, like "Europe".
        return False
    return True


def _zone_here() -> str:
    name = os.environ.get("TZ", "").removeprefix(":")
    return name if name and is_zone(name) else "UTC"
