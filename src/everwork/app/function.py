"""A job function: a handler with its type and settings."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar

from everwork.core import checks
from everwork.core.breaker import CircuitBreaker
from everwork.core.leasing import Created
from everwork.core.limits import CONCURRENCY_MAX, LEASE_MS_MAX
from everwork.core.policy import TypePolicy, require_breaker, require_type_policy
from everwork.core.retry import DEFAULT_POLICY, RetryPolicy, require_policy
from everwork.exceptions import BadConfiguration, InvalidInput
from everwork.runtime.handler import Arguments, Handler, QueueKey
from everwork.runtime.middleware import Middleware, require_middleware
from everwork.service.policies import fields_in_code, retry_in_code

if TYPE_CHECKING:
    from everwork.app.function_triggers import FunctionTrigger

P = ParamSpec("P")
R = TypeVar("R")


class JobKey(int):
    """A job's key; `deduplicated` says that the job existed already.

    `is_spooled`: the engine is unavailable, and the job waits in the local spool under its `spool_id`; the number is
    negative and names no job. `await app.delivered(key)` returns the real key.
    """

    deduplicated: bool = False
    spool_id: str = ""

    @property
    def is_spooled(self) -> bool:
        """Whether the job waits in the local spool."""
        return bool(self.spool_id)

    @classmethod
    def of(cls, created: Created) -> JobKey:
        """The key of a created job."""
        key = cls(created.key)
        if created.deduplicated:
            key.deduplicated = True
        if created.spool_id:
            key.spool_id = created.spool_id
        return key


class Enqueue(Protocol):
    """How an application enqueues one job."""

    def __call__(self, type: str, /, **arguments: Any) -> Awaitable[JobKey]:
        """Create a job of this type."""
        ...


class JobFunction(Generic[P, R]):
    """What `@app.job` makes of a function. Calling it calls the function; `enqueue` lets a worker call it."""

    def __init__(
        self,
        function: Callable[P, R],
        type: str,
        *,
        retry: RetryPolicy | None,
        concurrency: int,
        timeout: float,
        enqueue: Enqueue,
        cron: object = None,
        breaker: CircuitBreaker | None = None,
        policy: TypePolicy | None = None,
        middleware: Sequence[Middleware] = (),
    ) -> None:
        if not callable(function):
            raise BadConfiguration(f"@app.job({type!r}) must stand above a function, not {checks.shown(function)}")
        self.function = function
        self.type = checks.name("type", type)
        retry, policy = require_policy("retry", retry), require_type_policy("policy", policy)
        self.retry = retry_in_code(retry, policy, DEFAULT_POLICY)
        self.policy_said = fields_in_code(self.retry, require_breaker("breaker", breaker), policy)
        self.concurrency = checks.whole_number("concurrency", concurrency, 1, CONCURRENCY_MAX)
        self.timeout = checks.number("timeout", timeout, 0.001, LEASE_MS_MAX / 1000)
        self.middleware = require_middleware("middleware", middleware)
        self.arguments = Arguments(function)
        self.is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004 - an object with an async __call__ is a handler too
        )
        self.trigger = None if cron is None else self._scheduled(cron)
        self._enqueue = enqueue
        self.__doc__ = function.__doc__
        self.__name__ = getattr(function, "__name__", type)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself, here and now."""
        return self.function(*args, **kwargs)

    async def enqueue(self, **arguments: Any) -> JobKey:
        """Create a job of this function; takes its arguments, and the options of `Everwork.enqueue`."""
        return await self._enqueue(self.type, **arguments)

    def _scheduled(self, cron: object) -> FunctionTrigger:
        # Loaded only by functions with a schedule.
        from everwork.app.function_triggers import function_trigger  # noqa: PLC0415

        try:
            self.arguments.check_names({})
        except InvalidInput as error:
            raise InvalidInput("cron", f"argument '{error.field}' must have a default: a schedule gives none") from None
        return function_trigger(self.type, cron, self.retry)

    def handler(self, around: tuple[Middleware, ...] = ()) -> Handler:
        """The function as the runtime sees it, with the application's middleware around its own."""
        return Handler(
            name=self.type,
            queues=(QueueKey(self.type),),
            function=self.function,
            arguments=self.arguments,
            is_async=self.is_async,
            is_final=self.retry is None,
            concurrency=self.concurrency,
            timeout=self.timeout,
            can_emit=self.arguments.collector_name is not None,
            middleware=(*around, *self.middleware),
        )
