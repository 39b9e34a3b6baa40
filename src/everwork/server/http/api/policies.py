"""REST: policies and breakers of types."""

from __future__ import annotations

from typing import Any, Final

from starlette.responses import Response

from everwork.core.breaker import CircuitBreaker
from everwork.core.classify import Strategy
from everwork.core.limits import (
    ATTEMPTS_MAX,
    BREAKER_FAILURES_MAX,
    BREAKER_SECONDS_MAX,
    DELAY_MS_MAX,
    ERROR_RULE_CHARS_MAX,
    ERROR_RULES_MAX,
    FAILED_RETRY_HOURS_MAX,
    FAILED_RETRY_ROUNDS_MAX,
    KEEP_HOURS_MAX,
    RATE_JOBS_MAX,
    RATE_SECONDS_MAX,
    RUNNING_MAX,
)
from everwork.core.policy import rules_from
from everwork.exceptions import InvalidInput
from everwork.server.http.api.admin import ok, operation
from everwork.server.http.api.changes import NOTHING
from everwork.server.http.framework.fields import FLAG, Integer, Number, Schema
from everwork.server.http.framework.operations import Call, Field, ResponseSpec, Shape, json_response
from everwork.service.admin import Admin
from everwork.service.reports import policy_report


class ErrorRules:
    """The error rules of a policy."""

    @property
    def schema(self) -> Schema:
        """The JSON schema."""
        part = {"type": ["string", "null"], "minLength": 1, "maxLength": ERROR_RULE_CHARS_MAX, "format": "text"}
        strategy = {"type": "string", "enum": [one.value for one in Strategy]}
        rule = {"type": "object", "properties": {"strategy": strategy, "exception": part, "text": part}}
        strict = {"required": ["strategy"], "additionalProperties": False}
        return {"type": "array", "items": rule | strict, "maxItems": ERROR_RULES_MAX}

    def read(self, name: str, value: object) -> Any:  # noqa: ARG002 - errors name the rule
        """The rules as sent, known to be valid."""
        rules_from(value)
        return value

    def parse(self, name: str, text: str) -> Any:
        """Always refused: a query cannot hold rules."""
        return self.read(name, text)


async def get_policy(call: Call) -> Response:
    """Get the effective policy of a type."""
    return json_response(policy_report(call.path_param("type"), await call.admin.policy(call.path_param("type"))))


async def put_policy(call: Call) -> Response:
    """Replace the policy of a type; unset fields use their defaults."""
    view = await call.admin.set_policy(call.path_param("type"), await call.sent_fields())
    return json_response(policy_report(call.path_param("type"), view))


async def patch_policy(call: Call) -> Response:
    """Change fields of a policy; null restores the default."""
    fields = await call.sent_fields()
    if not fields:
        raise InvalidInput("body", "must have at least one field")
    view = await call.admin.set_policy(call.path_param("type"), fields, changes_only=True)
    return json_response(policy_report(call.path_param("type"), view))


async def delete_policy(call: Call) -> Response:
    """Restore the default policy."""
    await call.admin.clear_policy(call.path_param("type"))
    return Response(status_code=204)


async def open_breaker(call: Call) -> Response:
    """Open the breaker of a type manually."""
    sent = await call.body()
    seconds = await call.admin.open_breaker(call.path_param("type"), sent["seconds"])
    return json_response({"type": call.path_param("type"), "seconds": seconds})


async def reset_breaker(call: Call) -> Response:
    """Close the breaker of a type."""
    await call.body()
    was_open = await call.admin.reset_breaker(call.path_param("type"))
    return json_response({"type": call.path_param("type"), "was_open": was_open})


