"""Metrics of the whole fleet, as counted by the engine, in the Prometheus text format.

We format the text ourselves, without the client library: a thousand types produce fifty thousand lines, and scrapes
must be fast.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate, product
from typing import Final, NamedTuple

from everwork.core.breaker import BreakerState
from everwork.core.measures import BOUNDS_MS, BUCKETS, LAPSED, execution, failure, wait
from everwork.core.queries import Oldest
from everwork.core.states import State
from everwork.service.monitor.minutes import OTHER_TYPES
from everwork.service.monitor.sampler import Sample

TYPES_MAX: Final = 1_000
"""Types beyond this number are combined into one, to bound the number of time series."""
BREAKER_NUMBERS: Final = {BreakerState.CLOSED: 0, BreakerState.HALF_OPEN: 1, BreakerState.OPEN: 2}

_BOUNDS: Final = (*(f"{bound / 1000:g}" for bound in BOUNDS_MS), "+Inf")
_EXECUTION: Final = tuple(execution(bucket) for bucket in range(BUCKETS))
_WAIT: Final = tuple(wait(bucket) for bucket in range(BUCKETS))
_NOTHING: Final = (0,) * BUCKETS
_FAILURE: Final = failure("")
_JOBS: Final = {state: f'everwork_jobs{{state="{state.label}",' for state in State}


class FleetState(NamedTuple):
    """A sample, the totals by type since this process started, and the running managers and processes."""

    sample: Sample
    totals: Mapping[str, Mapping[str, int]]
    managers: int = 0
    processes: int = 0


class FleetMetrics:
    """Writes the metrics. The first types keep their own lines; those beyond the limit are combined into one."""

    def __init__(self) -> None:
        self._labels: dict[str, str] = {}
        self._templates: dict[tuple[str, str], str] = {}

    def text(self, fleet: FleetState) -> str:
        """All metric families."""
        self._forget_labels(fleet)
        sample, totals = fleet.sample, self._totals(fleet)
        known = {self._label(info.type): None for info in sample.types}
        return "".join([
            family("everwork_jobs", "gauge", "Jobs by type and state", self._jobs(sample, known)),
            family("everwork_oldest_waiting_seconds", "gauge", "Age of the oldest waiting due job of a type",
                   self._oldest(sample, known)),
            family("everwork_attempts_total", "counter", "Finished attempts by outcome",
                   _attempts(known, totals)),
            family("everwork_execution_seconds", "histogram", "Run time of attempts",
                   self._histograms("everwork_execution_seconds", "execution_ms", _EXECUTION, totals)),
            family("everwork_wait_seconds", "histogram", "Queue wait: time between due and start of an attempt",
                   self._histograms("everwork_wait_seconds", "wait_ms", _WAIT, totals)),
            family("everwork_failures_total", "counter", "Failed attempts by error class",
                   _failures(totals)),
            family("everwork_leases_lapsed_total", "counter", "Attempts whose lease expired",
                   _lapsed(known, totals)),
            family("everwork_breaker_state", "gauge", "Circuit breaker of a type: 0 closed, 1 half-open, 2 open",
                   self._worst("everwork_breaker_state",
                               ((info.type, BREAKER_NUMBERS[info.breaker]) for info in sample.types))),
            family("everwork_paused", "gauge", "Whether a type is paused",
                   self._worst("everwork_paused", ((info.type, int(info.paused)) for info in sample.types))),
            family("everwork_managers", "gauge", "Running managers", [f"everwork_managers {fleet.managers}\n"]),
            family("everwork_processes", "gauge", "Running worker processes",
                   [f"everwork_processes {fleet.processes}\n"]),
        ])  # fmt: skip

    def _forget_labels(self, fleet: FleetState) -> None:
        """Drop the labels of types that no longer exist, so that other types can have their own."""
        known = {info.type for info in fleet.sample.types}
        gone = self._labels.keys() - known - fleet.totals.keys()
        for type in gone:
            del self._labels[type]
        if gone:
            self._templates.clear()

    def _label(self, type: str) -> str:
        """The label of a type."""
        if (label := self._labels.get(type)) is not None:
            return label
        if len(self._labels) >= TYPES_MAX:
            return _OTHER
        label = self._labels[type] = f'type="{escaped(type)}"'
        return label

    def _totals(self, fleet: FleetState) -> dict[str, Mapping[str, int]]:
        """Totals by label, summed over combined types. Types are processed in order of name."""
        for info in fleet.sample.types:
            self._label(info.type)
        rest: Counter[str] = Counter()
        totals: dict[str, Mapping[str, int]] = {}
        for type in sorted(fleet.totals):
            if (label := self._label(type)) == _OTHER:
                rest.update(fleet.totals[type])
            else:
                totals[label] = fleet.totals[type]
        return {**totals, _OTHER: rest} if rest else totals

    def _jobs(self, sample: Sample, known: Iterable[str]) -> Iterator[str]:
        """Includes zeros: a series that ends would look like missing data."""
        jobs: Counter[tuple[str, State]] = Counter(dict.fromkeys(product(known, State), 0))
        for count in sample.counts:
            jobs[self._label(count.type), count.state] += count.jobs
        for (label, state), number in jobs.items():
            yield f"{_JOBS[state]}{label}}} {number}\n"

    def _oldest(self, sample: Sample, known: Iterable[str]) -> Iterator[str]:
        ages: defaultdict[str, int] = defaultdict(int, dict.fromkeys(known, 0))
        for one in sample.oldest:
            label = self._label(one.type)
            ages[label] = max(ages[label], _age_ms(one, sample))
        for label, age_ms in ages.items():
            yield f"everwork_oldest_waiting_seconds{{{label}}} {age_ms / 1000}\n"

    def _worst(self, name: str, numbers: Iterable[tuple[str, int]]) -> Iterator[str]:
        highest: defaultdict[str, int] = defaultdict(int)
        for type, number in numbers:
            label = self._label(type)
            highest[label] = max(highest[label], number)
        for label, number in highest.items():
            yield f"{name}{{{label}}} {number}\n"

    def _histograms(
        self, name: str, sum_name: str, buckets: tuple[str, ...], totals: Mapping[str, Mapping[str, int]]
    ) -> Iterator[str]:
        for label, counts in totals.items():
            numbers = tuple(accumulate(map(counts.get, buckets, _NOTHING)))
            yield self._template(name, label) % (*numbers, counts.get(sum_name, 0) / 1000, numbers[-1])

    def _template(self, name: str, label: str) -> str:
        """The lines of one histogram, with placeholders for its numbers; built once."""
        if (name, label) not in self._templates:
            safe = label.replace("%", "%%")
            lines = [f'{name}_bucket{{le="{bound}",{safe}}} %d\n' for bound in _BOUNDS]
            self._templates[name, label] = "".join(
                [*lines, f"{name}_sum{{{safe}}} %s\n", f"{name}_count{{{safe}}} %d\n"]
            )
        return self._templates[name, label]


def _attempts(known: Iterable[str], totals: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
    """Includes zeros: an increase to 1 is visible only after a 0."""
    for label in dict.fromkeys([*known, *totals]):
        counts = totals.get(label, {})
        for outcome in ("completed", "failed", "retried"):
            yield f'everwork_attempts_total{{outcome="{outcome}",{label}}} {counts.get(outcome, 0)}\n'


def _failures(totals: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
    for label, counts in totals.items():
        for name, number in counts.items():
            if name.startswith(_FAILURE):
                error_class = escaped(name.removeprefix(_FAILURE))
                yield f'everwork_failures_total{{class="{error_class}",{label}}} {number}\n'


def _lapsed(known: Iterable[str], totals: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
    for label in dict.fromkeys([*known, *totals]):
        yield f"everwork_leases_lapsed_total{{{label}}} {totals.get(label, {}).get(failure(LAPSED), 0)}\n"


def _age_ms(one: Oldest, sample: Sample) -> int:
    return max(0, sample.at_ms - one.run_at_ms)


def family(name: str, kind: str, help: str, lines: Iterable[str]) -> str:
    """A metric family in the text format."""
    return "".join([f"# HELP {name} {help}\n# TYPE {name} {kind}\n", *lines])


def escaped(value: str) -> str:
    """A label value, escaped for the text format."""
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


_OTHER: Final = f'type="{OTHER_TYPES}"'
