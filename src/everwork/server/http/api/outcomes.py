"""REST: outcomes of attempts, reported by workers."""

from __future__ import annotations

from typing import Any, Final

from starlette.responses import Response

from everwork.codec.json import encode_object
from everwork.core.leasing import accepted
from everwork.core.limits import ATTEMPTS_MAX, DELAY_MS_MAX, PAYLOAD_BYTES_MAX
from everwork.core.outcome import Complete, Failed, Outcome, Throw
from everwork.exceptions import InvalidInput
from everwork.server.http.api.changes import ATTEMPT, CHANGED, changed
from everwork.server.http.framework.context import API
from everwork.server.http.framework.fields import FLAG, MESSAGE, NAME, TRACEBACK, Integer, JsonObject
from everwork.server.http.framework.operations import Call, Field, Operation, Shape
from everwork.service.jobs import Jobs


async def complete(call: Call) -> Response:
    """Complete a job."""
    sent = await call.body()
    result = sent["variables"]
    text = None if result is None else encode_object("variables", result, PAYLOAD_BYTES_MAX)
    return await _settle(call, Complete(call.key, sent["attempt"], text), "completed")


async def fail(call: Call) -> Response:
    """Fail an attempt; the type's policy decides whatever the request leaves unset."""
    sent = await call.body()
    rule = next((name for name in ("by_policy", "strict") if sent[name]), None)
    if rule is not None and (sent["retries"], sent["backoff_ms"]) != (None, None):
        raise InvalidInput(rule, "cannot be combined with retries or backoff_ms")
    default_ms = 0 if sent["retries"] is not None else None
    backoff_ms = default_ms if sent["backoff_ms"] is None else sent["backoff_ms"]
    outcome = Failed(call.key, sent["attempt"], sent["error_message"], sent["retries"], backoff_ms)
    outcome = outcome._replace(traceback=sent["traceback"])
    if rule is not None:
        outcome = outcome._replace(classes=(), strict=sent["strict"])
    return await _settle(call, outcome._replace(variables=await _merged(call, sent)), "failed")


async def throw(call: Call) -> Response:
    """Fail a job with an error code, without retry."""
    sent = await call.body()
    outcome = Throw(call.key, sent["attempt"], sent["error_code"], sent["error_message"], traceback=sent["traceback"])
    return await _settle(call, outcome._replace(variables=await _merged(call, sent)), "failed")


async def _merged(call: Call, sent: dict[str, Any]) -> str | None:
    if sent["variables"] is None:
        return None
    return await call.jobs.merged_variables(call.key, sent["variables"])


async def _settle(call: Call, outcome: Outcome, done: str) -> Response:
    if not outcome.attempt:
        call.context.metrics.unfenced(API)
    [verdict] = await call.jobs.settle([outcome])
    accepted(outcome.key, verdict, done)
    return await changed(call)


_VARIABLES: Final = JsonObject(PAYLOAD_BYTES_MAX)
_MESSAGE: Final = Field("error_message", MESSAGE, "The error message; up to 8,192 characters are kept.", default="")
_TRACEBACK: Final = Field(
    "traceback",
    TRACEBACK,
    "Stored with the attempt. Beyond 8,192 characters, only the first line and the end are kept.",
)
_OVER: Final = Field("variables", _VARIABLES, "Merged into the job's variables.")

OPERATIONS: Final = (
    Operation(
        "completeJob",
        "PUT",
        "/api/v1/jobs/{key}/complete",
        complete,
        "Complete a job",
        CHANGED,
        Jobs.settle,
        body=Shape(
            "Complete",
            (Field("variables", _VARIABLES, "The result."), ATTEMPT),
            {"variables": {"sent": True}, "attempt": 1},
        ),
        problems=(404, 409),
    ),
    Operation(
        "failJob",
        "PUT",
        "/api/v1/jobs/{key}/fail",
        fail,
        "Fail an attempt",
        CHANGED,
        Jobs.settle,
        body=Shape(
            "Fail",
            (
                Field(
                    "retries", Integer(0, ATTEMPTS_MAX), "Attempts left; 0 makes it a dead letter. Default: unchanged."
                ),
                _MESSAGE,
                Field(
                    "backoff_ms",
                    Integer(0, DELAY_MS_MAX),
                    "Delay before the next attempt, in milliseconds. Default: 0 with `retries`, or by policy.",
                ),
                Field(
                    "by_policy",
                    FLAG,
                    "Classify the error message by the type's error rules, and follow its policy.",
                    default=False,
                ),
                Field(
                    "strict", FLAG, "Like `by_policy`, but an error that no rule matches is permanent.", default=False
                ),
                _OVER,
                ATTEMPT,
                _TRACEBACK,
            ),
            {"error_message": "connection refused", "retries": 2, "backoff_ms": 5_000, "attempt": 1},
        ),
        problems=(404, 409),
    ),
    Operation(
        "throwError",
        "POST",
        "/api/v1/jobs/{key}/throw-error",
        throw,
        "Fail a job permanently with an error code",
        CHANGED,
        Jobs.settle,
        body=Shape(
            "Throw",
            (Field("error_code", NAME, "The error code.", is_required=True), _MESSAGE, _OVER, ATTEMPT, _TRACEBACK),
            {"error_code": "ADDRESS_UNKNOWN", "error_message": "no such address", "attempt": 1},
        ),
        problems=(404, 409),
    ),
)
