"""Events: messages published to a source, from anywhere or by a handler during its call."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from everwork.codec.new_job import new_job
from everwork.core.checks import shown
from everwork.core.job import NewJob
from everwork.core.limits import DEFAULT_TENANT, EVENTS_MAX
from everwork.exceptions import InvalidInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A message to a source: it becomes a job of the type that has the source's name.

    `delay` (seconds) or `run_at` (a datetime with time zone) let it run later; `expires_at` lets it be dropped if
    it has not begun by then. The same `dedupe_key` is accepted once.
    """

    source: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, Any] | None = None
    delay: float | None = None
    run_at: datetime | None = None
    expires_at: datetime | None = None
    priority: int = 0
    tenant: str = DEFAULT_TENANT
    dedupe_key: str | None = None
    limit_key: str | None = None
    correlation_id: str | None = None
    max_attempts: int | None = None

    def to_job(self) -> NewJob:
        """The job that it becomes; a wrong value is an `InvalidInput` that names the field."""
        try:
            return new_job(
                self.source,
                self.kwargs,
                headers=self.headers,
                delay=self.delay,
                run_at=self.run_at,
                expires_at=self.expires_at,
                priority=self.priority,
                tenant=self.tenant,
                dedupe_key=self.dedupe_key,
                limit_key=self.limit_key,
                correlation_id=self.correlation_id,
                max_attempts=self.max_attempts,
            )
        except InvalidInput as error:
            name = {"type": "source", "variables": "kwargs"}.get(error.field, error.field)
            raise InvalidInput(name, error.problem) from None


class EventCollector:
    """Collects the events of one call. They are published with its completion, in one transaction, or not at all."""

    __slots__ = ("_is_closed", "_most", "jobs")

    def __init__(self, most: int = EVENTS_MAX) -> None:
        self._most = most
        self._is_closed = False
        self.jobs: list[NewJob] | tuple[()] = ()

    def emit(self, event: Event) -> None:
        """Add an event; a wrong one raises `InvalidInput` here."""
        if not isinstance(event, Event):
            raise InvalidInput("event", f"must be an Event, not {shown(event)}")
        if self._is_closed:
            raise InvalidInput("event", "must be emitted before its call ends or completes its job")
        if len(self.jobs) >= self._most:
            raise InvalidInput("event", f"must be one of at most {self._most:,} in a call (max_events_in_memory)")
        job = event.to_job()
        if not self.jobs:
            self.jobs = []
        self.jobs.append(job)

    def close(self) -> None:
        """Accept no more events: those collected are being published."""
        self._is_closed = True

    def __len__(self) -> int:
        return len(self.jobs)


collector_of_call: ContextVar[EventCollector] = ContextVar("everwork-collector")
"""The collector of the call that runs in this context; set by the executor for each call."""
