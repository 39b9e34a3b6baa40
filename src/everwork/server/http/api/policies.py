"""REST: policies and breakers of types."""

from __future__ import annotations

from typing import Any, Final

from starlette.responses import Response

from everwork.core import policy_fields
from everwork.core.breaker import CircuitBreaker
from everwork.core.classify import Strategy
from everwork.core.limits import BREAKER_SECONDS_MAX, ERROR_RULE_CHARS_MAX, ERROR_RULES_MAX
from everwork.core.policy import default_text, rules_from
from everwork.core.policy_fields import PolicyField
from everwork.exceptions import InvalidInput
from everwork.server.http.api.admin import ok, operation
from everwork.server.http.api.changes import NOTHING
from everwork.server.http.framework.fields import FLAG, FieldType, Integer, Number, Schema
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
        """The rules as sent, after validation."""
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


_ERROR_RULES: Final = ErrorRules()


def _type(field: PolicyField) -> FieldType:
    match field.kind:
        case "integer":
            return Integer(int(field.low), int(field.high))
        case "number":
            return Number(field.low, field.high)
        case "flag":
            return FLAG
        case "rules":
            return _ERROR_RULES


def _described(field: PolicyField) -> str:
    unit = f", in {field.unit}" if field.unit else ""
    return f"{field.label}{unit}. {field.hint} Default: {default_text(field)}."


_FIELDS: Final = tuple(Field(one.name, _type(one), _described(one)) for one in policy_fields.FIELDS)
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
