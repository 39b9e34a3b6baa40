"""`everwork.v1.DeskService`: every verb of the service, with typed messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from everwork.aio.loops import first_of
from everwork.codec import proto_replies as replies
from everwork.codec.proto_requests import (
    cursor_from,
    demand_of,
    filter_of,
    leased_job_message,
    new_variables_of,
    outcome_of,
)
from everwork.core import checks
from everwork.core.job import LeasedJob
from everwork.core.limits import LEASE_MS_MAX, LIST_LIMIT_DEFAULT, MERGED_BYTES_MAX, SETTLE_BATCH_MAX
from everwork.core.outcome import Failed, Outcome, Throw
from everwork.exceptions import EngineUnavailable, InvalidInput, JobNotFound
from everwork.proto import work_pb2 as pb
from everwork.server.errors import STOPPING
from everwork.server.grpc.delivery import deliver, lease, poll_time
from everwork.server.grpc.gateway import Context, Gateway, Methods, Rpc
from everwork.server.grpc.outcomes import merging, read_outcome, require_few_events
from everwork.service.access.budgets import Slices
from everwork.service.jobs import Jobs, Settle

SERVICE: Final = "everwork.v1.DeskService"
API: Final = "desk"
HOURS_DEFAULT: Final = 24
RESULT_SECONDS_MAX: Final = 30.0
SETTLE_FAIR: Final = 200
"""How many outcomes are settled in one step while other keys are active."""

_VERBS: Final[Mapping[str, Callable[..., Any]]] = {
    "Activate": Jobs.activate,
    "Settle": Jobs.settle,
    "SettleLate": Jobs.settle_late,
    "Extend": Jobs.extend,
    "Cancel": Jobs.cancel,
    "Requeue": Jobs.requeue,
    "RequeueMatching": Jobs.requeue_matching,
    "SetRetries": Jobs.set_retries,
    "Reschedule": Jobs.reschedule,
    "SetPriority": Jobs.set_priority,
    "Delete": Jobs.delete,
    "Get": Jobs.get,
    "History": Jobs.history,
    "Explain": Jobs.explain,
    "List": Jobs.find,
    "Stats": Jobs.stats,
    "Result": Jobs.result,
    "Spooled": Jobs.spooled,
}
RPCS: Final = {name: Rpc(API, SERVICE, name, verb, waits=name == "Result") for name, verb in _VERBS.items()}
"""Every call of the service, with its verb's access rule."""


def verb_methods(gateway: Gateway, poll_seconds_max: float) -> Methods:
    """The handlers of the service."""
    verbs = Verbs(gateway, poll_seconds_max)
    return {rpc.path: _handler(gateway, rpc, verbs) for rpc in RPCS.values()}


def _handler(gateway: Gateway, rpc: Rpc, verbs: Verbs) -> Any:
    method = pb.DESCRIPTOR.services_by_name["DeskService"].methods_by_name[rpc.name]
    request_type = getattr(pb, method.input_type.name)
    if rpc.name == "Activate":
        return gateway.server_stream(rpc, request_type, verbs.activate)
    return gateway.unary(rpc, request_type, getattr(verbs, _snake(rpc.name)))


def _snake(name: str) -> str:
    return "".join(f"_{sign.lower()}" if sign.isupper() else sign for sign in name).lstrip("_")


