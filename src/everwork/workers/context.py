"""What a handler can know of the job that it runs."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from everwork.engines.codec import decode
from everwork.workers.attempt import Attempt, Stop


class JobContext:
    """Passed to a handler that has a parameter annotated with it."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        job = attempt.job
        self.key = job.key
        self.type = job.type
        self.tenant = job.tenant
        self.attempt = job.attempt
        self.attempts = job.attempts
        self.max_attempts = job.max_attempts
        self.correlation_id = job.correlation_id
        self.created_at_ms = job.created_at_ms

    @cached_property
    def headers(self) -> dict[str, Any]:
        """The headers that the job was created with."""
        headers: dict[str, Any] = decode(self._attempt.job.headers) if self._attempt.job.headers else {}
        return headers

    @property
    def cancelled(self) -> bool:
        """Whether the result no longer matters: cancelled, timed out, or the lease is lost. For handlers in threads."""
        stop = self._attempt.stop
        return stop is not None and stop is not Stop.SHUTDOWN
