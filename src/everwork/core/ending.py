"""The outcome of an attempt whose handler returned no usable result, the same for every kind of worker."""

from __future__ import annotations

from typing import Final

from everwork.core import checks
from everwork.core import outcome as o
from everwork.core.classify import class_names
from everwork.core.limits import DELAY_MS_MAX
from everwork.core.texts import error_text
from everwork.exceptions import Fail, InvalidInput, Reject, Retry

TIMEOUT_CLASSES: Final = class_names(TimeoutError())
"""A call that times out is classified as if it had raised this."""


def raised(key: int, attempt: int, error: BaseException, *, is_final: bool = False) -> o.Outcome:
    """The outcome of a raised exception: one of the signals, or any error. `is_final`: never retried."""
    match error:
        case Fail():
            return unusable(key, attempt, error.detail)
        case Reject():
            return o.Reject(key, attempt, error_text(error.detail))
        case Retry():
            return _retried(key, attempt, error)
        case _:
            text = error_text(error)
            named = f"{type(error).__name__}: {text}" if text else type(error).__name__
            return o.Failed(key, attempt, error_text(named), final=is_final, classes=class_names(error))


def timed_out(key: int, attempt: int, seconds: float, more: str = "", *, is_final: bool = False) -> o.Failed:
    """The outcome of a call that took too long; `more` is appended to the error."""
    text = error_text(f"timed out after {seconds:g} s{more}")
    return o.Failed(key, attempt, text, final=is_final, classes=TIMEOUT_CLASSES)


def unusable(key: int, attempt: int, why: object) -> o.Failed:
    """Failed for good, and not counted by the type's breaker: the failure says nothing about what it protects."""
    return o.Failed(key, attempt, error_text(why) or "failed by the handler", final=True, is_counted=False)


def _retried(key: int, attempt: int, error: Retry) -> o.Outcome:
    text = error_text(error.detail)
    if error.delay is None:
        return o.Retry(key, attempt, text)
    try:
        return o.Retry(key, attempt, text, checks.milliseconds("delay", error.delay, 0, DELAY_MS_MAX / 1000))
    except InvalidInput as problem:
        return unusable(key, attempt, f"Retry: {problem}")
