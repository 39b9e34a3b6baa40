"""A job: as it is created, as a worker gets it, and as callers see it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from everwork.core.limits import DEFAULT_GROUP, DEFAULT_TENANT
from everwork.core.states import State


class NewJob(NamedTuple):
    """A job to be created, already validated. JSON values are texts.

    A job runs `delay_ms` after the engine's now, or at `run_at_ms`; `max_attempts` None means the
    type's policy. `retry` is the job's own retry policy, `extra` is stored for the caller and returned.
    """

    type: str
    variables: str = "{}"
    tenant: str = DEFAULT_TENANT
    priority: int = 0
    delay_ms: int = 0
    run_at_ms: int | None = None
    max_attempts: int | None = None
    dedupe_key: str | None = None
    limit_key: str | None = None
    correlation_id: str | None = None
    expires_at_ms: int | None = None
    timeout_ms: int | None = None
    headers: str | None = None
    retry: str | None = None
    extra: str | None = None


class LeasedJob(NamedTuple):
    """A job leased to a worker for one attempt; a plain tuple, because one is created per attempt."""

    key: int
    attempt: int
    attempts: int
    max_attempts: int
    type: str
    group: str
    tenant: str
    lease_until_ms: int
    variables: str
    headers: str | None
    priority: int
    run_at_ms: int
    created_at_ms: int
    timeout_ms: int | None
    correlation_id: str | None
    limit_key: str | None
    extra: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A complete job. Instants are milliseconds UTC, JSON values are texts."""

    key: int
    type: str
    state: State
    tenant: str = DEFAULT_TENANT
    group: str = DEFAULT_GROUP
    variables: str = "{}"
    headers: str | None = None
    result: str | None = None
    priority: int = 0
    attempt: int = 0
    attempts: int = 0
    max_attempts: int = 0
    retries: int = 0
    created_at_ms: int = 0
    run_at_ms: int = 0
    activated_at_ms: int | None = None
    lease_until_ms: int | None = None
    finished_at_ms: int | None = None
    expires_at_ms: int | None = None
    timeout_ms: int | None = None
    worker: str | None = None
    last_error: str | None = None
    error_code: str | None = None
    rejected: bool = False
    dedupe_key: str | None = None
    limit_key: str | None = None
    correlation_id: str | None = None
    copy_of: int | None = None
    extra: str | None = None


class HistoryEntry(NamedTuple):
    """One entry of a job's history: how an attempt ended, or that the job was requeued.

    `kind` is complete, fail, retry, reject, throw, lapse, release, cancel, expire or requeue. A failure that
    was retried has `retry_at_ms`.
    """

    attempt: int
    kind: str
    at_ms: int
    worker: str | None = None
    error: str | None = None
    activated_at_ms: int | None = None
    retry_at_ms: int | None = None
