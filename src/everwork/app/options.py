"""The options of a job, separate from its arguments: declared once, for every way to enqueue."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, TypedDict

from everwork.codec.json import encode
from everwork.codec.new_job import new_job
from everwork.core import checks
from everwork.core.job import NewJob
from everwork.core.limits import NAME_CHARS_MAX, PAYLOAD_BYTES_MAX
from everwork.core.retry import RetryPolicy
from everwork.exceptions import InvalidInput


class JobOptions(TypedDict, total=False):
    """The options of `using`. Unset options use the defaults of the job type."""

    delay: float | None
    """Seconds to wait before the job is due."""
    run_at: datetime | None
    """When the job is due: a datetime with time zone. Not together with `delay`."""
    priority: int
    """From -512 to 511; higher runs first. Default: 0."""
    tenant: str
    """The tenant that the job belongs to."""
    dedupe_key: str | None
    """If a job of the same tenant and type with this key exists, that job is returned and no other is created."""
    limit_key: str | None
    """Jobs with the same key, for example a customer, share the limit `max_running_per_key` of their type's policy."""
    correlation_id: str | None
    """Your own id, to find related jobs by."""
    expires_at: datetime | None
    """A datetime with time zone: if the job has not started by then, it is cancelled."""
    timeout: float | None
    """Time limit of one attempt, in seconds. Default: the handler's timeout."""
    headers: Mapping[str, Any] | None
    """Metadata for middleware and handlers, separate from the arguments."""
    max_attempts: int | None
    """Maximum number of attempts, including the first."""
    retry: RetryPolicy | None
    """A retry policy for this job only."""
    tx: object
    """A connection or session to the database that holds the jobs; the job is created in its transaction."""


OPTIONS: Final = frozenset(JobOptions.__annotations__)
FOREIGN_NAMES: Final = {
    **dict.fromkeys(("countdown", "schedule_in"), "delay"),
    **dict.fromkeys(("eta", "run_after", "schedule_at"), "run_at"),
    **dict.fromkeys(("job_id", "task_id", "queueing_lock"), "dedupe_key"),
    **dict.fromkeys(("retries", "max_retries"), "max_attempts"),
    **dict.fromkeys(("time_limit", "job_timeout"), "timeout"),
    "expires": "expires_at",
}
"""Names of options in other job queues, and their names here."""


class Options:
    """Validated options: a job without arguments, and the transaction to create it in."""

    __slots__ = ("given", "template", "tx")

    def __init__(self, type: str, given: Mapping[str, Any]) -> None:
        for name in sorted(given.keys() - OPTIONS):
            other = f"use {FOREIGN_NAMES[name]}" if name in FOREIGN_NAMES else f"allowed: {', '.join(sorted(OPTIONS))}"
            raise InvalidInput(name, f"is not a job option; {other}")
        self.given = given
        fields = dict(given)
        self.tx = fields.pop("tx", None)
        self.template = new_job(type, {}, **fields)

    def job(self, arguments: Mapping[str, Any], attempts: int | None = None) -> NewJob:
        """A job with these arguments; `attempts` applies unless the options set `max_attempts`."""
        fields: list[Any] = [*self.template]  # Faster than `_replace`; this runs for every job.
        fields[_VARIABLES] = encode_arguments(arguments)
        if attempts is not None and fields[_ATTEMPTS] is None:
            fields[_ATTEMPTS] = attempts
        return NewJob(*fields)


_VARIABLES: Final = NewJob._fields.index("variables")
_ATTEMPTS: Final = NewJob._fields.index("max_attempts")


def encode_arguments(arguments: Mapping[str, Any]) -> str:
    """Arguments as JSON text; an error names the first that cannot be stored."""
    try:
        return encode("variables", arguments, PAYLOAD_BYTES_MAX)
    except InvalidInput:
        for name, value in arguments.items():
            checks.text("argument", name, NAME_CHARS_MAX)
            encode(name, value, PAYLOAD_BYTES_MAX)
        raise
