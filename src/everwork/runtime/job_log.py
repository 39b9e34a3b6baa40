"""Log lines about attempts: always with process, worker, key and attempt.

Levels: a success is DEBUG, a cancelled attempt INFO, a retried or rejected attempt or an expired lease WARNING, a dead
letter ERROR. Each line says what happens next.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from everwork.core import outcome as o
from everwork.core.leasing import Failure, Judged, Verdict
from everwork.core.states import State
from everwork.core.texts import error_text
from everwork.exceptions import Signal
from everwork.logs import get_logger
from everwork.runtime.attempt import Attempt, Stop

KEYS_MAX: Final = 100
_PACKAGE: Final = str(Path(__file__).parents[1])
_logger: Final = logging.getLogger("everwork")

_log: Final = get_logger("everwork")

FailedOutcome = o.Failed | o.Reject | o.Retry | o.Throw
"""The outcomes of failed attempts that workers report."""


class JobLog:
    """The log of one process's jobs. `is_remote`: it is not known here whether a failed attempt is retried."""

    def __init__(self, process: str, *, is_remote: bool = False) -> None:
        self._is_remote = is_remote
        self._log = get_logger("everwork").bind(process=process)

    @property
    def shows_all(self) -> bool:
        """Whether attempts that did not fail are logged, too."""
        return _logger.isEnabledFor(logging.DEBUG)

    def ended(self, attempt: Attempt, outcome: o.Complete | o.Release) -> None:
        """Log an attempt that did not fail."""
        is_done = isinstance(outcome, o.Complete)
        facts = {**attempt.log_facts(), "outcome": "completed" if is_done else "released"}
        self._log.debug("attempt completed" if is_done else "job released", **facts)

    def failed(self, attempt: Attempt, outcome: FailedOutcome, failure: Failure | None) -> None:
        """Log a failed attempt. Without `failure`, it is not known here whether the job is retried."""
        error, job = attempt.error, attempt.job
        is_requested = error is None or isinstance(error, Signal)
        failure = failure or final_failure(attempt, outcome)
        facts = attempt.log_facts()
        if error is not None and (not is_requested or (failure is not None and failure.retry_ms is None)):
            facts["exc_info"] = (type(error), error, _users_part(error.__traceback__))
        elif error is None and outcome.traceback is not None:
            facts["stack"] = outcome.traceback  # The stack at the timeout.
        if failure is None:
            facts |= {"outcome": "retried", "error": outcome.error}
            attempts, most = job.attempts, job.max_attempts
            if self._is_remote:
                self._log.warning(f"attempt {attempts} of {most} failed, the engine decides whether to retry", **facts)
            else:
                self._log.warning(f"attempt {attempts} of {most} failed", **facts)
        else:
            log_failure(self._log, outcome, failure, facts)

    def discarded(self, outcome: o.Outcome, judged: Judged, attempt: Attempt | None) -> None:
        """Log an outcome that the store refused and discarded."""
        facts: dict[str, Any] = {"key": outcome.key, "attempt": outcome.attempt}
        facts |= {} if attempt is None else attempt.log_facts()
        facts |= {"outcome": o.kind_of(outcome), "verdict": judged.verdict.value}
        if text := getattr(outcome, "error", None):
            facts["error"] = text
        match judged.verdict, judged.state:
            case Verdict.LEASE_LOST, _:
                self._log.warning("outcome discarded, the lease had expired", **facts)
            case Verdict.WRONG_STATE, State.CANCELLED:
                self._log.info("outcome discarded, the job was cancelled", **facts)
            case Verdict.NOT_FOUND, _:
                self._log.warning("outcome discarded, the job no longer exists", **facts)
            case _, state:
                facts["state"] = None if state is None else state.label
                self._log.warning("outcome discarded, the attempt had already ended", **facts)

    def error(self, text: str, worker: str | None, key: int, attempt: int, **facts: Any) -> None:
        """Log a problem with an attempt that needs attention."""
        self._log.error(text, worker=worker, key=key, attempt=attempt, **facts)

    def lost(self, text: str, outcomes: Sequence[o.Outcome]) -> None:
        """Log outcomes that could not be stored."""
        self._log.error(text, outcomes=len(outcomes), keys=shown_keys(outcomes))


