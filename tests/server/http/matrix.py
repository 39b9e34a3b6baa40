"""Who may call what over REST: one row for each operation. An operation without a row fails the suite."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

from tests.server.http.serving import JOBS, Rest

TENANT: Final = "acme"
"""Whose jobs the calls are about."""
TYPE: Final = "email-send"
Prepare = Callable[[Rest], Awaitable[str]]


class Row(NamedTuple):
    """A call that is right in all but its key, and how it ends by the key that comes with it.

    `right` ends the call of a key with `permission`; `read_only` that of one with jobs:read; `foreign` that of
    one with the right permission for another tenant. `prepare` answers what stands for {} in the path.
    """

    path: str
    right: int
    read_only: int = 403
    foreign: int = 403
    body: Any = None
    permission: str = "jobs"
    prepare: Prepare | None = None


async def waiting(rest: Rest) -> str:
    """The key of a job that waits."""
    return str((await rest.job(tenant=TENANT, delay_ms=3_600_000))["key"])


async def running(rest: Rest) -> str:
    """The key of a job that a worker holds."""
    return str((await rest.leased(tenant=TENANT, type=a_type()))["key"])


async def dead(rest: Rest) -> str:
    """The key of a dead letter."""
    return str((await rest.dead_letter(tenant=TENANT, type=a_type()))["key"])


def a_type() -> str:
    """A type that no other row has jobs of."""
    return f"{TYPE}-{secrets.token_hex(4)}"


async def known_type(rest: Rest) -> str:
    """A type that the store has seen."""
    return str((await rest.job())["type"])


async def group(rest: Rest) -> str:
    """A group of a known type."""
    await rest.engine.add_group(TYPE, "auditors")
    return TYPE


async def spare_key(rest: Rest) -> str:
    """The id of a key that nobody needs."""
    return (await rest.keys.create("spare", ["jobs"])).key.id


def _job(suffix: str, prepare: Prepare, body: Any = None, right: int = 200) -> Row:
    return Row(f"{JOBS}/{{}}{suffix}", right, body=body, prepare=prepare)


def _admin(path: str, body: Any = None, right: int = 200, prepare: Prepare | None = None) -> Row:
    return Row(path, right, body=body, permission="admin", prepare=prepare)


def _types(suffix: str, body: Any = None, right: int = 200) -> Row:
    return _admin(f"/api/v1/types/{{}}/{suffix}", body, right, known_type)


_PUBLIC: Final = Row("", 200, 200, 200)

ROWS: Final = {
    "listJobs": Row(JOBS, 200, 200, 200, permission="jobs:read"),
    "listJobsShort": Row("/jobs", 200, 200, 200, permission="jobs:read"),
    "createJobs": Row(JOBS, 201, body={"type": TYPE, "tenant": TENANT}),
    "getJob": Row(f"{JOBS}/{{}}", 200, 200, 403, permission="jobs:read", prepare=waiting),
    "activateJobs": Row(f"{JOBS}/activate", 200, body={"type": TYPE, "worker": "w", "tenants": [TENANT]}),
    "completeJob": _job("/complete", running),
    "failJob": _job("/fail", running),
    "throwError": _job("/throw-error", running, {"error_code": "E"}),
    "cancelJob": _job("/cancel", waiting),
    "requeueJob": _job("/requeue", dead),
    "setRetries": _job("/retries", waiting, {"retries": 3}),
    "setTimeout": _job("/timeout", running, {"timeout_ms": 60_000}),
    "runNow": _job("/run-now", waiting),
    "rescheduleJob": _job("/reschedule", waiting, {"delay_ms": 3_600_000}),
    "setPriority": _job("/priority", waiting, {"priority": 5}),
    "deleteJob": _job("", dead, right=204),
    "requeueJobs": Row(f"{JOBS}/requeue", 200, body={"tenant": [TENANT]}),
    "getStats": Row("/api/v1/stats", 200, 200, 200, permission="jobs:read"),
    "listTypes": Row("/api/v1/types", 200, 200, permission="jobs:read"),
    "pauseType": _types("pause"),
    "resumeType": _types("resume"),
    "resetBreaker": _types("breaker/reset"),
    "getPolicy": Row("/api/v1/types/{}/policy", 200, 200, permission="jobs:read", prepare=known_type),
    "putPolicy": _types("policy", {"max_attempts": 3}),
    "deletePolicy": _types("policy", right=204),
    "listGroups": Row("/api/v1/groups", 200, 200, permission="jobs:read"),
    "dropGroup": _admin("/api/v1/types/{}/groups/auditors", prepare=group),
    "createKey": _admin("/api/v1/keys", {"name": "ci", "permissions": ["jobs"]}, 201),
    "listKeys": _admin("/api/v1/keys"),
    "revokeKey": _admin("/api/v1/keys/{}", prepare=spare_key),
    "listAudit": _admin("/api/v1/audit"),
    "getMetrics": Row("/metrics", 200, 200, permission="jobs:read"),
    "healthz": _PUBLIC._replace(path="/healthz"),
    "readyz": _PUBLIC._replace(path="/readyz"),
    "getDocs": _PUBLIC._replace(path="/docs"),
    "getOpenApi": _PUBLIC._replace(path="/openapi.json"),
    "home": Row("/", 307, 307, 307),
}
PUBLIC: Final = frozenset({"healthz", "readyz", "getDocs", "getOpenApi", "home"})
"""What needs no key. Nothing else may become public by accident."""
UNBOUND: Final = frozenset(
    {
        "listTypes",
        "pauseType",
        "resumeType",
        "resetBreaker",
        "getPolicy",
        "putPolicy",
        "deletePolicy",
        "listGroups",
        "dropGroup",
        "createKey",
        "listKeys",
        "revokeKey",
        "listAudit",
        "getMetrics",
    }
)
"""What keys that are bound to tenants may not do at all."""
