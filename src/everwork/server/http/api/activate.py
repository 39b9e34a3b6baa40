"""REST: activate jobs for workers with a long poll; if the caller disconnects, its leases are released."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final

import orjson
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from everwork.codec.job_reports import leased_report
from everwork.core.job import LeasedJob
from everwork.core.leasing import Demand
from everwork.core.limits import DEFAULT_GROUP, LEASE_MS_DEFAULT, LEASE_MS_MAX
from everwork.exceptions import Unauthenticated
from everwork.server.http.api.schemas import ref
from everwork.server.http.framework.context import API, PRINCIPAL
from everwork.server.http.framework.fields import NAME, Integer, ListOf, Number, Text
from everwork.server.http.framework.in_flight import COUNTED_BYTES
from everwork.server.http.framework.operations import Call, Field, Operation, ResponseSpec, Shape
from everwork.service.activation import activate_bounded
from everwork.service.jobs import Jobs
from everwork.service.service import JobService

JOBS_MAX: Final = 100
WAIT_SECONDS_MAX: Final = 300


async def activate(call: Call) -> Response:
    """Lease jobs; if none are due, wait for some."""
    sent = await call.body()
    demand = Demand(sent["type"], sent["worker"], sent["max_jobs"], sent["timeout_ms"], sent["group"], sent["tenants"])
    with call.context.metrics.polling(API):
        wait = min(sent["wait"], call.context.settings.long_poll_seconds)
        jobs = await _poll(call, demand, round(wait * 1000))
    jobs = await call.context.service.deliverable(jobs)
    try:
        _require_live(call)
        reports = [leased_report(job, demand.worker, sent["fetch_variables"]) for job in jobs]
        blocked = {} if jobs else await _blocked_reason(call, demand.type)
        body = orjson.dumps({"jobs": reports, **blocked})
        if len(body) > COUNTED_BYTES:
            call.hold.require_room(len(body))
        return Delivery(call.context.service, jobs, body)
    except BaseException:
        call.context.service.release_undelivered(jobs)
        raise


class Delivery(Response):
    """A response with leased jobs; if it cannot be delivered, their leases are released."""

    def __init__(self, service: JobService, jobs: Sequence[LeasedJob], body: bytes) -> None:
        super().__init__(body, media_type="application/json")
        self._service = service
        self._jobs = jobs

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI
        """Send the jobs, or release them."""
        disconnected = asyncio.ensure_future(_disconnected(receive))
        try:
            if not await self._sent(disconnected, send):
                self._release()
        except BaseException:
            self._release()
            raise
        finally:
            disconnected.cancel()

    async def _sent(self, disconnected: asyncio.Future[None], send: Send) -> bool:
        """Send in three steps, so that a disconnect during a large response is noticed."""
        await asyncio.sleep(0)  # Let `disconnected` run once.
        messages: list[Message] = [
            {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers},
            {"type": "http.response.body", "body": self.body, "more_body": True},
            {"type": "http.response.body", "body": b"", "more_body": True},
        ]
        for message in messages:
            if disconnected.done():
                return False
            await send(message)
        is_delivered = not disconnected.done()
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        return is_delivered

    def _release(self) -> None:
        if self._jobs:
            self._service.release_undelivered(self._jobs)


def _require_live(call: Call) -> None:
    """Refuse a key that was revoked or expired during the poll."""
    is_checked = PRINCIPAL in call.request.scope  # Such a caller has no key.
    if not (is_checked or call.context.keys.is_live(call.principal)):
        raise Unauthenticated("the API key is no longer valid")


async def _blocked_reason(call: Call, type: str) -> dict[str, str]:
    """Why no job of the type can start, if the whole type is stopped."""
    reason = None if call.context.stopping.is_set() else await call.jobs.blocked_reason(type)
    return {} if reason is None else {"reason": reason}


async def _poll(call: Call, demand: Demand, wait_ms: int) -> list[LeasedJob]:
    """Wait for jobs; return none if the caller disconnects or the server stops first."""
    poll = asyncio.ensure_future(activate_bounded(call.context.service, call.jobs, demand, wait_ms))
    ends = [
        asyncio.ensure_future(_disconnected(call.request.receive)),
        asyncio.ensure_future(call.context.stopping.wait()),
    ]
    try:
        await asyncio.wait([poll, *ends], return_when=asyncio.FIRST_COMPLETED)
        return await poll if poll.done() else []
    except asyncio.CancelledError:
        poll.add_done_callback(partial(_release_untaken, call.context.service))
        raise
    finally:
        for task in (poll, *ends):
            task.cancel()  # The service releases what a cancelled poll had leased.


def _release_untaken(service: JobService, poll: asyncio.Future[list[LeasedJob]]) -> None:
    """Release jobs that arrived just as their poll was cancelled."""
    if not poll.cancelled() and poll.exception() is None and poll.result():
        service.release_undelivered(poll.result())


async def _disconnected(receive: Receive) -> None:
    """Return when the caller has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass


ACTIVATE: Final = Shape(
    "Activate",
    (
        Field("type", NAME, "Jobs of this type.", is_required=True),
        Field("worker", NAME, "The name of the worker, shown with its jobs.", is_required=True),
        Field("max_jobs", Integer(1, JOBS_MAX), "Maximum number of jobs.", default=10),
        Field(
            "timeout_ms", Integer(1, LEASE_MS_MAX), "Length of the lease, in milliseconds.", default=LEASE_MS_DEFAULT
        ),
        Field(
            "wait",
            Number(0, WAIT_SECONDS_MAX),
            "Seconds to wait for a job. The server's `long_poll_seconds` is the maximum.",
            default=0,
        ),
        Field("tenants", ListOf(NAME), "Jobs of these tenants. Default: all tenants of the API key.", default=()),
        Field("group", Text(255), "The consumer group.", default=DEFAULT_GROUP),
        Field("fetch_variables", ListOf(Text(1_024)), "Return only these variables. Default: all.", default=()),
    ),
    {"type": "email-send", "worker": "mailer-1", "max_jobs": 10, "timeout_ms": 60_000, "wait": 20},
)

OPERATIONS: Final = (
    Operation(
        "activateJobs",
        "POST",
        "/api/v1/jobs/activate",
        activate,
        "Activate jobs: lease them to a worker (long poll)",
        {
            200: ResponseSpec(
                "The jobs, possibly none. `reason` is set if the type is paused or its breaker is open.",
                ref("ActivatedJobs"),
            )
        },
        Jobs.activate,
        body=ACTIVATE,
        waits=True,
    ),
)
