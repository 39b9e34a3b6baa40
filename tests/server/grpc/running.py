"""A server under test: its service, its port, and stubs of its calls."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import grpc
import grpc.aio

from everwork.core.job import StoredJob
from everwork.engines.open import open_engine
from everwork.proto import gateway_pb2_grpc, jobs_pb2, jobs_pb2_grpc
from everwork.server.grpc.server import GrpcServer
from everwork.server.grpc.verbs import verb_methods
from everwork.server.grpc.work_streams import WorkStreams
from everwork.server.metrics import Metrics
from everwork.server.settings import Settings
from everwork.service.access.keys import KeyRing
from everwork.service.service import JobService

KEY: Final = "the-key-of-the-tests"
TYPE: Final = "http-request"
SECONDS: Final = 60.0
"""The deadline of calls that answer at once."""


@dataclass
class RunningServer:
    """A running server. `metadata` carries a key that may do everything."""

    service: JobService
    keys: KeyRing
    metrics: Metrics
    grpc_server: GrpcServer
    port: int
    channel: grpc.aio.Channel
    metadata: tuple[tuple[str, str], ...] = (("x-api-key", KEY),)
    jobs: jobs_pb2_grpc.JobsServiceAsyncStub = field(init=False)
    zeebe: gateway_pb2_grpc.GatewayAsyncStub = field(init=False)

    def __post_init__(self) -> None:
        self.jobs = jobs_pb2_grpc.JobsServiceAsyncStub(self.channel)
        self.zeebe = gateway_pb2_grpc.GatewayAsyncStub(self.channel)

    async def call(self, name: str, request: Any = None, **fields: Any) -> Any:
        """The answer to one call of the jobs API."""
        request = request or getattr(jobs_pb2, f"{name}Request")(**fields)
        return await getattr(self.jobs, name)(request, metadata=self.metadata, timeout=SECONDS)

    async def create(self, **fields: Any) -> str:
        """The key of a new job."""
        answer = await self.call("CreateJob", **{"job_type": TYPE, **fields})
        return str(answer.job_key)

    async def poll(self, timeout_s: float = SECONDS, **fields: Any) -> list[Any]:
        """The messages of one ActivateJobs."""
        request = jobs_pb2.ActivateJobsRequest(**{"type": TYPE, "worker": "w1", **fields})
        return [one async for one in self.jobs.ActivateJobs(request, metadata=self.metadata, timeout=timeout_s)]

    async def activate(self, **fields: Any) -> list[Any]:
        """The jobs of one ActivateJobs."""
        return [job for message in await self.poll(**fields) for job in message.jobs]

    async def an_activated_job(self, **fields: Any) -> Any:
        """A new job, in the hands of a worker."""
        key = await self.create(**fields)
        [job] = await self.activate()
        assert job.job_key == key
        return job

    async def job(self, key: str) -> StoredJob:
        """The job as it stands."""
        return await self.service.get(int(key))


@asynccontextmanager
async def running_server(url: str, **settings: Any) -> AsyncIterator[RunningServer]:
    """A server from its opening to its end."""
    credentials = settings.pop("credentials", None)
    chosen = Settings(**{"grpc_port": 0, "long_poll_seconds": 0.5, **settings})
    service = JobService(open_engine(url), "tests", budgets=chosen.budgets)
    keys = KeyRing(service._engine, environment_key=KEY, rate_limit=chosen.rate_limit)
    metrics = Metrics()
    streams = WorkStreams(service, keys, chosen)
    extras = [streams.methods, lambda gateway: verb_methods(gateway, chosen.long_poll_seconds)]
    grpc_server = GrpcServer(service, keys, chosen, metrics, extras)
    await service.open()
    await keys.open()
    streams.start()
    port = await grpc_server.start()
    channel = _channel(port, credentials)
    try:
        yield RunningServer(service, keys, metrics, grpc_server, port, channel)
    finally:
        await channel.close(None)
        streams.close()
        await grpc_server.stop(1.0)
        await streams.wait_closed()
        await keys.close()
        await service.close()


def _channel(port: int, credentials: grpc.ChannelCredentials | None) -> grpc.aio.Channel:
    # Each test has connections of its own: grpc shares them between channels otherwise.
    options = [("grpc.use_local_subchannel_pool", 1)]
    if credentials is None:
        return grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options)
    return grpc.aio.secure_channel(f"localhost:{port}", credentials, options=options)


async def refused(call: Any) -> tuple[grpc.StatusCode, str]:
    """The status and the details with which a call must be refused."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or ""
    raise AssertionError("the call was not refused")
