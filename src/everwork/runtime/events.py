"""Events: messages published to a source, by any program or by a handler during its call."""

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
    """A message to a source: each worker class that subscribes to the source runs a job with its `kwargs`.

    Args:
        source: The name of the source; it is the type of the job.
        kwargs: The arguments of the workers.
        headers: Metadata, separate from the arguments.
        delay: Seconds to wait before the job is due.
        run_at: When the job is due: a datetime with time zone.
        expires_at: If the job has not started by then, it is cancelled.
        priority: From -512 to 511; higher runs first.
        tenant: The tenant that the job belongs to.
        dedupe_key: An event with a key that already exists creates no second job.
        limit_key: Jobs with the same key share the limit `max_running_per_key` of their type's policy.
        correlation_id: Your own id, to find related jobs by.
        max_attempts: Maximum number of attempts, including the first.
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
        """Convert the event to a job. Raises `InvalidInput`, naming the invalid field."""
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
    """Collects the events that a handler emits during one call.

    They are published in the same transaction as the job's completion, or not at all. Annotate a parameter of the
    handler with `EventCollector` to get it.
    """

    __slots__ = ("_is_closed", "_most", "jobs")

    def __init__(self, most: int = EVENTS_MAX) -> None:
        self._most = most
        self._is_closed = False
        self.jobs: list[NewJob] | tuple[()] = ()

    def emit(self, event: Event) -> None:
        """Add an event. Raises `InvalidInput` if it is invalid, if there are too many, or if the call has ended."""
        if not isinstance(event, Event):
            raise InvalidInput("event", f"must be an Event, not {shown(event)}")
        if self._is_closed:
            raise InvalidInput("event", "must be emitted before its call ends or completes its job")
        if len(self.jobs) >= self._most:
            raise InvalidInput("event", f"must be at most {self._most:,} per call (max_events_in_memory)")
        job = event.to_job()
        if not self.jobs:
            self.jobs = []
        self.jobs.append(job)

    def close(self) -> None:
        """Accept no more events: the collected ones are being published."""
        self._is_closed = True

    def __len__(self) -> int:
        return len(self.jobs)


collector_of_call: ContextVar[EventCollector] = ContextVar("everwork-collector")
"""The collector of the call running in this context; set by the executor for each call."""
