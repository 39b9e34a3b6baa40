"""REST: types, groups, API keys, statistics and the audit log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Final

from starlette.responses import Response

from everwork.aio.clocks import host_clock_ms
from everwork.core.limits import (
    API_KEYS_TENANTS_MAX,
    LIST_LIMIT_DEFAULT,
    LIST_LIMIT_MAX,
    RATE_PER_SECOND_MAX,
    STATISTICS_KEEP_HOURS,
)
from everwork.server.http.api.changes import NOTHING
from everwork.server.http.api.schemas import ref
from everwork.server.http.framework.fields import INSTANT, NAME, Integer, ListOf, Number, OneOf
from everwork.server.http.framework.operations import (
    Call,
    Field,
    Handler,
    Operation,
    ResponseSpec,
    Shape,
    json_response,
)
from everwork.service.access.api_key import RATE_PER_SECOND_MIN
from everwork.service.access.principal import Permission
from everwork.service.admin import Admin
from everwork.service.jobs import Jobs
from everwork.service.reports import audit_report, group_report, key_report, session_report, stats_report, type_report


async def stats(call: Call) -> Response:
    """Counts of jobs, and statistics of the last hours."""
    return json_response(stats_report(await call.jobs.stats(call.query["hours"])))


async def tick(call: Call) -> Response:
    """Run maintenance and fire due triggers now; workers run the jobs."""
    await call.body()
    return json_response(asdict(await call.admin.tick()))


# Types ----------------------------------------------------------------------------------------------


async def list_types(call: Call) -> Response:
    """List all known types."""
    return json_response({"types": [type_report(view) for view in await call.admin.types()]})


async def pause_type(call: Call) -> Response:
    """Pause a type: its jobs stay pending."""
    await call.body()
    await call.admin.pause(call.path_param("type"))
    return json_response({"type": call.path_param("type"), "paused": True})


async def resume_type(call: Call) -> Response:
    """Resume a type."""
    await call.body()
    await call.admin.resume(call.path_param("type"))
    return json_response({"type": call.path_param("type"), "paused": False})


async def delete_type(call: Call) -> Response:
    """Delete a type that is not in use."""
    type = call.path_param("type")
    return json_response({"type": type, "deleted": await call.admin.delete_type(type)})


# Groups ---------------------------------------------------------------------------------------------


async def list_groups(call: Call) -> Response:
    """List the consumer groups of all types."""
    return json_response({"groups": [group_report(view) for view in await call.admin.groups()]})


async def drop_group(call: Call) -> Response:
    """Delete a group."""
    type, group = call.path_param("type"), call.path_param("group")
    cancelled = await call.admin.drop_group(type, group)
    return json_response({"type": type, "group": group, "cancelled": cancelled})


# Keys and audit -------------------------------------------------------------------------------------


async def create_key(call: Call) -> Response:
    """Create an API key; only this response contains it."""
    sent = await call.body()
    new = await call.admin.create_key(
        sent["name"],
        sent["permissions"],
        tenants=sent["tenants"],
        expires_at_ms=sent["expires_at"],
        rate_per_second=sent["rate_per_second"],
    )
    return json_response({**key_report(new.key, host_clock_ms()), "key": new.text}, 201)


async def list_keys(call: Call) -> Response:
    """List all API keys, without their secrets."""
    now_ms = host_clock_ms()
    return json_response({"keys": [key_report(key, now_ms) for key in await call.admin.list_keys()]})


async def revoke_key(call: Call) -> Response:
    """Revoke an API key."""
    return json_response(key_report(await call.admin.revoke_key(call.path_param("id")), host_clock_ms()))


async def list_sessions(call: Call) -> Response:
    """List the open sessions of the dashboard."""
    return json_response({"sessions": [session_report(one) for one in await call.admin.sessions()]})


async def end_session(call: Call) -> Response:
    """End a session of the dashboard."""
    return json_response(session_report(await call.admin.end_session(call.path_param("id"))))


async def end_sessions(call: Call) -> Response:
    """End all sessions of the dashboard."""
    return json_response(asdict(await call.admin.end_sessions()))


async def list_audit(call: Call) -> Response:
    """List the audit log, newest first."""
    limit = call.query["limit"]
    entries = await call.admin.audit(limit, call.query["cursor"])
    next_cursor = entries[-1].name if len(entries) == limit else None
    return json_response({"entries": [audit_report(entry) for entry in entries], "next": next_cursor})


_NEW_KEY: Final = Shape(
    "NewKeyRequest",
    (
        Field("name", NAME, "A name for the key, shown in lists and the audit log.", is_required=True),
        Field(
            "permissions",
            ListOf(OneOf(tuple(one.value for one in Permission)), items_min=1),
            "The permissions of the key.",
            is_required=True,
        ),
        Field(
            "tenants",
            ListOf(NAME, API_KEYS_TENANTS_MAX),
            "Bind the key to these tenants. Default: all tenants.",
            default=(),
        ),
        Field("expires_at", INSTANT, "Expiry, in the future. Default: that of your key, or never."),
        Field(
            "rate_per_second",
            Number(RATE_PER_SECOND_MIN, RATE_PER_SECOND_MAX),
            "Rate limit, in requests per second. Default: that of your key, or the server's `rate_limit`.",
        ),
    ),
    {"name": "ci", "permissions": ["jobs"], "tenants": ["acme"]},
)
_TYPE: Final = "/api/v1/types/{type}"


def operation(
    id: str,
    route: str,
    handler: Handler,
    verb: Callable[..., Any],
    *,
    summary: str,
    response: ResponseSpec,
    **more: Any,
) -> Operation:
    """An admin operation, with its verb's access rule."""
    method, path = route.split(" ")
    status = 204 if response.schema is None else 201 if id == "createKey" else 200
    options = {"problems": (404,) if "{" in path else (), **more}
    return Operation(id, method, path, handler, summary, {status: response}, verb, **options)


