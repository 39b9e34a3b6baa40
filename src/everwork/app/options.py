"""The options of a job, apart from its arguments: declared once, for every way to enqueue."""

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
    """The options of `using`. Options that are not set have the defaults of the type."""

    delay: float | None
    """Run this many seconds from now."""
    run_at: datetime | None
    """Run at this time; it must have a time zone."""
    priority: int
    """From -512 to 511; higher first, 0 by default."""
    tenant: str
    """The tenant that the job belongs to."""
    dedupe_key: str | None
    """No second job is created while a job of this tenant and type with the same key is kept."""
    limit_key: str | None
    """Jobs with the same key share the limit `max_running_per_key`, and take turns with others."""
    correlation_id: str | None
    """Your own id, by which jobs can be found."""
    expires_at: datetime | None
    """If the job has not started by then, it is cancelled."""
    timeout: float | None
    """Time limit of one attempt, in seconds."""
    headers: Mapping[str, Any] | None
    """Metadata for middleware and handlers, separate from the arguments."""
    max_attempts: int | None
    """Number of attempts, including the first."""
    retry: RetryPolicy | None
    """The job's own retry policy."""
    tx: object
    """A connection or session to the database that holds the jobs: the job is created in its transaction."""


OPTIONS: Final = frozenset(JobOptions.__annotations__)
FOREIGN_NAMES: Final = {
    **dict.fromkeys(("countdown", "schedule_in"), "delay"),
    **dict.fromkeys(("eta", "run_after", "schedule_at"), "run_at"),
    **dict.fromkeys(("job_id", "task_id", "queueing_lock"), "dedupe_key"),
    **dict.fromkeys(("retries", "max_retries"), "max_attempts"),
    **dict.fromkeys(("time_limit", "job_timeout"), "timeout"),
    "expires": "expires_at",
}
"""What other queues call an option, and its name here."""


class Options:
    """Checked options: a job without arguments, and the transaction to create it in."""

    __slots__ = ("given", "template", "tx")

    def __init__(self, type: str, given: Mapping[str, Any]) -> None:
        for name in sorted(given.keys() - OPTIONS):
            other = (
                f"its name here is {FOREIGN_NAMES[name]}"
                if name in FOREIGN_NAMES
                else f"allowed are {', '.join(sorted(OPTIONS))}"
            )
            raise InvalidInput(name, f"is not an option of a job; {other}")
        self.given = given
        fields = dict(given)
        self.tx = fields.pop("tx", None)
        self.template = new_job(type, {}, **fields)

    def job(self, arguments: Mapping[str, Any], attempts: int | None = None) -> NewJob:
        """A job with these arguments; `attempts` are those of its type, unless the options say how many."""
        fields: list[Any] = [*self.template]  # Faster than `_replace`, which every job would pay for.
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
