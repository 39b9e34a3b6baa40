"""What goes into the engine contract and what comes out of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from everwork.core.breaker import BreakerState
from everwork.core.job import HistoryEntry, Job, LeasedJob, NewJob
from everwork.core.limits import DEFAULT_GROUP, LEASE_MS_DEFAULT
from everwork.core.states import State


class Durability(Enum):
    """What an accepted job survives."""

    POWER_LOSS = "power-loss"
    PROCESS_CRASH = "process-crash"
    NONE = "none"


class Created(NamedTuple):
    """The answer to one job of a create: `deduplicated` says that the key is an earlier job's."""

    key: int
    deduplicated: bool = False


class Demand(NamedTuple):
    """What a worker asks for: up to `limit` jobs of one type (and group), each leased for `lease_ms`.

    `tenants` empty means all of them.
    """

    type: str
    worker: str
    limit: int
    lease_ms: int = LEASE_MS_DEFAULT
    group: str = DEFAULT_GROUP
    tenants: tuple[str, ...] = ()


class Activation(NamedTuple):
    """Leased jobs, in the order of G9 inside each lane.

    `next_due_ms` is the instant at which asking again may find more, as far as the engine knows: now
    when it stopped early, the head of the scheduled jobs otherwise, None when nothing is scheduled.
    `now_ms` is the engine's now, so that nobody compares it with another clock (G11). The jobs stand in the
    order of the demands; `shares` says how many each demand got, so that several callers can ask together.
    """

    jobs: list[LeasedJob]
    next_due_ms: int | None
    now_ms: int
    shares: tuple[int, ...]


class Lease(NamedTuple):
    """An attempt that a worker believes it holds."""

    key: int
    attempt: int


class LeaseStatus(Enum):
    """What has become of a lease."""

    HELD = "held"
    CANCELLED = "cancelled"
    LOST = "lost"


class Verdict(Enum):
    """How the engine judged one item of a batch."""

    ACCEPTED = "accepted"
    REPEATED = "repeated"
    """The same thing had been accepted before; nothing changed."""
    NOT_FOUND = "not found"
    WRONG_STATE = "wrong state"
    LEASE_LOST = "lease lost"


class Judged(NamedTuple):
    """The verdict on one item, with the state in which the job was found (None: no such job).

    `retries` are those that the job showed before, where the operation looked at them.
    """

    verdict: Verdict
    state: State | None = None
    retries: int | None = None

    @property
    def ok(self) -> bool:
        """Whether the caller may take its wish as fulfilled."""
        return self.verdict is Verdict.ACCEPTED or self.verdict is Verdict.REPEATED


class Settlement(NamedTuple):
    """The judgements on a batch of outcomes, in its order, and the answer to the demands it carried."""

    judged: list[Judged]
    activation: Activation


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """Which jobs a list shows. None does not restrict, nor do empty `states` and `tenants`.

    Group "" is the default one. `due` shows only pending jobs whose time has come.
    """

    type: str | None = None
    group: str | None = None
    states: frozenset[State] = frozenset()
    tenants: tuple[str, ...] = ()
    worker: str | None = None
    correlation_id: str | None = None
    created_after_ms: int | None = None
    created_before_ms: int | None = None
    error_text: str | None = None
    due: bool = False


class Page(NamedTuple):
    """Jobs, newest first. `next` is the cursor of the following page, None at the end.

    A page may be short although there is a `next`: the engine bounds how far it looks in one call.
    """

    jobs: list[Job]
    next: int | None


class JobRecord(NamedTuple):
    """A job with all that a store knows of it, so that another store can take it over.

    `created_max_attempts` is what a requeue goes back to, `retry` the job's own policy.
    """

    job: Job
    created_max_attempts: int
    retry: str | None
    history: tuple[HistoryEntry, ...]

    @property
    def past(self) -> tuple[HistoryEntry, ...]:
        """The history without how the job was completed or cancelled: that stands with the finished job."""
        return self.history[:-1] if self.job.state in (State.COMPLETED, State.CANCELLED) else self.history


class Count(NamedTuple):
    """How many jobs of a tenant, type and group are in a state."""

    tenant: str
    type: str
    group: str
    state: State
    jobs: int


class WorkerHour(NamedTuple):
    """What one worker did with one type in one hour (counted from the epoch)."""

    hour: int
    type: str
    worker: str
    completed: int
    failed: int
    retried: int
    execution_ms: int
    wait_ms: int


class Measure(NamedTuple):
    """How many attempts at jobs of a type ended in one hour that are counted as `what`; see `core.measures`."""

    hour: int
    type: str
    what: str
    jobs: int


class Oldest(NamedTuple):
    """Since when the longest waiting due job of a type and group could have been running."""

    type: str
    group: str
    run_at_ms: int


@dataclass(frozen=True, slots=True)
class Stats:
    """Counts by state as they stand, and what workers did in the hours asked for."""

    counts: list[Count]
    hours: list[WorkerHour]
    generated_at_ms: int
    partial: bool = False
    """A server has left out the smallest counts and the oldest hours, for want of room in its message."""


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

    key: int
    state: State
    reason: Reason
    text: str
    until_ms: int | None = None
    worker: str | None = None
    ahead: int | None = None


@dataclass(frozen=True, slots=True)
class Swept:
    """What one step of the sweep did. `more` asks for another step at once."""

    lapsed: int = 0
    expired: int = 0
    requeued: int = 0
    deleted: int = 0
    more: bool = False


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


class Schema(NamedTuple):
    """The version of a store's schema (None: it has none yet), and the newest that this program knows."""

    stored: int | None
    newest: int


class Registered(NamedTuple):
    """An entry of the registry: who, what is said of it, and until when it holds (None: for ever)."""

    kind: str
    name: str
    body: str
    until_ms: int | None


class TriggerMark(NamedTuple):
    """Where a trigger stands: when it was first registered, and the last time point that it has passed."""

    began_ms: int
    last_ms: int


class TriggerMarks(NamedTuple):
    """Where triggers stand at the engine's now, in the order in which they were asked for."""

    now_ms: int
    marks: list[TriggerMark]


class Fire(NamedTuple):
    """A time point of a trigger and the job that it creates; None lets the point pass without one."""

    trigger: str
    point_ms: int
    job: NewJob | None


class Fired(NamedTuple):
    """What became of a time point: the job that it created, None if it had passed already; where the trigger stands."""

    created: Created | None
    mark: TriggerMark


@dataclass(frozen=True, slots=True)
class Health:
    """What the engine says of itself."""

    engine: str
    version: str
    schema_version: int
    durability: Durability
    details: Mapping[str, str] = field(default_factory=dict)
