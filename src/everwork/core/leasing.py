"""What workers request, what they hold, and the verdicts on ended attempts."""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple, Protocol

from everwork.core.job import LeasedJob
from everwork.core.limits import DEFAULT_GROUP, LEASE_MS_DEFAULT
from everwork.core.states import State
from everwork.exceptions import JobNotFound, LeaseLost, WrongState

WAIT_MS_MAX: Final = 1_000
"""Wake-ups may be lost: a waiting worker checks at least this often."""


class Created(NamedTuple):
    """The result of creating one job. `deduplicated`: the key belongs to an earlier job.

    A job that waits in a local spool for its store has a `spool_id`, and a negative number in place of its key.
    """

    key: int
    deduplicated: bool = False
    spool_id: str = ""

    @property
    def is_spooled(self) -> bool:
        """Whether the job waits in a spool, and has no key yet."""
        return bool(self.spool_id)


class Spooled(NamedTuple):
    """The state of a spooled job: waiting, created, or set aside for a `reason`."""

    created: Created | None = None
    reason: str | None = None


class Stamp(NamedTuple):
    """Identifies one `create` of a producer, so that it can be repeated; numbers increase."""

    producer: str
    number: int


class Receiver(Protocol):
    """A waiting worker, to which a create may hand over its job; called in the event loop of the worker's engine."""

    def handed(self, job: LeasedJob) -> None:
        """Take a job that has just been created and leased to this worker."""
        ...

    def lost(self) -> None:
        """Jobs that were handed over may not arrive: withdraw the parked demands, and look up the worker's leases."""
        ...


class Demand(NamedTuple):
    """What a worker requests: up to `limit` jobs of one type (and group), each leased for `lease_ms`.

    Empty `tenants` means all tenants. `is_bound`: the worker's API key is restricted to these tenants, so nothing
    that belongs to no tenant is read for it. With a `receiver`, a demand that is not met in full is parked, or if it
    may not be parked, the one that the worker has parked earlier is withdrawn: see `JobFlow.activate`.
    """

    type: str
    worker: str
    limit: int
    lease_ms: int = LEASE_MS_DEFAULT
    group: str = DEFAULT_GROUP
    tenants: tuple[str, ...] = ()
    is_bound: bool = False
    receiver: Receiver | None = None
    may_park: bool = True

    @property
    def parks(self) -> bool:
        """Whether a create may hand a job over: only from the default group, and only to a worker for all tenants."""
        return self.may_park and self.receiver is not None and self.group == DEFAULT_GROUP and not self.tenants

    @property
    def withdraws(self) -> bool:
        """Whether what the worker has parked is withdrawn, whatever it gets."""
        return not self.may_park and self.receiver is not None and self.group == DEFAULT_GROUP and not self.tenants


class Activation(NamedTuple):
    """Leased jobs; within each lane in claim order (guarantee G9).

    `next_due_ms` is the instant at which the next call may find more, as far as the engine knows: now if it
    stopped early, otherwise when the first scheduled job is due, None if nothing is scheduled. `now_ms` is the
    engine's now, so that it is not compared with another clock (G11). The jobs are in the order of the demands;
    `shares` says how many each demand got, so that the demands of several callers can be served in one call.
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
    """The state of a lease."""

    HELD = "held"
    CANCELLED = "cancelled"
    LOST = "lost"


class Verdict(Enum):
    """The engine's verdict on one item of a batch."""

    ACCEPTED = "accepted"
    REPEATED = "repeated"
    """The same item was accepted before; nothing changed."""
    NOT_FOUND = "not found"
    WRONG_STATE = "wrong state"
    LEASE_LOST = "lease lost"


class Failure(NamedTuple):
    """What happened after a failed attempt, as stored. `retry_ms` None: no retry, the job has failed permanently."""

    attempts: int
    """How many attempts count, including this one."""
    max_attempts: int
    retry_ms: int | None
    error: str


class Judged(NamedTuple):
    """The verdict on one item, with the state in which the job was found (None: no such job).

    `retries` are those that the job had before, where the operation reads them. `failure`: set if an accepted outcome
    is a failure.
    """

    verdict: Verdict
    state: State | None = None
    retries: int | None = None
    failure: Failure | None = None

    @property
    def ok(self) -> bool:
        """Whether the request has taken effect, now or before."""
        return self.verdict is Verdict.ACCEPTED or self.verdict is Verdict.REPEATED


class Settlement(NamedTuple):
    """The verdicts on a batch of outcomes, in the same order, and the jobs leased for its demands."""

    judged: list[Judged]
    activation: Activation


def accepted(key: int, judged: Judged, done: str) -> State:
    """The state in which the job was found; raises if nothing was done."""
    match judged.verdict:
        case Verdict.ACCEPTED | Verdict.REPEATED:
            return judged.state or State.PENDING
        case Verdict.NOT_FOUND:
            raise JobNotFound(key)
        case Verdict.LEASE_LOST:
            raise LeaseLost(key, f"Job '{key}': this attempt's lease is lost")
        case Verdict.WRONG_STATE:
            state = judged.state.label if judged.state else "unknown"
            raise WrongState(key, f"Job '{key}' is {state}: it cannot be {done}")


def pause_ms(activation: Activation) -> int:
    """How long to wait before the next call when an activation returned no jobs."""
    if activation.next_due_ms is None:
        return WAIT_MS_MAX
    return min(max(activation.next_due_ms - activation.now_ms, 1), WAIT_MS_MAX)
