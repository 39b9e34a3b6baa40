"""Figures for Prometheus: one object for all doors, cheap enough for every call."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from everwork.core.states import State

TYPES_MAX: Final = 1_000
"""More types than this are shown as one, so that nobody's store of figures bursts."""
OTHER_TYPES: Final = "(other)"
CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4


class Metrics:
    """What the doors count. A door names itself: `rest`, `jobs`, `zeebe`, `stream`."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._jobs = Gauge("everwork_jobs", "Jobs by type and state", ["type", "state"], registry=self.registry)
        calls = Counter("everwork_calls", "Calls answered", ["door", "method", "status"], registry=self.registry)
        unfenced = Counter(
            "everwork_unfenced_outcomes", "Outcomes that named no attempt", ["door"], registry=self.registry
        )
        pollers = Gauge("everwork_pollers", "Callers that wait for jobs", ["door"], registry=self.registry)
        # Looking a child up costs more than counting; doors, methods and statuses are few.
        self._call = cache(calls.labels)
        self._unfenced = cache(unfenced.labels)
        self._pollers = cache(pollers.labels)

    def called(self, door: str, method: str, status: str) -> None:
        """A call was answered. `method` and `status` come from closed sets, never from the caller."""
        self._call(door, method, status).inc()

    def unfenced(self, door: str, outcomes: int = 1) -> None:
        """Outcomes came that named no attempt, and were checked by state only (G3)."""
        self._unfenced(door).inc(outcomes)

    @contextmanager
    def polling(self, door: str) -> Iterator[None]:
        """A caller waits for jobs as long as this lasts."""
        waiting = self._pollers(door)
        waiting.inc()
        try:
            yield
        finally:
            waiting.dec()

    def text(self, jobs: Mapping[str, Mapping[State, int]]) -> bytes:
        """Everything in the format of Prometheus, with the jobs of each type as they were counted just now."""
        self._jobs.clear()
        for (type, state), count in _bounded(jobs).items():
            self._jobs.labels(type, state.label).set(count)
        return generate_latest(self.registry)


def _bounded(jobs: Mapping[str, Mapping[State, int]]) -> Tally[tuple[str, State]]:
    shown = set(sorted(jobs)[:TYPES_MAX])
    counts: Tally[tuple[str, State]] = Tally()
    for type, by_state in jobs.items():
        for state, count in by_state.items():
            counts[type if type in shown else OTHER_TYPES, state] += count
    return counts
