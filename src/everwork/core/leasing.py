"""What workers ask for, what they hold, and how the end of an attempt was judged."""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from everwork.core.job import LeasedJob
from everwork.core.limits import DEFAULT_GROUP, LEASE_MS_DEFAULT
from everwork.core.states import State
from everwork.exceptions import JobNotFound, LeaseLost, WrongState

WAIT_MS_MAX: Final = 1_000
"""Nobody relies on a wake-up: whoever waits looks at least this often."""


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


def accepted(key: int, judged: Judged, done: str) -> State:
    """The state in which the job was found, or the error that says why nothing was done."""
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
    """How long whoever got nothing may wait before asking again."""
    if activation.next_due_ms is None:
        return WAIT_MS_MAX
    return min(max(activation.next_due_ms - activation.now_ms, 1), WAIT_MS_MAX)
