"""REST: change one job, or requeue many by a filter."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from starlette.responses import Response

from everwork.codec.job_reports import job_report
from everwork.codec.json import spliced
from everwork.core.leasing import accepted
from everwork.core.limits import (
    ATTEMPT_MAX,
    ATTEMPTS_MAX,
    DELAY_MS_MAX,
    ERROR_CHARS_MAX,
    LEASE_MS_MAX,
    PAYLOAD_BYTES_MAX,
    PRIORITY_MAX,
    PRIORITY_MIN,
)
from everwork.exceptions import EngineError, InvalidInput, JobNotFound
from everwork.server.http.api.jobs import FILTER, JOB_BYTES_MAX, job_filter
from everwork.server.http.api.schemas import ref
from everwork.server.http.framework.fields import FLAG, INSTANT, Integer, JsonObject, Text
from everwork.server.http.framework.operations import (
    Call,
    Field,
    Handler,
    Operation,
    ResponseSpec,
    Shape,
    json_response,
)
from everwork.server.http.framework.problems import Refusal
from everwork.service.jobs import Jobs

NOTHING: Final = Shape("Nothing", ())
RESET: Final = "Also reset the attempts to 0 and clear the last error. Also accepts dead letters."
ATTEMPT: Final = Field(
    "attempt",
    Integer(0, ATTEMPT_MAX),
    "The attempt that this concerns. If it is not the current one, the call is refused (409). 0: not checked.",
    default=0,
)
CHANGED: Final = {
    200: ResponseSpec("The job after the change.", ref("Job")),
    204: ResponseSpec(
        "Done. Sent with `Prefer: return=minimal`, if the job can no longer be read, or if it is large and too many "
        "responses to this API key have not been read."
    ),
}


async def cancel(call: Call) -> Response:
    """Cancel a pending or running job."""
    sent = await call.body()
    await call.jobs.cancel(call.key, sent["reason"])
    return await changed(call)


async def requeue(call: Call) -> Response:
    """Requeue a dead letter, or a job waiting for a retry, optionally with other variables."""
    sent = await call.body()
    await call.jobs.requeue(call.key, variables=sent["variables"])
    return await changed(call)


async def set_retries(call: Call) -> Response:
    """Set how many attempts are left."""
    sent = await call.body()
    await call.jobs.set_retries(call.key, sent["retries"])
    return await changed(call)


async def set_timeout(call: Call) -> Response:
    """Extend or shorten a lease."""
    sent = await call.body()
    verdict = await call.jobs.extend(call.key, sent["attempt"], sent["timeout_ms"])
    accepted(call.key, verdict, "given another deadline")
    return await changed(call)


async def run_now(call: Call) -> Response:
    """Make a pending job due now."""
    sent = await call.body()
    await call.jobs.run_now(call.key, reset=bool(sent["reset"]))
    return await changed(call)


async def reschedule(call: Call) -> Response:
    """Reschedule a pending job."""
    sent = await call.body()
    if (sent["run_at"] is None) == (sent["delay_ms"] is None):
        raise InvalidInput("run_at", "or delay_ms is required, but not both")
    await call.jobs.reschedule(call.key, run_at_ms=sent["run_at"], delay_ms=sent["delay_ms"])
    return await changed(call)


async def set_priority(call: Call) -> Response:
    """Set the priority of a pending job."""
    sent = await call.body()
    await call.jobs.set_priority(call.key, sent["priority"])
    return await changed(call)


async def delete(call: Call) -> Response:
    """Delete a finished job."""
    await call.jobs.delete(call.key)
    return Response(status_code=204)


async def requeue_many(call: Call) -> Response:
    """Requeue the dead letters that match; all of them only with an explicit `all`."""
    sent = await call.body()
    given = [name for name, value in sent.items() if value not in (None, (), False)]
    if not given:
        raise InvalidInput("all", 'must be true ({"all": true}) to requeue every dead letter; otherwise give a filter')
    if sent["all"] and len(given) > 1:
        raise InvalidInput("all", "cannot be combined with a filter")
    change = await call.jobs.requeue_matching(job_filter(sent), all=bool(sent["all"]))
    return json_response({"matched": change.matched, "changed": change.changed})


def _change(name: str, handler: Handler, verb: Callable[..., Any], summary: str, body: Shape) -> Operation:
    word = name.removesuffix("Job")
    path = f"/api/v1/jobs/{{key}}/{_PATHS.get(word, word)}"
    return Operation(name, "PUT", path, handler, summary, CHANGED, verb, body=body, problems=(404, 409))


_PATHS: Final = {"setRetries": "retries", "setTimeout": "timeout", "setPriority": "priority", "runNow": "run-now"}

OPERATIONS: Final = (
    _change(
        "cancelJob",
        cancel,
        Jobs.cancel,
        "Cancel a job",
        Shape(
            "Cancel",
            (Field("reason", Text(ERROR_CHARS_MAX), "The reason, shown in the job's history.", default=""),),
            {"reason": "not needed"},
        ),
    ),
    _change(
        "requeueJob",
        requeue,
        Jobs.requeue,
        "Requeue a dead letter, or a job waiting for a retry",
        Shape(
            "Requeue",
            (
                Field(
                    "variables",
                    JsonObject(PAYLOAD_BYTES_MAX),
                    "Replace all variables of the job, at most 1 MiB of JSON. Default: unchanged.",
                ),
            ),
            {"variables": {"to": "ada@example.com"}},
        ),
    ),
    _change(
        "setRetries",
        set_retries,
        Jobs.set_retries,
        "Set the number of attempts left",
        Shape(
            "Retries", (Field("retries", Integer(0, ATTEMPTS_MAX), "Attempts left.", is_required=True),), {"retries": 3}
        ),
    ),
    _change(
        "setTimeout",
        set_timeout,
        Jobs.extend,
        "Extend the lease of a running job",
        Shape(
            "Timeout",
            (
                Field(
                    "timeout_ms", Integer(1, LEASE_MS_MAX), "The new lease, in milliseconds from now.", is_required=True
                ),
                ATTEMPT,
            ),
            {"timeout_ms": 60_000, "attempt": 1},
        ),
    ),
    _change(
        "runNow",
        run_now,
        Jobs.run_now,
        "Run a pending job now",
        Shape("RunNow", (Field("reset", FLAG, RESET, default=False),), {"reset": True}),
    ),
    _change(
        "rescheduleJob",
        reschedule,
        Jobs.reschedule,
        "Reschedule a pending job",
        Shape(
            "Reschedule",
            (
                Field("run_at", INSTANT, "Earliest start. Either this or `delay_ms`."),
                Field("delay_ms", Integer(0, DELAY_MS_MAX), "Earliest start, in milliseconds from now."),
            ),
            {"delay_ms": 60_000},
        ),
    ),
    _change(
        "setPriority",
        set_priority,
        Jobs.set_priority,
        "Set the priority of a pending job",
        Shape(
            "Priority",
            (Field("priority", Integer(PRIORITY_MIN, PRIORITY_MAX), "Higher runs first.", is_required=True),),
            {"priority": 100},
        ),
    ),
    Operation(
        "deleteJob",
        "DELETE",
        "/api/v1/jobs/{key}",
        delete,
        "Delete a finished job",
        {204: ResponseSpec("The job is deleted.")},
        Jobs.delete,
        problems=(404, 409),
    ),
    Operation(
        "requeueJobs",
        "POST",
        "/api/v1/jobs/requeue",
        requeue_many,
        "Requeue dead letters by a filter of jobs",
        {200: ResponseSpec("How many jobs matched, and how many were requeued.", ref("BulkChange"))},
        Jobs.requeue_matching,
        body=Shape(
            "RequeueFilter",
            (Field("all", FLAG, "Requeue every dead letter.", default=False), *FILTER),
            {"type": "email-send", "error": "timed out"},
        ),
    ),
)


async def changed(call: Call) -> Response:
    """Respond with the changed job, or with 204 if the caller prefers that or the job cannot be read or sent."""
    if not call.prefers_minimal:
        call.hold.processed()  # Otherwise, large requests could wait for each other.
        with suppress(JobNotFound, EngineError, Refusal):
            await call.hold.reserve(JOB_BYTES_MAX)
            response = json_response(job_report(await call.jobs.get(call.key), read=spliced))
            if call.hold.has_room(len(response.body)):
                return response
    return Response(status_code=204)
