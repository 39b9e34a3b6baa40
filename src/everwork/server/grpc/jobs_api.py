"""The jobs API: `atom.jobs.v1.JobsService`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Final

from google.protobuf.message import Message

from everwork.codec.proto_replies import portions
from everwork.core import checks
from everwork.core.instants import utc_text
from everwork.core.job import LeasedJob
from everwork.core.leasing import Demand, Judged
from everwork.core.limits import ATTEMPTS_MAX, ERROR_CHARS_MAX, LEASE_MS_MAX
from everwork.core.outcome import Outcome
from everwork.core.states import State
from everwork.exceptions import JobError, JobNotFound, LeaseLost, WrongState
from everwork.proto import jobs_pb2 as pb
from everwork.server.grpc import jobs_requests as requests
from everwork.server.grpc.delivery import deliver, lease, poll_time
from everwork.server.grpc.gateway import Context, Gateway, Handler, Methods, Request, Rpc
from everwork.server.grpc.jobs_replies import activated, int32, job_view, of_state, refusal, stats_view
from everwork.server.grpc.offset_pages import list_jobs
from everwork.service.jobs import Jobs

API: Final = "jobs"
SERVICE: Final = pb.DESCRIPTOR.services_by_name["JobsService"].full_name
_rpc: Final = partial(Rpc, API, SERVICE)


class JobsApi:
    """Handles the eleven calls of the service."""

    def __init__(self, gateway: Gateway, long_poll_seconds: float) -> None:
        self._gateway = gateway
        self._metrics = gateway.metrics
        self._long_poll_seconds = long_poll_seconds

    def methods(self) -> Methods:
        """The handlers of the calls."""
        unary, streams, changes = self._gateway.unary, self._gateway.server_stream, self._change
        handlers = {
            (rpc := _rpc("CreateJob", Jobs.create)): unary(rpc, pb.CreateJobRequest, self.create),
            (rpc := _rpc("ActivateJobs", Jobs.activate)): streams(rpc, pb.ActivateJobsRequest, self.activate),
            (rpc := _rpc("CompleteJob", Jobs.settle)): changes(rpc, pb.CompleteJobRequest, self.complete),
            (rpc := _rpc("FailJob", Jobs.settle)): changes(rpc, pb.FailJobRequest, self.fail),
            (rpc := _rpc("ThrowError", Jobs.settle)): changes(rpc, pb.ThrowErrorRequest, self.throw),
            (rpc := _rpc("UpdateJobRetries", Jobs.set_retries)): changes(
                rpc, pb.UpdateJobRetriesRequest, self.update_retries
            ),
            (rpc := _rpc("UpdateJobTimeout", Jobs.extend)): changes(
                rpc, pb.UpdateJobTimeoutRequest, self.update_timeout
            ),
            (rpc := _rpc("CancelJob", Jobs.cancel)): changes(rpc, pb.CancelJobRequest, self.cancel),
            (rpc := _rpc("GetJob", Jobs.get)): unary(rpc, pb.GetJobRequest, self.get),
            (rpc := _rpc("ListJobs", Jobs.find)): unary(rpc, pb.ListJobsRequest, self.list),
            (rpc := _rpc("GetJobStats", Jobs.stats)): unary(rpc, pb.GetJobStatsRequest, self.stats),
        }
        return {rpc.path: handler for rpc, handler in handlers.items()}

    def _change(
        self, rpc: Rpc, request_type: type[Request], handle: Callable[[Jobs, Request], Awaitable[Message]]
    ) -> Handler:
        """A call that changes a job. An unknown job may have been completed and deleted; the error mentions this."""

        return self._gateway.unary(rpc, request_type, handle, reworded=_perhaps_completed)

    # Work ---------------------------------------------------------------------------------------

    async def create(self, jobs: Jobs, request: pb.CreateJobRequest) -> pb.CreateJobResponse:
        """Accept one job."""
        [created] = await jobs.create([requests.new_job(request, jobs.principal)])
        if created.is_spooled:
            kept = f"the engine is unavailable: the job is spooled as '{created.spool_id}', and will be created later"
            return pb.CreateJobResponse(success=True, message=kept)
        [job] = await jobs.get_many([created.key])
        done = "already existed with the same dedupe key" if created.deduplicated else "created"
        return pb.CreateJobResponse(
            success=True,
            message=f"Job '{created.key}' {done}",
            job_key=str(created.key),
            # The job may already be finished and deleted.
            created_at="" if job is None else utc_text(job.created_at_ms),
            deduplicated=created.deduplicated,
        )

    async def activate(self, jobs: Jobs, request: pb.ActivateJobsRequest, context: Context) -> None:
        """Wait for jobs and send them; if there are none, report the reason only if the whole type is blocked."""
        demand = requests.demand(request)
        fetched = requests.fetched("fetch_variable", request.fetch_variable)
        time = poll_time(context, self._long_poll_seconds)
        leased = await lease(self._gateway, API, jobs, demand, time.wait_ms)
        if leased:
            messages = self._gateway.while_live(jobs, _messages(leased, demand, fetched))
            await deliver(self._gateway, context, leased, messages, caller=jobs.principal.id)
            return
        if not self._gateway.stopping.is_set() and (reason := await jobs.blocked_reason(demand.type)):
            await context.write(pb.ActivateJobsResponse(success=False, error_message=reason).SerializeToString())
        time.require_in_time(self._gateway)

    async def complete(self, jobs: Jobs, request: pb.CompleteJobRequest) -> pb.CompleteJobResponse:
        """Complete an attempt."""
        outcome = requests.completion(request)
        refused = _why(outcome, await self._settle(jobs, outcome))
        return pb.CompleteJobResponse(success=not refused, message=refused or f"Job '{outcome.key}' completed")

    async def fail(self, jobs: Jobs, request: pb.FailJobRequest) -> pb.FailJobResponse:
        """Fail an attempt; the worker or the policy decides whether it is retried."""
        outcome = requests.failure(request)
        if request.variables_json:
            given = requests.one_of_two({}, request.variables_json)
            merged = await jobs.merged_variables(outcome.key, given, "variables_json")
            outcome = outcome._replace(variables=merged)
        refused = _why(outcome, await self._settle(jobs, outcome))
        return pb.FailJobResponse(success=not refused, message=refused or f"Job '{outcome.key}' failed")

    async def throw(self, jobs: Jobs, request: pb.ThrowErrorRequest) -> pb.ThrowErrorResponse:
        """Fail a job permanently, with an error code. No process can catch it."""
        outcome = requests.throw(request)
        if given := requests.one_of_two(request.variables, request.variables_json):
            field = "variables_json" if request.variables_json else "variables"
            outcome = outcome._replace(variables=await jobs.merged_variables(outcome.key, given, field))
        refused = _why(outcome, await self._settle(jobs, outcome))
        done = f"Job '{outcome.key}' failed with error code '{outcome.code}'"
        return pb.ThrowErrorResponse(success=not refused, message=refused or done, error_caught=False)

    def _settle(self, jobs: Jobs, outcome: Outcome) -> Awaitable[list[Judged]]:
        if not outcome.attempt:
            self._metrics.unfenced(API)
        return jobs.settle([outcome])

    # Changes ------------------------------------------------------------------------------------

    async def update_retries(self, jobs: Jobs, request: pb.UpdateJobRetriesRequest) -> pb.UpdateJobRetriesResponse:
        """Change how many attempts are left."""
        retries = checks.whole_number("retries", request.retries, 0, ATTEMPTS_MAX)
        key = requests.job_key(request)
        try:
            previous = await jobs.set_retries(key, retries)
        except (WrongState, LeaseLost) as error:
            return pb.UpdateJobRetriesResponse(success=False, message=await _explained(jobs, error))
        done = f"Job '{key}' has {retries} retries"
        return pb.UpdateJobRetriesResponse(success=True, message=done, previous_retries=previous)

    async def update_timeout(self, jobs: Jobs, request: pb.UpdateJobTimeoutRequest) -> pb.UpdateJobTimeoutResponse:
        """Change when a lease ends."""
        lease_ms = checks.whole_number("timeout", request.timeout, 1, LEASE_MS_MAX)
        key = requests.job_key(request)
        if not request.attempt:
            self._metrics.unfenced(API)
        judged = await jobs.extend(key, request.attempt, lease_ms)
        if not judged.ok:
            return pb.UpdateJobTimeoutResponse(success=False, message=refusal(key, judged))
        return pb.UpdateJobTimeoutResponse(success=True, message=f"Job '{key}' is leased for {lease_ms} ms from now")

    async def cancel(self, jobs: Jobs, request: pb.CancelJobRequest) -> pb.CancelJobResponse:
        """Cancel a job that is not finished."""
        reason = checks.text("reason", request.reason, ERROR_CHARS_MAX)
        key = requests.job_key(request)
        try:
            found = await jobs.cancel(key, reason)
        except WrongState as error:
            return pb.CancelJobResponse(success=False, message=await _explained(jobs, error))
        return pb.CancelJobResponse(success=True, message=f"Job '{key}' cancelled", previous_state=found.name)

    # Queries ------------------------------------------------------------------------------------

    async def get(self, jobs: Jobs, request: pb.GetJobRequest) -> pb.GetJobResponse:
        """Return a job with all its fields."""
        async with self._gateway.service.budgets.reads.of(jobs.principal):
            job = await jobs.get(requests.job_key(request))
            view, message = job_view(job), f"Job '{job.key}' found"
        if not view.variables and job.variables != "{}":
            message += "; because of their size, its variables are only in variables_json"
        return pb.GetJobResponse(success=True, message=message, job=view)

    async def stats(self, jobs: Jobs, request: pb.GetJobStatsRequest) -> pb.GetJobStatsResponse:
        """Job counts by state, and recent worker activity."""
        type = checks.name("job_type", request.job_type) if request.job_type else ""
        worker = checks.name("worker", request.worker) if request.worker else ""
        stats = await jobs.stats(requests.hours(request))
        message = "counts include all workers" if worker else ""
        return pb.GetJobStatsResponse(success=True, message=message, stats=stats_view(stats, type, worker))

    # Last in the class, because its name shadows the builtin in the annotations below it.

    async def list(self, jobs: Jobs, request: pb.ListJobsRequest) -> pb.ListJobsResponse:
        """Matching jobs; a list too large for one message is truncated, as noted in the reply."""
        limit, offset = requests.page(request)
        filter_, order = requests.job_filter(request), requests.order(request)
        async with self._gateway.service.budgets.lists.of(jobs.principal):
            listed = await list_jobs(jobs, filter_, limit, offset, order)
            shown = next(portions(job_view(job) for job in listed.jobs), [])
        message = f"{len(shown)} jobs"
        if len(shown) < len(listed.jobs):
            message += f"; more would make the message too large, continue at offset {offset + len(shown)}"
        return pb.ListJobsResponse(
            success=True,
            message="; ".join(filter(None, [message, listed.note])),
            jobs=shown,
            total=int32(listed.total),
            has_more=listed.has_more or len(shown) < len(listed.jobs),
        )


def _messages(jobs: Sequence[LeasedJob], demand: Demand, fetched: frozenset[str]) -> Iterator[tuple[bytes, int]]:
    for portion in portions(activated(job, demand.worker, fetched) for job in jobs):
        yield pb.ActivateJobsResponse(jobs=portion, success=True).SerializeToString(), len(portion)


def _why(outcome: Outcome, judged: Sequence[Judged]) -> str:
    """Why an outcome was refused, or an empty string."""
    return "" if judged[0].ok else refusal(outcome.key, judged[0])


def _perhaps_completed(error: Exception) -> Exception:
    """The error for an unknown job, which may have been completed and deleted."""
    return JobNotFound(error.key, f"{error} or already completed") if isinstance(error, JobNotFound) else error


async def _explained(jobs: Jobs, error: JobError) -> str:
    """The error's message, or this API's own text for a finished job."""
    [job] = await jobs.get_many([error.key])
    if job is None:
        raise JobNotFound(error.key)
    is_finished = job.state in (State.COMPLETED, State.CANCELLED)
    return of_state(error.key, job.state) if is_finished else str(error)
