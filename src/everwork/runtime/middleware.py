"""Middleware: user code around each handler call."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from everwork.codec.json import decode_stored_object
from everwork.core.checks import shown
from everwork.core.job import LeasedJob
from everwork.exceptions import BadConfiguration


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A handler call, as middleware sees it: the job and its current attempt.

    `attempt` is the number of this attempt, counting every activation; `attempts` is how many count against
    `max_attempts`, including this one (released attempts do not count). `arguments` are the job's arguments; they are
    validated when the handler is called, so `proceed(dataclasses.replace(call, arguments=...))` calls it with other
    arguments.
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
            arguments=decode_stored_object("variables", job.variables),
            headers=decode_stored_object("headers", job.headers) if job.headers else {},
            correlation_id=job.correlation_id,
            limit_key=job.limit_key,
            created_at_ms=job.created_at_ms,
        )


Proceed = Callable[[Call], Awaitable[Any]]
MakeMiddleware = Callable[[], "Middleware"]


class Middleware:
    """Base class for middleware around each handler call::

        class Timing(Middleware):
            async def __call__(self, call: Call, proceed: Proceed) -> Any:
                began = time.monotonic()
                try:
                    return await proceed(call)
                finally:
                    print(call.type, time.monotonic() - began)

    Pass instances as `middleware` to `Everwork` or `@app.job`, and classes to `Process`.
    """

    async def __call__(self, call: Call, proceed: Proceed) -> Any:
        """Run the call with `await proceed(call)`, or skip it. The job ends with what this returns or raises."""
        return await proceed(call)


def chained(middleware: Sequence[Middleware], innermost: Proceed) -> Proceed:
    """The call wrapped in all middleware; the first is the outermost."""
    proceed = innermost
    for one in reversed(middleware):
        proceed = _around(one, proceed)
    return proceed


def _around(one: Middleware, proceed: Proceed) -> Proceed:
    return lambda call: one(call, proceed)


def require_middleware(field: str, given: object) -> tuple[Middleware, ...]:
    """Validated middleware; an error names the index of the first invalid item."""
    if not isinstance(given, list | tuple):
        raise BadConfiguration(f"{field}: must be a list of middleware, not {shown(given)}")
    for at, one in enumerate(given):
        if not isinstance(one, Middleware):
            raise BadConfiguration(f"{field}[{at}]: must be an instance of a subclass of Middleware, not {shown(one)}")
        if not inspect.iscoroutinefunction(one.__call__):
            raise BadConfiguration(f"{field}[{at}]: {type(one).__name__}.__call__ must be an async function")
    return tuple(given)
