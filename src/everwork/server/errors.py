"""Maps errors to gRPC and HTTP statuses in one table. A test proves that it is complete."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import grpc

from everwork import exceptions as e


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