_DELAY: Final = Number(0, DELAY_MS_MAX / 1000)
_HOURS: Final = Number(0.001, KEEP_HOURS_MAX)
_RUNNING: Final = Integer(1, RUNNING_MAX)
_FIELDS: Final = (
    Field("max_attempts", Integer(1, ATTEMPTS_MAX), "Maximum number of attempts. Default: 5."),
    Field("base", _DELAY, "Delay before the second attempt, in seconds. Default: 5."),
    Field("factor", Number(1, 100), "Factor by which each further delay grows. Default: 2."),
    Field("cap", _DELAY, "Longest delay, in seconds. Default: 300."),
    Field("jitter", Number(0, 1), "Share of a delay, 0 to 1, that is randomly subtracted. Default: 0."),
    Field(
        "breaker_failures",
        Integer(1, BREAKER_FAILURES_MAX),
        "Consecutive failures that open the circuit breaker. Default: no breaker.",
    ),
    Field("breaker_seconds", Number(1, BREAKER_SECONDS_MAX), "How long the breaker stays open, in seconds."),
    Field("errors", ErrorRules(), "Error rules: each maps an exception class or a text to a strategy."),
    Field("strict", FLAG, "Errors that match no rule are permanent."),
    Field(
        "failed_job_retry_hours",
        Number(0.001, FAILED_RETRY_HOURS_MAX),
        "Requeue dead letters automatically after this many hours. Default: never.",
    ),
    Field(
        "failed_job_retry_rounds",
        Integer(1, FAILED_RETRY_ROUNDS_MAX),
        "How often a job is requeued automatically. Default: 1.",
    ),
    Field("keep_completed_hours", _HOURS, "Retention of completed and cancelled jobs, in hours."),
    Field("keep_failed_hours", _HOURS, "Retention of dead letters, in hours."),
    Field("max_running", _RUNNING, "Maximum number of running jobs, over all workers."),
    Field("max_running_per_key", _RUNNING, "Maximum number of running jobs per limit key."),
    Field("rate_jobs", Integer(1, RATE_JOBS_MAX), "Maximum number of jobs that start per window (rate limit)."),
    Field("rate_seconds", Number(1, RATE_SECONDS_MAX), "Length of the rate limit's window, in seconds. Default: 60."),
)
_POLICY: Final = Shape(
    "PolicyChange",
    _FIELDS,
    {"max_attempts": 3, "base": 10, "breaker_failures": 3, "breaker_seconds": 60, "max_running": 20},
    must_be_sent=True,
)
_OPENING: Final = Shape(
    "BreakerOpening",
    (
        Field(
            "seconds",
            Number(1, BREAKER_SECONDS_MAX),
            "How long the breaker stays open, in seconds.",
            default=CircuitBreaker().seconds,
        ),
    ),
    {"seconds": 600},
)
_TYPE: Final = "/api/v1/types/{type}"
_PATH: Final = f"{_TYPE}/policy"

OPERATIONS: Final = (
    operation(
        "openBreaker",
        f"PUT {_TYPE}/breaker/open",
        open_breaker,
        Admin.open_breaker,
        summary="Open the circuit breaker of a type",
        response=ok("Opened"),
        body=_OPENING,
    ),
    operation(
        "resetBreaker",
        f"PUT {_TYPE}/breaker/reset",
        reset_breaker,
        Admin.reset_breaker,
        summary="Close the circuit breaker of a type",
        response=ok("Reset"),
        body=NOTHING,
    ),
    operation(
        "getPolicy",
        f"GET {_PATH}",
        get_policy,
        Admin.policy,
        summary="Get the effective policy of a type",
        response=ok("Policy"),
    ),
    operation(
        "putPolicy",
        f"PUT {_PATH}",
        put_policy,
        Admin.set_policy,
        summary="Replace the policy of a type",
        response=ok("Policy"),
        body=_POLICY,
    ),
    operation(
        "patchPolicy",
        f"PATCH {_PATH}",
        patch_policy,
        Admin.set_policy,
        summary="Change fields of the policy of a type",
        response=ok("Policy"),
        body=_POLICY,
    ),
    operation(
        "deletePolicy",
        f"DELETE {_PATH}",
        delete_policy,
        Admin.clear_policy,
        summary="Restore the default policy of a type",
        response=ResponseSpec("The type has the default policy."),
    ),
)
