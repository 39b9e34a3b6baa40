"""The streaming door for fast workers: every worker's stream, and what becomes of a worker's jobs when it is gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterable, Sequence
from contextlib import suppress
from typing import Final

import grpc.aio

from everwork.aio.loops import BackgroundLoop
from everwork.aio.retrying import through_outage
from everwork.codec.work_intake import new_jobs
from everwork.core.leasing import Lease, LeaseStatus
from everwork.core.limits import SETTLE_BATCH_MAX
from everwork.core.outcome import Failed, Outcome
from everwork.exceptions import CallTimeout, EngineError, EverworkError, Unauthenticated
from everwork.proto import work_pb2
from everwork.server.grpc.gateway import Context, Gateway, Methods, Rpc
from everwork.server.grpc.outcomes import settled
from everwork.server.grpc.work_stream import WorkStream
from everwork.service.access.keys import KeyRing
from everwork.service.access.principal import Permission
from everwork.service.jobs import Jobs
from everwork.service.service import JobService

SERVICE: Final = "everwork.v1.WorkService"
WORK: Final = Rpc("stream", SERVICE, "Work", Permission.JOBS)
CREATE: Final = Rpc("stream", SERVICE, "CreateJobs", Permission.JOBS)
TICK_SECONDS: Final = 1.0
COME_BACK_SECONDS: Final = 0.5
"""How long the attempts of a stream that broke wait for their worker to come back with another."""
TOLERANCE_MS: Final = 200
"""How exactly it is known when a lease was last prolonged by this server."""
READ_MAX: Final = 200


class WorkStreams:
    """All streams of this server. They live in the event loop of the service."""

    def __init__(self, service: JobService, keys: KeyRing) -> None:
        self._service = service
        self._keys = keys
        self._streams: set[WorkStream] = set()
        self._orphans: dict[Lease, WorkStream] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closing = False
        self._ticking = BackgroundLoop("everwork-streams", self._tick, TICK_SECONDS)

    def start(self) -> None:
        """Begin to look after the streams."""
        self._ticking.start()

    def close(self) -> None:
        """Tell every worker that this server stops; outcomes are taken until they close their side."""
        self._is_closing = True
        for stream in self._streams:
            stream.stop_feeding(closing=True)

    async def wait_closed(self) -> None:
        """Wait for what streams have left behind, once they are gone."""
        await self._ticking.abort()
        while self._tasks:
            await asyncio.wait(self._tasks)

    def methods(self, gateway: Gateway) -> Methods:
        """The calls that this door answers."""
        return {
            WORK.path: gateway.stream(WORK, self._serve),
            CREATE.path: gateway.unary(CREATE, work_pb2.CreateJobsRequest, _create),
        }

    async def _serve(self, desk: Jobs, context: Context) -> None:
        """The life of one stream."""
        stream = WorkStream(self._service, desk, self, context.write)
        self._streams.add(stream)
        if self._is_closing:
            stream.stop_feeding(closing=True)
        try:
            await stream.run(_messages(context))
        finally:
            self._streams.discard(stream)
            self._leave(stream)

    # What streams leave behind ------------------------------------------------------------------

    def adopted(self, leases: Iterable[Lease], by: Jobs | None = None) -> None:
        """Attempts of earlier streams run on in another one; an earlier one may not have noticed its end yet.

        With `by`, only those that were leased with the same key: of others it is not known yet whose they are.
        """
        wanted = set(leases)
        for stream in {*self._streams, *(self._orphans[lease] for lease in wanted.intersection(self._orphans))}:
            if by is None or stream.jobs.principal.id == by.principal.id:
                for lease in wanted.intersection(stream.held):
                    del stream.held[lease]
                    self._orphans.pop(lease, None)

    def finish(self, desk: Jobs, outcomes: Sequence[work_pb2.Outcome]) -> None:
        """Outcomes that came before their stream ended are still settled."""
        if outcomes:
            self._later(through_outage(lambda: settled(self._service, desk, outcomes), None))

    def _leave(self, stream: WorkStream) -> None:
        """A stopping server's workers come back elsewhere, with their leases; others have a moment to come back."""
        if stream.held and not self._is_closing:
            self._orphans |= dict.fromkeys(stream.held, stream)
            self._later(self._give_up(stream, list(stream.held)))

    async def _give_up(self, stream: WorkStream, leases: list[Lease]) -> None:
        """Those whose worker has not come back in time have failed."""
        await asyncio.sleep(COME_BACK_SECONDS)
        gone = [lease for lease in leases if self._orphans.get(lease) is stream]
        for start in range(0, len(gone), READ_MAX):
            batch = gone[start : start + READ_MAX]
            await through_outage(lambda batch=batch: self._fail(stream, batch), None)  # type: ignore[misc]

    async def _fail(self, stream: WorkStream, leases: list[Lease]) -> None:
        """Fail attempts whose leases nobody has prolonged since: their worker may run on with another server."""
        now_ms = await self._service.now()
        now = asyncio.get_running_loop().time()
        outcomes: list[Outcome] = []
        for lease, job in zip(leases, await self._service.get_many([one.key for one in leases]), strict=True):
            if job is None or self._orphans.get(lease) is not stream:
                continue
            ends_ms = now_ms - (now - stream.held[lease]) * 1000 + stream.lease_ms + TOLERANCE_MS
            if (job.lease_until_ms or 0) <= ends_ms:
                outcomes.append(Failed(lease.key, lease.attempt, _gone(stream.worker)))
        if outcomes:
            await self._service.settle(outcomes)
        for lease in leases:
            if self._orphans.get(lease) is stream:
                del self._orphans[lease]

    def _later(self, work: Awaitable[object]) -> None:
        """Do something that nobody waits for but `wait_closed`."""
        task = asyncio.ensure_future(_or_lapse(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # The look after them ------------------------------------------------------------------------

    async def _tick(self) -> bool:
        now = asyncio.get_running_loop().time()
        for stream in list(self._streams):
            if (error := self._is_over(stream, now)) is not None:
                stream.end(error)
        holders = {lease: stream for stream in self._streams for lease in stream.held}
        leases = list(holders)
        for start in range(0, len(leases), SETTLE_BATCH_MAX):
            batch = leases[start : start + SETTLE_BATCH_MAX]
            for lease, status in zip(batch, await self._service.check(batch), strict=True):
                if status is not LeaseStatus.HELD:
                    holders[lease].lose(lease, status)
        return False

    def _is_over(self, stream: WorkStream, now: float) -> EverworkError | None:
        if not self._keys.is_live(stream.jobs.principal):
            return Unauthenticated("the API key of this stream is no longer valid")
        if now - stream.heard_at > stream.silence_seconds_max + TICK_SECONDS:
            return CallTimeout(f"worker '{stream.worker}' sent nothing for {now - stream.heard_at:.0f} s")
        return None


async def _create(desk: Jobs, asked: work_pb2.CreateJobsRequest) -> work_pb2.CreateJobsResponse:
    """Accept jobs, all or none."""
    created = await desk.create(new_jobs(asked.jobs, desk.principal))
    return work_pb2.CreateJobsResponse(
        jobs=[work_pb2.CreatedJob(key=one.key, deduplicated=one.deduplicated) for one in created]
    )


async def _messages(context: Context) -> AsyncIterator[bytes]:
    while (raw := await context.read()) is not grpc.aio.EOF:  # type: ignore[attr-defined] # the stubs have forgotten it
        yield raw


async def _or_lapse(work: Awaitable[object]) -> None:
    """If the engine stays away, the leases lapse."""
    with suppress(EngineError):
        await work


def _gone(worker: str) -> str:
    return f"worker '{worker}' has gone: its stream ended, and it did not come back"
