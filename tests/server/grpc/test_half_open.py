"""A host that vanished without a word: its polls end, and what is created afterwards goes to somebody else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import grpc.aio

from everwork.proto import jobs_pb2, jobs_pb2_grpc
from tests.app.waiting import until
from tests.server.grpc.conftest import OpenServer
from tests.server.grpc.running import TYPE

NOTICED_SECONDS: Final = 40.0
"""Pings every 10 s, 5 s for the answer, and much patience with a slow machine."""


class Cable:
    """A connection between two hosts that can be cut without either noticing."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._is_cut = False
        self._tasks: set[asyncio.Task[None]] = set()

    def cut(self) -> None:
        """From now on nothing arrives, and nobody is told."""
        self._is_cut = True

    async def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry bytes both ways."""
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._port)
        for source, target in ((reader, far_writer), (far_reader, writer)):
            task = asyncio.ensure_future(self._carry(source, target))
            self._tasks.add(task)

    async def _carry(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await source.read(65_536):
                if not self._is_cut:
                    target.write(data)
                    await target.drain()

    def close(self) -> None:
        """Take it away."""
        for task in self._tasks:
            task.cancel()


@asynccontextmanager
async def cable_to(port: int) -> AsyncIterator[tuple[Cable, int]]:
    cable = Cable(port)
    server = await asyncio.start_server(cable.connect, "127.0.0.1", 0)
    try:
        yield cable, server.sockets[0].getsockname()[1]
    finally:
        server.close()
        cable.close()


async def test_the_poll_of_a_host_that_vanished_ends(open_server: OpenServer) -> None:
    server = await open_server(long_poll_seconds=300)
    async with cable_to(server.port) as (cable, port), grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        request = jobs_pb2.ActivateJobsRequest(type=TYPE, worker="w1")
        call: Any = jobs_pb2_grpc.JobsServiceAsyncStub(channel).ActivateJobs(request, metadata=server.metadata)
        await until(lambda: server.service.waiting(TYPE))
        cable.cut()
        await until(lambda: not server.service.waiting(TYPE), NOTICED_SECONDS)
        key = await server.create()
        assert [job.job_key for job in await server.activate()] == [key]
        call.cancel()
