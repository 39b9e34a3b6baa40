"""The whole server in the test's own event loop, and a worker who talks to its stream message by message."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import grpc
import grpc.aio

from everwork.core.job import NewJob, StoredJob
from everwork.proto import work_pb2 as pb
from everwork.server.server import Ports, Server
from everwork.server.settings import Settings
from tests.app.waiting import DEADLINE_S

KEY: Final = "the-key-of-the-tests"
TYPE: Final = "resize"
EOF: Final[Any] = grpc.aio.EOF  # type: ignore[attr-defined] # The stubs have forgotten it.
WORK: Final = "/everwork.v1.WorkService/Work"


class Whole:
    """A running server."""

    def __init__(self, server: Server, ports: Ports) -> None:
        self.server = server
        self.ports = ports
        self.service = server.service

    async def create(self, jobs: int = 1, **fields: Any) -> list[int]:
        """The keys of new jobs."""
        created = await self.service.create([NewJob(**{"type": TYPE, **fields})] * jobs)
        return [one.key for one in created]

    async def job(self, key: int) -> StoredJob:
        """A job as it stands."""
        return await self.service.get(key)

    def channel(self) -> grpc.aio.Channel:
        """A connection of its own."""
        options = [("grpc.use_local_subchannel_pool", 1)]
        return grpc.aio.insecure_channel(f"127.0.0.1:{self.ports.grpc}", options=options)

    @asynccontextmanager
    async def worker(self, name: str = "w1", key: str = KEY, **hello: Any) -> AsyncIterator[Worker]:
        """A worker who has been welcomed."""
        async with self.channel() as channel:
            worker = Worker(channel, key)
            await worker.say(hello=pb.Hello(worker=name, **hello))
            await worker.until(lambda: worker.welcome is not None)
            yield worker
            worker.call.cancel()


class Worker:
    """One stream, and all that was heard on it."""

    def __init__(self, channel: grpc.aio.Channel, key: str = KEY) -> None:
        open_stream: Any = channel.stream_stream
        self.call: Any = open_stream(WORK)(metadata=(("x-api-key", key),))
        self.jobs: list[pb.Job] = []
        self.settled = 0
        self.refusals: list[pb.Refusal] = []
        self.losses: list[pb.Loss] = []
        self.sizes: list[int] = []
        self.welcome: pb.Welcome | None = None
        self.is_closing = False
        self.is_over = False

    async def say(self, **parts: Any) -> None:
        """Send one message."""
        await self.call.write(pb.FromWorker(**parts).SerializeToString())

    async def grant(self, credits: int, type: str = TYPE, **more: Any) -> None:
        """Ask for jobs."""
        await self.say(grants=[pb.Grant(type=type, credits=credits, **more)])

    async def until(self, condition: Callable[[], Any]) -> None:
        """Listen until something is so."""
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                await self._hear()

    async def got(self, jobs: int) -> Sequence[pb.Job]:
        """Listen until so many jobs have come."""
        await self.until(lambda: len(self.jobs) >= jobs)
        return self.jobs

    async def complete(self, *jobs: pb.Job) -> None:
        """Report that jobs are done."""
        await self.say(outcomes=[ended(job, complete=pb.Complete()) for job in jobs])

    async def status(self) -> tuple[grpc.StatusCode, str]:
        """How the stream ends; its status comes after all that was said."""
        async with asyncio.timeout(DEADLINE_S):
            with suppress(grpc.aio.AioRpcError):
                while await self.call.read() is not EOF:
                    pass
            return await self.call.code(), await self.call.details() or ""

    async def _hear(self) -> None:
        raw = await self.call.read()
        assert raw is not EOF, f"the stream ended: {await self.status()}"
        self.sizes.append(len(raw))
        message = pb.ToWorker.FromString(raw)
        if message.HasField("welcome"):
            self.welcome = message.welcome
        self.jobs += message.jobs
        self.settled = max(self.settled, message.settled)
        self.refusals += message.refusals
        self.losses += message.losses
        self.is_closing = self.is_closing or message.closing


def ended(job: pb.Job, **kind: Any) -> pb.Outcome:
    """How an attempt ended."""
    return pb.Outcome(key=job.key, attempt=job.attempt, **kind)


def lease_of(job: pb.Job) -> pb.Lease:
    """The attempt of a job that came by the stream."""
    return pb.Lease(key=job.key, attempt=job.attempt)


@asynccontextmanager
async def running(url: str, **settings: Any) -> AsyncIterator[Whole]:
    """A server from its start to its end."""
    chosen = {"engine": url, "grpc_port": 0, "http_port": 0, "api_key": KEY, "shutdown_seconds": 1, **settings}
    server = Server(Settings(**chosen))
    await server.open()
    try:
        yield Whole(server, await server.listen())
    finally:
        await server.stop()
