"""Cron schedules, built-in and custom, and their scheduled times."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Final
from zoneinfo import ZoneInfo

from everwork.app.settings import Cron, Interval, Trigger, WorkerSettings, check_expression
from everwork.codec.json import encode_object
from everwork.core.checks import shown
from everwork.core.limits import CATCHUP_POINTS_MAX, PAYLOAD_BYTES_MAX
from everwork.core.schedule import Awaited, Calendar, Every, Plan, Schedule
from everwork.exceptions import BadConfiguration
from everwork.service.triggers.cron import EPOCH, MILLISECOND, at, matches, ms_of
from everwork.service.triggers.loop import Scheduled


class AbstractCronSchedule(ABC):
    """Base class of custom cron schedules: computes the next time that an expression matches.

    Each manager creates one instance, without arguments. All managers must compute the same times, so that each time
    fires once. To support catch-up of missed times, `next_execution` must start from `self.now()` instead of the system
    clock, or take a parameter `after`, a datetime with time zone, and start from that. It can also take `timezone`, the
    name of the trigger's time zone.
    """

    @abstractmethod
    def next_execution(self, cron_expression: str) -> datetime:
        """Return the next time that matches. A datetime without time zone is in the trigger's time zone."""

    def now(self) -> datetime:
        """The time to start from: the current time, or an earlier one during catch-up."""
        question = _question.get()
        if question is None:
            return datetime.now(UTC)
        question.is_used = True
        return question.after

    def check(self, cron_expression: str) -> None:
        """Raise an error if an expression is invalid. Called before anything starts."""
        found = self.next_execution(cron_expression, **_optional_arguments(self, datetime.now(UTC), "UTC"))
        if not isinstance(found, datetime):
            raise TypeError(f"next_execution must return a datetime, not {shown(found)}")


class CronSchedule(AbstractCronSchedule):
    """The default cron schedule: five fields, or six with seconds first, with the rules of Debian's cron.

    When clocks go forward, jobs scheduled at a fixed time in the skipped hour run right after it; when clocks go back,
    they run in the first of the two hours. Jobs that repeat every few minutes or hours follow elapsed time.
    """

    def next_execution(
        self, cron_expression: str, after: datetime | None = None, timezone: str | None = None
    ) -> datetime:
        """Return the first match after `after` (default: now), in `timezone` or else the time zone of `after`."""
        zone = ZoneInfo(timezone) if timezone else (after.tzinfo if after else None) or UTC
        for point_ms in matches(cron_expression, zone, ms_of(after or datetime.now(UTC))):
            return at(point_ms).astimezone(zone)
        raise ValueError(f"{cron_expression!r} never matches")

    def check(self, cron_expression: str) -> None:
        """Raise `ValueError` if an expression is invalid or never matches."""
        check_expression(cron_expression)


def scheduled_triggers(settings: WorkerSettings, cron_schedule: AbstractCronSchedule) -> list[Scheduled]:
    """The triggers of a worker, ready to fire. An invalid trigger is refused by name before anything starts."""
    return [scheduled(settings, trigger, cron_schedule) for trigger in settings.triggers]


def scheduled(settings: WorkerSettings, trigger: Trigger, cron_schedule: AbstractCronSchedule) -> Scheduled:
    """One trigger of a worker."""
    uses_now = _check(settings, trigger, cron_schedule)
    return Scheduled(
        worker_id=settings.id,
        trigger_id=trigger.id,
        type=settings.default_source,
        variables=encode_object("kwargs", trigger.kwargs, PAYLOAD_BYTES_MAX),
        plan=Plan(time_points(trigger.schedule, cron_schedule, uses_now), trigger.is_catchup, _ms(trigger.lifetime)),
        check_every_ms=round(trigger.status_check_interval * 1000),
        cache_ms=_ms(trigger.status_cache_ttl),
        max_attempts=settings.retry.max_attempts if settings.retry else None,
    )


def time_points(schedule: Interval | Cron, cron_schedule: AbstractCronSchedule, uses_now: bool = False) -> Schedule:
    """The scheduled times of a schedule. `uses_now`: a custom schedule starts from its `now()`."""
    if isinstance(schedule, Interval):
        return Every(schedule.total_ms)
    if type(cron_schedule) is CronSchedule:
        return Calendar(_Matches(schedule))
    if uses_now or "after" in _optional_names(cron_schedule):
        return Calendar(_Stateless(schedule, cron_schedule), is_foreign=True)
    return Awaited(_Stateful(schedule, cron_schedule))


