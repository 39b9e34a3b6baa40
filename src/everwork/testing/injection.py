"""Deterministic fault injection for demos and tests: which calls fail is determined by counting, never at random."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from typing import Any, Final

from everwork.core import checks
from everwork.exceptions import InvalidInput
from everwork.runtime.middleware import Call, Middleware, Proceed

CALLS_MAX: Final = 1_000_000_000

Error = Exception | type[Exception]


class SimulatedFailure(Exception):
    """Raised by fault injection if no other error is given."""

    # Error rules match the name under which users import this class.
    __module__ = "everwork.testing"


class FailEveryNth(Middleware):
    """Middleware that makes every nth call fail: `rehearse(app, middleware=[FailEveryNth(3)])`.

    Args:
        n: Every nth call fails without calling the handler.
        error: The exception, or exception class, to raise. Default: `SimulatedFailure`.
    """

    def __init__(self, n: int, error: Error | None = None) -> None:
        self._n = checks.whole_number("n", n, 1, CALLS_MAX)
        self._error = None if error is None else _require_error("error", error)
        self._guard = threading.Lock()
        self._seen = 0

    async def __call__(self, call: Call, proceed: Proceed) -> Any:
        """Count the call, and fail every nth one."""
        with self._guard:
            self._seen = seen = self._seen + 1
        if seen % self._n == 0:
            raise _fresh(self._error, f"injected failure: call {seen}, one in {self._n} fails")
        return await proceed(call)


class FailTypes(Middleware):
    """Middleware that makes calls of the given job types fail; the handler is not called.

    `FailTypes({"email-send"})` fails every call of a type. In a mapping, a number N fails the first N calls, and an
    exception is raised by every call: `FailTypes({"email-send": 2, "bill": ConnectionError("refused")})`.
    """

    def __init__(self, types: Mapping[str, int | Error] | Collection[str]) -> None:
        if isinstance(types, str) or not isinstance(types, Collection):
            allowed = "a set of types, or a mapping of types to numbers or errors"
            raise InvalidInput("types", f"must be {allowed}, not {checks.shown(types)}")
        if not isinstance(types, Mapping):
            types = {type: SimulatedFailure(f"injected failure: every call of '{type}' fails") for type in types}
        self._errors: dict[str, Error] = {}
        self._times: dict[str, int] = {}
        for type, what in types.items():
            self._add(checks.name("types", type), what)
        self._left = dict(self._times)
        self._guard = threading.Lock()

    def _add(self, type: str, what: object) -> None:
        field = f"types[{type!r}]"
        if isinstance(what, int):
            self._times[type] = checks.whole_number(field, what, 1, CALLS_MAX)
        else:
            self._errors[type] = _require_error(field, what)

    async def __call__(self, call: Call, proceed: Proceed) -> Any:
        """Fail, or run the call."""
        if call.type in self._errors:
            raise _fresh(self._errors[call.type], "")
        if call.type in self._times:
            self._count(call.type)
        return await proceed(call)

    def _count(self, type: str) -> None:
        with self._guard:
            left, times = self._left[type], self._times[type]
            self._left[type] = max(left - 1, 0)
        if left:
            raise SimulatedFailure(f"injected failure: call {times - left + 1} of '{type}', the first {times} fail")


def _require_error(field: str, value: object) -> Error:
    if isinstance(value, Exception):
        return value
    if not (isinstance(value, type) and issubclass(value, Exception)):
        raise InvalidInput(field, f"must be an exception or an exception class, not {checks.shown(value)}")
    try:
        value()
    except Exception:  # noqa: BLE001 - the class is the user's
        raise InvalidInput(field, f"must be an exception instance: {value.__name__} needs arguments") from None
    return value


def _fresh(error: Error | None, text: str) -> Exception:
    """The error to raise, without the traceback of earlier raises, which would grow each time."""
    if error is None:
        return SimulatedFailure(text)
    return error() if isinstance(error, type) else error.with_traceback(None)
