"""Types, groups, keys and the audit log."""

from __future__ import annotations

from typing import Any, Final

from starlette.responses import Response

from everwork.core.limits import (
    API_KEYS_TENANTS_MAX,
    LIST_LIMIT_DEFAULT,
    LIST_LIMIT_MAX,
    RATE_PER_SECOND_MAX,
    STATISTICS_KEEP_HOURS,
)
from everwork.server.http.api.changes import NOTHING
from everwork.server.http.api.schemas import ref
from everwork.server.http.framework.fields import INSTANT, NAME, ListOf, Number, OneOf, Whole
from everwork.server.http.framework.operations import Answer, Call, Field, Handler, Operation, Shape, answer
from everwork.service.access.api_key import RATE_PER_SECOND_MIN
from everwork.service.access.keys import host_clock
from everwork.service.access.principal import Permission
from everwork.service.reports import audit_report, group_report, key_report, stats_report, type_report


async def stats(call: Call) -> Response:
    """Counts, and what workers did lately."""
    return answer(stats_report(await call.jobs.stats(call.query["hours"])))


# Types ----------------------------------------------------------------------------------------------


async def list_types(call: Call) -> Response:
    """Every type that the store has seen."""
    return answer({"types": [type_report(view) for view in await call.admin.types()]})


async def pause_type(call: Call) -> Response:
    """Let no job of a type start."""
    await call.body()
    await call.admin.pause(call.named("type"))
    return answer({"type": call.named("type"), "paused": True})


async def resume_type(call: Call) -> Response:
    """Let jobs of a type start again."""
    await call.body()
    await call.admin.resume(call.named("type"))
    return answer({"type": call.named("type"), "paused": False})


# Groups ---------------------------------------------------------------------------------------------


async def list_groups(call: Call) -> Response:
    """The further groups of all types."""
    return answer({"groups": [group_report(view) for view in await call.admin.groups()]})


async def drop_group(call: Call) -> Response:
    """Forget a group."""
    type, group = call.named("type"), call.named("group")
    cancelled = await call.admin.drop_group(type, group)
    return answer({"type": type, "group": group, "cancelled": cancelled})


# Keys and audit -------------------------------------------------------------------------------------


async def create_key(call: Call) -> Response:
    """Make a key; it is shown in this answer and nowhere else."""
    sent = await call.body()
    new = await call.admin.create_key(
        sent["name"],
        sent["permissions"],
        tenants=sent["tenants"],
        expires_at_ms=sent["expires_at"],
        rate_per_second=sent["rate_per_second"],
    )
    return answer({**key_report(new.key, host_clock()), "key": new.text}, 201)


async def list_keys(call: Call) -> Response:
    """Every key, without anything secret."""
    now_ms = host_clock()
    return answer({"keys": [key_report(key, now_ms) for key in await call.admin.list_keys()]})


async def revoke_key(call: Call) -> Response:
    """Refuse a key from now on."""
    return answer(key_report(await call.admin.revoke_key(call.named("id")), host_clock()))


async def list_audit(call: Call) -> Response:
    """Who did what, newest first."""
    limit = call.query["limit"]
    entries = await call.admin.audit(limit, call.query["cursor"])
    following = entries[-1].name if len(entries) == limit else None
    return answer({"entries": [audit_report(entry) for entry in entries], "next": following})


_NEW_KEY: Final = Shape(
    "KeyWish",
    (
        Field("name", NAME, "Whom it is for.", is_required=True),
        Field(
            "permissions",
            ListOf(OneOf(tuple(one.value for one in Permission)), items_min=1),
            "What it allows.",
            is_required=True,
        ),
        Field("tenants", ListOf(NAME, API_KEYS_TENANTS_MAX), "The only tenants it is good for.", default=()),
        Field("expires_at", INSTANT, "When it ends; in the future."),
        Field("rate_per_second", Number(RATE_PER_SECOND_MIN, RATE_PER_SECOND_MAX), "How often it may call."),
    ),
    {"name": "ci", "permissions": ["jobs"], "tenants": ["acme"]},
)
READS: Final = (Permission.JOBS_READ, Permission.ADMIN)
_ADMIN: Final = (Permission.ADMIN,)
_TYPE: Final = "/api/v1/types/{type}"


def row(id: str, route: str, handler: Handler, about: str, done: Answer, **more: Any) -> Operation:
    """A call of administrators, unless `permissions` says more."""
    method, path = route.split(" ")
    status = 204 if done.schema is None else 201 if id == "createKey" else 200
    wanted = {"permissions": _ADMIN, "is_unbound": True, "tag": "administration", **more}
    return Operation(id, method, path, handler, about, {status: done}, problems=(404,) if "{" in path else (), **wanted)


def done(schema: str) -> Answer:
    """The one answer that a call has when all is well."""
    return Answer("Done.", ref(schema))


OPERATIONS: Final = (
    Operation(
        "getStats",
        "GET",
        "/api/v1/stats",
        stats,
        "Counts, and what workers did lately",
        {200: Answer("The figures; by worker and performance only for keys without tenants.", ref("Stats"))},
        (Permission.JOBS_READ,),
        query=(Field("hours", Whole(1, STATISTICS_KEEP_HOURS), "How far to look back.", default=24),),
    ),
    row("listTypes", "GET /api/v1/types", list_types, "List the types", done("Types"), permissions=READS),
    row("pauseType", f"PUT {_TYPE}/pause", pause_type, "Let no job start", done("Pause"), body=NOTHING),
    row("resumeType", f"PUT {_TYPE}/resume", resume_type, "Let jobs start again", done("Pause"), body=NOTHING),
    row("listGroups", "GET /api/v1/groups", list_groups, "List the groups", done("Groups"), permissions=READS),
    row("dropGroup", f"DELETE {_TYPE}/groups/{{group}}", drop_group, "Forget a group", done("DroppedGroup")),
    row("createKey", "POST /api/v1/keys", create_key, "Make a key, shown this once", done("NewKey"), body=_NEW_KEY),
    row("listKeys", "GET /api/v1/keys", list_keys, "List the keys", done("Keys")),
    row("revokeKey", "DELETE /api/v1/keys/{id}", revoke_key, "Refuse a key from now on", done("Key")),
    row(
        "listAudit",
        "GET /api/v1/audit",
        list_audit,
        "Who did what, newest first",
        done("Audit"),
        query=(
            Field("limit", Whole(1, LIST_LIMIT_MAX), "How many.", default=LIST_LIMIT_DEFAULT),
            Field("cursor", NAME, "`next` of the page before."),
        ),
    ),
)