class Verbs:
    """Handles each call: reads the request, calls the service, returns the reply."""

    def __init__(self, gateway: Gateway, poll_seconds_max: float) -> None:
        self._gateway = gateway
        self._poll_seconds_max = poll_seconds_max

    # Work ---------------------------------------------------------------------------------------

    async def activate(self, jobs: Jobs, request: pb.ActivateRequest, context: Context) -> None:
        """Lease jobs and deliver them; jobs that could not be written are released."""
        demand = demand_of(request)
        wait_ms = checks.whole_number("wait_ms", request.wait_ms, 0, LEASE_MS_MAX)
        time = poll_time(context, min(wait_ms / 1000, self._poll_seconds_max))
        leased = await lease(self._gateway, API, jobs, demand, time.wait_ms)
        messages = self._gateway.while_live(jobs, _messages(leased))
        await deliver(self._gateway, context, leased, messages, caller=jobs.principal.id)
        if not leased:
            time.require_in_time(self._gateway)

    async def settle(self, jobs: Jobs, request: pb.SettleRequest) -> pb.SettleResponse:
        """End attempts; if one outcome is invalid, the call fails and nothing is settled."""
        return await self._settle(jobs, request)

    async def settle_late(self, jobs: Jobs, request: pb.SettleRequest) -> pb.SettleResponse:
        """End attempts of a worker that was disconnected; each outcome must name its attempt."""
        return await self._settle(jobs, request, is_late=True)

    async def _settle(self, jobs: Jobs, request: pb.SettleRequest, *, is_late: bool = False) -> pb.SettleResponse:
        slices = self._gateway.service.budgets.slices(jobs.principal)
        settle = jobs.settle_late if is_late else jobs.settle
        if len(request.outcomes) == 1:  # Most calls; the limits and slices below matter only for several outcomes.
            outcomes = [await _outcome(jobs, 0, request.outcomes[0], slices)]
            self._check_attempts(outcomes, is_late)
            return pb.SettleResponse(judged=map(replies.judged_message, await settle(outcomes)))
        async with merging(self._gateway.service, jobs, request.outcomes):
            outcomes = await _outcomes(jobs, request, slices)
            self._check_attempts(outcomes, is_late)
            return await self._settled(outcomes, settle, slices)

    def _check_attempts(self, outcomes: Sequence[Outcome], is_late: bool) -> None:
        """Count outcomes that name no attempt; refuse late ones."""
        unfenced = [index for index, outcome in enumerate(outcomes) if not outcome.attempt]
        if unfenced and is_late:
            raise InvalidInput(f"outcomes[{unfenced[0]}].attempt", "is required: another attempt may be running")
        if unfenced:
            self._gateway.metrics.unfenced(API, len(unfenced))

    async def _settled(self, outcomes: Sequence[Outcome], settle: Settle, slices: Slices) -> pb.SettleResponse:
        """Settle outcomes, in steps while other keys are active: each is judged separately."""
        turns, response, at = self._gateway.service.budgets.requests, pb.SettleResponse(), 0
        while at < len(outcomes):
            judged = await settle(outcomes[at : at + (SETTLE_FAIR if turns.is_contended else len(outcomes))])
            at += len(judged)
            for start in range(0, len(judged), slices.size):
                response.judged.extend([replies.judged_message(one) for one in judged[start : start + slices.size]])
                if len(response.judged) < len(outcomes):
                    await slices.give_way()
        return response

    async def extend(self, jobs: Jobs, request: pb.ExtendRequest) -> pb.Judged:
        """Extend a lease."""
        return replies.judged_message(await jobs.extend(request.key, request.attempt, request.lease_ms))

    # Changes ------------------------------------------------------------------------------------

    async def cancel(self, jobs: Jobs, request: pb.CancelRequest) -> pb.Found:
        """Cancel one job."""
        return replies.found_message(await jobs.cancel(request.key, request.reason))

    async def requeue(self, jobs: Jobs, request: pb.RequeueRequest) -> pb.Found:
        """Requeue one dead letter, or one job waiting for a retry, optionally with new variables."""
        return replies.found_message(await jobs.requeue(request.key, variables=new_variables_of(request)))

    async def requeue_matching(self, jobs: Jobs, request: pb.RequeueMatchingRequest) -> pb.BulkChange:
        """Requeue every dead letter that matches, or all of them."""
        changed = await jobs.requeue_matching(filter_of(request.filter), all=request.all)
        return pb.BulkChange(matched=changed.matched, changed=changed.changed)

    async def set_retries(self, jobs: Jobs, request: pb.SetRetriesRequest) -> pb.SetRetriesResponse:
        """Change how many attempts are left."""
        return pb.SetRetriesResponse(previous=await jobs.set_retries(request.key, request.retries))

    async def reschedule(self, jobs: Jobs, request: pb.RescheduleRequest) -> pb.Found:
        """Change when one pending job runs."""
        run_at_ms = request.run_at_ms if request.HasField("run_at_ms") else None
        delay_ms = request.delay_ms or None
        if run_at_ms is None and delay_ms is None:
            return replies.found_message(await jobs.run_now(request.key, reset=request.reset))
        if request.reset:
            raise InvalidInput("reset", "cannot be combined with run_at_ms or delay_ms")
        return replies.found_message(await jobs.reschedule(request.key, run_at_ms=run_at_ms, delay_ms=delay_ms))

    async def set_priority(self, jobs: Jobs, request: pb.SetPriorityRequest) -> pb.Found:
        """Change the priority of one pending job."""
        return replies.found_message(await jobs.set_priority(request.key, request.priority))

    async def delete(self, jobs: Jobs, request: pb.JobRequest) -> pb.Found:
        """Delete one finished job."""
        return replies.found_message(await jobs.delete(request.key))

    # Queries ------------------------------------------------------------------------------------

    async def get(self, jobs: Jobs, request: pb.JobRequest) -> pb.JobView:
        """Return a job with all its fields."""
        async with self._gateway.service.budgets.reads.of(jobs.principal):
            return replies.job_message(await jobs.get(request.key))

    async def history(self, jobs: Jobs, request: pb.JobRequest) -> pb.HistoryResponse:
        """The history of a job's attempts."""
        async with self._gateway.service.budgets.reads.of(jobs.principal):
            return replies.history_message(await jobs.history(request.key))

    async def explain(self, jobs: Jobs, request: pb.JobRequest) -> pb.Explanation:
        """Why a job is not running."""
        async with self._gateway.service.budgets.reads.of(jobs.principal):
            return replies.explanation_message(await jobs.explain(request.key))

    async def list(self, jobs: Jobs, request: pb.ListRequest) -> pb.Page:
        """Matching jobs, in the filter's order."""
        filter_ = filter_of(request.filter)
        async with self._gateway.service.budgets.lists.of(jobs.principal):
            page = await jobs.find(filter_, request.limit or LIST_LIMIT_DEFAULT, cursor_from(request))
            return replies.page_message(page, filter_.order)

    async def stats(self, jobs: Jobs, request: pb.StatsRequest) -> pb.StatsResponse:
        """Job counts by state, and recent worker activity."""
        return replies.stats_message(await jobs.stats(request.hours or HOURS_DEFAULT))

    async def spooled(self, jobs: Jobs, request: pb.SpooledRequest) -> pb.SpooledJob:
        """The state of a job in this server's spool."""
        return replies.spooled_message(await jobs.spooled(request.spool_id))

    async def result(self, jobs: Jobs, request: pb.ResultRequest) -> pb.ResultResponse:
        """Wait for the result of a job; the wait also ends when the server stops."""
        seconds = checks.whole_number("wait_ms", request.wait_ms, 0, LEASE_MS_MAX) / 1000
        waiting = asyncio.ensure_future(jobs.result(request.key, min(seconds, RESULT_SECONDS_MAX)))
        try:
            await first_of(self._gateway.stopping, work=waiting)
            if not waiting.done():
                raise EngineUnavailable(STOPPING)
            text = waiting.result()
        finally:
            waiting.cancel()
        self._gateway.require_live(jobs)
        return pb.ResultResponse(result=None if text is None else text.encode())


