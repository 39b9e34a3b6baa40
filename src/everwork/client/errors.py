"""A server's refusal becomes the error that the same call raises in process."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import grpc
import grpc.aio

from everwork import exceptions as e

CODE: Final = "everwork-code"
RETRY_AFTER: Final = "retry-after-ms"

Refusal = Callable[[str, int], e.EverworkError]
"""Makes an error of a message and the key of the job that the call was about."""

_BY_CODE: Final[Mapping[str, Refusal]] = {
    "invalid_input": lambda text, _: _invalid(text),
    "job_not_found": lambda text, key: e.JobNotFound(_named(text, key)),
    "wrong_state": lambda text, key: e.WrongState(_named(text, key), text),
    "lease_lost": lambda text, key: e.LeaseLost(_named(text, key), text),
    "job_failed": lambda text, key: e.JobFailed(_named(text, key), text),
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

_BY_STATUS: Final[Mapping[grpc.StatusCode, Refusal]] = {
    grpc.StatusCode.INVALID_ARGUMENT: lambda text, _: _invalid(text),
    grpc.StatusCode.NOT_FOUND: lambda text, key: e.JobNotFound(_named(text, key)),
    grpc.StatusCode.DEADLINE_EXCEEDED: lambda _, __: e.CallTimeout("the server did not answer in time"),
    grpc.StatusCode.UNAUTHENTICATED: lambda text, _: e.Unauthenticated(text),
    grpc.StatusCode.PERMISSION_DENIED: lambda text, _: e.PermissionDenied(text),
    grpc.StatusCode.UNAVAILABLE: lambda text, _: e.EngineUnavailable(f"the server cannot be reached: {text}"),
    grpc.StatusCode.CANCELLED: lambda text, _: e.EngineUnavailable(f"the server has ended the call: {text}"),
    grpc.StatusCode.UNIMPLEMENTED: lambda text, _: e.BadConfiguration(f"the server does not know this call: {text}"),
}


def error_of(refused: grpc.aio.AioRpcError, key: int = 0) -> e.EverworkError:
    """The error that a server means; `key` is the job that the call was about."""
    trailing: Any = refused.trailing_metadata() or ()
    said: dict[str, str | bytes] = dict(trailing)
    text = refused.details() or refused.code().name
    code = _text(said.get(CODE))
    if code == "too_many_requests" or (not code and refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED):
        return e.TooManyRequests(text, _retry_after_ms(said))
    make = _BY_CODE.get(code) or _BY_STATUS.get(refused.code())
    return make(text, key) if make else e.EverworkError(text)


def _invalid(text: str) -> e.InvalidInput:
    field, _, problem = text.partition(": ")
    return e.InvalidInput(field, problem) if problem else e.InvalidInput("request", text)


def _not_found(text: str) -> e.NotFound:
    found = re.match(r"(.*?) '(.*)' not found", text, re.DOTALL)
    return e.NotFound(found[1], found[2]) if found else e.NotFound("it", text)


def _named(text: str, key: int) -> int:
    """The job that a message speaks of: in a batch it need not be the first."""
    found = re.match(r"Job '(\d{1,19})'", text)
    return int(found[1]) if found else key


def _retry_after_ms(said: Mapping[str, str | bytes]) -> int:
    text = _text(said.get(RETRY_AFTER))
    return int(text) if text.isdecimal() else 1_000


def _text(value: str | bytes | None) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value or ""
