"""Everwork's own calls, `everwork.v1.DeskService`: every verb of the desk, without loss of types."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any, Final

from everwork.codec import views
from everwork.codec.json import decode
from everwork.codec.new_job import sought_text
from everwork.codec.work import job_message
from everwork.codec.work_intake import outcome as checked_outcome
from everwork.core import checks
from everwork.core.job import LeasedJob
from everwork.core.leasing import Demand
from everwork.core.limits import (
    ACTIVATE_MAX,
    INSTANT_MS_MAX,
    KEY_MAX,
    LEASE_MS_DEFAULT,
    LEASE_MS_MAX,
    LIST_LIMIT_DEFAULT,
    NAME_CHARS_MAX,
    SETTLE_BATCH_MAX,
)
from everwork.core.outcome import Failed, Outcome, Throw
from everwork.core.queries import JobFilter
from everwork.core.states import State
from everwork.exceptions import EngineUnavailable, InvalidInput, JobNotFound
from everwork.proto import work_pb2 as pb
from everwork.server.grpc.delivery import deliver, portions, wait_ms
from everwork.server.grpc.gateway import Context, Gateway, Methods, Rpc
from everwork.server.grpc.jobs_requests import tenant_names
from everwork.service.access.principal import Permission
from everwork.service.admin import Admin
from everwork.service.jobs import Jobs

SERVICE: Final = "everwork.v1.DeskService"
DOOR: Final = "desk"
LIMIT_DEFAULT: Final = 10
HOURS_DEFAULT: Final = 24
RESULT_SECONDS_MAX: Final = 30.0
_READS: Final = frozenset({"Get", "History", "Explain", "List", "Stats", "Result"})
_NOTED: Final = frozenset({"Delete", "RequeueMatching"})
"""What the audit log tells."""

RPCS: Final = {
    name: Rpc(DOOR, SERVICE, name, Permission.JOBS_READ if name in _READS else Permission.JOBS)
    for name in pb.DESCRIPTOR.services_by_name["DeskService"].methods_by_name
}
"""Every call of the service, with the permission that it needs."""


def desk_methods(gateway: Gateway, poll_seconds_max: float) -> Methods:
    """The handlers of the service."""
    calls = JobCalls(gateway, poll_seconds_max)
    return {rpc.path: _handler(gateway, rpc, calls) for rpc in RPCS.values()}


def _handler(gateway: Gateway, rpc: Rpc, calls: JobCalls) -> Any:
    method = pb.DESCRIPTOR.services_by_name["DeskService"].methods_by_name[rpc.name]
    request_type = getattr(pb, method.input_type.name)
    if rpc.name == "Activate":
        return gateway.answering_stream(rpc, request_type, calls.activate)
    takes = gateway.administering if rpc.name in _NOTED else gateway.unary
    return takes(rpc, request_type, getattr(calls, _snake(rpc.name)))


def _snake(name: str) -> str:
    return "".join(f"_{sign.lower()}" if sign.isupper() else sign for sign in name).lstrip("_")


class JobCalls:
    """What each call does: read the message, ask the desk, write the answer."""

    def __init__(self, gateway: Gateway, poll_seconds_max: float) -> None:
        self._gateway = gateway
        self._poll_seconds_max = poll_seconds_max

    # A job's way --------------------------------------------------------------------------------

    async def activate(self, desk: Jobs, asked: pb.ActivateRequest, context: Context) -> None:
        """Lease jobs and deliver them; what could not be written goes back."""
        demand = _demand(asked)
        checks.whole_number("wait_ms", asked.wait_ms, 0, LEASE_MS_MAX)
        with self._gateway.metrics.polling(DOOR):
            wait = min(asked.wait_ms, wait_ms(context, self._poll_seconds_max))
            jobs = await desk.activate(demand, wait)
        service = self._gateway.service
        try:
            self._gateway.require_live(desk)
        except BaseException:
            service.release_undelivered(jobs)
            raise
        await deliver(service, context, jobs, _messages(jobs))

    async def settle(self, desk: Jobs, asked: pb.SettleRequest) -> pb.SettleResponse:
        """End attempts; one that makes no sense spoils the call, and nothing happens."""
        if len(asked.outcomes) > SETTLE_BATCH_MAX:
            raise InvalidInput("outcomes", f"must be at most {SETTLE_BATCH_MAX:,} in one call")
        outcomes = [await _outcome(desk, at, message) for at, message in enumerate(asked.outcomes)]
        if unfenced := sum(not outcome.attempt for outcome in outcomes):
            self._gateway.metrics.unfenced(DOOR, unfenced)
        return pb.SettleResponse(judged=[views.judged_view(one) for one in await desk.settle(outcomes)])

    async def extend(self, desk: Jobs, asked: pb.ExtendRequest) -> pb.Judged:
        """Let a lease end later."""
        return views.judged_view(await desk.extend(asked.key, asked.attempt, asked.lease_ms))

    # Changes ------------------------------------------------------------------------------------

    async def cancel(self, desk: Jobs, asked: pb.CancelRequest) -> pb.Found:
        """Cancel one job."""
        return views.found_view(await desk.cancel(asked.key, asked.reason))

    async def requeue(self, desk: Jobs, asked: pb.JobRequest) -> pb.Found:
        """Bring one dead letter back."""
        return views.found_view(await desk.requeue(asked.key))

    async def requeue_matching(self, office: Admin, asked: pb.RequeueMatchingRequest) -> pb.BulkChange:
        """Bring back every dead letter that a filter shows, or all of them."""
        changed = await office.requeue_matching(_filter(asked.filter), all=asked.all)
        return pb.BulkChange(matched=changed.matched, changed=changed.changed)

    async def set_retries(self, desk: Jobs, asked: pb.SetRetriesRequest) -> pb.SetRetriesResponse:
        """Change how many attempts are left."""
        return pb.SetRetriesResponse(previous=await desk.set_retries(asked.key, asked.retries))

    async def reschedule(self, desk: Jobs, asked: pb.RescheduleRequest) -> pb.Found:
        """Let one pending job run at another time."""
        run_at_ms = asked.run_at_ms if asked.HasField("run_at_ms") else None
        return views.found_view(await desk.reschedule(asked.key, run_at_ms=run_at_ms, delay_ms=asked.delay_ms))

    async def set_priority(self, desk: Jobs, asked: pb.SetPriorityRequest) -> pb.Found:
        """Change the priority of one pending job."""
        return views.found_view(await desk.set_priority(asked.key, asked.priority))

    async def delete(self, office: Admin, asked: pb.JobRequest) -> pb.Found:
        """Remove one finished job."""
        return views.found_view(await office.delete_job(asked.key))

    # Questions ----------------------------------------------------------------------------------

    async def get(self, desk: Jobs, asked: pb.JobRequest) -> pb.JobView:
        """A job as it stands."""
        return views.job_view(await desk.get(asked.key))

    async def history(self, desk: Jobs, asked: pb.JobRequest) -> pb.HistoryResponse:
        """How a job's attempts ended."""
        return views.history_view(await desk.history(asked.key))

    async def explain(self, desk: Jobs, asked: pb.JobRequest) -> pb.Explanation:
        """Why a job is not running."""
        return views.explanation_view(await desk.explain(asked.key))

    async def list(self, desk: Jobs, asked: pb.ListRequest) -> pb.Page:
        """Matching jobs, newest first."""
        checks.whole_number("cursor", asked.cursor, 0, KEY_MAX)
        return views.page_view(
            await desk.find(_filter(asked.filter), asked.limit or LIST_LIMIT_DEFAULT, asked.cursor or None)
        )

    async def stats(self, desk: Jobs, asked: pb.StatsRequest) -> pb.StatsResponse:
        """Counts, and what workers did lately."""
        return views.stats_view(await desk.stats(asked.hours or HOURS_DEFAULT))

    async def result(self, desk: Jobs, asked: pb.ResultRequest) -> pb.ResultResponse:
        """The result of a job, once it has one; a server that stops keeps nobody waiting."""
        await desk.get(asked.key)
        seconds = checks.whole_number("wait_ms", asked.wait_ms, 0, LEASE_MS_MAX) / 1000
        found = asyncio.ensure_future(self._gateway.service.result(asked.key, min(seconds, RESULT_SECONDS_MAX)))
        stopping = asyncio.ensure_future(self._gateway.stopping.wait())
        try:
            await asyncio.wait([found, stopping], return_when=asyncio.FIRST_COMPLETED)
            if not found.done():
                raise EngineUnavailable("the server stops")
            text = found.result()
        finally:
            found.cancel()
            stopping.cancel()
        self._gateway.require_live(desk)
        return pb.ResultResponse(result=None if text is None else text.encode())


