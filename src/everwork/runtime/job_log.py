"""Log lines about jobs: always with process, worker, key and attempt."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from everwork.core import outcome as o
from everwork.exceptions import Signal
from everwork.logs import get_logger
from everwork.runtime.attempt import Attempt

KEYS_MAX: Final = 100
_PACKAGE: Final = str(Path(__file__).parents[1])


class JobLog:
    """The log of one process's jobs. `only_errors`: no timeouts, and no failures that a handler requested."""

    def __init__(self, process: str, *, only_errors: bool = False) -> None:
        self._only_errors = only_errors
        self._log = get_logger("everwork").bind(process=process)

    def failed(self, attempt: Attempt, outcome: o.Failed | o.Reject | o.Retry) -> None:
        """Log a failed attempt. One that requested a retry, and gets it, is no failure."""
        if isinstance(outcome, o.Retry) and attempt.job.attempts < attempt.job.max_attempts:
            return
        is_error = attempt.error is not None and not isinstance(attempt.error, Signal)
        if self._only_errors and not is_error:
            return
        text = "a job was rejected" if isinstance(outcome, o.Reject) else "a job failed"
        facts: dict[str, Any] = {"type": attempt.job.type, "error": outcome.error}
        if attempt.error is not None and is_error:
            facts["exc_info"] = (type(attempt.error), attempt.error, _users_part(attempt.error.__traceback__))
        self.warning(text, attempt.handler.name, attempt.job.key, attempt.job.attempt, **facts)

    def warning(self, text: str, worker: str | None, key: int, attempt: int, **facts: Any) -> None:
        """Log a problem of an attempt that is handled."""
        self._log.warning(text, worker=worker, key=key, attempt=attempt, **facts)

    def error(self, text: str, worker: str | None, key: int, attempt: int, **facts: Any) -> None:
        """Log a problem of an attempt that needs attention."""
        self._log.error(text, worker=worker, key=key, attempt=attempt, **facts)

    def lost(self, text: str, outcomes: Sequence[o.Outcome]) -> None:
        """Log outcomes that could not be stored."""
        self._log.error(text, outcomes=len(outcomes), keys=shown_keys(outcomes))


def shown_keys(outcomes: Sequence[o.Outcome]) -> list[int]:
    """The keys of the first jobs, to keep the line short."""
    return [outcome.key for outcome in outcomes[:KEYS_MAX]]


def _users_part(trace: TracebackType | None) -> TracebackType | None:
    """A traceback without the frames above the user's code."""
    while trace is not None and trace.tb_next is not None and trace.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        trace = trace.tb_next
    return trace
