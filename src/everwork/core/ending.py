"""How an attempt ends when its handler gives no result that can be kept: the same outcome for every kind of worker."""

from __future__ import annotations

from typing import Final

from everwork.core import checks
from everwork.core import outcome as o
from everwork.core.classify import class_names
from everwork.core.limits import DELAY_MS_MAX
from everwork.core.texts import error_text
from everwork.exceptions import Fail, InvalidInput, Reject, Retry

TIME_OUT: Final = class_names(TimeoutError())
"""A call that takes too long is classified as one that has raised this itself."""


def raised(key: int, attempt: int, error: BaseException, *, is_final: bool = False) -> o.Outcome:
    """The handler has raised: one of the signals, or an error of whatever class. `is_final`: that is never retried."""
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
    """The call has taken longer than it may; `more` says what else is known of it."""
    text = error_text(f"timed out after {seconds:g} s{more}")
    return o.Failed(key, attempt, text, final=is_final, classes=TIME_OUT)


def unusable(key: int, attempt: int, why: object) -> o.Failed:
    """Failed for good, and nothing of it is the fault of what the type's breaker protects."""
    return o.Failed(key, attempt, error_text(why) or "failed by the handler", final=True, is_counted=False)


def _retried(key: int, attempt: int, error: Retry) -> o.Outcome:
    text = error_text(error.detail)
    if error.delay is None:
        return o.Retry(key, attempt, text)
    try:
        return o.Retry(key, attempt, text, checks.milliseconds("delay", error.delay, 0, DELAY_MS_MAX / 1000))
    except InvalidInput as problem:
        return unusable(key, attempt, f"Retry: {problem}")
