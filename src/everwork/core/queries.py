"""Queries on jobs and their results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum, IntEnum
from types import MappingProxyType
from typing import Final, NamedTuple

from everwork.core import checks
from everwork.core.breaker import BreakerState
from everwork.core.job import GroupName, Instant, Key, StoredJob
from everwork.core.limits import INSTANT_MS_MAX, KEY_MAX
from everwork.core.states import State
from everwork.exceptions import InvalidInput


class Order(IntEnum):
    """The order of a list. The numbers are sent, so they never change.

    NEWEST: highest key first. DUE: pending jobs only, the earliest `run_at` first. FAILED: failed jobs only, the
    latest failure first.
    """

    NEWEST = 0
    DUE = 1
    FAILED = 2

    @property
    def label(self) -> str:
        """The order as people write it."""
        return self.name.lower()


def order_named(value: object) -> Order:
    """The order of a list, by its name."""
    if isinstance(value, Order):
        return value
    found = next((one for one in Order if isinstance(value, str) and value.lower() == one.label), None)
    if found is None:
        raise InvalidInput("order", f"must be one of {', '.join(ORDERS)}, not {checks.shown(value)}")
    return found


ORDERS: Final = tuple(order.label for order in Order)
STATE_OF_ORDER: Final[Mapping[Order, State]] = MappingProxyType({Order.DUE: State.PENDING, Order.FAILED: State.FAILED})
"""The jobs that an order lists, if not all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """Which jobs match. None, and empty `states` and `tenants`, do not restrict.

    The group `""` is the default one. `dedupe_key`: the jobs with this key, at most one per type and tenant.
    `error_text`: a text in the last error, ignoring case. `variables_text`: a text in the variables as compact JSON,
    case-sensitive. `due`: only pending jobs that are due. Times are milliseconds UTC.
    """

    type: str | None = None
    group: GroupName | None = None
    states: frozenset[State] = frozenset()
    tenants: tuple[str, ...] = ()
    worker: str | None = None
    correlation_id: str | None = None
    dedupe_key: str | None = None
    created_after_ms: Instant | None = None
    created_before_ms: Instant | None = None
    error_text: str | None = None
    variables_text: str | None = None
    due: bool = False
    order: Order = Order.NEWEST


_KEYS: Final = KEY_MAX + 1
CURSOR_MAX: Final = (INSTANT_MS_MAX + 1) * _KEYS


def cursor_at(instant_ms: int, key: int) -> int:
    """A position in a list that is ordered by an instant, then by key. Without an instant it is the key."""
    return instant_ms * _KEYS + key


def cursor_parts(cursor: int) -> tuple[int, int]:
    """The instant and the key of a position."""
    return divmod(cursor, _KEYS)


def cursor_of(job: StoredJob, order: Order) -> int:
    """The position of a job in a list."""
    match order:
        case Order.NEWEST:
            return job.key
        case Order.DUE:
            return cursor_at(job.run_at_ms, job.key)
        case Order.FAILED:
            return cursor_at(job.finished_at_ms or 0, job.key)


def in_order(query: JobFilter, cursor: int | None = None) -> JobFilter:
    """The query, restricted to what its order lists; an order that does not fit its states is refused."""
    if query.order is Order.NEWEST:
        if cursor is not None and cursor > KEY_MAX:
            raise InvalidInput("cursor", "belongs to a list in a different order")
        return query
    state = STATE_OF_ORDER[query.order]
    if query.states - {state}:
        others = ", ".join(sorted(one.label for one in query.states - {state}))
        raise InvalidInput("order", f"'{query.order.label}' lists {state.label} jobs only, not {others}")
    if query.due and state is not State.PENDING:
        raise InvalidInput("order", f"'{query.order.label}' lists {state.label} jobs only, not those that are due")
    return replace(query, states=frozenset([state]))


class Page(NamedTuple):
    """Jobs, in the order of the query. `next` is the cursor of the following page, None at the end.

    A page may be short even if there is a `next`: the engine limits how many jobs it scans in one call.
    """

    jobs: list[StoredJob]
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
    """When the longest-waiting due job of a type and group became due."""

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

    `breaker_open_until_ms` is None unless the breaker is open now, `breaker_probe_key` unless a probe is running;
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
