"""A job: as created, as leased to a worker, and as callers see it.

An annotation says what a value is where its Python type does not; `codec.fields` reads it. Type checkers see the type.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Final, NamedTuple

from everwork.core.limits import DEFAULT_GROUP, DEFAULT_TENANT
from everwork.core.states import State


class Kind(Enum):
    """The kind of a value, which decides how it is serialized."""

    KEY = "the key of a job: decimal text in JSON"
    INSTANT = "milliseconds UTC: RFC 3339 in JSON, under the name without _ms"
    JSON = "a JSON text: a value in JSON, bytes in messages"
    GROUP = "a consumer group: the default one, which is empty, is null in JSON"


class Called(NamedTuple):
    """The name of a field in JSON, if it differs from its own."""

    json: str


Key = Annotated[int, Kind.KEY]
Instant = Annotated[int, Kind.INSTANT]
Deadline = Annotated[int, Kind.INSTANT, Called("deadline")]
JsonText = Annotated[str, Kind.JSON]
GroupName = Annotated[str, Kind.GROUP]


class NewJob(NamedTuple):
    """A job to be created, already validated. JSON values are texts.

    A job runs `delay_ms` after the engine's now, or at `run_at_ms`; `max_attempts` None means that
    of the type's policy. `retry` is the job's own retry policy, `extra` is stored for the caller and returned.
    """

    type: str
    variables: JsonText = "{}"
    tenant: str = DEFAULT_TENANT
    priority: int = 0
    delay_ms: int = 0
    run_at_ms: Instant | None = None
    max_attempts: int | None = None
    dedupe_key: str | None = None
    limit_key: str | None = None
    correlation_id: str | None = None
    expires_at_ms: Instant | None = None
    timeout_ms: int | None = None
    headers: JsonText | None = None
    retry: JsonText | None = None
    extra: JsonText | None = None

    @property
    def is_plain(self) -> bool:
        """Whether the job is due now and has no rule of its own: engines create one such job in less time."""
        return (
            not self.delay_ms
            and self.run_at_ms is None
            and self.dedupe_key is None
            and self.expires_at_ms is None
            and self.retry is None
        )


class LeasedJob(NamedTuple):
    """A job leased to a worker for one attempt; a plain tuple, because one is created per attempt."""

    key: Key
    attempt: int
    attempts: int
    max_attempts: int
    type: str
    group: GroupName
    tenant: str
    lease_until_ms: Deadline
    variables: JsonText
    headers: JsonText | None
    priority: int
    run_at_ms: Instant
    created_at_ms: Instant
    timeout_ms: int | None
    correlation_id: str | None
    limit_key: str | None
    extra: JsonText | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredJob:
    """A complete job, as engines store it. Instants are milliseconds UTC, JSON values are texts."""

    key: Key
    type: str
    state: State
    tenant: str = DEFAULT_TENANT
    group: GroupName = DEFAULT_GROUP
    variables: JsonText = "{}"
    headers: JsonText | None = None
    result: JsonText | None = None
    priority: int = 0
    attempt: int = 0
    attempts: int = 0
    max_attempts: int = 0
    retries: int = 0
    created_at_ms: Instant = 0
    run_at_ms: Instant = 0
    activated_at_ms: Instant | None = None
    lease_until_ms: Deadline | None = None
    finished_at_ms: Instant | None = None
    expires_at_ms: Instant | None = None
    timeout_ms: int | None = None
    worker: str | None = None
    last_error: str | None = None
    error_code: str | None = None
    rejected: bool = False
    dedupe_key: str | None = None
    limit_key: str | None = None
    correlation_id: str | None = None
    copy_of: Key | None = None
    extra: JsonText | None = None


class HistoryEntry(NamedTuple):
    """One entry of a job's history: how an attempt ended, or that the job was requeued.

    `kind` is complete, fail, retry, reject, throw, lapse, release, cancel, expire or requeue. A failure that
    was retried has `retry_at_ms`. `traceback` is where the handler raised, or where it was when it timed out.
    """

    attempt: int
    kind: str
    at_ms: Instant
    worker: str | None = None
    error: str | None = None
    activated_at_ms: Instant | None = None
    retry_at_ms: Instant | None = None
    traceback: str | None = None


COUNTED_KINDS: Final = frozenset({"complete", "fail", "retry", "reject", "throw", "lapse"})
"""Kinds of history entries that end a counted attempt."""


def attempt_numbers(job: StoredJob, history: Sequence[HistoryEntry]) -> list[int]:
    """The number of each entry's attempt as `attempts` counts them: from 1 after a requeue, excluding released ones.

    A released attempt has the number of the one that follows. (`HistoryEntry.attempt` is a different number:
    it identifies a lease, and grows with every activation.)
    """
    numbers: list[int] = []
    ended, start = 0, 0
    for entry in history:
        is_counted = entry.kind in COUNTED_KINDS or (entry.kind == "cancel" and entry.activated_at_ms is not None)
        ended += is_counted
        numbers.append(ended if is_counted else ended + 1)
        if entry.kind == "requeue":
            ended, start = 0, len(numbers)
    # Older entries may have been deleted, and not every requeue resets the count, so the job's own number is used.
    missing = max(0, job.attempts - (job.state is State.PROCESSING) - ended)
    return [number + missing if at >= start else number for at, number in enumerate(numbers)]
