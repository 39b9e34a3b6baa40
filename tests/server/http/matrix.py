"""Who may call what over REST: one call for each operation. An operation without one fails the suite."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

from everwork.service.access.principal import Permission
from tests.fleets import a_process, a_trigger
from tests.server.http.serving import JOBS, Rest
from tests.server.matrix import TENANT, Expected, Holder, Row, Scope, expected

TYPE: Final = "email-send"
Prepare = Callable[[Rest], Awaitable[str]]


class Call(NamedTuple):
    """A row of the table, with a call that is right in all but its key, and the status of its answer to who may ask.

    `rows`: the key must satisfy one of them. `prepare` answers what stands for {} in the path.
    """

    rows: tuple[Row, ...]
    path: str
    answer: int = 200
    body: Any = None
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


async def a_known_type(rest: Rest) -> str:
    """A type of its own that the store has seen: what is done to it must stop no other row."""
    return str((await rest.job(type=a_type()))["type"])


async def a_spare_type(rest: Rest) -> str:
    """A type that is not in use."""
    type = a_type()
    await rest.engine.pause(type, False)
    return type


async def group(rest: Rest) -> str:
    """A group of a known type."""
    await rest.engine.add_group(TYPE, "auditors")
    return TYPE


async def worker(rest: Rest) -> str:
    """The id of a worker that nobody runs."""
    return (await a_trigger(rest.engine)).worker_id


async def trigger(rest: Rest) -> str:
    """The name of its trigger."""
    return (await a_trigger(rest.engine)).name


async def process(rest: Rest) -> str:
    """The name of a process that lives, as a path has it."""
    return (await a_process(rest.engine, workers=())).name.replace("/", "%2F")


async def spare_key(rest: Rest) -> str:
    """The id of a key that nobody needs."""
    return (await rest.keys.create("spare", ["jobs"])).key.id


async def session(rest: Rest) -> str:
    """The id of a session that is not in use."""
    holder = rest.keys.authenticate((await rest.keys.create("spare", ["jobs"])).text)
    return (await rest.service.sessions.begin(holder, rest.keys, "127.0.0.1")).id


PUBLIC: Final = (Row(None, Scope.NOTHING),)
LISTS: Final = (Row(Permission.JOBS_READ, Scope.OWN),)
READS: Final = (Row(Permission.JOBS_READ, Scope.JOB),)
CHANGES: Final = (Row(Permission.JOBS, Scope.JOB),)
FOR_TENANT: Final = (Row(Permission.JOBS, Scope.TENANT),)
ADMIN: Final = (Row(Permission.ADMIN, Scope.STORE),)
LOOKS: Final = (Row(Permission.JOBS_READ, Scope.STORE), *ADMIN)
"""Either permission will do."""
KEY: Final = f"{JOBS}/{{}}"
ON_TYPE: Final = "/api/v1/types/{}"
ON_WORKER: Final = "/api/v1/workers/{}"
ON_TRIGGER: Final = "/api/v1/triggers/{}"

CALLS: Final = {
    "listJobs": Call(LISTS, JOBS),
    "listJobsShort": Call(LISTS, "/jobs"),
    "createJobs": Call(FOR_TENANT, JOBS, 201, {"type": TYPE, "tenant": TENANT}),
    "getJob": Call(READS, KEY, prepare=waiting),
    "getSpooledJob": Call(LISTS, "/api/v1/spool/0123-1", 404),
    "activateJobs": Call(FOR_TENANT, f"{JOBS}/activate", body={"type": TYPE, "worker": "w", "tenants": [TENANT]}),
    "completeJob": Call(CHANGES, f"{KEY}/complete", prepare=running),
    "failJob": Call(CHANGES, f"{KEY}/fail", prepare=running),
    "throwError": Call(CHANGES, f"{KEY}/throw-error", body={"error_code": "E"}, prepare=running),
    "cancelJob": Call(CHANGES, f"{KEY}/cancel", prepare=waiting),
    "requeueJob": Call(CHANGES, f"{KEY}/requeue", prepare=dead),
    "setRetries": Call(CHANGES, f"{KEY}/retries", body={"retries": 3}, prepare=waiting),
    "setTimeout": Call(CHANGES, f"{KEY}/timeout", body={"timeout_ms": 60_000}, prepare=running),
    "runNow": Call(CHANGES, f"{KEY}/run-now", prepare=waiting),
    "rescheduleJob": Call(CHANGES, f"{KEY}/reschedule", body={"delay_ms": 3_600_000}, prepare=waiting),
    "setPriority": Call(CHANGES, f"{KEY}/priority", body={"priority": 5}, prepare=waiting),
    "deleteJob": Call(CHANGES, KEY, 204, prepare=dead),
    "requeueJobs": Call(FOR_TENANT, f"{JOBS}/requeue", body={"tenant": [TENANT]}),
    "listDead": Call(LISTS, "/api/v1/dead"),
    "requeueDead": Call(FOR_TENANT, "/api/v1/dead/requeue", body={"tenant": [TENANT]}, prepare=dead),
    "purgeDead": Call(FOR_TENANT, "/api/v1/dead/purge", body={"tenant": [TENANT]}, prepare=dead),
    "getStats": Call(LISTS, "/api/v1/stats"),
    "tick": Call((Row(Permission.TICK, Scope.STORE), *ADMIN), "/api/v1/tick"),
    "listTypes": Call(LOOKS, "/api/v1/types"),
    "pauseType": Call(ADMIN, f"{ON_TYPE}/pause", prepare=known_type),
    "deleteType": Call(ADMIN, ON_TYPE, prepare=a_spare_type),
    "resumeType": Call(ADMIN, f"{ON_TYPE}/resume", prepare=known_type),
    "openBreaker": Call(ADMIN, f"{ON_TYPE}/breaker/open", body={"seconds": 60}, prepare=a_known_type),
    "resetBreaker": Call(ADMIN, f"{ON_TYPE}/breaker/reset", prepare=known_type),
    "getPolicy": Call(LOOKS, f"{ON_TYPE}/policy", prepare=known_type),
    "putPolicy": Call(ADMIN, f"{ON_TYPE}/policy", body={"max_attempts": 3}, prepare=known_type),
    "patchPolicy": Call(ADMIN, f"{ON_TYPE}/policy", body={"max_running": 3}, prepare=a_known_type),
    "deletePolicy": Call(ADMIN, f"{ON_TYPE}/policy", 204, prepare=known_type),
    "listGroups": Call(LOOKS, "/api/v1/groups"),
    "dropGroup": Call(ADMIN, f"{ON_TYPE}/groups/auditors", prepare=group),
    "listWorkers": Call(LOOKS, "/api/v1/workers"),
    "workerOn": Call(ADMIN, f"{ON_WORKER}/on", prepare=worker),
    "workerOff": Call(ADMIN, f"{ON_WORKER}/off", prepare=worker),
    "forgetWorker": Call(ADMIN, ON_WORKER, prepare=worker),
    "listTriggers": Call(LOOKS, "/api/v1/triggers"),
    "triggerOn": Call(ADMIN, f"{ON_TRIGGER}/on", prepare=trigger),
    "triggerOff": Call(ADMIN, f"{ON_TRIGGER}/off", prepare=trigger),
    "fireTrigger": Call(ADMIN, f"{ON_TRIGGER}/fire", prepare=trigger),
    "listFires": Call(LOOKS, f"{ON_TRIGGER}/fires", prepare=trigger),
    "listProcesses": Call(LOOKS, "/api/v1/processes"),
    "restartProcess": Call(ADMIN, "/api/v1/processes/{}/restart", prepare=process),
    "listRunning": Call(LOOKS, "/api/v1/running"),
    "createKey": Call(ADMIN, "/api/v1/keys", 201, {"name": "ci", "permissions": ["admin"]}),
    "listKeys": Call(ADMIN, "/api/v1/keys"),
    "revokeKey": Call(ADMIN, "/api/v1/keys/{}", prepare=spare_key),
    "listSessions": Call(ADMIN, "/api/v1/sessions"),
    "endSession": Call(ADMIN, "/api/v1/sessions/{}", prepare=session),
    "endSessions": Call(ADMIN, "/api/v1/sessions"),
    "listAudit": Call(ADMIN, "/api/v1/audit"),
    "getMetrics": Call(LOOKS, "/metrics"),
    "healthz": Call(PUBLIC, "/healthz"),
    "readyz": Call(PUBLIC, "/readyz"),
    "getDocs": Call(PUBLIC, "/docs"),
    "getOpenApi": Call(PUBLIC, "/openapi.json"),
    "home": Call(PUBLIC, "/", 307),
}


def status_of(call: Call, holder: Holder) -> int:
    """How a call must end."""
    ends = {expected(row, holder) for row in call.rows}
    if Expected.ANSWERED in ends:
        return call.answer
    if Expected.MISSING in ends:
        return 404
    return 401 if Expected.UNAUTHENTICATED in ends else 403
