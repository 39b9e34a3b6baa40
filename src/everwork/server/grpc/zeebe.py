"""The job calls of the Zeebe gateway, so that existing Zeebe workers run unchanged."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from everwork.codec.json import decode_object, encode_object
from everwork.codec.proto_replies import portions
from everwork.core import checks
from everwork.core.job import LeasedJob
from everwork.core.leasing import Demand, Judged
from everwork.core.limits import (
    ACTIVATE_MAX,
    ATTEMPTS_MAX,
    DEFAULT_GROUP,
    DELAY_MS_MAX,
    LEASE_MS_MAX,
    NAME_CHARS_MAX,
    PAYLOAD_BYTES_MAX,
)
from everwork.core.outcome import Complete, Failed, Outcome, Throw
from everwork.core.states import FINISHED_STATES
from everwork.core.texts import error_text
from everwork.exceptions import JobNotFound, WrongState
from everwork.proto import gateway_pb2 as pb
from everwork.server.grpc.delivery import deliver, lease, poll_time
from everwork.server.grpc.gateway import Context, Gateway, Methods, Rpc
from everwork.server.grpc.jobs_replies import chosen, process_fields, refusal
from everwork.server.grpc.jobs_requests import fetched, tenants
from everwork.service.access.principal import Permission
from everwork.service.jobs import Jobs
from everwork.service.verb import ANY, Rule

API: Final = "zeebe"
SERVICE: Final = pb.DESCRIPTOR.services_by_name["Gateway"].full_name
_rpc: Final = partial(Rpc, API, SERVICE)
VERSION: Final = "8.6.0"
"""The Zeebe version of this protocol; clients compare it with the version they need."""
TOPOLOGY: Final = Rule((Permission.JOBS_READ,), ANY)
"""The topology call describes the server, so it has no verb."""
WAIT_SECONDS: Final = 10.0
"""How long an empty poll lasts by default."""
WORKER_DEFAULT: Final = "default"
STREAM_BATCH: Final = 10
"""How many jobs a stream leases at a time."""
STREAM_WAIT_SECONDS: Final = 1.0
"""How often an idle stream checks whether its key is still valid, if there are few streams."""
STREAMS_PER_SECOND: Final = 100
"""How many streams check it per second, if there are many: each check is a new poll."""


class Address(NamedTuple):
    """The address at which clients reach this server."""

    host: str
    port: int


class ZeebeGateway:
    """Handles the gateway's calls."""

    def __init__(self, gateway: Gateway, long_poll_seconds: float) -> None:
        self._gateway = gateway
        self._metrics = gateway.metrics
        self._long_poll_seconds = long_poll_seconds
        self.address = Address("", 0)
        self._streams = 0

    def methods(self) -> Methods:
        """The handlers of the calls."""
        unary, streams = self._gateway.unary, self._gateway.server_stream
        handlers = {
            (rpc := _rpc("Topology", TOPOLOGY)): unary(rpc, pb.TopologyRequest, self.topology),
            (rpc := _rpc("ActivateJobs", Jobs.activate)): streams(rpc, pb.ActivateJobsRequest, self.activate),
            (rpc := _rpc("StreamActivatedJobs", Jobs.activate)): streams(
                rpc, pb.StreamActivatedJobsRequest, self.stream
            ),
            (rpc := _rpc("CompleteJob", Jobs.settle)): unary(rpc, pb.CompleteJobRequest, self.complete),
            (rpc := _rpc("FailJob", Jobs.settle)): unary(rpc, pb.FailJobRequest, self.fail),
            (rpc := _rpc("ThrowError", Jobs.settle)): unary(rpc, pb.ThrowErrorRequest, self.throw),
            (rpc := _rpc("UpdateJobRetries", Jobs.set_retries)): unary(
                rpc, pb.UpdateJobRetriesRequest, self.update_retries
            ),
            (rpc := _rpc("UpdateJobTimeout", Jobs.extend)): unary(rpc, pb.UpdateJobTimeoutRequest, self.update_timeout),
        }
        return {rpc.path: handler for rpc, handler in handlers.items()}

    async def topology(self, _jobs: Jobs, _request: pb.TopologyRequest) -> pb.TopologyResponse:
        """One broker with one partition: this server."""
        partition = pb.Partition(partitionId=1, role=pb.Partition.LEADER, health=pb.Partition.HEALTHY)
        host, port = self.address
        broker = pb.BrokerInfo(nodeId=0, host=host, port=port, partitions=[partition], version=VERSION)
        return pb.TopologyResponse(
            brokers=[broker], clusterSize=1, partitionsCount=1, replicationFactor=1, gatewayVersion=VERSION
        )

    # Jobs -----------------------------------------------------------------------------------------

    async def activate(self, jobs: Jobs, request: pb.ActivateJobsRequest, context: Context) -> None:
        """Wait for jobs as long as the caller requests, and send them."""
        limit = checks.whole_number("maxJobsToActivate", request.maxJobsToActivate, 1, 2**31 - 1)
        demand = _demand(request, min(limit, ACTIVATE_MAX))
        names = fetched("fetchVariable", request.fetchVariable)
        time = poll_time(context, self._seconds(request.requestTimeout))
        leased = await lease(self._gateway, API, jobs, demand, time.wait_ms)
        if leased:
            messages = _messages(leased, demand.worker, names)
            await self._deliver(jobs, context, leased, messages)
        else:
            time.require_in_time(self._gateway)

    async def stream(self, jobs: Jobs, request: pb.StreamActivatedJobsRequest, context: Context) -> None:
        """Send jobs as they become due, until the caller disconnects; a slow caller delays the next message."""
        demand = _demand(request, STREAM_BATCH)
        names = fetched("fetchVariable", request.fetchVariable)
        self._streams += 1
        try:
            # End a stream well before its deadline: pyzeebe would wait for 5 s after a DEADLINE_EXCEEDED.
            while not self._gateway.stopping.is_set() and (wait := poll_time(context, self._stream_seconds).wait_ms):
                self._gateway.require_live(jobs)
                leased = await lease(self._gateway, API, jobs, demand, wait)
                if leased:
                    messages = ((_activated(job, demand.worker, names).SerializeToString(), 1) for job in leased)
                    await self._deliver(jobs, context, leased, messages)
        finally:
            self._streams -= 1

    @property
    def _stream_seconds(self) -> float:
        """How long a stream waits for jobs; different for each, so that not all of them poll at the same time."""
        longest = max(STREAM_WAIT_SECONDS, self._streams / STREAMS_PER_SECOND)
        return longest * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, not a secret

    async def _deliver(
        self, jobs: Jobs, context: Context, leased: Sequence[LeasedJob], messages: Iterable[tuple[bytes, int]]
    ) -> None:
        live = self._gateway.while_live(jobs, messages)
        await deliver(self._gateway, context, leased, live, caller=jobs.principal.id)

    def _seconds(self, request_timeout_ms: int) -> float:
        if request_timeout_ms < 0:
            return 0.0
        if request_timeout_ms == 0:
            return min(WAIT_SECONDS, self._long_poll_seconds)
        return min(request_timeout_ms / 1000, self._long_poll_seconds)

    # Outcomes -------------------------------------------------------------------------------------

    async def complete(self, jobs: Jobs, request: pb.CompleteJobRequest) -> pb.CompleteJobResponse:
        """Complete an attempt."""
        found = _variables(request.variables)
        result = encode_object("variables", found, PAYLOAD_BYTES_MAX) if found else None
        await self._settle(jobs, Complete(checks.job_key(request.jobKey, "jobKey"), 0, result))
        return pb.CompleteJobResponse()

    async def fail(self, jobs: Jobs, request: pb.FailJobRequest) -> pb.FailJobResponse:
        """Fail an attempt; the worker sets the remaining retries."""
        key = checks.job_key(request.jobKey, "jobKey")
        # Zeebe treats negative retries as none.
        retries = checks.whole_number("retries", max(request.retries, 0), 0, ATTEMPTS_MAX)
        backoff_ms = checks.whole_number("retryBackOff", request.retryBackOff, 0, DELAY_MS_MAX)
        variables = await _merged(jobs, key, request.variables)
        error = error_text(request.errorMessage)
        await self._settle(jobs, Failed(key, 0, error, retries, backoff_ms, variables=variables))
        return pb.FailJobResponse()

    async def throw(self, jobs: Jobs, request: pb.ThrowErrorRequest) -> pb.ThrowErrorResponse:
        """Fail a job permanently, with an error code, which may be empty."""
        key = checks.job_key(request.jobKey, "jobKey")
        code = checks.text("errorCode", request.errorCode, NAME_CHARS_MAX)
        variables = await _merged(jobs, key, request.variables)
        await self._settle(jobs, Throw(key, 0, code, error_text(request.errorMessage), variables))
        return pb.ThrowErrorResponse()

    async def update_retries(self, jobs: Jobs, request: pb.UpdateJobRetriesRequest) -> pb.UpdateJobRetriesResponse:
        """Change how many attempts are left."""
        key = checks.job_key(request.jobKey, "jobKey")
        retries = checks.whole_number("retries", request.retries, 1, ATTEMPTS_MAX)
        try:
            await jobs.set_retries(key, retries)
        except WrongState:  # The job is completed or cancelled: in Zeebe such a job does not exist.
            raise JobNotFound(key) from None
        return pb.UpdateJobRetriesResponse()

    async def update_timeout(self, jobs: Jobs, request: pb.UpdateJobTimeoutRequest) -> pb.UpdateJobTimeoutResponse:
        """Change when a lease ends."""
        key = checks.job_key(request.jobKey, "jobKey")
        lease_ms = checks.whole_number("timeout", request.timeout, 1, LEASE_MS_MAX)
        self._metrics.unfenced(API)
        _require_accepted(key, await jobs.extend(key, 0, lease_ms))
        return pb.UpdateJobTimeoutResponse()

    async def _settle(self, jobs: Jobs, outcome: Outcome) -> None:
        self._metrics.unfenced(API)
        [judged] = await jobs.settle([outcome])
        _require_accepted(outcome.key, judged)


