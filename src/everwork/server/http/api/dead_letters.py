"""REST: list dead letters by group, requeue and delete them by a filter."""

from __future__ import annotations

from typing import Any, Final

from starlette.responses import Response

from everwork.core.fingerprint import FINGERPRINT_CHARS
from everwork.server.http.api.jobs import TENANTS_MAX
from everwork.server.http.api.schemas import ref
from everwork.server.http.framework.fields import FLAG, INSTANT, NAME, SEARCH_TEXT, Integer, ListOf, OneOf, Schema
from everwork.server.http.framework.operations import (
    Call,
    Field,
    Handler,
    Operation,
    ResponseSpec,
    Shape,
    json_response,
)
from everwork.service.bulk import BulkFilter
from everwork.service.dead_letters import (
    GROUP_ORDERS,
    GROUPS_DEFAULT,
    GROUPS_MAX,
    DeadLetterAction,
    dead_filter,
    grouped,
    require_fingerprint,
)
from everwork.service.jobs import Jobs
from everwork.service.reports import dead_report


class Fingerprint:
    """The fingerprint of an error group."""

    @property
    def schema(self) -> Schema:
        """The JSON schema."""
        return {"type": "string", "pattern": f"^[a-p]{{{FINGERPRINT_CHARS}}}$"}

    def read(self, name: str, value: object) -> str:
        """The fingerprint."""
        return require_fingerprint(value, name)

    parse = read


async def list_dead(call: Call) -> Response:
    """List dead letters by type and error group."""
    asked = call.query
    return json_response(dead_report(await grouped(call.jobs, _filter(asked), asked["limit"], asked["order"])))


async def requeue_dead(call: Call) -> Response:
    """Requeue the dead letters that match."""
    return await _change_matching(call, DeadLetterAction.REQUEUE)


async def purge_dead(call: Call) -> Response:
    """Delete the dead letters that match."""
    return await _change_matching(call, DeadLetterAction.PURGE)


async def _change_matching(call: Call, action: DeadLetterAction) -> Response:
    sent = await call.body()
    dry_run = bool(sent["dry_run"])
    change = await call.jobs.change_dead(action, _filter(sent), all=bool(sent["all"]), dry_run=dry_run)
    return json_response({"matched": change.matched, "changed": change.changed, "dry_run": dry_run})


def _filter(sent: dict[str, Any]) -> BulkFilter:
    return dead_filter(
        type=sent["type"],
        tenants=sent["tenant"],
        error_text=sent["error"],
        fingerprint=sent["fingerprint"],
        failed_after_ms=sent["failed_after"],
        failed_before_ms=sent["failed_before"],
        rejected=sent["rejected"],
    )


_FILTER: Final = (
    Field("type", NAME, "Dead letters of this type."),
    Field("tenant", ListOf(NAME, TENANTS_MAX, 1), "Dead letters of these tenants.", default=()),
    Field("error", SEARCH_TEXT, "Dead letters whose error contains this text."),
    Field("fingerprint", Fingerprint(), "Dead letters of this error group."),
    Field("failed_after", INSTANT, "Dead letters that failed at or after this time."),
    Field("failed_before", INSTANT, "Dead letters that failed before this time."),
    Field("rejected", FLAG, "Rejected jobs instead of dead letters.", default=False),
)
_CHANGE: Final = Shape(
    "DeadChange",
    (
        Field("all", FLAG, "Change every dead letter.", default=False),
        Field("dry_run", FLAG, "Only count the matching jobs.", default=False),
        *_FILTER,
    ),
    {"type": "email-send", "error": "timed out", "dry_run": True},
)


def _change(id: str, verb: str, handler: Handler, summary: str) -> Operation:
    responses = {200: ResponseSpec("How many jobs matched, and how many were changed.", ref("DeadChanged"))}
    path, problems = f"/api/v1/dead/{verb}", (404,)
    return Operation(id, "POST", path, handler, summary, responses, Jobs.change_dead, body=_CHANGE, problems=problems)


OPERATIONS: Final = (
    Operation(
        "listDead",
        "GET",
        "/api/v1/dead",
        list_dead,
        "List dead letters by type and error group",
        {200: ResponseSpec("The first groups, in the requested order.", ref("DeadLetters"))},
        Jobs.find,
        query=(
            *_FILTER,
            Field(
                "order",
                OneOf(GROUP_ORDERS),
                "`frequent`: most jobs first; `failed`: latest failure first.",
                default=GROUP_ORDERS[0],
            ),
            Field("limit", Integer(1, GROUPS_MAX), "Maximum number of groups.", default=GROUPS_DEFAULT),
        ),
    ),
    _change("requeueDead", "requeue", requeue_dead, "Requeue all dead letters that match a filter"),
    _change("purgeDead", "purge", purge_dead, "Delete all dead letters that match a filter"),
)
