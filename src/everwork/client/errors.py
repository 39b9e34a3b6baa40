"""Turns a server's error status into the exception that the same call would raise in process."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import grpc
import grpc.aio

from everwork import exceptions as e

CODE: Final = "everwork-code"
RETRY_AFTER: Final = "retry-after-ms"
WRITE_FAILED: Final = "Internal error from Core"
"""What gRPC's asyncio client reports, instead of the server's status, if a write fails because the stream has ended."""

MakeError = Callable[[str, int], e.EverworkError]
"""Creates an error from its message and the key of the call's job."""

_BY_CODE: Final[Mapping[str, MakeError]] = {
    "invalid_input": lambda text, _: _invalid(text),
    "job_not_found": lambda text, key: e.JobNotFound(_named(text, key)),
    "wrong_state": lambda text, key: e.WrongState(_named(text, key), text),
    "lease_lost": lambda text, key: e.LeaseLost(_named(text, key), text),
    "job_failed": lambda text, key: e.JobFailed(_named(text, key), text, text.partition(": ")[2]),
    "job_cancelled": lambda text, key: e.JobCancelled(_named(text, key), text, text.partition(": ")[2]),
    "job_error": lambda text, key: e.JobError(_named(text, key), text),
    "not_found": lambda text, _: _not_found(text),
    "result_timeout": lambda text, _: e.ResultTimeout(text),
    "call_timeout": lambda text, _: e.CallTimeout(text),
    "nothing_matches": lambda text, _: e.NothingMatches(text),
    "unauthenticated": lambda text, _: e.Unauthenticated(text),
    "permission_denied": lambda text, _: e.PermissionDenied(text),
    "access_denied": lambda text, _: e.AccessError(text),
    "engine_busy": lambda text, _: e.EngineBusy(text),
    "engine_unavailable": lambda text, _: e.EngineUnavailable(text),
    "schema_mismatch": lambda text, _: e.SchemaMismatch(text),
    "bad_configuration": lambda text, _: e.BadConfiguration(text),
    "engine_error": lambda text, _: e.EngineError(text),
}

_BY_STATUS: Final[Mapping[grpc.StatusCode, MakeError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: lambda text, _: _invalid(text),
    grpc.StatusCode.NOT_FOUND: lambda text, key: e.JobNotFound(_named(text, key)),
    grpc.StatusCode.DEADLINE_EXCEEDED: lambda _, __: e.CallTimeout("the server did not answer in time"),
    grpc.StatusCode.UNAUTHENTICATED: lambda text, _: e.Unauthenticated(text),
    grpc.StatusCode.PERMISSION_DENIED: lambda text, _: e.PermissionDenied(text),
    grpc.StatusCode.UNAVAILABLE: lambda text, _: e.EngineUnavailable(f"the server cannot be reached: {text}"),
    grpc.StatusCode.CANCELLED: lambda text, _: e.EngineUnavailable(f"the server ended the call: {text}"),
    grpc.StatusCode.UNIMPLEMENTED: lambda text, _: e.BadConfiguration(f"the server does not know this call: {text}"),
}


def error_of(rpc_error: grpc.aio.AioRpcError, key: int = 0) -> e.EverworkError:
    """The exception for a server's error; `key` is the key of the job that the call was about."""
    trailing: Any = rpc_error.trailing_metadata() or ()
    # Not `dict(trailing)`: in some versions of grpcio, the keys of its metadata are pairs.
    metadata: dict[str, str | bytes] = {name: value for name, value in trailing}  # noqa: C416
    text = rpc_error.details() or rpc_error.code().name
    code = _text(metadata.get(CODE))
    if code == "too_many_requests" or (not code and rpc_error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED):
        return e.TooManyRequests(text, _retry_after_ms(metadata))
    if rpc_error.code() is grpc.StatusCode.INTERNAL and text == WRITE_FAILED:
        return e.EngineUnavailable("the stream ended while the client was writing; gRPC lost the server's reason")
    make = _BY_CODE.get(code) or _BY_STATUS.get(rpc_error.code())
    return make(text, key) if make else e.EverworkError(text)


def _invalid(text: str) -> e.InvalidInput:
    field, _, problem = text.partition(": ")
    return e.InvalidInput(field, problem) if problem else e.InvalidInput("request", text)


def _not_found(text: str) -> e.NotFound:
    found = re.match(r"(.*?) '(.*)' not found", text, re.DOTALL)
    return e.NotFound(found[1], found[2]) if found else e.NotFound("it", text)


def _named(text: str, key: int) -> int:
    """The key of the job that a message names, which in a batch is not always the first one; otherwise `key`."""
    found = re.match(r"Job '(\d{1,19})'", text)
    return int(found[1]) if found else key


def _retry_after_ms(metadata: Mapping[str, str | bytes]) -> int:
    text = _text(metadata.get(RETRY_AFTER))
    return int(text) if text.isdecimal() else 1_000


def _text(value: str | bytes | None) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value or ""