def ok(schema: str) -> ResponseSpec:
    """The successful response of an operation."""
    return ResponseSpec("Success.", ref(schema))


OPERATIONS: Final = (
    Operation(
        "getStats",
        "GET",
        "/api/v1/stats",
        stats,
        "Get job counts and recent performance",
        {
            200: ResponseSpec(
                "The statistics. `by_worker` and `performance` are only filled for keys that are not bound to tenants.",
                ref("Stats"),
            )
        },
        Jobs.stats,
        query=(
            Field(
                "hours", Integer(1, STATISTICS_KEEP_HOURS), "Period of the performance figures, in hours.", default=24
            ),
        ),
    ),
    operation(
        "tick",
        "POST /api/v1/tick",
        tick,
        Admin.tick,
        summary="Run maintenance and fire due triggers now",
        response=ok("Upkeep"),
        body=NOTHING,
    ),
    operation(
        "listTypes", "GET /api/v1/types", list_types, Admin.types, summary="List job types", response=ok("Types")
    ),
    operation(
        "pauseType",
        f"PUT {_TYPE}/pause",
        pause_type,
        Admin.pause,
        summary="Pause a type",
        response=ok("Pause"),
        body=NOTHING,
    ),
    operation(
        "deleteType",
        f"DELETE {_TYPE}",
        delete_type,
        Admin.delete_type,
        summary="Delete a type that is not in use",
        response=ok("TypeDeletion"),
    ),
    operation(
        "resumeType",
        f"PUT {_TYPE}/resume",
        resume_type,
        Admin.resume,
        summary="Resume a type",
        response=ok("Pause"),
        body=NOTHING,
    ),
    operation(
        "listGroups",
        "GET /api/v1/groups",
        list_groups,
        Admin.groups,
        summary="List consumer groups",
        response=ok("Groups"),
    ),
    operation(
        "dropGroup",
        f"DELETE {_TYPE}/groups/{{group}}",
        drop_group,
        Admin.drop_group,
        summary="Delete a consumer group",
        response=ok("DroppedGroup"),
    ),
    operation(
        "createKey",
        "POST /api/v1/keys",
        create_key,
        Admin.create_key,
        summary="Create an API key",
        response=ok("NewKey"),
        body=_NEW_KEY,
    ),
    operation("listKeys", "GET /api/v1/keys", list_keys, Admin.list_keys, summary="List API keys", response=ok("Keys")),
    operation(
        "revokeKey",
        "DELETE /api/v1/keys/{id}",
        revoke_key,
        Admin.revoke_key,
        summary="Revoke an API key",
        response=ok("Key"),
    ),
    operation(
        "listSessions",
        "GET /api/v1/sessions",
        list_sessions,
        Admin.sessions,
        summary="List open dashboard sessions",
        response=ok("Sessions"),
    ),
    operation(
        "endSession",
        "DELETE /api/v1/sessions/{id}",
        end_session,
        Admin.end_session,
        summary="End a dashboard session",
        response=ok("Session"),
    ),
    operation(
        "endSessions",
        "DELETE /api/v1/sessions",
        end_sessions,
        Admin.end_sessions,
        summary="End all dashboard sessions; with `*`, also invalidate unused login links",
        response=ok("EndedSessions"),
    ),
    operation(
        "listAudit",
        "GET /api/v1/audit",
        list_audit,
        Admin.audit,
        summary="List the audit log, newest first",
        response=ok("Audit"),
        query=(
            Field("limit", Integer(1, LIST_LIMIT_MAX), "Page size.", default=LIST_LIMIT_DEFAULT),
            Field("cursor", NAME, "`next` from the previous page."),
        ),
    ),
)
