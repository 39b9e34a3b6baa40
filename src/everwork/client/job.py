"""A leased job as a worker receives it: cheap to create, because its JSON is parsed only on first use."""

from __future__ import annotations

from typing import Any

from everwork.codec.json import decode_stored_object
from everwork.core import checks
from everwork.core.job import LeasedJob
from everwork.core.leasing import Lease
from everwork.exceptions import Fail, InvalidInput


class ActiveJob:
    """A leased job, passed to the handlers of `Client.work` and returned by `Client.activate`.

    `key` is the job's key, `type` its type, and `attempt` the number of this attempt.
    """

    __slots__ = ("_headers", "_source", "_variables", "attempt", "is_lost", "key", "type")

    def __init__(self, source: Any) -> None:
        self._source = source
        self._variables: dict[str, Any] | None = None
        self._headers: dict[str, Any] | None = None
        self.key: int = source.key
        self.attempt: int = source.attempt
        self.type: str = source.type
        self.is_lost = False
        """Whether the result will be discarded: the job was cancelled, or its lease expired."""

    @property
    def variables(self) -> dict[str, Any]:
        """The variables (arguments) that the job was created with."""
        if self._variables is None:
            self._variables = _object("variables", self._source.variables)
        return self._variables

    @property
    def headers(self) -> dict[str, Any]:
        """The headers that the job was created with."""
        if self._headers is None:
            self._headers = _object("headers", self._source.headers) if self._source.headers else {}
        return self._headers

    @property
    def tenant(self) -> str:
        """The tenant that the job belongs to."""
        return str(self._source.tenant)

    @property
    def group(self) -> str:
        """The consumer group; empty for the default one."""
        group: str = self._source.group
        return group

    @property
    def attempts(self) -> int:
        """How many attempts count against `max_attempts`, including this one."""
        return int(self._source.attempts)

    @property
    def max_attempts(self) -> int:
        """The maximum number of attempts."""
        return int(self._source.max_attempts)

    @property
    def retries(self) -> int:
        """How many attempts are left, including this one."""
        return self.max_attempts - self.attempts + 1

    @property
    def lease_until_ms(self) -> int:
        """When the lease expires unless it is extended, by the engine's clock: milliseconds since 1970, UTC."""
        return int(self._source.lease_until_ms)

    @property
    def run_at_ms(self) -> int:
        """When the job became due: milliseconds since 1970, UTC."""
        return int(self._source.run_at_ms)

    @property
    def created_at_ms(self) -> int:
        """When the job was created: milliseconds since 1970, UTC."""
        return int(self._source.created_at_ms)

    @property
    def priority(self) -> int:
        """The job's priority; jobs with a higher one run first."""
        return int(self._source.priority)

    @property
    def timeout_ms(self) -> int | None:
        """The time limit of one attempt in milliseconds, if the job has one."""
        return self._source.timeout_ms or None

    @property
    def correlation_id(self) -> str | None:
        """The correlation id that the job was created with."""
        return self._source.correlation_id or None

    @property
    def limit_key(self) -> str | None:
        """The limit key that the job was created with."""
        return self._source.limit_key or None

    @property
    def extra(self) -> dict[str, Any]:
        """Additional values that the job was created with."""
        return _object("extra", self._source.extra) if self._source.extra else {}

    def __repr__(self) -> str:
        return f"ActiveJob(key={self.key}, attempt={self.attempt}, type={self.type!r})"


Attempt = ActiveJob | LeasedJob | Lease | int | str
"""What identifies an attempt: an `ActiveJob`, or the job's key."""


def lease_of(job: Attempt, attempt: int = 0) -> Lease:
    """The job's key and the attempt number; 0 stands for the running attempt."""
    if isinstance(job, ActiveJob | LeasedJob | Lease):
        return Lease(job.key, job.attempt)
    return Lease(checks.job_key(job), checks.attempt(attempt))


def _object(field: str, text: str) -> dict[str, Any]:
    """A JSON object of the job; a job that was damaged in the store fails permanently."""
    try:
        return decode_stored_object(field, text)
    except InvalidInput as error:
        raise Fail(str(error)) from None
