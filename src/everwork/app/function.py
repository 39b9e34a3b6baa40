"""A job function: a handler with its type and settings."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, Final, Generic, NoReturn, ParamSpec, Protocol, TypeVar, overload

from everwork.app.enqueuer import Door, FunctionEnqueuer
from everwork.app.options import Options
from everwork.codec.json import require_object
from everwork.core import checks
from everwork.core.breaker import CircuitBreaker
from everwork.core.limits import CONCURRENCY_MAX, LEASE_MS_MAX
from everwork.core.policy import TypePolicy, require_breaker, require_type_policy
from everwork.core.retry import DEFAULT_POLICY, RetryPolicy, require_policy
from everwork.exceptions import BadConfiguration, InvalidInput
from everwork.runtime.context import JobContext
from everwork.runtime.dependencies.process import ProcessScope
from everwork.runtime.handler import Arguments, Handler, OnEnd, QueueKey, result_values
from everwork.runtime.middleware import Middleware, require_middleware
from everwork.service.policies import fields_in_code, retry_in_code

if TYPE_CHECKING:
    from everwork.app.function_triggers import FunctionTrigger

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class JobFunction(FunctionEnqueuer[P, R], Generic[P, R, Q, T]):
    """A function declared with `@app.job`. `send.enqueue(...)` creates a job; `send(...)` calls the function directly.

    Type parameters: `P` and `R` are the arguments and the result of a job; `Q` and `T` those of the function itself,
    which can take a `JobContext` first and return a coroutine.
    """

    def __init__(  # noqa: PLR0913 - all settings of a type
        self,
        function: Callable[Q, T],
        type: str,
        door: Door,
        *,
        retry: RetryPolicy | None,
        concurrency: int,
        timeout: float,
        cron: object = None,
        cron_arguments: Mapping[str, Any] | None = None,
        is_catchup: bool = True,
        breaker: CircuitBreaker | None = None,
        policy: TypePolicy | None = None,
        middleware: Sequence[Middleware] = (),
    ) -> None:
        _require_function(function, type)
        self.function = function
        self.type = checks.name("type", type)
        retry, policy = require_policy("retry", retry), require_type_policy("policy", policy)
        self.retry = retry_in_code(retry, policy, DEFAULT_POLICY)
        self.policy_said = fields_in_code(self.retry, require_breaker("breaker", breaker), policy)
        self.concurrency = checks.whole_number("concurrency", concurrency, 1, CONCURRENCY_MAX)
        self.timeout = checks.number("timeout", timeout, 0.001, LEASE_MS_MAX / 1000)
        self.middleware = require_middleware("middleware", middleware)
        self.arguments = Arguments(function)
        self.result_values = result_values(function)
        self.load = None if self.result_values is None else partial(self.result_values.load, "result")
        """Converts a stored result to the annotated type; None returns plain JSON values."""
        self.is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004 - an object with an async __call__ is a handler too
        )
        self.trigger = self._scheduled(cron, cron_arguments, is_catchup)
        self.pool = self.type
        """Functions of one pool share its concurrency."""
        self.on_end: OnEnd | None = None
        self.__doc__ = function.__doc__
        self.__name__ = getattr(function, "__name__", type)
        super().__init__(door, self, Options(type, {}))

    def __call__(self, *args: Q.args, **kwargs: Q.kwargs) -> T:
        """Call the function directly, without a job."""
        return self.function(*args, **kwargs)

    if not TYPE_CHECKING:  # Type checkers would accept every name, and treat the code after it as unreachable.

        def __getattr__(self, name: str) -> NoReturn:
            own = self.__dict__.get("__name__")
            hint = f": write {_INSTEAD[name].format(own)}" if name in _INSTEAD else ""
            raise AttributeError(f"a job function has no attribute {name!r}{hint}")

    def __repr__(self) -> str:
        return f"<JobFunction {self.__name__} of type {self.type!r}>"

    def _scheduled(self, cron: object, given: Mapping[str, Any] | None, is_catchup: object) -> FunctionTrigger | None:
        if not isinstance(is_catchup, bool):
            raise InvalidInput("is_catchup", f"must be True or False, not {checks.shown(is_catchup)}")
        if cron is None:
            if given is not None:
                raise InvalidInput("cron_arguments", "need a schedule: set cron as well")
            return None
        # Imported only for functions with a schedule.
        from everwork.app.function_triggers import function_trigger  # noqa: PLC0415

        arguments = {**require_object("cron_arguments", given or {})}
        try:
            arguments = self.arguments.dump(arguments)
        except InvalidInput as error:
            if error.field in arguments:
                raise InvalidInput(f"cron_arguments.{error.field}", error.problem) from None
            raise InvalidInput(
                "cron", f"argument '{error.field}' must have a default, or be in cron_arguments"
            ) from None
        return function_trigger(self.type, cron, self.retry, arguments=arguments, is_catchup=is_catchup)

    def handler(self, around: tuple[Middleware, ...] = (), process: ProcessScope | None = None) -> Handler:
        """The function as a handler of the runtime, with the application's middleware around its own."""
        return Handler(
            name=self.pool,
            queues=(QueueKey(self.type),),
            function=self.function,
            arguments=self.arguments,
            is_async=self.is_async,
            is_final=self.retry is None,
            concurrency=self.concurrency,
            timeout=self.timeout,
            can_emit=self.arguments.collector_name is not None,
            middleware=(*around, *self.middleware),
            result=self.result_values,
            process=process,
            on_end=self.on_end,
        )