def _require_accepted(key: int, judged: Judged) -> None:
    """In Zeebe a finished job does not exist; one that is not activated is in the wrong state."""
    if judged.ok:
        return
    if judged.state in FINISHED_STATES:
        raise JobNotFound(key)
    raise WrongState(key, refusal(key, judged))


def _demand(request: pb.ActivateJobsRequest | pb.StreamActivatedJobsRequest, limit: int) -> Demand:
    return Demand(
        checks.name("type", request.type),
        checks.name("worker", request.worker) if request.worker else WORKER_DEFAULT,
        limit,
        checks.whole_number("timeout", request.timeout, 1, LEASE_MS_MAX),
        DEFAULT_GROUP,
        tenants("tenantIds", request.tenantIds),
    )


def _messages(jobs: Sequence[LeasedJob], worker: str, fetched: Collection[str]) -> Iterator[tuple[bytes, int]]:
    for portion in portions(_activated(job, worker, fetched) for job in jobs):
        yield pb.ActivateJobsResponse(jobs=portion).SerializeToString(), len(portion)


def _activated(job: LeasedJob, worker: str, fetched: Collection[str]) -> pb.ActivatedJob:
    process = process_fields(job.extra)
    return pb.ActivatedJob(
        key=job.key,
        type=job.type,
        processInstanceKey=_number(process.get("process_instance_key"), 63),
        bpmnProcessId=process.get("bpmn_process_id"),
        processDefinitionVersion=_number(process.get("process_definition_version"), 31),
        processDefinitionKey=_number(process.get("process_definition_key"), 63),
        elementId=process.get("element_id"),
        elementInstanceKey=_number(process.get("element_instance_key"), 63),
        customHeaders=job.headers or "{}",
        worker=worker,
        retries=job.max_attempts - job.attempts + 1,
        deadline=job.lease_until_ms,
        variables=chosen(job.variables, fetched),
        tenantId=job.tenant,
    )


def _number(text: str | None, bits: int) -> int:
    """A field that is a number in Zeebe; 0 if its text is not a number."""
    if text is None or not (text.isascii() and text.isdigit()) or len(text) > 19:
        return 0
    return int(text) if int(text) < 2**bits else 0


def _variables(text: str) -> dict[str, Any]:
    return decode_object("variables", text, PAYLOAD_BYTES_MAX) if text else {}


async def _merged(jobs: Jobs, key: int, text: str) -> str | None:
    """The job's variables merged with the worker's; None if the worker sent none."""
    found = _variables(text)
    return await jobs.merged_variables(key, found) if found else None
