"""Handlers as the runtime sees them: job functions, or instances of worker classes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, get_type_hints

from everwork.core.checks import shown
from everwork.core.limits import DEFAULT_GROUP, EVENTS_MAX
from everwork.exceptions import BadConfiguration, InvalidInput
from everwork.runtime.context import JobContext
from everwork.runtime.events import EventCollector
from everwork.runtime.middleware import Middleware


class QueueKey(NamedTuple):
    """A queue that jobs are taken from: a group of a type."""

    type: str
    group: str = DEFAULT_GROUP


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Handler:
    """One handler. It runs up to `concurrency` jobs concurrently, from all of its queues together.

    `name` is the worker's id, or a function's type; `title` is a worker's own. Without `arguments` it takes the job
    itself. `is_final`: an exception or a timeout fails the job for good. `can_emit`: its calls may emit events, so each
    has a collector. `index` is its number in its process, for the ledger that the process shares with its parent.
    `middleware` wraps its calls, the first outermost.
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


NO_TYPE: frozenset[type] = frozenset()
_EXACT: Mapping[object, frozenset[type]] = {
    str: frozenset({str}),
    int: frozenset({int}),
    float: frozenset({float, int}),
    bool: frozenset({bool}),
    dict: frozenset({dict}),
    list: frozenset({list}),
    None: frozenset({type(None)}),
}
"""Annotations that JSON values match as they are; everything else goes through pydantic."""


class Arguments:
    """The parameters of a handler, and how a job's variables become its arguments."""

    def __init__(self, function: Callable[..., Any]) -> None:
        try:
            signature = inspect.signature(function)
        except ValueError as error:
            raise BadConfiguration(f"handler {function!r}: its parameters cannot be read: {error}") from None
        self._hints = hints = _hints(function)
        self.context_name: str | None = None
        self.collector_name: str | None = None
        self._names: dict[str, frozenset[type] | None] = {}
        self._required: set[str] = set()
        self._takes_any = False
        self._adapters: dict[str, Any] = {}
        self._rest: object = Any
        for name, parameter in signature.parameters.items():
            self._add(name, parameter, hints.get(name, Any))
        self._exact_rest = _exact(self._rest)
        self._reserved = {_bound_name(function), self.context_name, self.collector_name}

    def _add(self, name: str, parameter: inspect.Parameter, hint: object) -> None:
        if hint is JobContext:
            self.context_name = name
        elif hint is EventCollector:
            self.collector_name = name
        elif parameter.kind is parameter.VAR_KEYWORD:
            self._takes_any = True
            self._rest = hint
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
            raise BadConfiguration(f"parameter '{name}': handlers take keyword arguments only, no *args and no '/'")
        else:
            self._names[name] = _exact(hint)
            if self._names[name] == NO_TYPE:
                self._adapters[name] = _adapter(name, hint)
            if parameter.default is parameter.empty:
                self._required.add(name)

    def check_names(self, given: Mapping[str, Any]) -> None:
        """Refuse unknown and missing arguments."""
        for name in given:
            if name in self._names:
                continue
            if not self._takes_any:
                allowed = ", ".join(self._names) or "none"
                raise InvalidInput(name, f"the handler has no such argument; it takes {allowed}")
            if name in self._reserved:
                raise InvalidInput(name, "is taken: the handler gets something else by this name; rename the argument")
        missing = self._required - given.keys()
        if missing:
            raise InvalidInput(min(missing), "the handler needs this argument")

    def bind(self, given: dict[str, Any]) -> dict[str, Any]:
        """The arguments of the call, coerced; the first that does not fit raises."""
        if given.keys() != self._required:
            self.check_names(given)
        for name, value in given.items():
            exact = self._names.get(name, self._exact_rest)
            if exact is not None and type(value) not in exact:
                given[name] = self._coerce(name, value)
        return given

    def _coerce(self, name: str, value: Any) -> Any:
        from pydantic import ValidationError  # noqa: PLC0415 - see _adapter

        known, hint = (name, self._hints[name]) if name in self._names else ("**", self._rest)
        adapter = self._adapters.get(known)
        if adapter is None:
            self._adapters[known] = adapter = _adapter(known, hint)
        try:
            return adapter.validate_python(value)
        except ValidationError as error:
            problem = error.errors(include_url=False, include_input=False)[0]["msg"]
            raise InvalidInput(name, f"{problem}, not {shown(value)}") from None


def _bound_name(function: Callable[..., Any]) -> str | None:
    """The name of a method's `self`, which no argument may have."""
    return next(iter(inspect.signature(function.__func__).parameters), None) if inspect.ismethod(function) else None


def _exact(hint: Any) -> frozenset[type] | None:
    """The types of JSON values that need no coercion; None: all."""
    if hint is Any or hint is object:
        return None
    try:
        return _EXACT.get(hint, NO_TYPE)
    except TypeError:  # An annotation that cannot be hashed.
        return NO_TYPE


def _adapter(name: str, hint: Any) -> Any:
    """Converts JSON values to an annotated type; an impossible annotation is refused at the declaration."""
    # pydantic is loaded only for more than plain JSON types, or for values that do not fit.
    from pydantic import PydanticUserError, TypeAdapter  # noqa: PLC0415

    try:
        return TypeAdapter(hint)
    except (PydanticUserError, TypeError) as error:
        problem = str(error).splitlines()[0]
        raise BadConfiguration(f"parameter '{name}': its annotation cannot be filled from JSON: {problem}") from None


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as error:
        raise BadConfiguration(f"handler {function!r}: its annotations cannot be read: {error}") from None
