"""REST: parse new jobs from JSON, fast because requests can hold thousands, and report the created ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from everwork.codec.job_reports import job_report
from everwork.codec.json import spliced
from everwork.codec.new_job import wire_job
from everwork.core import checks
from everwork.core.job import NewJob, StoredJob
from everwork.core.leasing import Created
from everwork.core.limits import (
    ATTEMPTS_MAX,
    CREATE_BATCH_MAX,
    DELAY_MS_MAX,
    HEADERS_BYTES_MAX,
    LEASE_MS_MAX,
    PAYLOAD_BYTES_MAX,
    PRIORITY_MAX,
    PRIORITY_MIN,
)
from everwork.core.states import State
from everwork.exceptions import EngineError, InvalidInput
from everwork.server.http.framework.fields import INSTANT, NAME, Integer, JsonObject
from everwork.server.http.framework.operations import BODY, Call, Field, Shape, refuse_unknown
from everwork.service.access.budgets import Slices
from everwork.service.access.principal import Principal

READ_CHUNK: Final = 500
"""How many created jobs one call to the engine reads."""
READ_SLICES: Final = 10
"""The maximum number of slices per read: while other callers are active, slices are small, and so are the reads."""
_DELAY: Final = Integer(0, DELAY_MS_MAX)
_TIMEOUT: Final = Integer(1, LEASE_MS_MAX)
_ATTEMPTS: Final = Integer(1, ATTEMPTS_MAX)
_ATTEMPTS_NAMES: Final = ("retries", "max_attempts", "max_retries")
_PRIORITY: Final = Integer(PRIORITY_MIN, PRIORITY_MAX)

NEW_JOB: Final = Shape(
    "NewJob",
    (
        Field("type", NAME, "The type of the job; workers poll for it.", is_required=True),
        Field("variables", JsonObject(PAYLOAD_BYTES_MAX), "The input of the job, at most 1 MiB of JSON.", default={}),
        Field("retries", _ATTEMPTS, "Maximum number of attempts. Default: from the type's policy."),
        Field("max_attempts", _ATTEMPTS, "Alias of `retries`."),
        Field("max_retries", _ATTEMPTS, "Alias of `retries`. The first attempt counts."),
        Field("priority", _PRIORITY, "Higher runs first.", default=0),
        Field("delay_ms", _DELAY, "Earliest start, in milliseconds from now. Not together with `run_at`."),
        Field("run_at", INSTANT, "Earliest start. Not together with `delay_ms`."),
        Field("tenant", NAME, "The tenant that owns the job. Default: the API key's tenant, or `<default>`."),
        Field(
            "dedupe_key",
            NAME,
            "A second job with the same tenant, type and dedupe key is not created; the first one is returned.",
        ),
        Field("correlation_id", NAME, "Any name, to find related jobs by."),
        Field("limit_key", NAME, "A name within the type, such as a customer, that limits apply to."),
        Field("expires_at", INSTANT, "The job is cancelled if it has not started by then."),
        Field("headers", JsonObject(HEADERS_BYTES_MAX), "Stored and returned unchanged, at most 64 KiB of JSON."),
        Field("timeout_ms", _TIMEOUT, "Time limit of one attempt, in milliseconds."),
    ),
    {"type": "email-send", "variables": {"to": "ada@example.com"}, "retries": 3, "priority": 10},
)
_NAMES: Final = frozenset(field.name for field in NEW_JOB.fields)
_PLAIN_JOB: Final = frozenset(["type", "variables"])


async def read_jobs(sent: object, principal: Principal, slices: Slices) -> list[NewJob]:
    """Parse one job or a list of jobs, in slices; an error names the index of the invalid one."""
    items = sent if isinstance(sent, list) else [sent]
    if not items:
        raise InvalidInput("jobs", "must be at least one")
    if len(items) > CREATE_BATCH_MAX:
        raise InvalidInput("jobs", f"must be at most {CREATE_BATCH_MAX:,} in one call, not {len(items):,}")
    jobs: list[NewJob] = []

    def read(some: Sequence[object]) -> int:
        for item in some:
            jobs.append(read_job(item, principal))  # noqa: PERF401 - how many came before an error is needed
        return sum([len(job.variables) for job in jobs[-len(some) :]])

    try:
        await slices.run(items, read)
    except InvalidInput as error:
        if not isinstance(sent, list):
            raise
        index = f"jobs[{len(jobs)}]"
        field = index if error.field == BODY else f"{index}.{error.field}"
        raise InvalidInput(field, error.problem) from None
    return jobs


def read_job(item: object, principal: Principal) -> NewJob:
    """Parse and validate one job."""
    if not isinstance(item, dict):
        raise InvalidInput(BODY, f"must be a JSON object, not {checks.shown(item)}")
    if item.keys() == _PLAIN_JOB and not principal.tenants:
        return wire_job(item["type"], {} if item["variables"] is None else item["variables"])
    refuse_unknown(item, _NAMES)
    return _full_job({name: value for name, value in item.items() if value is not None}, principal)


def _full_job(item: dict[str, Any], principal: Principal) -> NewJob:
    if "delay_ms" in item and "run_at" in item:
        raise InvalidInput("delay_ms", "cannot be combined with run_at")
    if "type" not in item:
        raise InvalidInput("type", "is required")
    tenant = item.get("tenant")
    return wire_job(
        item["type"],
        item.get("variables", {}),
        tenant=principal.tenant_for_create(None if tenant is None else checks.name("tenant", tenant)),
        priority=_PRIORITY.read("priority", item.get("priority", 0)),
        delay_ms=_DELAY.read("delay_ms", item.get("delay_ms", 0)),
        run_at_ms=INSTANT.read("run_at", item["run_at"]) if "run_at" in item else None,
        max_attempts=_attempts(item),
        dedupe_key=item.get("dedupe_key"),
        limit_key=item.get("limit_key"),
        correlation_id=item.get("correlation_id"),
        expires_at_ms=INSTANT.read("expires_at", item["expires_at"]) if "expires_at" in item else None,
        timeout_ms=_TIMEOUT.read("timeout_ms", item["timeout_ms"]) if "timeout_ms" in item else None,
        headers=item.get("headers"),
    )


def _attempts(item: Mapping[str, Any]) -> int | None:
    given = {name: _ATTEMPTS.read(name, item[name]) for name in _ATTEMPTS_NAMES if name in item}
    if len(set(given.values())) > 1:
        first, *others = given
        other = next(name for name in others if given[name] != given[first])
        raise InvalidInput(first, f"must be the same number as {other}: they are aliases")
    return next(iter(given.values()), None)


RESPONSE_CHARS_MAX: Final = 16 * 1_048_576
"""After this many characters of variables, headers and results, a response holds only keys."""
DEDUPLICATED_CHUNK: Final = 20
"""Deduplicated jobs to read per call: their size is unknown, and each can be as large as 2 MiB."""


def created_key(created: Created) -> dict[str, Any]:
    """A created job, represented by its key only; a spooled job has no key yet."""
    if created.is_spooled:
        return {"key": None, "deduplicated": False, "is_spooled": True, "spool_id": created.spool_id}
    return {"key": str(created.key), "deduplicated": created.deduplicated}


async def created_jobs(call: Call, jobs: Sequence[NewJob], created: Sequence[Created]) -> list[dict[str, Any]]:
    """The created jobs; once the response is full or the engine fails, only keys for the rest."""
    slices = call.slices
    step = (
        DEDUPLICATED_CHUNK if any(one.deduplicated for one in created) else min(READ_CHUNK, READ_SLICES * slices.size)
    )
    reports: list[dict[str, Any]] = []
    chars = 0

    def report(some: Sequence[tuple[StoredJob, Created]]) -> int:
        nonlocal chars
        before = chars
        for job, one in some:
            is_full = chars >= RESPONSE_CHARS_MAX
            reports.append(created_key(one) if is_full else _created_job(job, one))
            chars += _chars(job)
        return chars - before

    while chars < RESPONSE_CHARS_MAX and len(reports) < len(created):
        some = slice(len(reports), len(reports) + step)
        try:
            found = await _read(call, jobs[some], created[some])
        except EngineError:
            break  # The jobs exist anyway.
        await slices.run(list(zip(found, created[some], strict=True)), report)
    return reports + [created_key(one) for one in created[len(reports) :]]


async def _read(call: Call, jobs: Sequence[NewJob], created: Sequence[Created]) -> list[StoredJob]:
    """Read every job once, even if it was deduplicated several times."""
    keys = list(dict.fromkeys(one.key for one in created))
    found = dict(zip(keys, await call.jobs.get_many(keys), strict=True))
    return [found[one.key] or _deleted_job(new, one.key) for new, one in zip(jobs, created, strict=True)]


def _created_job(job: StoredJob, created: Created) -> dict[str, Any]:
    report = job_report(job, read=spliced)
    report["deduplicated"] = created.deduplicated
    return report


def _chars(job: StoredJob) -> int:
    return len(job.variables) + len(job.headers or "") + len(job.result or "") + len(job.extra or "")


def _deleted_job(new: NewJob, key: int) -> StoredJob:
    """A job that was created, run and deleted before it could be read, shown as it was requested."""
    return StoredJob(key=key, type=new.type, state=State.PENDING, tenant=new.tenant, variables=new.variables)