_ENQUEUE: Final = "await {0}.enqueue(...), or {0}.sync.enqueue(...) in synchronous code"
_ENQUEUE_WITH: Final = "await {0}.using(delay=...).enqueue(...), or {0}.sync.using(delay=...).enqueue(...)"
_INSTEAD: Final = {
    **dict.fromkeys(("delay", "send", "defer", "kiq"), _ENQUEUE),
    **dict.fromkeys(("apply_async", "send_with_options", "schedule"), _ENQUEUE_WITH),
    **dict.fromkeys(("configure", "options"), "{0}.using(...)"),
    **dict.fromkeys(("s", "si", "signature"), "{0}.call(...)"),
}
"""Names from the task objects of other job queues, and what to write instead."""
_NO_METHOD = "is a method: @app.job takes a function; for a class, use AbstractWorker"
_NO_GENERATOR = "is a generator: a handler returns its result and must not yield"


def _require_function(function: object, type: object) -> None:
    if not callable(function):
        raise BadConfiguration(f"@app.job({type!r}) must decorate a function, not {checks.shown(function)}")
    if inspect.isclass(function):
        raise BadConfiguration(f"@app.job({type!r}) must decorate a function, not class '{function.__name__}'")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise BadConfiguration(f"'{getattr(function, '__name__', type)}' {_NO_GENERATOR}")
    if inspect.isfunction(function) and next(iter(inspect.signature(function).parameters), "") in ("self", "cls"):
        raise BadConfiguration(f"'{function.__name__}' {_NO_METHOD}")


class _NoContext:
    """For type checkers: any class except `JobContext`."""

    _is_unlike_others: None


class _TakesAnything(Protocol[P, T_co]):
    """A function whose first parameter accepts any value or has no annotation, so it is not a `JobContext`."""

    @overload
    def __call__(self, other: _NoContext, /, *args: Any, **kwargs: Any) -> Any: ...
    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T_co: ...


class Declare(Protocol):
    """The decorator that `app.job` returns: it keeps the function's own types."""

    @overload
    def __call__(
        self, function: _TakesAnything[P, Coroutine[Any, Any, R]], /
    ) -> JobFunction[P, R, P, Coroutine[Any, Any, R]]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]  # A parameter that accepts anything accepts a context, too; the first match counts.
        self, function: _TakesAnything[P, R], /
    ) -> JobFunction[P, R, P, R]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[JobContext, P], Coroutine[Any, Any, R]], /
    ) -> JobFunction[P, R, Concatenate[JobContext, P], Coroutine[Any, Any, R]]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[JobContext, P], R], /
    ) -> JobFunction[P, R, Concatenate[JobContext, P], R]: ...
    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> JobFunction[P, R, P, Coroutine[Any, Any, R]]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> JobFunction[P, R, P, R]: ...
