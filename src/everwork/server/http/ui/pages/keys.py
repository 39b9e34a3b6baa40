"""Page: list, create and revoke API keys; list and end sessions."""

from __future__ import annotations

from typing import Any, Final

from everwork.aio.clocks import host_clock_ms
from everwork.core import checks
from everwork.exceptions import InvalidInput
from everwork.server.http.ui.page import Action, Done, Page, View
from everwork.server.http.ui.visit import Visit
from everwork.service.access.api_key import ApiKey, KeyState
from everwork.service.access.grants import grantable, outranks
from everwork.service.access.principal import Permission
from everwork.service.admin import Admin

DAY_MS: Final = 86_400_000
DAYS_MIN: Final = 0.01
DAYS_MAX: Final = 3_650
ROWS_MAX: Final = 200
SOON_MS: Final = 14 * DAY_MS
"""A key that expires within this time is highlighted."""
MEANINGS: Final = (
    (Permission.JOBS_READ, "read jobs, types and workers"),
    (Permission.JOBS, "create, run and change jobs: for workers and programs"),
    (Permission.ADMIN, "manage types, policies, workers, triggers, keys and the audit log, but not jobs"),
    (Permission.TICK, "run maintenance and fire due triggers: for cron"),
    (Permission.ALL, "everything"),
)
FIELDS: Final = {"permissions": "permission", "rate_per_second": "rate", "expires_at": "days", "expires_at_ms": "days"}
"""Maps the service's field names to the form's, where they differ."""


async def show(visit: Visit) -> View:
    """List all keys, with a form for a new one."""
    return await _page(visit, {})


async def create(visit: Visit) -> View:
    """Create a key and show it once."""
    try:
        new = await visit.admin.create_key(
            visit.required("name"),
            list(visit.values("permission")),
            tenants=_tenants(visit),
            expires_at_ms=_expires(visit),
            rate_per_second=_number(visit, "rate"),
        )
    except InvalidInput as error:
        name = error.field.partition("[")[0]
        return await _page(visit, {FIELDS.get(name, name): error.problem}, 422)
    return View("key.html", {"text": new.text, "key": new.key})


async def revoke(visit: Visit) -> Done:
    """Revoke a key."""
    key = await visit.admin.revoke_key(visit.required("id"))
    return Done(f"Key {key.name} is revoked. Requests with it are rejected, and its sessions have ended.")


async def end_session(visit: Visit) -> Done:
    """End a session."""
    session = await visit.admin.end_session(visit.required("id"))
    return Done(f"The session of {session.who} has ended.")


async def end_sessions(visit: Visit) -> Done:
    """End all sessions that the visitor may end, including their own."""
    ended = await visit.admin.end_sessions()
    verb = "is" if ended.kept == 1 else "are"
    kept = f" {ended.kept:,} with more permissions than yours {verb} still open." if ended.kept else ""
    return Done(f"{ended.ended:,} session{' has' if ended.ended == 1 else 's have'} ended.{kept}")


async def _page(visit: Visit, problems: dict[str, str], status: int = 200) -> View:
    now_ms = host_clock_ms()
    keys = sorted(await visit.admin.list_keys(), key=lambda key: _order(key, now_ms))
    sessions = await visit.admin.sessions()
    own, may_grant = visit.principal, grantable(visit.principal)
    context: dict[str, Any] = {
        "keys": [
            (key, key.state(now_ms).value, not outranks(key.permissions, key.tenants, own)) for key in keys[:ROWS_MAX]
        ],
        "total": len(keys),
        "sessions": [(one, not outranks(one.permissions, one.tenants, visit.principal)) for one in sessions[:ROWS_MAX]],
        "sessions_total": len(sessions),
        "soon_ms": now_ms + SOON_MS,
        "problems": problems,
        "meanings": [one for one in MEANINGS if one[0] in may_grant],
        "defaults": {
            "days": "never" if own.expires_at_ms is None else "with your key",
            "rate": "server default" if own.rate_per_second is None else f"{own.rate_per_second:g}, like your key",
        },
        "typed": {name: visit.optional(name) or "" for name in ("name", "tenants", "days", "rate")},
        "picked": set(visit.values("permission")) if visit.form else {Permission.JOBS_READ.value},
    }
    return View("keys.html", context, status)


def _order(key: ApiKey, now_ms: int) -> tuple[bool, int]:
    """Sort key: live keys first, newest first."""
    return key.state(now_ms) is not KeyState.LIVE, -key.created_at_ms


def _tenants(visit: Visit) -> list[str]:
    return [one.strip() for one in (visit.optional("tenants") or "").split(",") if one.strip()]


def _expires(visit: Visit) -> int | None:
    days = _number(visit, "days")
    return None if days is None else host_clock_ms() + round(checks.number("days", days, DAYS_MIN, DAYS_MAX) * DAY_MS)


def _number(visit: Visit, name: str) -> float | None:
    text = visit.optional(name)
    number = None if text is None else checks.typed(text.strip())
    if isinstance(number, str):
        raise InvalidInput(name, f"must be a number, not {checks.shown(text)}")
    return number


PAGES = (Page("/keys", show),)
ACTIONS = (
    Action("/keys/create", create, Admin.create_key),
    Action("/keys/revoke", revoke, Admin.revoke_key, confirms=True),
    Action("/sessions/end", end_session, Admin.end_session, confirms=True),
    Action("/sessions/end-all", end_sessions, Admin.end_sessions, confirms=True),
)
