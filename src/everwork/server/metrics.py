"""Prometheus metrics: one object for all APIs, cheap enough for every call and every step."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import accumulate
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Info, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from everwork.server.fleet_metrics import TYPES_MAX, FleetMetrics, FleetState, family
from everwork.service.monitor.minutes import OTHER_TYPES
from everwork.spool.contents import SpoolStatus

__all__ = ["CONTENT_TYPE", "OTHER_TYPES", "TYPES_MAX", "FleetState", "Metrics"]

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4
SIZES: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000)
SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
POLL_SECONDS: Final = (*SECONDS, 10.0, 30.0, 60.0)


class Metrics:
    """The counters of this process, and the engine's counters for the whole fleet.

    APIs are named `rest`, `jobs`, `zeebe`, `stream` and `desk`. As a `Reporter` it receives the steps of the service.
    """

    def __init__(self) -> None:
        self.registry = registry = _Registry()
        self._fleet = FleetMetrics()
        self._info = Info("everwork", "This server and its engine", registry=registry)
        self._up = Gauge("everwork_engine_up", "Whether the engine answered this scrape", registry=registry)
        self._upkeep = Gauge(
            "everwork_upkeep_age_seconds", "Time since this process last ran maintenance", registry=registry
        )
        self._clock_jumps = Counter(
            "everwork_clock_jumps", "Jumps of the engine's clock that this process has detected", registry=registry
        )
        self._clock_jumps_seen = 0
        self._calls = _Counters("everwork_calls", "Answered API calls", "door", "method", "status")
        self._unfenced = _Counters("everwork_unfenced_outcomes", "Outcomes without an attempt number", "door")
        pollers = Gauge("everwork_pollers", "Callers waiting for jobs", ["door"], registry=registry)
        sizes = _Histograms("everwork_commit_items", "Items per engine step", "step", SIZES)
        seconds = _Histograms("everwork_commit_seconds", "Duration of engine steps", "step", SECONDS)
        polls = _Histograms("everwork_poll_seconds", "Duration of polls for jobs", "answer", POLL_SECONDS)
        for families in (self._calls, self._unfenced, sizes, seconds, polls):
            registry.register(families)
        # Looking up a child costs more than counting; APIs and steps are few.
        self._pollers = cache(pollers.labels)
        self._sizes = cache(sizes.labeled)
        self._seconds = cache(seconds.labeled)
        self._got, self._empty = polls.labeled("jobs"), polls.labeled("empty")

    def describe(self, version: str, engine: str) -> None:
        """Set the version and the engine of this server."""
        self._info.info({"version": version, "engine": engine})

    def called(self, api: str, method: str, status: str) -> None:
        """A call was answered. `method` and `status` come from closed sets, never from the caller."""
        self._calls.count(1, api, method, status)

    def unfenced(self, api: str, outcomes: int = 1) -> None:
        """Count outcomes without an attempt number, which were checked only by state (G3)."""
        self._unfenced.count(outcomes, api)

    def committed(self, step: str, items: int, seconds: float) -> None:
        """The engine has completed a step."""
        self._sizes(step).observe(items)
        self._seconds(step).observe(seconds)

    def polled(self, seconds: float, jobs: int) -> None:
        """A poll for jobs was answered."""
        (self._got if jobs else self._empty).observe(seconds)

    @contextmanager
    def polling(self, api: str) -> Iterator[None]:
        """Count a caller as waiting for jobs inside the block."""
        waiting = self._pollers(api)
        waiting.inc()
        try:
            yield
        finally:
            waiting.dec()

    def text(
        self,
        fleet: FleetState | None = None,
        upkeep_age_s: float | None = None,
        spool: SpoolStatus | None = None,
        clock_jumps: int = 0,
    ) -> bytes:
        """All metrics in the Prometheus text format; pass None if the engine could not be read or there is no spool."""
        self._up.set(fleet is not None)
        self._upkeep.set(math.nan if upkeep_age_s is None else upkeep_age_s)
        self._clock_jumps.inc(clock_jumps - self._clock_jumps_seen)
        self._clock_jumps_seen = clock_jumps
        fleet_text = "" if fleet is None else self._fleet.text(fleet)
        return generate_latest(self.registry) + (fleet_text + spool_text(spool)).encode(errors="replace")


class _Counters(Collector):
    """A family of counters, used only in the event loop's thread: locks would cost more than counting."""

    def __init__(self, name: str, help: str, *labels: str) -> None:
        self._name, self._help, self._labels = name, help, labels
        self._counts: dict[tuple[str, ...], int] = {}

    def count(self, number: int, *values: str) -> None:
        """Add to the counter with these label values."""
        self._counts[values] = self._counts.get(values, 0) + number

    def collect(self) -> Iterator[Metric]:
        """The family."""
        family = CounterMetricFamily(self._name, self._help, labels=self._labels)
        for values, number in self._counts.items():
            family.add_metric(values, number)
        yield family