class _Matches:
    """The next match of an expression; going from one match to the next continues the same iteration."""

    def __init__(self, cron: Cron) -> None:
        self._cron = cron
        self._walks: dict[int, Iterator[int]] = {}
        """The last iteration, if any, keyed by the match it has reached."""

    def __call__(self, after_ms: int) -> int | None:
        # Removed while in use: event loops in several threads can call this.
        walk = self._walks.pop(after_ms, None) or matches(self._cron.expression, self._cron.zone, after_ms)
        point_ms = next(walk, None)
        self._walks = {} if point_ms is None else {point_ms: walk}
        return point_ms


class _Stateless:
    """The next time of a custom schedule that accepts the time to start from."""

    def __init__(self, cron: Cron, schedule: AbstractCronSchedule) -> None:
        self._cron = cron
        self._schedule = schedule

    def __call__(self, after_ms: int) -> int | None:
        point_ms = self._next_ms(after_ms)
        if point_ms <= after_ms:
            raise BadConfiguration(f"{self._call} must return a time after {at(after_ms)}, not {at(point_ms)}")
        return point_ms

    def _next_ms(self, after_ms: int) -> int:
        after = at(after_ms).astimezone(self._cron.zone)
        optional = _optional_arguments(self._schedule, after, self._cron.timezone)
        with _asked(after):
            found = self._schedule.next_execution(self._cron.expression, **optional)
        if not isinstance(found, datetime):
            raise BadConfiguration(f"{self._call} must return a datetime, not {shown(found)}")
        return self._instant(found, after_ms)

    def _instant(self, found: datetime, after_ms: int) -> int:
        """The returned time in milliseconds, rounded up."""
        if found.tzinfo:
            return _ms_up(found)
        first = _ms_up(found.replace(tzinfo=self._cron.zone, fold=0))
        # In an hour that occurs twice, take the one still to come.
        return first if first > after_ms else _ms_up(found.replace(tzinfo=self._cron.zone, fold=1))

    @property
    def _call(self) -> str:
        return f"{type(self._schedule).__name__}.next_execution({self._cron.expression!r})"


class _Stateful(_Stateless):
    """The next time of a custom schedule that only uses its own clock; each time is kept until it has passed."""

    _kept_ms = 0

    def __call__(self, after_ms: int) -> int | None:
        for _ in range(CATCHUP_POINTS_MAX):
            if self._kept_ms > after_ms:
                break
            last_ms, self._kept_ms = self._kept_ms, self._next_ms(after_ms)
            if self._kept_ms <= last_ms:
                break  # It cannot go from match to match, so calling it again would not help.
        # Its clock can be slightly behind the engine's: a time in the past is not an error, and the next call tries
        # again.
        return self._kept_ms if self._kept_ms > after_ms else None


class _Question:
    """The time that a schedule should start from, and whether the schedule has used it."""

    def __init__(self, after: datetime) -> None:
        self.after = after
        self.is_used = False


_question: Final[ContextVar[_Question | None]] = ContextVar("everwork-schedule", default=None)


@contextmanager
def _asked(after: datetime) -> Iterator[_Question]:
    """Make `now()` of a schedule return a given time."""
    question = _Question(after)
    token = _question.set(question)
    try:
        yield question
    finally:
        _question.reset(token)


def _check(settings: WorkerSettings, trigger: Trigger, cron_schedule: AbstractCronSchedule) -> bool:
    """Refuse an invalid expression; returns whether the schedule starts from its `now()`."""
    if isinstance(trigger.schedule, Interval):
        return False
    try:
        with _asked(datetime.now(UTC)) as question:
            cron_schedule.check(trigger.schedule.expression)
        return question.is_used
    except Exception as error:
        raise BadConfiguration(
            f"trigger '{trigger.title}' of worker '{settings.title}': {shown(trigger.schedule.expression)} is refused "
            f"by {type(cron_schedule).__name__}: {str(error) or type(error).__name__}"
        ) from error


def _optional_arguments(schedule: AbstractCronSchedule, after: datetime, timezone: str | None) -> dict[str, Any]:
    """The optional arguments that `next_execution` takes."""
    names = _optional_names(schedule)
    return {name: value for name, value in (("after", after), ("timezone", timezone)) if name in names}


def _optional_names(schedule: AbstractCronSchedule) -> frozenset[str]:
    """The names of the arguments that `next_execution` takes after the expression."""
    parameters = inspect.signature(schedule.next_execution).parameters
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values()):
        return frozenset({"after", "timezone"})
    return frozenset(parameters)


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)


def _ms_up(instant: datetime) -> int:
    return -((EPOCH - instant) // MILLISECOND)
