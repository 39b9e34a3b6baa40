"""The outcome of an attempt whose handler returned no usable result, the same for every kind of worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from everwork.core import checks
from everwork.core import outcome as o
from everwork.core.classify import class_names
from everwork.core.limits import DELAY_MS_MAX, OUTAGE_PAUSE_SECONDS_MAX, OUTAGE_RELEASES_MAX
from everwork.core.texts import error_text, traceback_text
from everwork.exceptions import EngineUnavailable, Fail, InvalidInput, Reject, Retry

TIMEOUT_CLASSES: Final = class_names(TimeoutError())
"""A call that times out is classified as if it had raised this."""
TIMED_OUT: Final = "timed out after"
"""The prefix of the error of an attempt that exceeded its timeout."""
STACK_TITLE: Final = "Stack (most recent call last):"


def raised(
    key: int,
    attempt: int,
    error: BaseException,
    *,
    is_final: bool = False,
    traceback_of: Callable[[BaseException], str | None] | None = None,
) -> o.Outcome:
    """The outcome of a raised exception: one of the signals, or any error. `is_final`: never retried.

    `traceback_of` formats its traceback. A `Retry` or `Reject` has one only if another exception led to it:
    raised on purpose, it needs none.
    """
    outcome = _raised(key, attempt, error, is_final=is_final)
    if traceback_of is None or (isinstance(error, Retry | Reject) and _cause(error) is None):
        return outcome
    return outcome._replace(traceback=traceback_of(error))


def _raised(key: int, attempt: int, error: BaseException, *, is_final: bool) -> o.Failed | o.Reject | o.Retry:
    match error:
        case Fail():
            return unusable(key, attempt, _reason(error))
        case Reject():
            return o.Reject(key, attempt, _reason(error) or o.REJECTED_TEXT)
        case Retry():
            return _retried(key, attempt, error)
        case _:
            return o.Failed(key, attempt, _named(error), _left(is_final), final=is_final, classes=class_names(error))


def outage_of(error: BaseException, uncounted: int) -> EngineUnavailable | None:
    """The store outage that ended an attempt, which then does not count; None if something else ended it.

    This includes the outage behind a `Retry`. After OUTAGE_RELEASES_MAX `uncounted` attempts it is a failure like any
    other: a store whose address is wrong must not keep a job running forever.
    """
    reason = _cause(error) if isinstance(error, Retry) else error
    return reason if isinstance(reason, EngineUnavailable) and uncounted < OUTAGE_RELEASES_MAX else None


def outage_pause(uncounted: int) -> float:
    """Seconds to wait before a job is released because of an outage: 1, 2, 4, up to 30."""
    return min(2.0 ** min(uncounted, 10), OUTAGE_PAUSE_SECONDS_MAX)


def timed_out(
    key: int, attempt: int, seconds: float, more: str = "", *, is_final: bool = False, traceback: str | None = None
) -> o.Failed:
    """The outcome of a call that exceeded its timeout; `more` is appended to the error."""
    text = error_text(f"{TIMED_OUT} {seconds:g} s{more}")
    return o.Failed(key, attempt, text, _left(is_final), final=is_final, classes=TIMEOUT_CLASSES, traceback=traceback)


def stack_text(stack: str | None) -> str | None:
    """The stack of a call that exceeded its timeout as the traceback of its attempt; None if there is none."""
    return traceback_text(f"{STACK_TITLE}\n{stack}") if stack else None


def unusable(key: int, attempt: int, why: object) -> o.Failed:
    """Failed permanently, and not counted by the type's breaker: the failure says nothing about the protected
    service.
    """
    return o.Failed(key, attempt, error_text(why) or "failed by the handler", final=True, is_counted=False)


def _left(is_final: bool) -> int | None:
    """The retries of a failure: none without a retry policy, so that the job has used all its attempts, as 1 of 1."""
    return 0 if is_final else None


def _retried(key: int, attempt: int, error: Retry) -> o.Failed | o.Retry:
    text = _reason(error) or o.RETRY_REQUESTED
    if error.delay is None:
        return o.Retry(key, attempt, text)
    try:
        return o.Retry(key, attempt, text, checks.milliseconds("delay", error.delay, 0, DELAY_MS_MAX / 1000))
    except InvalidInput as problem:
        return unusable(key, attempt, f"Retry: {problem}")


def _reason(signal: Fail | Reject | Retry) -> str:
    """Why a handler ended its attempt: its own text, or else the error that it was handling."""
    if text := error_text(signal.detail):
        return text
    cause = _cause(signal)
    return "" if cause is None else _named(cause)


def _cause(error: BaseException) -> BaseException | None:
    if error.__cause__ is not None:
        return error.__cause__
    return None if error.__suppress_context__ else error.__context__


def _named(error: BaseException) -> str:
    text = error_text(error)
    return error_text(f"{type(error).__name__}: {text}" if text else type(error).__name__)