def _messages(jobs: Sequence[LeasedJob]) -> Iterator[tuple[bytes, int]]:
    for group in replies.portions(map(leased_job_message, jobs)):
        yield pb.ActivateResponse(jobs=group).SerializeToString(), len(group)


async def _outcomes(jobs: Jobs, request: pb.SettleRequest, slices: Slices) -> list[Outcome]:
    """The outcomes of a request, in slices: others are served in between."""
    if len(request.outcomes) > SETTLE_BATCH_MAX:
        raise InvalidInput("outcomes", f"must be at most {SETTLE_BATCH_MAX:,} in one call")
    require_few_events(request.outcomes, request.ByteSize())
    outcomes: list[Outcome] = []
    merged = 0
    for index, message in enumerate(request.outcomes):
        if index and index % slices.size == 0:
            await slices.give_way()
        outcomes.append(outcome := await _outcome(jobs, index, message, slices))
        if isinstance(outcome, Failed | Throw):
            merged += len(outcome.variables or "")
        if merged > MERGED_BYTES_MAX:
            raise InvalidInput("outcomes", f"must have at most {MERGED_BYTES_MAX:,} bytes of merged variables")
    return outcomes


async def _outcome(jobs: Jobs, index: int, message: pb.Outcome, slices: Slices) -> Outcome:
    try:
        return await read_outcome(jobs, message, slices)
    except JobNotFound:
        return outcome_of(message, jobs.principal.tenant_for_create)  # The engine reports this with the other verdicts.
    except InvalidInput as error:
        raise InvalidInput(f"outcomes[{index}].{error.field}", error.problem) from None
