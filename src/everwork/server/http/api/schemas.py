"""JSON schemas of responses, for the OpenAPI document. Tests compare them with real responses."""

from __future__ import annotations

from operator import attrgetter
from typing import Any, Final

from everwork.codec.fields import Field, fields_of
from everwork.codec.job_reports import leased_report
from everwork.core.breaker import BreakerState
from everwork.core.job import HistoryEntry, Kind, LeasedJob, StoredJob
from everwork.core.queries import Reason
from everwork.core.states import State
from everwork.server.http.framework.fields import Schema
from everwork.service.access.api_key import KeyState
from everwork.service.access.principal import Permission

KEY_PATTERN: Final = "^[1-9][0-9]{0,18}$"
_TEXT: Final[Schema] = {"type": "string"}
_MAYBE_TEXT: Final[Schema] = {"type": ["string", "null"]}
_TIME: Final[Schema] = {"type": "string", "format": "date-time"}
_MAYBE_TIME: Final[Schema] = {"type": ["string", "null"], "format": "date-time"}
_COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
_WHOLE: Final[Schema] = {"type": "integer"}
_NUMBER: Final[Schema] = {"type": "number"}
_FLAG: Final[Schema] = {"type": "boolean"}
_KEY: Final[Schema] = {"type": "string", "pattern": KEY_PATTERN}
_OBJECT: Final[Schema] = {"type": "object", "additionalProperties": True}
_MAYBE_OBJECT: Final[Schema] = {"type": ["object", "null"], "additionalProperties": True}
_STATE: Final[Schema] = {"type": "string", "enum": [state.label for state in State]}
_BY_STATE: Final[Schema] = {
    "type": "object",
    "properties": {state.label: _COUNT for state in State},
    "required": [state.label for state in State],
    "additionalProperties": False,
}


def ref(name: str) -> Schema:
    """A reference to a named schema."""
    return {"$ref": f"#/components/schemas/{name}"}


def list_of(schema: Schema) -> Schema:
    """A list of items of one schema."""
    return {"type": "array", "items": schema}


