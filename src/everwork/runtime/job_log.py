"""Log lines about attempts: always with process, worker, key and attempt.

A success is DEBUG, an attempt that is retried or was rejected WARNING, a dead letter ERROR.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from everwork.core import outcome as o
from everwork.core.leasing import Failure, Judged
from everwork.exceptions import Signal
from everwork.logs import get_logger
from everwork.runtime.attempt import Attempt

KEYS_MAX: Final = 100
_PACKAGE: Final = str(Path(__file__).parents[1])
_logger: Final = logging.getLogger("everwork")

_outage_log: Final = get_logger("everwork")

FailedOutcome = o.Failed | o.Reject | o.Retry | o.Throw
"""The outcomes of failed attempts that workers report."""


class JobLog:
    """The log of one process's jobs. `only_errors`: no timeouts, and no failures that a handler requested."""

    def __init__(self, process: str, *, only_errors: bool = False) -> None:
        self._only_errors = only_errors
        self._log = get_logger("everwork").bind(process=process)

    @property
    def shows_all(self) -> bool:
        """Whether attempts that did not fail are logged, too."""
        return _logger.isEnabledFor(logging.DEBUG)

    def ended(self, attempt: Attempt, outcome: o.Complete | o.Release) -> None:
        """Log an attempt that did not fail."""
        is_done = isinstance(outcome, o.Complete)
        facts = {**attempt.log_facts(), "outcome": "completed" if is_done else "released"}
        self._log.debug("attempt completed" if is_done else "handed back", **facts)

    def failed(self, attempt: Attempt, outcome: FailedOutcome, failure: Failure | None) -> None:
        """Log a failed attempt; without `failure`, what has followed is not known here."""
        error, job = attempt.error, attempt.job
        is_requested = error is None or isinstance(error, Signal)
        if self._only_errors and is_requested:
            return
        if failure is None and (job.attempts >= job.max_attempts or not _may_be_retried(outcome)):
            failure = Failure(job.attempts, job.max_attempts, None, outcome.error)
        facts = attempt.log_facts()
        if error is not None and (not is_requested or (failure is not None and failure.retry_ms is None)):
            facts["exc_info"] = (type(error), error, _users_part(error.__traceback__))
        if failure is None:
            facts |= {"outcome": "retried", "error": outcome.error}
            event = f"attempt {job.attempts} of {job.max_attempts} failed"
            self._log.warning(event, **facts)
        else:
            log_failure(self._log, outcome, failure, facts)

    def warning(self, text: str, worker: str | None, key: int, attempt: int, **facts: Any) -> None:
        """Log a problem of an attempt that is handled."""
        self._log.warning(text, worker=worker, key=key, attempt=attempt, **facts)

    def error(self, text: str, worker: str | None, key: int, attempt: int, **facts: Any) -> None:
        """Log a problem of an attempt that needs attention."""
        self._log.error(text, worker=worker, key=key, attempt=attempt, **facts)

    def lost(self, text: str, outcomes: Sequence[o.Outcome]) -> None:
        """Log outcomes that could not be stored."""
        self._log.error(text, outcomes=len(outcomes), keys=shown_keys(outcomes))


class OutcomeLog:
    """The log of outcomes, each with what is known of its attempt; an orphan, which no handler has seen, has none."""

    def __init__(self, job_log: JobLog, leased: Mapping[tuple[int, int], Attempt]) -> None:
        self._job_log = job_log
        self._leased = leased

    def settled(self, outcomes: Sequence[o.Outcome], judged: Sequence[Judged]) -> None:
        """Log outcomes with the store's verdicts."""
        shows_all = self._job_log.shows_all
        for outcome, one in zip(outcomes, judged, strict=True):
            if shows_all or not isinstance(outcome, o.Complete):
                self._ended(outcome, one.failure)
            if not one.ok:
                facts = {"outcome": o.kind_of(outcome), "verdict": one.verdict.value}
                name, type = self._origin_of(outcome)
                self._job_log.warning("an outcome was refused", name, outcome.key, outcome.attempt, type=type, **facts)

    def lost(self, outcomes: Sequence[o.Outcome]) -> None:
        """Log outcomes that will not be settled."""
        for outcome in outcomes:
            self._ended(outcome, None)
        self._job_log.lost("outcomes are lost with the engine, their leases lapse", outcomes)

    def unstorable(self, outcome: o.Outcome, error: Exception) -> None:
        """Log an outcome that the store refuses for what it contains."""
        name, type = self._origin_of(outcome)
        key, attempt = outcome.key, outcome.attempt
        self._job_log.error("an outcome cannot be stored", name, key, attempt, type=type, exc_info=error)

    def _ended(self, outcome: o.Outcome, failure: Failure | None) -> None:
        attempt = self._leased.get((outcome.key, outcome.attempt))
        if attempt is None:
            return
        if not isinstance(outcome, o.Complete | o.Release):
            self._job_log.failed(attempt, outcome, failure)
        elif self._job_log.shows_all:
            self._job_log.ended(attempt, outcome)

    def _origin_of(self, outcome: o.Outcome) -> tuple[str | None, str | None]:
        """The names of the worker and the type that an outcome is from."""
        attempt = self._leased.get((outcome.key, outcome.attempt))
        return (None, None) if attempt is None else (attempt.handler.name, attempt.job.type)


def log_failure(log: Any, outcome: FailedOutcome, failure: Failure, facts: dict[str, Any]) -> None:
    """Log what has followed a failed attempt; `outcome` in the line is as the metrics name it, or `rejected`."""
    attempts, most = failure.attempts, failure.max_attempts
    if isinstance(outcome, o.Reject):
        facts.pop("exc_info", None)  # Raised on purpose: the traceback would add nothing.
        log.warning("rejected, will not be retried", **facts, outcome="rejected", error=failure.error)
    elif failure.retry_ms is None:
        given_up = f"gave up after {attempts} {'attempt' if attempts == 1 else 'attempts'}"
        log.error(given_up, **facts, outcome="failed", error=failure.error)
    else:
        retried = f"attempt {attempts} of {most} failed, retrying in {failure.retry_ms / 1000:g} s"
        log.warning(retried, **facts, outcome="retried", error=failure.error)


def log_outage(attempt: Attempt, seconds: float, outage: Exception) -> None:
    """Log an attempt that is handed back after a number of seconds because a store was unavailable."""
    facts = {**attempt.log_facts(), "outcome": "released", "pause_s": seconds, "error": str(outage)}
    _outage_log.warning("the engine is unavailable, the job will be handed back, the attempt does not count", **facts)


def shown_keys(outcomes: Sequence[o.Outcome]) -> list[int]:
    """The keys of the first jobs, to keep the line short."""
    return [outcome.key for outcome in outcomes[:KEYS_MAX]]


def _may_be_retried(outcome: FailedOutcome) -> bool:
    return isinstance(outcome, o.Retry) or (isinstance(outcome, o.Failed) and not outcome.final)


def _users_part(trace: TracebackType | None) -> TracebackType | None:
    """A traceback without the frames above the user's code."""
    while trace is not None and trace.tb_next is not None and trace.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        trace = trace.tb_next
    return trace
