"""Queries on jobs and their results."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from everwork.core.breaker import BreakerState
from everwork.core.job import GroupName, Instant, Job, Key
from everwork.core.states import State


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """Which jobs match. None does not restrict, nor do empty `states` and `tenants`.

    Group "" is the default one. `due`: only pending jobs that are due.
    """

    type: str | None = None
    group: GroupName | None = None
    states: frozenset[State] = frozenset()
    tenants: tuple[str, ...] = ()
    worker: str | None = None
    correlation_id: str | None = None
    created_after_ms: Instant | None = None
    created_before_ms: Instant | None = None
    error_text: str | None = None
    due: bool = False


class Page(NamedTuple):
    """Jobs, newest first. `next` is the cursor of the following page, None at the end.

    A page may be short although there is a `next`: the engine limits how many jobs it scans in one call.
    """

    jobs: list[Job]
    next: int | None


class Count(NamedTuple):
    """How many jobs of a tenant, type and group are in a state."""

    tenant: str
    type: str
    group: str
    state: State
    jobs: int


class WorkerHour(NamedTuple):
    """The work of one worker on one type in one hour (counted from the epoch)."""

    hour: int
    type: str
    worker: str
    completed: int
    failed: int
    retried: int
    execution_ms: int
    wait_ms: int


class Measure(NamedTuple):
    """How many attempts of a type that ended in one hour are counted as `name`; see `core.measures`."""

    hour: int
    type: str
    name: str
    jobs: int


class Oldest(NamedTuple):
    """Since when the longest waiting due job of a type and group has been due."""

    type: str
    group: str
    run_at_ms: int


@dataclass(frozen=True, slots=True)
class Stats:
    """Current counts by state, and the work of the requested hours."""

    counts: list[Count]
    hours: list[WorkerHour]
    generated_at_ms: int
    partial: bool = False
    """The server has left out the smallest counts and the oldest hours, to keep its message within the size limit."""


class Reason(Enum):
    """Why a job is not running."""

    RUNNING = "running"
    FINISHED = "finished"
    SCHEDULED = "scheduled"
    PAUSED = "paused"
    BREAKER = "breaker"
    LIMIT = "limit"
    NOT_ASKED = "not asked"
    QUEUED = "queued"


@dataclass(frozen=True, slots=True)
class Explanation:
    """The answer to "why is this job not running?", for people (`text`) and for programs."""

    key: Key
    state: State
    reason: Reason
    text: str
    until_ms: Instant | None = None
    worker: str | None = None
    ahead: int | None = None


@dataclass(frozen=True, slots=True)
class TypeInfo:
    """A job type as the engine knows it.

    `breaker_open_until_ms` is None unless the breaker is open now, `breaker_probe_key` unless a probe runs;
    `rate_full_until_ms` is None unless no more jobs may start in this window of the rate.
    """

    type: str
    paused: bool = False
    policy: str | None = None
    groups: tuple[str, ...] = ()
    last_asked_ms: int | None = None
    breaker: BreakerState = BreakerState.CLOSED
    breaker_failures: int = 0
    breaker_open_until_ms: int | None = None
    breaker_probe_key: int | None = None
    rate_full_until_ms: int | None = None


class BulkChange(NamedTuple):
    """How many jobs matched a filter, and how many of them were changed."""

    matched: int
    changed: int
