"""`Depends`, and how each dependency is called: planned when a handler is declared, not when a job runs."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from types import SimpleNamespace, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

from everwork.core.checks import shown
from everwork.exceptions import BadConfiguration
from everwork.runtime.context import JobContext

if TYPE_CHECKING:
    from contextlib import _AsyncGeneratorContextManager, _GeneratorContextManager

T = TypeVar("T")

Scope = Literal["job", "process"]
SCOPES: Final = ("job", "process")
FILLED: Final = "a dependency can take JobContext, other dependencies, and parameters with a default"


@overload
def Depends(dependency: Callable[..., _AsyncGeneratorContextManager[T]], *, scope: Scope = ...) -> T: ...
@overload
def Depends(dependency: Callable[..., _GeneratorContextManager[T]], *, scope: Scope = ...) -> T: ...
@overload
def Depends(dependency: Callable[..., AsyncIterator[T]], *, scope: Scope = ...) -> T: ...
@overload
def Depends(dependency: Callable[..., Iterator[T]], *, scope: Scope = ...) -> T: ...
@overload
def Depends(dependency: Callable[..., Coroutine[Any, Any, T]], *, scope: Scope = ...) -> T: ...
@overload
def Depends(dependency: Callable[..., T], *, scope: Scope = ...) -> T: ...
def Depends(dependency: Callable[..., Any], *, scope: Scope = "job") -> Any:  # noqa: N802 - as in FastAPI
    """Declare a dependency of a handler, as in FastAPI: `def handler(db: Session = Depends(get_session))`.

    Args:
        dependency: A function, a generator that yields once, or a function with `@contextmanager`, each async or not;
            or a class. It can take other dependencies and a `JobContext`.
        scope: `"job"` (default): called once per attempt, and closed before the outcome is stored. `"process"`: called
            once per worker process, and closed when the workers stop.

    Raises `BadConfiguration` if an argument is invalid.
    """
    if scope not in SCOPES:
        raise BadConfiguration(f"Depends: scope must be one of {', '.join(SCOPES)}, not {shown(scope)}")
    if not callable(dependency):
        raise BadConfiguration(f"Depends: must take a function or a class, not {shown(dependency)}")
    return Dependency(dependency, scope)


@dataclass(frozen=True, slots=True)
class Dependency:
    """The object that `Depends` returns at run time."""

    dependency: Callable[..., Any]
    scope: Scope = "job"
    use_cache: bool = True

    def __repr__(self) -> str:
        return f"Depends({name_of(self.dependency)})"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Plan:
    """How one dependency is called: which other dependencies it needs, and whether it takes the context."""

    function: Callable[..., Any]
    key: object
    """The cache key of its value."""
    name: str
    scope: Scope
    is_cached: bool
    is_async: bool
    """Whether calling it only creates a coroutine or similar; any other call may block."""
    context_name: str | None = None
    needs: Mapping[str, Plan] = field(default_factory=dict)
    is_manager: bool = False
    """Whether the returned object is entered as a context manager, whatever its class."""


def dependency_of(name: str, hint: Any, default: object) -> Dependency | None:
    """The dependency of a parameter, if it has one. FastAPI's own `Depends` is accepted, too."""
    annotated = [_as_dependency(one, hint) for one in get_args(hint)[1:]] if get_origin(hint) is Annotated else []
    found = [one for one in (*annotated, _as_dependency(default, hint)) if one is not None]
    if len(found) > 1:
        raise BadConfiguration(f"parameter '{name}': has more than one Depends")
    return found[0] if found else None


def plan_for(parameter: str, dependency: Dependency) -> Plan:
    """The plan for a handler's parameter. One that cannot be filled is refused; the error shows its path."""
    return _Planner(f"parameter '{parameter}'").plan(dependency, ())


def is_or_none(hint: Any, wanted: type) -> bool:
    """Whether a parameter is annotated with a class, or with the union of that class and None."""
    return hint is wanted or (get_origin(hint) in (Union, UnionType) and set(get_args(hint)) == {wanted, type(None)})


def name_of(function: Any) -> str:
    """The name of a dependency in messages."""
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__name__", None)
    return name if isinstance(name, str) else type(function).__name__