def _messages(jobs: Sequence[LeasedJob]) -> Iterator[tuple[bytes, int]]:
    for group in portions(map(job_message, jobs)):
        yield pb.ActivateResponse(jobs=group).SerializeToString(), len(group)


def _demand(asked: pb.ActivateRequest) -> Demand:
    return Demand(
        checks.name("type", asked.type),
        checks.name("worker", asked.worker),
        checks.whole_number("limit", asked.limit or LIMIT_DEFAULT, 1, ACTIVATE_MAX),
        checks.whole_number("lease_ms", asked.lease_ms or LEASE_MS_DEFAULT, 1, LEASE_MS_MAX),
        checks.text("group", asked.group, NAME_CHARS_MAX),
        tenant_names("tenants", asked.tenants),
    )


async def _outcome(desk: Jobs, at: int, message: pb.Outcome) -> Outcome:
    try:
        outcome = checked_outcome(message, desk.principal)
        if isinstance(outcome, Failed | Throw) and outcome.variables is not None:
            return outcome._replace(variables=await desk.merged_variables(outcome.key, decode(outcome.variables)))
    except JobNotFound:
        return checked_outcome(message, desk.principal)  # Judged with the others.
    except InvalidInput as error:
        raise InvalidInput(f"outcomes[{at}].{error.field}", error.problem) from None
    return outcome


def _filter(asked: pb.JobFilter) -> JobFilter:
    states = [checks.whole_number("states", number, State.PENDING, State.CANCELLED) for number in asked.states]
    return JobFilter(
        type=_name(asked, "type"),
        group=checks.text("group", asked.group, NAME_CHARS_MAX) if asked.HasField("group") else None,
        states=frozenset(State(number) for number in states),
        tenants=tenant_names("tenants", asked.tenants),
        worker=_name(asked, "worker"),
        correlation_id=_name(asked, "correlation_id"),
        created_after_ms=_instant(asked, "created_after_ms"),
        created_before_ms=_instant(asked, "created_before_ms"),
        error_text=sought_text("error_text", asked.error_text) if asked.HasField("error_text") else None,
        due=asked.due,
    )


def _name(asked: pb.JobFilter, name: str) -> str | None:
    return checks.name(name, getattr(asked, name)) if asked.HasField(name) else None


def _instant(asked: pb.JobFilter, name: str) -> int | None:
    return checks.whole_number(name, getattr(asked, name), 0, INSTANT_MS_MAX) if asked.HasField(name) else None
