"""The verbs of a blocking facade: one line each, made from the coroutine methods that it runs elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Facade(Protocol[T_co]):
    """Stands for an object with coroutine methods, and runs them."""

    def _run(self, use: Callable[[T_co], Coroutine[Any, Any, R]]) -> R:
        """Run a coroutine of the object to its end, and return its result."""
        ...


def blocking(method: Callable[Concatenate[T, P], Coroutine[Any, Any, R]]) -> Callable[Concatenate[Facade[T], P], R]:
    """The same method without `await`: `cancel = blocking(Client.cancel)` in the body of `SyncClient`."""

    @wraps(method)
    def call(facade: Facade[T], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return facade._run(lambda target: method(target, *args, **kwargs))  # noqa: SLF001 - users see verbs only

    call.__qualname__ = f"Sync{method.__qualname__}"
    return call