class _Planner:
    def __init__(self, where: str) -> None:
        self._where = where

    def plan(self, dependency: Dependency, chain: tuple[Callable[..., Any], ...]) -> Plan:
        function, scope = dependency.dependency, dependency.scope
        if any(function == one for one in chain):
            raise self._refusal((*chain, function), "depends on itself")
        chain = (*chain, function)
        context_name: str | None = None
        needs: dict[str, Plan] = {}
        for name, parameter, hint in self._parameters(function, chain):
            if is_or_none(hint, JobContext):
                context_name = name
                self._require(scope == "job", chain, f"parameter '{name}': scope=\"process\" has no JobContext")
            elif (inner := dependency_of(name, hint, parameter.default)) is not None:
                needs[name] = self.plan(inner, chain)
                is_allowed = scope == "job" or inner.scope == "process"
                self._require(is_allowed, chain, f"parameter '{name}': must have scope=\"process\" as well")
            else:
                self._require_default(name, parameter, hint, chain)
                continue
            is_named = parameter.kind is not parameter.POSITIONAL_ONLY
            self._require(is_named, chain, f"parameter '{name}': must not be positional-only")
        return Plan(
            function=function,
            key=_key(function),
            name=name_of(function),
            scope=scope,
            is_cached=dependency.use_cache,
            is_async=is_async(function),
            context_name=context_name,
            needs=needs,
        )

    def _parameters(
        self, function: Callable[..., Any], chain: tuple[Callable[..., Any], ...]
    ) -> Iterator[tuple[str, inspect.Parameter, Any]]:
        try:
            parameters = inspect.signature(function).parameters
        except (NameError, TypeError, ValueError) as error:
            raise self._refusal(chain, f"its parameters cannot be read: {error}") from None
        hints = _hints(function)
        for name, parameter in parameters.items():
            if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                yield name, parameter, hints.get(name, parameter.annotation)

    def _require_default(
        self, name: str, parameter: inspect.Parameter, hint: Any, chain: tuple[Callable[..., Any], ...]
    ) -> None:
        of_request = type(parameter.default).__module__.partition(".")[0] == "fastapi"
        if of_request or parameter.default is parameter.empty:
            kind = "" if hint is parameter.empty else f" ({hint if isinstance(hint, str) else _type_name(hint)})"
            raise self._refusal(chain, f"parameter '{name}'{kind} cannot be filled; {FILLED}")

    def _require(self, holds: bool, chain: tuple[Callable[..., Any], ...], problem: str) -> None:
        if not holds:
            raise self._refusal(chain, problem)

    def _refusal(self, chain: tuple[Callable[..., Any], ...], problem: str) -> BadConfiguration:
        way = " -> ".join(name_of(one) for one in chain)
        return BadConfiguration(f"{self._where}: Depends({way}): {problem}")


class Overrides:
    """Dependencies that are replaced during a test."""

    def __init__(self) -> None:
        self._replacements: dict[object, Callable[..., Any]] = {}
        self._plans: dict[tuple[object, Scope], Plan] = {}

    @contextmanager
    def replaced(self, replacements: Mapping[Any, Any]) -> Iterator[None]:
        """Replace dependencies inside a `with` block, in addition to those replaced by enclosing blocks."""
        if not isinstance(replacements, Mapping):
            raise BadConfiguration(f"overrides: must be a mapping of functions, not {shown(replacements)}")
        plans: dict[tuple[object, Scope], Plan] = {}
        for function, other in replacements.items():
            if not callable(function) or not callable(other):
                raise BadConfiguration(
                    f"overrides: must map functions to functions, not {shown(function)} to {shown(other)}"
                )
            plans[_key(function), "job"] = _Planner(f"overrides of {name_of(function)}").plan(Dependency(other), ())
        before = self._replacements, self._plans
        self._replacements = {**self._replacements, **{_key(one): other for one, other in replacements.items()}}
        self._plans = {key: plan for key, plan in self._plans.items() if (key[0], "job") not in plans} | plans
        try:
            yield
        finally:
            self._replacements, self._plans = before

    def current(self, plan: Plan) -> Plan:
        """The plan to use: the replacement's, if there is one."""
        if not self._replacements or plan.key not in self._replacements:
            return plan
        found = self._plans.get((plan.key, plan.scope))
        if found is None:
            dependency = Dependency(self._replacements[plan.key], plan.scope)
            found = self._plans[plan.key, plan.scope] = _Planner(f"overrides of {plan.name}").plan(dependency, ())
        return found


def _as_dependency(given: object, hint: Any) -> Dependency | None:
    if isinstance(given, Dependency):
        return given
    if isinstance(given, type) or not (hasattr(given, "dependency") and hasattr(given, "use_cache")):
        return None
    function = given.dependency
    if function is None:  # As in FastAPI, the annotated class itself.
        function = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    return Dependency(function, "job", bool(given.use_cache)) if callable(function) else None


def _key(function: Callable[..., Any]) -> object:
    try:
        hash(function)
    except TypeError:
        return id(function)
    return function


def is_async(function: Any) -> bool:
    """Whether a call only creates a coroutine, an async generator, or an async context manager."""
    while isinstance(function, functools.partial):
        function = function.func
    if not (inspect.isroutine(function) or isinstance(function, type)):
        function = function.__call__
    is_manager = getattr(function, "__code__", None) is _MANAGER_CODE
    return is_manager or inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)


@asynccontextmanager
async def _manager() -> AsyncIterator[None]:
    yield


_MANAGER_CODE: Final = _manager.__code__
"""The code object of every function with `@asynccontextmanager`."""


def _hints(function: Any) -> dict[str, Any]:
    """The type hints of a callable; names that are imported only for type checkers stay strings."""
    function = annotated(function)
    try:
        return get_type_hints(function, include_extras=True)
    except Exception:  # noqa: BLE001 - annotations are users' code
        return readable_hints(function)


def annotated(function: Any) -> Any:
    """The object that holds the annotations of a callable: a function, class, partial or object with `__call__`."""
    while isinstance(function, functools.partial):
        function = function.func
    made: Any = function
    if isinstance(function, type):
        return made.__init__
    return function if inspect.isroutine(function) else type(function).__call__


def readable_hints(function: Any) -> dict[str, Any]:
    """The type hints that can be evaluated, one by one; the others stay strings."""
    function = inspect.unwrap(function)
    try:
        hints = dict(getattr(function, "__annotations__", {}))
    except NameError:  # Since Python 3.14, annotations are evaluated on access.
        return {}
    for name, hint in hints.items():
        single = SimpleNamespace(__annotations__={name: hint})
        with suppress(Exception):  # Annotations are users' code.
            hints[name] = get_type_hints(single, getattr(function, "__globals__", {}), include_extras=True)[name]
    return hints


def _type_name(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) else str(hint)
