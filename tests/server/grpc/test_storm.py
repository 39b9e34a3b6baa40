"""Thousands of long polls that end at any moment: no lease stays behind unless its message was written."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Final

import grpc.aio
import pytest

from everwork.core.job import LeasedJob
from everwork.core.queries import JobFilter
from everwork.core.states import State
from everwork.proto import jobs_pb2
from everwork.server.grpc import delivery, jobs_api
from everwork.server.grpc.gateway import Context, Gateway
from everwork.server.grpc.offset_pages import matching
from everwork.service.jobs import Jobs, in_process
from everwork.service.verb import IN_PROCESS
from tests.app.waiting import until
from tests.server.grpc.conftest import OpenServer
from tests.server.grpc.running import SECONDS, TYPE, RunningServer
from tests.stores import at_length

POLLS: Final = at_length(5_000, 2_000)
AT_ONCE: Final = 50
JOBS: Final = 1_500
LEASE_MS: Final = 2_000
SEED: Final = 4


class Stuck:
    """A connection to which nothing can be written, until its caller goes away."""

    def __init__(self) -> None:
        self.is_used = asyncio.Event()

    def time_remaining(self) -> None:
        """There is no deadline."""

    async def write(self, _: bytes) -> None:
        self.is_used.set()
        await asyncio.Event().wait()


class Written:
    """Remembers which leases a server wrote to a connection."""

    def __init__(self) -> None:
        self.attempts: set[tuple[int, int]] = set()
        self.stuck: Stuck | None = None

    async def deliver(
        self,
        gateway: Gateway,
        context: Context,
        jobs: Sequence[LeasedJob],
        messages: Iterable[tuple[bytes, int]],
        *,
        caller: str,
    ) -> None:
        """The server's own delivery, with a note of each message for which `write` has returned."""

        def noted() -> Iterable[tuple[bytes, int]]:
            at = 0
            for message, carried in messages:
                yield message, carried
                # Whoever asks for another message, or for the end of them, has written this one.
                self.attempts.update((job.key, job.attempt) for job in jobs[at : at + carried])
                at += carried

        line: Any = self.stuck or context
        await delivery.deliver(gateway, line, jobs, noted(), caller=caller)


async def test_cancelled_polls_leave_no_lease_behind(open_server: OpenServer, monkeypatch: pytest.MonkeyPatch) -> None:
    written = Written()
    monkeypatch.setattr(jobs_api, "deliver", written.deliver)
    server = await open_server(long_poll_seconds=30)
    chance = random.Random(SEED)
    creating = asyncio.ensure_future(create_all(server, chance))
    for _ in range(POLLS // AT_ONCE):
        await asyncio.gather(*(poll_and_go(server, chance) for _ in range(AT_ONCE)))
    await creating
    # Whatever the storm has met by chance: these two are certain.
    await go_before_the_write(server, written)
    await go_after_the_write(server)
    await drain(server)
    ended = await how_attempts_ended(server)
    lapsed, released = ended["lapse"], ended["release"]
    print(f"\n{POLLS} polls cancelled: {len(written.attempts)} leases were written, {len(lapsed)} of them not ended;")
    print(f"{len(released)} were handed back, {len(lapsed - written.attempts)} stayed behind unwritten")
    assert lapsed - written.attempts == set()
    assert released, "nothing was handed back, though a caller went away before the write"
    assert lapsed, "nothing has lapsed, though a caller went away after the write"


async def how_attempts_ended(server: RunningServer) -> dict[str, set[tuple[int, int]]]:
    """The attempts of all jobs, by how they ended: a lease that stayed behind has lapsed."""
    ended: defaultdict[str, set[tuple[int, int]]] = defaultdict(set)
    for key in [job.key async for job in matching(Jobs(server.service, IN_PROCESS), JobFilter(), JOBS + 2)]:
        for entry in await in_process(server.service).history(key):
            ended[entry.kind].add((key, entry.attempt))
    return ended


async def create_all(server: RunningServer, chance: random.Random) -> None:
    for _ in range(JOBS // 10):
        requests = [jobs_pb2.CreateJobRequest(job_type=TYPE, retries=100) for _ in range(10)]
        await asyncio.gather(*(server.call("CreateJob", request) for request in requests))
        for _ in range(chance.randrange(50)):
            await asyncio.sleep(0)  # Polls come and go meanwhile.


async def poll_and_go(server: RunningServer, chance: random.Random) -> None:
    """Poll, and go away at any moment; half of what comes in time is completed, the rest is left to its lease."""
    request = jobs_pb2.ActivateJobsRequest(type=TYPE, worker="w", timeout=LEASE_MS, max_jobs_to_activate=3)
    call: Any = server.jobs.ActivateJobs(request, metadata=server.metadata, timeout=SECONDS)
    asyncio.get_running_loop().call_later(chance.uniform(0, 0.1), call.cancel)
    try:
        async for message in call:
            await asyncio.gather(*(complete(server, job) for job in message.jobs if chance.random() < 0.5))
    except (asyncio.CancelledError, grpc.aio.AioRpcError):
        return


async def go_before_the_write(server: RunningServer, written: Written) -> None:
    await server.create(retries=100)
    stuck = written.stuck = Stuck()
    request = jobs_pb2.ActivateJobsRequest(type=TYPE, worker="w", timeout=LEASE_MS)
    call: Any = server.jobs.ActivateJobs(request, metadata=server.metadata, timeout=SECONDS)
    await asyncio.wait_for(stuck.is_used.wait(), SECONDS)
    call.cancel()
    written.stuck = None


async def go_after_the_write(server: RunningServer) -> None:
    await server.create(retries=100)
    assert await server.activate(max_jobs_to_activate=1, timeout=LEASE_MS)


async def complete(server: RunningServer, job: Any) -> None:
    await server.call("CompleteJob", job_key=job.job_key, attempt=job.attempt)


async def drain(server: RunningServer) -> None:
    """Work everything off: what was written and not completed comes back when its lease ends."""

    async def all_done() -> bool:
        try:
            jobs = await server.activate(max_jobs_to_activate=100, timeout_s=1.0)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                raise
            jobs = []  # None was due within that second.
        for job in jobs:
            await complete(server, job)
        counts = {count.state: count.jobs for count in await server.service._engine.count()}
        return counts == {State.COMPLETED: JOBS + 2}

    await until(all_done, 30)
