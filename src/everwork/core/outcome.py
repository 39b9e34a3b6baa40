"""How an attempt ended: the closed set of outcomes, as plain tuples because they are created per job.

`attempt` is the fencing token. 0 means that the caller does not know it: then only the job's state is checked.
`traceback` is kept with the attempt in the job's history.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from everwork.core.job import NewJob


class Complete(NamedTuple):
    """The work is done. `result` is a JSON text; `events` are created in the same transaction."""

    key: int
    attempt: int
    result: str | None = None
    events: tuple[NewJob, ...] = ()


class Failed(NamedTuple):
    """The attempt failed.

    `retries` None: the job's max_attempts decides; a number: that many more. `backoff_ms` None: the
    policy's delay. `final`: failed permanently. `variables`, a JSON text, replace the job's own.
    `classes`: the error is classified by the names of its exception's classes, which may be empty, and by its text;
    None: it is not classified. `strict`: if no rule matches, it is permanent, as with the policy's own `strict`.
    `is_counted`: the type's breaker counts it.
    """

    key: int
    attempt: int
    error: str
    retries: int | None = None
    backoff_ms: int | None = None
    final: bool = False
    variables: str | None = None
    classes: tuple[str, ...] | None = None
    is_counted: bool = True
    strict: bool = False
    traceback: str | None = None


class Reject(NamedTuple):
    """The job is invalid: failed, marked rejected, never requeued automatically."""

    key: int
    attempt: int
    error: str = ""
    traceback: str | None = None


class Retry(NamedTuple):
    """The worker requests another attempt within max_attempts; `delay_ms` None: the policy's."""

    key: int
    attempt: int
    error: str = ""
    delay_ms: int | None = None
    traceback: str | None = None


class Release(NamedTuple):
    """The worker returns the job to the queue: the attempt is not counted, its number is not reused."""

    key: int
    attempt: int


class Throw(NamedTuple):
    """A business error with a code: failed permanently. `variables` (JSON text) replaces the job's variables."""

    key: int
    attempt: int
    code: str
    error: str = ""
    variables: str | None = None
    traceback: str | None = None


class Lapse(NamedTuple):
    """The lease expired. Only the engine's sweep creates this outcome."""

    key: int
    attempt: int
    worker: str


Outcome = Complete | Failed | Reject | Retry | Release | Throw
DecidedOutcome = Failed | Reject | Retry | Throw | Lapse

RETRY_REQUESTED: Final = "retry requested"
REJECTED_TEXT: Final = "rejected by the worker"
"""The errors of attempts that ended this way without a reason."""
LEASE_EXPIRED: Final = "lease expired:"
"""The prefix of the error of an attempt whose worker did not report in time."""


def outcome_of(kind: object) -> type[Outcome] | None:
    """The outcome that has this name in the history; None if there is none."""
    return next((outcome for outcome, name in _KINDS.items() if name == kind and outcome is not Lapse), None)


def kind_of(outcome: Outcome | Lapse) -> str:
    """The name of an outcome in the history."""
    return _KINDS[type(outcome)]


_KINDS: Final[Mapping[type, str]] = {
    Complete: "complete",
    Failed: "fail",
    Reject: "reject",
    Retry: "retry",
    Release: "release",
    Throw: "throw",
    Lapse: "lapse",
}


def label_of(kind: str) -> str:
    """How an attempt ended, or what else happened to a job, for people."""
    return _LABELS.get(kind, kind)


_LABELS: Final[Mapping[str, str]] = {
    "complete": "completed",
    "fail": "failed",
    "retry": "retry requested",
    "reject": "rejected",
    "throw": "error thrown",
    "lapse": "lease expired",
    "release": "released",
    "cancel": "cancelled",
    "expire": "expired",
    "requeue": "requeued",
}
