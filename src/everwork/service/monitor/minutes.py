"""Finished attempts by minute and type, derived from the engines' hourly counts: charts, rates, percentiles."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import add
from typing import Final, NamedTuple

import orjson

from everwork.core.limits import HOUR_MS
from everwork.core.measures import Measured, measured, percentile_ms
from everwork.core.queries import Measure, Stats

MINUTE_MS: Final = 60_000
MINUTE_TYPES_MAX: Final = 200
"""The maximum number of types stored per minute; those with the most work are kept."""
OTHER_TYPES: Final = "(other)"

Counts = Mapping[str, Mapping[str, int]]
"""By type: completed, failed, retried, and the counters of `core.measures`."""


class Work(NamedTuple):
    """How attempts ended, and their total run time and queue wait."""

    completed: int = 0
    failed: int = 0
    retried: int = 0
    execution_ms: int = 0
    wait_ms: int = 0

    @property
    def ended(self) -> int:
        """All finished attempts."""
        return self.completed + self.failed + self.retried


def work_of(counts: Mapping[str, int]) -> Work:
    """The work counted for one type."""
    return Work(*(counts.get(name, 0) for name in Work._fields))


@dataclass(frozen=True)
class Minute:
    """One minute, numbered since the epoch. The types with the least work may be combined as OTHER_TYPES."""

    minute: int
    counts: Counts

    @cached_property
    def by_type(self) -> Mapping[str, Work]:
        """Finished attempts by type."""
        return {type: work_of(counts) for type, counts in self.counts.items()}

    @cached_property
    def measured(self) -> Mapping[str, Measured]:
        """Run times, queue waits and errors by type."""
        return {type: measured(counts.items()) for type, counts in self.counts.items()}

    @cached_property
    def total(self) -> Work:
        """Finished attempts of all types."""
        return Work(*(sum(values) for values in zip(*self.by_type.values(), strict=True))) if self.counts else Work()


@dataclass(frozen=True, slots=True)
class Span:
    """Finished attempts in a period of some seconds, of one type or of all types."""

    seconds: float
    work: Work
    measured: Measured

    def execution_ms(self, share: float) -> float | None:
        """A percentile of run times; a share of 0.95 is the 95th percentile."""
        return percentile_ms(self.measured.execution, share, self.work.execution_ms)

    def wait_ms(self, share: float) -> float | None:
        """A percentile of queue waits."""
        return percentile_ms(self.measured.wait, share, self.work.wait_ms)

    @property
    def per_second(self) -> float:
        """Finished attempts per second."""
        return self.work.ended / self.seconds if self.seconds else 0.0


def span_of(minutes: Iterable[Minute], seconds: float, type: str | None = None) -> Span:
    """Finished attempts in these minutes, of one type or of all types."""
    counts: Counter[str] = Counter()
    for minute in minutes:
        for some in minute.counts.values() if type is None else [minute.counts.get(type, {})]:
            counts.update(some)
    return Span(seconds, work_of(counts), measured(counts.items()))


def bounded_minute(number: int, grown: Counts) -> Minute:
    """A minute with these counts, limited to MINUTE_TYPES_MAX types."""
    kept = dict(grown)
    if len(grown) > MINUTE_TYPES_MAX:
        by_load = sorted(grown, key=lambda name: (-work_of(grown[name]).ended, name))
        kept = {type: grown[type] for type in by_load[:MINUTE_TYPES_MAX]}
        rest = Counter[str](kept.pop(OTHER_TYPES, {}))
        for type in by_load[MINUTE_TYPES_MAX:]:
            rest.update(grown[type])
        kept[OTHER_TYPES] = rest
    return Minute(number, {type: dict(counts) for type, counts in kept.items()})


class Growth:
    """Turns the engines' hourly counts into the increase since the previous sample."""

    def __init__(self) -> None:
        self._before: dict[tuple[int, str, str], int] = {}
        self._from_hour: int | None = None
        self._until_hour = 0

    def hours(self, at_ms: int | None) -> int:
        """How many hours must be read at a given time; pass None if the time is not known yet."""
        if self._from_hour is None or at_ms is None:
            return 2
        # A step started before the end of the hour can commit after it, so the previous hour is read for one more
        # minute. Counts that a user's own transaction commits even later appear in their hour, but in no minute.
        first = min(self._until_hour, (at_ms - MINUTE_MS) // HOUR_MS)
        return min(max(at_ms // HOUR_MS - first + 1, 1), HOURS_MAX)

    def step(self, stats: Stats, measures: Iterable[Measure], hours: int) -> dict[str, Counter[str]]:
        """The increase since the previous call, by type; empty on the first call. Measures may be slightly newer."""
        hour = stats.generated_at_ms // HOUR_MS
        is_first, first = self._from_hour is None, hour - hours + 1
        known = first if self._from_hour is None else self._from_hour
        now = {key: jobs for key, jobs in _flat(stats, measures).items() if key[0] >= min(known, first)}
        grown: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for (at_hour, type, name), jobs in now.items() if not is_first else ():
            if at_hour >= known and (more := jobs - self._before.get((at_hour, type, name), 0)) > 0:
                grown[type][name] += more
        if hour < known:  # The clock was set back: these hours were counted before.
            known = self._until_hour = first
        self._until_hour = max(self._until_hour, hour)
        self._from_hour = max(known, self._until_hour - 1)
        # Counts can shrink or disappear when a lease expiry is undone. If they grow again, the growth is new.
        unread = {key: jobs for key, jobs in self._before.items() if self._from_hour <= key[0] < first}
        self._before = unread | {key: jobs for key, jobs in now.items() if key[0] >= self._from_hour}
        return grown


HOURS_MAX: Final = 24
"""The maximum number of hours to catch up after an outage."""


def _flat(stats: Stats, measures: Iterable[Measure]) -> dict[tuple[int, str, str], int]:
    """Every count by hour, type and name, summed over all workers."""
    work: dict[tuple[int, str], tuple[int, ...]] = {}
    for hour, type, _, *values in stats.hours:
        before = work.get((hour, type))
        work[hour, type] = tuple(values) if before is None else tuple(map(add, before, values))
    flat = {(hour, type, what): jobs for hour, type, what, jobs in measures}
    for (hour, type), numbers in work.items():
        for name, number in zip(Work._fields, numbers, strict=True):
            if number:
                flat[hour, type, name] = number
    return flat


# Storage -----------------------------------------------------------------------------------------------


def minute_name(number: int) -> str:
    """The name of a minute in the registry; names sort by time."""
    return f"{number:010d}"


def minute_body(minute: Minute) -> str:
    """The body of a minute in the registry."""
    return orjson.dumps(minute.counts).decode()


def minute_from(name: str, body: str) -> Minute | None:
    """A stored minute; None if another version wrote it in another format."""
    try:
        stored = orjson.loads(body)
        counts = {str(type): {str(what): int(jobs) for what, jobs in some.items()} for type, some in stored.items()}
        return Minute(int(name), counts)
    except (ValueError, TypeError, AttributeError):
        return None


def merged(minutes: Sequence[Minute]) -> dict[str, Counter[str]]:
    """The summed counts of several minutes."""
    sums: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for minute in minutes:
        for type, counts in minute.counts.items():
            sums[type].update(counts)
    return sums
