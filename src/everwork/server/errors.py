"""Maps errors to gRPC and HTTP statuses in one table, and decides which error texts callers may see.

A test proves that the table is complete.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final, NamedTuple

import grpc

from everwork import exceptions as e
from everwork.logs import get_logger
from everwork.service.access.keys import UNCHECKED

log = get_logger("everwork")


class Wire(NamedTuple):
    """How callers see a class of errors; `code` is stable, so programs can rely on it."""

    grpc: grpc.StatusCode
    http: int
    code: str


TABLE: Final[Mapping[type[e.EverworkError], Wire]] = {
    e.InvalidInput: Wire(grpc.StatusCode.INVALID_ARGUMENT, 422, "invalid_input"),
    e.JobNotFound: Wire(grpc.StatusCode.NOT_FOUND, 404, "job_not_found"),
    e.WrongState: Wire(grpc.StatusCode.FAILED_PRECONDITION, 409, "wrong_state"),
    e.LeaseLost: Wire(grpc.StatusCode.FAILED_PRECONDITION, 409, "lease_lost"),
    e.JobCancelled: Wire(grpc.StatusCode.FAILED_PRECONDITION, 409, "job_cancelled"),
    e.JobFailed: Wire(grpc.StatusCode.FAILED_PRECONDITION, 409, "job_failed"),
    e.JobError: Wire(grpc.StatusCode.FAILED_PRECONDITION, 409, "job_error"),
    e.NothingMatches: Wire(grpc.StatusCode.NOT_FOUND, 404, "nothing_matches"),
    e.NotFound: Wire(grpc.StatusCode.NOT_FOUND, 404, "not_found"),
    e.ResultTimeout: Wire(grpc.StatusCode.DEADLINE_EXCEEDED, 408, "result_timeout"),
    e.CallTimeout: Wire(grpc.StatusCode.DEADLINE_EXCEEDED, 408, "call_timeout"),
    e.Unauthenticated: Wire(grpc.StatusCode.UNAUTHENTICATED, 401, "unauthenticated"),
    e.PermissionDenied: Wire(grpc.StatusCode.PERMISSION_DENIED, 403, "permission_denied"),
    e.TooManyRequests: Wire(grpc.StatusCode.RESOURCE_EXHAUSTED, 429, "too_many_requests"),
    e.AccessError: Wire(grpc.StatusCode.PERMISSION_DENIED, 403, "access_denied"),
    e.EngineBusy: Wire(grpc.StatusCode.UNAVAILABLE, 503, "engine_busy"),
    e.EngineUnavailable: Wire(grpc.StatusCode.UNAVAILABLE, 503, "engine_unavailable"),
    e.SchemaMismatch: Wire(grpc.StatusCode.UNAVAILABLE, 503, "schema_mismatch"),
    e.BadConfiguration: Wire(grpc.StatusCode.FAILED_PRECONDITION, 409, "bad_configuration"),
    e.EngineError: Wire(grpc.StatusCode.UNAVAILABLE, 503, "engine_error"),
    e.EverworkError: Wire(grpc.StatusCode.FAILED_PRECONDITION, 409, "refused"),
}


def wire(error: e.EverworkError) -> Wire:
    """Return the table entry for the error's class, or for its nearest ancestor."""
    return next(TABLE[kind] for kind in type(error).__mro__ if kind in TABLE)


STOPPING: Final = "the server is stopping"
SEE_LOG: Final = "see the server log"
PUBLIC: Final = frozenset({UNCHECKED, STOPPING})
"""Texts of engine errors that callers may see unchanged: they contain no path, host or user."""
TEXTS: Final[Mapping[type[e.EngineError], str]] = {
    e.SpoolFull: f"the engine is unavailable and the spool is full; {SEE_LOG}",
    e.EngineUnavailable: f"the engine is unavailable; {SEE_LOG}",
    e.EngineBusy: f"the engine is busy; {SEE_LOG}",
    e.SchemaMismatch: f"the store was written by another version; {SEE_LOG}",
    e.BadConfiguration: f"the engine is not configured correctly; {SEE_LOG}",
    e.EngineError: f"the engine failed; {SEE_LOG}",
}
LOG_EVERY_SECONDS: Final = 10.0
LOGGED_MAX: Final = 100
_logged_until: Final[dict[str, float]] = {}


def public_text(error: e.EverworkError) -> str:
    """The text that a caller may see. The texts of engine errors are for the operator, and are logged."""
    text = str(error)
    if not isinstance(error, e.EngineError) or text in PUBLIC:
        return text
    _log_sparingly(error, text)
    return next(TEXTS[kind] for kind in type(error).__mro__ if kind in TEXTS)


def _log_sparingly(error: e.EngineError, text: str) -> None:
    """Log an error, but the same one at most every few seconds: in an outage, every call fails with it."""
    now = time.monotonic()
    if _logged_until.get(text, 0.0) > now:
        return
    if len(_logged_until) >= LOGGED_MAX:
        _logged_until.clear()
    _logged_until[text] = now + LOG_EVERY_SECONDS
    log.error("a call failed", error=text, code=wire(error).code)