class _Histogram:
    """One histogram, used only in the event loop's thread, like `_Counters`."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def add_to(self, family: HistogramMetricFamily, label: str) -> None:
        """Report the counts, each with those of the lower buckets."""
        bounds = [*map(floatToGoString, self._bounds), "+Inf"]
        family.add_metric([label], list(zip(bounds, accumulate(self._counts), strict=True)), self._sum)


class _Histograms(Collector):
    """A family of histograms, by the values of one label."""

    def __init__(self, name: str, help: str, label: str, bounds: Sequence[float]) -> None:
        self._name, self._help, self._label = name, help, label
        self._bounds = bounds
        self._of: dict[str, _Histogram] = {}

    def labeled(self, value: str) -> _Histogram:
        """A new histogram."""
        self._of[value] = histogram = _Histogram(self._bounds)
        return histogram

    def collect(self) -> Iterator[Metric]:
        """The family."""
        family = HistogramMetricFamily(self._name, self._help, labels=[self._label])
        for value, histogram in self._of.items():
            histogram.add_to(family, value)
        yield family


class _Registry(CollectorRegistry):
    """A registry that omits the creation times of series, which would double the output for no benefit."""

    def collect(self) -> Iterable[Metric]:
        """Every family."""
        for metric in super().collect():
            metric.samples = [one for one in metric.samples if not one.name.endswith("_created")]
            yield metric


def spool_text(spool: SpoolStatus | None) -> str:
    """The metric families of this process's spool; empty without a spool."""
    return "" if spool is None else "".join(_spool_families(spool))


def _spool_families(spool: SpoolStatus) -> Iterator[str]:
    counts, oldest_s = spool.counts, (spool.counts.oldest_ms or 0) / 1000
    waiting = {'{kind="job"}': counts.jobs, '{kind="outcome"}': counts.outcomes}
    delivered = {'{kind="job"}': spool.delivered, '{kind="outcome"}': spool.reported}
    yield _family("everwork_spool_waiting", "gauge", "Spool entries waiting for delivery", waiting)
    yield _family("everwork_spool_aside", "gauge", "Spool entries set aside", {"": counts.aside})
    yield _family("everwork_spool_bytes", "gauge", "Size of the spool", {"": counts.bytes})
    yield _family("everwork_spool_max_bytes", "gauge", "Maximum size of the spool", {"": spool.max_bytes})
    yield _family("everwork_spool_oldest_seconds", "gauge", "Age of the oldest waiting spool entry", {"": oldest_s})
    yield _family("everwork_spool_delivered_total", "counter", "Spool entries delivered by this process", delivered)
    yield _family("everwork_spool_away", "gauge", "Whether new jobs go to the spool now", {"": int(spool.is_away)})


def _family(name: str, kind: str, help: str, values: Mapping[str, float]) -> str:
    return family(name, kind, help, (f"{name}{labels} {value}\n" for labels, value in values.items()))
