"""Middleware: users' own code around each call of a handler."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from everwork.codec.json import decode
from everwork.core.checks import shown
from everwork.core.job import LeasedJob
from everwork.exceptions import BadConfiguration


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of a handler, before it is made: the job, and which of its attempts this is.

    `attempt` numbers every activation, `attempts` those that count against `max_attempts`, this one included. The
    arguments are the job's own; they are checked against the handler's annotations when the call is made, so
    `dataclasses.replace(call, arguments=...)` calls it with others.
    """

    key: int
    type: str
    group: str
    tenant: str
    attempt: int
    attempts: int
    max_attempts: int
    arguments: Mapping[str, Any]
    headers: Mapping[str, Any]
    correlation_id: str | None
    limit_key: str | None
    created_at_ms: int

    @classmethod
    def of(cls, job: LeasedJob) -> Call:
        """The call of a leased job."""
        return cls(
            key=job.key,
            type=job.type,
            group=job.group,
            tenant=job.tenant,
            attempt=job.attempt,
            attempts=job.attempts,
            max_attempts=job.max_attempts,
            arguments=decode(job.variables),
            headers=decode(job.headers) if job.headers else {},
            correlation_id=job.correlation_id,
            limit_key=job.limit_key,
            created_at_ms=job.created_at_ms,
        )


Proceed = Callable[[Call], Awaitable[Any]]
MakeMiddleware = Callable[[], "Middleware"]


class Middleware:
    """Base class of users' middleware around each call of a handler."""

    async def __call__(self, call: Call, proceed: Proceed) -> Any:
        """Call the handler, or not; what this returns or raises counts as the handler's own."""
        return await proceed(call)


def chained(middleware: Sequence[Middleware], innermost: Proceed) -> Proceed:
    """The call wrapped in all middleware, the first outermost."""
    proceed = innermost
    for one in reversed(middleware):
        proceed = _around(one, proceed)
    return proceed


def _around(one: Middleware, proceed: Proceed) -> Proceed:
    return lambda call: one(call, proceed)


def require_middleware(field: str, given: object) -> tuple[Middleware, ...]:
    """Checked middleware; the first wrong item is named by its index."""
    if not isinstance(given, list | tuple):
        raise BadConfiguration(f"{field}: must be a list of middleware, not {shown(given)}")
    for at, one in enumerate(given):
        if not isinstance(one, Middleware):
            raise BadConfiguration(f"{field}[{at}]: must be an instance of a subclass of Middleware, not {shown(one)}")
        if not inspect.iscoroutinefunction(one.__call__):
            raise BadConfiguration(f"{field}[{at}]: {type(one).__name__}.__call__ must be an async function")
    return tuple(given)