class OutcomeLog:
    """Logs outcomes with the facts of their attempts; orphans, which no handler has seen, have none."""

    def __init__(self, job_log: JobLog, leased: Mapping[tuple[int, int], Attempt]) -> None:
        self._job_log = job_log
        self._leased = leased
        self.has_listeners = False
        """Whether a handler has an `on_end` callback."""

    def settled(self, outcomes: Sequence[o.Outcome], judged: Sequence[Judged]) -> None:
        """Log outcomes with the store's verdicts."""
        shows_all = self._job_log.shows_all
        for outcome, one in zip(outcomes, judged, strict=True):
            if self.has_listeners:
                self._tell(outcome, one)
            if not one.ok:
                self._job_log.discarded(outcome, one, self._leased.get((outcome.key, outcome.attempt)))
            elif shows_all or not isinstance(outcome, o.Complete):
                self._ended(outcome, one.failure)

    def lost(self, outcomes: Sequence[o.Outcome]) -> None:
        """Log outcomes that will not be settled."""
        for outcome in outcomes:
            self._ended(outcome, None)
        self._job_log.lost("outcomes could not be stored, their jobs are retried when their leases expire", outcomes)

    def unstorable(self, outcome: o.Outcome, error: Exception) -> None:
        """Log an outcome that the store refuses because of its contents."""
        name, type = self._origin_of(outcome)
        key, attempt = outcome.key, outcome.attempt
        self._job_log.error("outcome could not be stored", name, key, attempt, type=type, exc_info=error)

    def _ended(self, outcome: o.Outcome, failure: Failure | None) -> None:
        attempt = self._leased.get((outcome.key, outcome.attempt))
        if attempt is None:
            return
        if not isinstance(outcome, o.Complete | o.Release):
            self._job_log.failed(attempt, outcome, failure)
        elif self._job_log.shows_all:
            self._job_log.ended(attempt, outcome)

    def _tell(self, outcome: o.Outcome, judged: Judged) -> None:
        attempt = self._leased.get((outcome.key, outcome.attempt))
        if attempt is not None and attempt.handler.on_end is not None:
            attempt.handler.on_end(attempt, outcome, judged)

    def _origin_of(self, outcome: o.Outcome) -> tuple[str | None, str | None]:
        """The names of the worker and the type of an outcome."""
        attempt = self._leased.get((outcome.key, outcome.attempt))
        return (None, None) if attempt is None else (attempt.handler.name, attempt.job.type)


def log_failure(log: Any, outcome: FailedOutcome, failure: Failure, facts: dict[str, Any]) -> None:
    """Log a failed attempt and what happens next; the field `outcome` has the value used in metrics, or `rejected`."""
    attempts, most = failure.attempts, failure.max_attempts
    if isinstance(outcome, o.Reject):
        facts.pop("exc_info", None)  # Raised on purpose: the traceback would add nothing.
        log.warning("job rejected, it will not be retried", **facts, outcome="rejected", error=failure.error)
    elif failure.retry_ms is None:
        given_up = f"gave up after {attempts} {'attempt' if attempts == 1 else 'attempts'}"
        log.error(given_up, **facts, outcome="failed", error=failure.error)
    else:
        retried = f"attempt {attempts} of {most} failed, retrying in {failure.retry_ms / 1000:g} s"
        log.warning(retried, **facts, outcome="retried", error=failure.error)


def log_outage(attempt: Attempt, seconds: float, outage: Exception) -> None:
    """Log an attempt that is released after a number of seconds because a store was unavailable."""
    facts = {**attempt.log_facts(), "outcome": "released", "pause_s": seconds, "error": str(outage)}
    _log.warning("the engine is unavailable, the job will be released, the attempt does not count", **facts)


def log_not_stored(attempt: Attempt, error: Exception) -> None:
    """Log that a job is completed without its result."""
    facts = {**attempt.log_facts(), "error": error_text(error)}
    _log.error("job completed, but its result could not be stored", **facts)


def log_stopped(attempt: Attempt, why: Stop) -> None:
    """Log an attempt whose handler is stopped because the job was cancelled or its lease has expired."""
    if attempt.completion is not None:
        return  # The handler has completed the job itself, in a transaction.
    facts = attempt.log_facts()
    if why is Stop.CANCELLED:
        _log.info("job cancelled, stopping its handler", **facts, outcome="cancelled")
    elif why is Stop.LOST:
        _log.warning("lease expired, stopping the handler; the job is retried if it has attempts left", **facts)


def shown_keys(outcomes: Sequence[o.Outcome]) -> list[int]:
    """The keys of the first jobs, to keep the line short."""
    return [outcome.key for outcome in outcomes[:KEYS_MAX]]


def final_failure(attempt: Attempt, outcome: FailedOutcome) -> Failure | None:
    """The failure of a job that cannot be retried, even without the store's reply; None if it could be retried."""
    job = attempt.job
    may_be_retried = isinstance(outcome, o.Retry) or (isinstance(outcome, o.Failed) and not outcome.final)
    if may_be_retried and job.attempts < job.max_attempts:
        return None
    return Failure(job.attempts, job.max_attempts, None, outcome.error)


def _users_part(trace: TracebackType | None) -> TracebackType | None:
    """A traceback without the frames above the user's code."""
    while trace is not None and trace.tb_next is not None and trace.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        trace = trace.tb_next
    return trace
