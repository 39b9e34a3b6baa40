"""Handlers as the runtime sees them: job functions, or instances of worker classes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, get_type_hints, is_typeddict

from everwork.codec.values import Values
from everwork.core.leasing import Judged
from everwork.core.limits import DEFAULT_GROUP, EVENTS_MAX
from everwork.core.outcome import Outcome
from everwork.exceptions import BadConfiguration, InvalidInput
from everwork.runtime.attempt import Attempt
from everwork.runtime.context import JobContext
from everwork.runtime.dependencies.plan import Plan, annotated, dependency_of, is_or_none, plan_for, readable_hints
from everwork.runtime.dependencies.process import ProcessScope
from everwork.runtime.events import EventCollector
from everwork.runtime.middleware import Middleware

OnEnd = Callable[[Attempt, Outcome, Judged], None]


class QueueKey(NamedTuple):
    """A queue of jobs: one group of one type."""

    type: str
    group: str = DEFAULT_GROUP


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Handler:
    """One handler. It runs up to `concurrency` jobs concurrently, from all of its queues together.

    `name` is a worker's id or a function's type; `title` is a worker's title. Without `arguments`, it is called with
    the job itself. `is_final`: an exception or a timeout fails the job permanently. `can_emit`: calls can emit events,
    so each has a collector. `index` is its number in its process, for the ledger shared with the parent. `middleware`
    wraps its calls, the first outermost. `result` converts return values that are not plain JSON. `process` holds what
    the handlers of this process share. `on_end` is called in the engine's thread with the store's verdict on each
    outcome; it must not block or raise.
    """

    name: str
    queues: tuple[QueueKey, ...]
    function: Callable[..., Any]
    arguments: Arguments | None
    is_async: bool
    is_final: bool
    concurrency: int
    timeout: float
    can_emit: bool = True
    events_max: int = EVENTS_MAX
    settle_events_max: int = EVENTS_MAX
    index: int = 0
    middleware: tuple[Middleware, ...] = ()
    title: str = ""
    result: Values | None = None
    process: ProcessScope | None = None
    on_end: OnEnd | None = None


class Arguments:
    """The parameters of a handler: converts arguments to a job's variables and back."""

    def __init__(self, function: Callable[..., Any]) -> None:
        try:
            signature = inspect.signature(function)
        except (NameError, ValueError) as error:
            raise BadConfiguration(f"handler {function!r}: its parameters cannot be read: {error}") from None
        hints = _hints(function)
        self.context_name: str | None = None
        self.collector_name: str | None = None
        self.dependencies: dict[str, Plan] = {}
        self._values: dict[str, Values] = {}
        self._exact: dict[str, frozenset[type] | None] = {}
        self._positional: list[str] = []
        self._required: set[str] = set()
        self._rest: Values | None = None
        """The values of `**arguments`, if the handler accepts any name."""
        self._exact_rest: frozenset[type] | None = None
        for name, parameter in signature.parameters.items():
            self._add(name, parameter, hints.get(name, Any))
        self._reserved = {_bound_name(function), self.context_name, self.collector_name}

    def _add(self, name: str, parameter: inspect.Parameter, hint: object) -> None:
        if is_or_none(hint, JobContext):
            self.context_name = name
        elif is_or_none(hint, EventCollector):
            self.collector_name = name
        elif (dependency := dependency_of(name, hint, parameter.default)) is not None:
            self.dependencies[name] = plan_for(name, dependency)
            if parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
                self._positional.append(name)  # It has a position, although callers pass no argument for it.
        elif parameter.kind is parameter.VAR_KEYWORD:
            self._rest = Values(name, hint)
            self._exact_rest = self._rest.exact
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
            raise BadConfiguration(f"parameter '{name}': handlers take keyword arguments only, no *args and no '/'")
        else:
            self._values[name] = values = Values(name, hint)
            self._exact[name] = values.exact
            if parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
                self._positional.append(name)
            if parameter.default is parameter.empty:
                self._required.add(name)

    @property
    def names(self) -> Iterable[str]:
        """The names of the arguments that callers pass."""
        return self._values.keys()

    def named(self, given: tuple[Any, ...], arguments: dict[str, Any]) -> dict[str, Any]:
        """All arguments by name, positional ones first."""
        if len(given) > len(self._positional):
            positional = [name for name in self._positional if name not in self.dependencies]
            allowed = f"{len(positional)} by position ({', '.join(positional) or 'none'})"
            raise InvalidInput("arguments", f"must be at most {allowed}, not {len(given)}")
        by_position = dict(zip(self._positional, given, strict=False))
        for name in by_position.keys() & arguments.keys():
            raise InvalidInput(name, "is passed twice: by position and by name")
        return by_position | arguments

    def check_names(self, given: Mapping[str, Any]) -> None:
        """Refuse unknown and missing arguments."""
        for name in given:
            if name in self._values:
                continue
            if name in self.dependencies:
                filled = f"Depends({self.dependencies[name].name})"
                raise InvalidInput(name, f"is filled by {filled} when the job runs, and cannot be passed")
            if self._rest is None:
                allowed = ", ".join(f"'{one}'" for one in self._values) or "none"
                raise InvalidInput(name, f"the handler has no such argument; it takes {allowed}")
            if name in self._reserved:
                raise InvalidInput(
                    name, "is reserved: the handler receives another value under this name; rename the argument"
                )
        missing = self._required - given.keys()
        if missing:
            raise InvalidInput(min(missing), "the handler needs this argument")

    def dump(self, given: dict[str, Any]) -> dict[str, Any]:
        """Validated arguments as plain JSON values; the first invalid one raises."""
        if given.keys() != self._required:
            self.check_names(given)
        for name, value in given.items():
            exact = self._exact.get(name, self._exact_rest)
            if exact is not None and type(value) not in exact:
                given[name] = self._of(name).dump(name, value)
        return given

    def bind(self, given: dict[str, Any]) -> dict[str, Any]:
        """The arguments of the call, from a job's variables; the first invalid one raises."""
        if given.keys() != self._required:
            self.check_names(given)
        for name, value in given.items():
            exact = self._exact.get(name, self._exact_rest)
            if exact is not None and type(value) not in exact:
                given[name] = self._of(name).load(name, value)
        return given

    def _of(self, name: str) -> Values:
        values = self._values.get(name, self._rest)
        assert values is not None, "names are checked first"  # noqa: S101 - for the type checker
        return values


def result_values(function: Callable[..., Any]) -> Values | None:
    """The converter for a handler's annotated return type; None if it is plain JSON or not annotated."""
    hint = _hints(function).get("return", Any)
    if is_typeddict(hint):
        return None  # A plain dictionary; pydantic does not support every TypedDict on Python 3.11.
    values = Values("result", hint)
    return None if values.is_plain else values


def _bound_name(function: Callable[..., Any]) -> str | None:
    """The name of a method's `self`, which no argument can have."""
    return next(iter(inspect.signature(function.__func__).parameters), None) if inspect.ismethod(function) else None


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    function = annotated(function)
    try:
        return get_type_hints(function, include_extras=True)
    except Exception as error:  # noqa: BLE001 - annotations are users' code
        hints = readable_hints(function)
        parameters = inspect.signature(function).parameters
        unread = [parameters.get(name) for name, hint in hints.items() if isinstance(hint, str)]
        if unread and all(one is not None and dependency_of(one.name, Any, one.default) for one in unread):
            return hints  # The return type of a dependency is not needed: it may be imported for type checkers only.
        raise BadConfiguration(f"handler {function!r}: its annotations cannot be read: {error}") from None
