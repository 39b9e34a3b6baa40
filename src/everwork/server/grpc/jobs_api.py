"""The jobs API: `atom.jobs.v1.JobsService`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from everwork.core import checks
from everwork.core.instants import utc_text
from everwork.core.job import LeasedJob
from everwork.core.leasing import Demand
from everwork.core.limits import ATTEMPTS_MAX, ERROR_CHARS_MAX, LEASE_MS_MAX
from everwork.core.outcome import Outcome
from everwork.core.states import State
from everwork.exceptions import JobError, JobNotFound, LeaseLost, WrongState
from everwork.proto import jobs_pb2 as pb
from everwork.server.grpc import jobs_requests as intake
from everwork.server.grpc.delivery import deliver, portions, wait_ms
from everwork.server.grpc.gateway import Context, Gateway, Methods, Rpc
from everwork.server.grpc.jobs_replies import activated, int32, job_view, of_state, refusal, stats_view
from everwork.server.grpc.offset_pages import list_jobs
from everwork.service.access.principal import Permission
from everwork.service.jobs import Jobs

DOOR: Final = "jobs"
SERVICE: Final = pb.DESCRIPTOR.services_by_name["JobsService"].full_name


class JobsApi:
    """What the eleven calls do."""

    def __init__(self, gateway: Gateway, long_poll_seconds: float) -> None:
        self._gateway = gateway
        self._metrics = gateway.metrics
        self._long_poll_seconds = long_poll_seconds

    def methods(self) -> Methods:
        """The handlers of the calls."""
        unary, reads = self._gateway.unary, Permission.JOBS_READ
        streams = self._gateway.answering_stream
        handlers = {
            (rpc := _rpc("CreateJob")): unary(rpc, pb.CreateJobRequest, self.create),
            (rpc := _rpc("ActivateJobs")): streams(rpc, pb.ActivateJobsRequest, self.activate),
            (rpc := _rpc("CompleteJob")): unary(rpc, pb.CompleteJobRequest, self.complete),
            (rpc := _rpc("FailJob")): unary(rpc, pb.FailJobRequest, self.fail),
            (rpc := _rpc("ThrowError")): unary(rpc, pb.ThrowErrorRequest, self.throw),
            (rpc := _rpc("UpdateJobRetries")): unary(rpc, pb.UpdateJobRetriesRequest, self.update_retries),
            (rpc := _rpc("UpdateJobTimeout")): unary(rpc, pb.UpdateJobTimeoutRequest, self.update_timeout),
            (rpc := _rpc("CancelJob")): unary(rpc, pb.CancelJobRequest, self.cancel),
            (rpc := _rpc("GetJob", reads)): unary(rpc, pb.GetJobRequest, self.get),
            (rpc := _rpc("ListJobs", reads)): unary(rpc, pb.ListJobsRequest, self.list),
            (rpc := _rpc("GetJobStats", reads)): unary(rpc, pb.GetJobStatsRequest, self.stats),
        }
        return {rpc.path: handler for rpc, handler in handlers.items()}

    # A job's way --------------------------------------------------------------------------------

    async def create(self, desk: Jobs, request: pb.CreateJobRequest) -> pb.CreateJobResponse:
        """Accept one job."""
        [created] = await desk.create([intake.new_job(request, desk.principal)])
        [job] = await desk.get_many([created.key])
        told = "existed before, by its dedupe key" if created.deduplicated else "created"
        return pb.CreateJobResponse(
            success=True,
            message=f"Job '{created.key}' {told}",
            job_key=str(created.key),
            # It may be done and deleted by now.
            created_at="" if job is None else utc_text(job.created_at_ms),
            deduplicated=created.deduplicated,
        )

    async def activate(self, desk: Jobs, request: pb.ActivateJobsRequest, context: Context) -> None:
        """Wait for jobs and send them; with none to the end, say so only if the whole type is stopped."""
        demand = intake.demand(request)
        fetched = frozenset(request.fetch_variable)
        with self._metrics.polling(DOOR):
            jobs = await desk.activate(demand, wait_ms(context, self._long_poll_seconds))
        if jobs:
            messages = self._gateway.while_live(desk, _messages(jobs, demand, fetched))
            await deliver(self._gateway.service, context, jobs, messages)
        elif not self._gateway.stopping.is_set() and (told := await self._gateway.service.blocked_reason(demand.type)):
            await context.write(pb.ActivateJobsResponse(success=False, error_message=told).SerializeToString())

    async def complete(self, desk: Jobs, request: pb.CompleteJobRequest) -> pb.CompleteJobResponse:
        """End an attempt well."""
        outcome = intake.completion(request)
        refused = await self._settle(desk, outcome)
        return pb.CompleteJobResponse(success=not refused, message=refused or f"Job '{outcome.key}' completed")

    async def fail(self, desk: Jobs, request: pb.FailJobRequest) -> pb.FailJobResponse:
        """End an attempt badly; whether there is another one is said by the worker, or by the policy."""
        outcome = intake.failure(request)
        if request.variables_json:
            more = intake.one_of_two({}, request.variables_json)
            merged = await desk.merged_variables(outcome.key, more, "variables_json")
            outcome = outcome._replace(variables=merged)
        refused = await self._settle(desk, outcome)
        return pb.FailJobResponse(success=not refused, message=refused or f"Job '{outcome.key}' failed")

    async def throw(self, desk: Jobs, request: pb.ThrowErrorRequest) -> pb.ThrowErrorResponse:
        """Fail a job for good, with a code. There is no process that could catch it."""
        outcome = intake.throw(request)
        if more := intake.one_of_two(request.variables, request.variables_json):
            field = "variables_json" if request.variables_json else "variables"
            outcome = outcome._replace(variables=await desk.merged_variables(outcome.key, more, field))
        refused = await self._settle(desk, outcome)
        done = f"Job '{outcome.key}' failed with error code '{outcome.code}'"
        return pb.ThrowErrorResponse(success=not refused, message=refused or done, error_caught=False)

    async def _settle(self, desk: Jobs, outcome: Outcome) -> str:
        """Why the outcome was refused; empty if it was not."""
        if not outcome.attempt:
            self._metrics.unfenced(DOOR)
        [judged] = await desk.settle([outcome])
        return "" if judged.ok else refusal(outcome.key, judged)

    # Changes ------------------------------------------------------------------------------------

    async def update_retries(self, desk: Jobs, request: pb.UpdateJobRetriesRequest) -> pb.UpdateJobRetriesResponse:
        """Change how many attempts are left."""
        key = checks.job_key(request.job_key, "job_key")
        retries = checks.whole_number("retries", request.retries, 0, ATTEMPTS_MAX)
        try:
            previous = await desk.set_retries(key, retries)
        except (WrongState, LeaseLost) as error:
            return pb.UpdateJobRetriesResponse(success=False, message=await _explained(desk, error))
        done = f"Job '{key}' has {retries} retries"
        return pb.UpdateJobRetriesResponse(success=True, message=done, previous_retries=previous)

    async def update_timeout(self, desk: Jobs, request: pb.UpdateJobTimeoutRequest) -> pb.UpdateJobTimeoutResponse:
        """Let a lease end at another time."""
        key = checks.job_key(request.job_key, "job_key")
        lease_ms = checks.whole_number("timeout", request.timeout, 1, LEASE_MS_MAX)
        if not request.attempt:
            self._metrics.unfenced(DOOR)
        judged = await desk.extend(key, request.attempt, lease_ms)
        if not judged.ok:
            return pb.UpdateJobTimeoutResponse(success=False, message=refusal(key, judged))
        return pb.UpdateJobTimeoutResponse(success=True, message=f"Job '{key}' is leased for {lease_ms} ms from now")

    async def cancel(self, desk: Jobs, request: pb.CancelJobRequest) -> pb.CancelJobResponse:
        """Cancel a job that is not finished."""
        key = checks.job_key(request.job_key, "job_key")
        reason = checks.text("reason", request.reason, ERROR_CHARS_MAX)
        try:
            found = await desk.cancel(key, reason)
        except WrongState as error:
            return pb.CancelJobResponse(success=False, message=await _explained(desk, error))
        return pb.CancelJobResponse(success=True, message=f"Job '{key}' cancelled", previous_state=found.name)

    # Questions ----------------------------------------------------------------------------------

    async def get(self, desk: Jobs, request: pb.GetJobRequest) -> pb.GetJobResponse:
        """A job as it stands."""
        job = await desk.get(checks.job_key(request.job_key, "job_key"))
        view, message = job_view(job), f"Job '{job.key}' found"
        if not view.variables and job.variables != "{}":
            message += "; it is large: its variables stand in variables_json only"
        return pb.GetJobResponse(success=True, message=message, job=view)

    async def stats(self, desk: Jobs, request: pb.GetJobStatsRequest) -> pb.GetJobStatsResponse:
        """Counts, and what workers did lately."""
        type = checks.name("job_type", request.job_type) if request.job_type else ""
        worker = checks.name("worker", request.worker) if request.worker else ""
        stats = await desk.stats(intake.hours(request))
        message = "counts are of all workers" if worker else ""
        return pb.GetJobStatsResponse(success=True, message=message, stats=stats_view(stats, type, worker))

    # Last in the class, because its name hides the builtin in the annotations below it.

    async def list(self, desk: Jobs, request: pb.ListJobsRequest) -> pb.ListJobsResponse:
        """Matching jobs; a message that would be too large ends early, and says so."""
        limit, offset = intake.page(request)
        listed = await list_jobs(desk, intake.job_filter(request), limit, offset, intake.order(request))
        shown = next(portions(job_view(job) for job in listed.jobs), [])
        message = f"{len(shown)} jobs"
        if len(shown) < len(listed.jobs):
            message += f"; more would make the message too large, go on at offset {offset + len(shown)}"
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


async def _explained(desk: Jobs, error: JobError) -> str:
    """The error, or the words that callers know where the job is finished."""
    [job] = await desk.get_many([error.key])
    if job is None:
        raise JobNotFound(error.key)
    is_known = job.state in (State.COMPLETED, State.CANCELLED)
    return of_state(error.key, job.state) if is_known else str(error)


def _rpc(name: str, permission: Permission = Permission.JOBS) -> Rpc:
    return Rpc(DOOR, SERVICE, name, permission)