def exactly(**properties: Schema) -> Schema:
    """An object with exactly these properties, all required."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


_OF_KIND: Final[dict[object, Schema]] = {
    Kind.KEY: _KEY,
    Kind.INSTANT: _TIME,
    Kind.JSON: _OBJECT,
    Kind.GROUP: _MAYBE_TEXT,
    State: _STATE,
    bool: _FLAG,
    int: _COUNT,
    str: _TEXT,
}
_OF_NAME: Final[dict[str, Schema]] = {"priority": _WHOLE, "timeout_ms": {"type": ["integer", "null"]}, "result": {}}


def _properties(declared: type) -> dict[str, Any]:
    """The declared fields as JSON."""
    return {field.json: _schema(field) for field in fields_of(declared)}


def _schema(field: Field) -> Schema:
    if field.name in _OF_NAME:
        return _OF_NAME[field.name]
    schema = _OF_KIND[field.kind or field.type]
    return {**schema, "type": [schema["type"], "null"]} if field.is_optional else schema


_EVERYTHING: Final = _properties(StoredJob) | {"max_retries": _COUNT}
_PROCESSING: Final = StoredJob(key=1, type="", state=State.PROCESSING, lease_until_ms=0)
_LEASED_REPORT: Final = leased_report(LeasedJob(*attrgetter(*LeasedJob._fields)(_PROCESSING)), "", ())
_LEASED: Final = {name: _EVERYTHING[name] for name in _LEASED_REPORT if name != "deadline"}
_JOB: Final = _LEASED | _EVERYTHING
"""`_EVERYTHING`, in its frozen order."""

_API_KEY: Final[dict[str, Any]] = {
    "id": _TEXT,
    "name": _TEXT,
    "state": {"type": "string", "enum": [state.value for state in KeyState]},
    "permissions": list_of({"type": "string", "enum": [permission.value for permission in Permission]}),
    "tenants": list_of(_TEXT),
    "created_at": _TIME,
    "expires_at": _MAYBE_TIME,
    "revoked_at": _MAYBE_TIME,
    "rate_per_second": {"type": ["number", "null"]},
}

_MAYBE_NUMBER: Final[Schema] = {"type": ["number", "null"]}
_MAYBE_COUNT: Final[Schema] = {"type": ["integer", "null"], "minimum": 0}
_POLICY: Final[dict[str, Any]] = {
    "max_attempts": _WHOLE,
    "base": _NUMBER,
    "factor": _NUMBER,
    "cap": _NUMBER,
    "jitter": _NUMBER,
    "breaker_failures": _MAYBE_COUNT,
    "breaker_seconds": _MAYBE_NUMBER,
    "errors": list_of(_OBJECT),
    "strict": _FLAG,
    "failed_job_retry_hours": _MAYBE_NUMBER,
    "failed_job_retry_rounds": _COUNT,
    "keep_completed_hours": _MAYBE_NUMBER,
    "keep_failed_hours": _MAYBE_NUMBER,
    "max_running": _MAYBE_COUNT,
    "max_running_per_key": _MAYBE_COUNT,
    "rate_jobs": _MAYBE_COUNT,
    "rate_seconds": _MAYBE_NUMBER,
}

_WORKER: Final[dict[str, Any]] = {"id": _TEXT, "title": _TEXT}
_TRIGGER: Final[dict[str, Any]] = {"worker": _TEXT, "id": _TEXT, "title": _TEXT}
_WORKER_IDS: Final[Schema] = {**list_of(_TEXT), "description": "By id."}

SCHEMAS: Final[dict[str, Schema]] = {
    "Problem": {
        "type": "object",
        "properties": {
            "type": {"type": "string"},
            "title": _TEXT,
            "status": _WHOLE,
            "detail": _TEXT,
            "code": {"type": "string", "description": "Stable error code, for programs."},
            "field": {"type": "string", "description": "The invalid field, if there is one."},
        },
        "required": ["type", "title", "status", "detail", "code"],
    },
    "Job": exactly(**_JOB),
    "ActivatedJob": exactly(**_LEASED, deadline=_TIME),
    "JobInDetail": exactly(**{**_JOB, "history": list_of(ref("HistoryEntry")), "explanation": ref("Explanation")}),
    "HistoryEntry": exactly(
        **_properties(HistoryEntry),
        label={**_TEXT, "description": "The kind in plain English, such as `lease expired` for `lapse`."},
    ),
    "Explanation": exactly(
        reason={"type": "string", "enum": [reason.value for reason in Reason]},
        text=_TEXT,
        until=_MAYBE_TIME,
        worker=_MAYBE_TEXT,
        ahead={"type": ["integer", "null"], "minimum": 0},
    ),
    "JobPage": exactly(
        jobs=list_of(ref("Job")),
        next={"type": ["string", "null"], "description": "The cursor of the next page; null on the last page."},
    ),
    "ActivatedJobs": {
        **exactly(jobs=list_of(ref("ActivatedJob")), reason=_TEXT),
        "required": ["jobs"],
    },
    "CreatedJob": exactly(**_JOB, deduplicated=_FLAG),
    "CreatedKey": exactly(key=_KEY, deduplicated=_FLAG),
    "SpooledKey": exactly(key={"type": "null"}, deduplicated=_FLAG, is_spooled=_FLAG, spool_id=_TEXT),
    "SpooledJob": exactly(
        spool_id=_TEXT,
        state={"type": "string", "enum": ["waiting", "delivered", "set_aside"]},
        key={**_MAYBE_TEXT, "pattern": KEY_PATTERN},
        deduplicated=_FLAG,
        reason=_MAYBE_TEXT,
    ),
    "BulkChange": exactly(matched=_COUNT, changed=_COUNT),
    "Stats": exactly(
        total=_COUNT,
        by_state=_BY_STATE,
        by_type={"type": "object", "additionalProperties": _BY_STATE},
        by_worker={"type": "object", "additionalProperties": _COUNT},
        performance=exactly(
            completed=_COUNT,
            failed=_COUNT,
            retried=_COUNT,
            success_rate=_NUMBER,
            avg_execution_ms=_NUMBER,
            avg_wait_ms=_NUMBER,
        ),
        generated_at=_TIME,
    ),
    "Upkeep": exactly(
        lapsed={**_COUNT, "description": "Attempts ended because their lease expired."},
        expired={**_COUNT, "description": "Pending jobs cancelled because they expired."},
        requeued={**_COUNT, "description": "Dead letters requeued automatically."},
        deleted={**_COUNT, "description": "Finished jobs deleted after their retention time."},
        fired={**_COUNT, "description": "Jobs created by triggers."},
    ),
    "Type": exactly(
        type=_TEXT,
        paused=_FLAG,
        policy={"anyOf": [ref("TypePolicy"), {"type": "null"}]},
        groups=list_of(_TEXT),
        last_asked=_MAYBE_TIME,
        breaker={"type": "string", "enum": [state.value for state in BreakerState]},
        breaker_failures={**_COUNT, "description": "Consecutive failures so far."},
        breaker_open_until=_MAYBE_TIME,
        breaker_probe={
            "type": ["string", "null"],
            "pattern": KEY_PATTERN,
            "description": "The job that runs as the probe.",
        },
        rate_full_until={**_MAYBE_TIME, "description": "The rate limit is used up until then."},
        jobs=_BY_STATE,
    ),
    "Types": exactly(types=list_of(ref("Type"))),
    "TypePolicy": exactly(**_POLICY),
    "Policy": exactly(
        type=_TEXT,
        default={**_FLAG, "description": "Whether the type has the default policy."},
        policy=ref("TypePolicy"),
        set={**_OBJECT, "description": "The fields that are set; all others have their defaults."},
    ),
    "Opened": exactly(type=_TEXT, seconds=_NUMBER),
    "DeadGroup": exactly(
        type=_TEXT,
        exception_class={**_MAYBE_TEXT, "description": "The class that the error begins with, such as `KeyError`."},
        fingerprint=_TEXT,
        jobs=_COUNT,
        first=_TIME,
        last=_TIME,
        key={**_KEY, "description": "The latest job of the group."},
        error={**_TEXT, "description": "The error of that job, possibly truncated."},
    ),
    "DeadLetters": exactly(
        groups=list_of(ref("DeadGroup")),
        looked_at=_COUNT,
        cut={**_FLAG, "description": "Whether older dead letters were not scanned."},
        left_out={**_COUNT, "description": "Number of smaller groups that are not listed."},
        rejected={
            **_COUNT,
            "description": "Number of rejected jobs not included in the groups.",
        },
    ),
    "DeadChanged": exactly(matched=_COUNT, changed=_COUNT, dry_run=_FLAG),
    "TypeDeletion": exactly(type=_TEXT, deleted={**_COUNT, "description": "Number of finished jobs deleted."}),
    "Pause": exactly(type=_TEXT, paused=_FLAG),
    "Reset": exactly(type=_TEXT, was_open=_FLAG),
    "Group": exactly(type=_TEXT, group=_TEXT, last_asked=_MAYBE_TIME, jobs=_BY_STATE),
    "Groups": exactly(groups=list_of(ref("Group"))),
    "DroppedGroup": exactly(type=_TEXT, group=_TEXT, cancelled=_COUNT),
    "Worker": exactly(
        **_WORKER,
        description=_TEXT,
        on=_FLAG,
        processes={**_COUNT, "description": "Number of running processes with this worker."},
        broken={**list_of(_TEXT), "description": "Processes in which it could not be started, with the reason."},
        sources={**list_of(_TEXT), "description": "The job types that it runs."},
        concurrency=_COUNT,
        execution_timeout_ms=_COUNT,
        retries={**_FLAG, "description": "Whether failed attempts are retried."},
    ),
    "Workers": exactly(workers=list_of(ref("Worker"))),
    "WorkerSwitch": exactly(**_WORKER, on=_FLAG, changed=_FLAG),
    "ForgottenWorker": exactly(**_WORKER, cancelled=_COUNT),
    "Trigger": exactly(
        **_TRIGGER,
        description=_TEXT,
        on=_FLAG,
        schedule=_TEXT,
        type=_TEXT,
        variables=_MAYBE_OBJECT,
        catch_up=_FLAG,
        lifetime_ms={"type": ["integer", "null"], "minimum": 0},
        began={**_MAYBE_TIME, "description": "When it was first registered."},
        last={
            **_MAYBE_TIME,
            "description": "The last scheduled time that has passed, whether it fired or was disabled.",
        },
        next={**_MAYBE_TIME, "description": "The next scheduled time."},
        next_unknown={**_MAYBE_TEXT, "description": "Why there is no next scheduled time."},
        served={**_FLAG, "description": "Whether a running process fires it."},
    ),
    "Fires": exactly(
        **_TRIGGER,
        fires=list_of(
            exactly(
                key=_KEY,
                state=_STATE,
                created_at=_TIME,
                point={**_MAYBE_TIME, "description": "The scheduled time; null if it was fired manually."},
            )
        ),
    ),
    "Triggers": exactly(triggers=list_of(ref("Trigger"))),
    "TriggerSwitch": exactly(**_TRIGGER, on=_FLAG, changed=_FLAG),
    "FiredTrigger": exactly(**_TRIGGER, key=_KEY),
    "Manager": exactly(
        name=_TEXT, uuid=_TEXT, host=_TEXT, pid=_COUNT, version=_TEXT, started_at=_TIME, workers=_WORKER_IDS
    ),
    "Process": exactly(
        name=_TEXT,
        kind={
            "type": "string",
            "enum": ["manager", "application", "stream", "poller"],
            "description": "manager or application: a worker process; stream or poller: a gRPC or REST client.",
        },
        worker={**_TEXT, "description": "The name under which it leases jobs."},
        types={
            **list_of(_TEXT),
            "description": "The job types that it runs; for a manager's process, see its workers.",
        },
        concurrency={**_COUNT, "description": "How many jobs it runs concurrently; 0 if not known."},
        via={**_TEXT, "description": "The server that a stream or poller is connected to."},
        manager=_TEXT,
        host=_TEXT,
        pid=_COUNT,
        state=_TEXT,
        workers=_WORKER_IDS,
        broken={"type": "object", "additionalProperties": _TEXT},
        started_at=_TIME,
        running=_COUNT,
        ended=_COUNT,
        restarts=_COUNT,
        memory_bytes={"type": ["integer", "null"], "minimum": 0},
        beat={**_TIME, "description": "Time of the last heartbeat."},
        restarting={**_FLAG, "description": "Whether a restart is pending."},
    ),
    "Restart": exactly(name=_TEXT, manager=_TEXT, restarting=_FLAG),
    "RunningJob": exactly(
        key=_KEY,
        type=_TEXT,
        tenant=_TEXT,
        attempt=_COUNT,
        worker={**_TEXT, "description": "The name under which it is leased."},
        process={
            **_MAYBE_TEXT,
            "description": "The process, stream or poller with that name, if there is exactly one.",
        },
        activated_at=_TIME,
        deadline=_TIME,
    ),
    "Running": exactly(
        jobs=list_of(ref("RunningJob")),
        others={
            "type": "object",
            "additionalProperties": _COUNT,
            "description": "Number of these jobs leased by unregistered workers, by worker.",
        },
        cut={**_FLAG, "description": "Whether there are more."},
    ),
    "Processes": exactly(
        managers=list_of(ref("Manager")),
        processes=list_of(ref("Process")),
        left_out={**_COUNT, "description": "Minimum number of further streams and pollers that are not listed."},
    ),
    "Key": exactly(**_API_KEY),
    "NewKey": exactly(
        **{**_API_KEY, "key": {"type": "string", "description": "The key itself. It cannot be retrieved later."}}
    ),
    "Keys": exactly(keys=list_of(ref("Key"))),
    "Session": exactly(
        id=_TEXT,
        opened_by={"type": "string", "description": "The name of the key, or the user who created the login link."},
        key_id={"type": "string", "description": "The id of the key, `environment` or `login-link`."},
        opened_at=_TIME,
        origin={"type": "string", "description": "The address of the browser that logged in."},
        expires_at=_TIME,
    ),
    "Sessions": exactly(sessions=list_of(ref("Session"))),
    "EndedSessions": exactly(
        ended=_COUNT,
        kept={"type": "integer", "description": "Sessions that stay open: they have more permissions than your key."},
    ),
    "AuditEntry": exactly(
        name=_TEXT, at=_TIME, key_id=_TEXT, who=_TEXT, action=_TEXT, target=_TEXT, origin=_TEXT, detail=_OBJECT
    ),
    "Audit": exactly(entries=list_of(ref("AuditEntry")), next=_MAYBE_TEXT),
    "Status": exactly(status=_TEXT),
}
