"""Serves all worker streams, and fails the attempts of workers that do not reconnect."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from everwork.aio.loops import BackgroundLoop
from everwork.aio.retrying import retry_while_unavailable
from everwork.codec.proto_replies import created_message
from everwork.codec.proto_requests import new_jobs_of, stamp_of
from everwork.core.job import NewJob
from everwork.core.leasing import Lease, LeaseStatus
from everwork.core.limits import SETTLE_BATCH_MAX
from everwork.core.outcome import Failed, Outcome
from everwork.exceptions import CallTimeout, EngineError, EverworkError, TooManyRequests, Unauthenticated
from everwork.proto import work_pb2
from everwork.server.grpc.gateway import Context, Gateway, Methods, Rpc
from everwork.server.grpc.intake import EOF, RETRY_MS
from everwork.server.grpc.outcomes import settle_messages
from everwork.server.grpc.work_stream import WorkStream
from everwork.server.settings import Settings
from everwork.service.access.budgets import decrement, has_its_share
from everwork.service.access.keys import KeyRing
from everwork.service.access.principal import Party, Principal
from everwork.service.jobs import Jobs
from everwork.service.service import JobService, require_one_batch

SERVICE: Final = "everwork.v1.WorkService"
WORK: Final = Rpc("stream", SERVICE, "Work", Jobs.activate)
CREATE: Final = Rpc("stream", SERVICE, "CreateJobs", Jobs.create)
TICK_SECONDS: Final = 1.0
RECONNECT_SECONDS: Final = 0.5
"""How long the attempts of a broken stream wait for their worker to reconnect."""
TOLERANCE_MS: Final = 200
"""How precisely this server knows when it last extended a lease."""
CLOCK_READS_MAX: Final = 10
"""How often the engine's clock is read again because its answer took longer than that."""
READ_MAX: Final = 200


class WorkStreams:
    """All streams of this server, in the event loop of the service."""

    def __init__(self, service: JobService, keys: KeyRing, settings: Settings | None = None) -> None:
        self._service = service
        self._keys = keys
        self._settings = settings or Settings()
        self._streams: set[WorkStream] = set()
        self._of_key: Counter[str] = Counter()
        self._of_party: Counter[Party] = Counter()
        self._orphans: dict[Lease, WorkStream] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closing = False
        self._ticking = BackgroundLoop("everwork-streams", self._tick, TICK_SECONDS)

    def start(self) -> None:
        """Start the background loop."""
        self._ticking.start()

    def close(self) -> None:
        """Announce to every worker that this server is stopping; outcomes are accepted until they close their side."""
        self._is_closing = True
        for stream in self._streams:
            stream.stop_feeding(closing=True)

    async def wait_closed(self) -> None:
        """Wait for the work left behind by ended streams."""
        await self._ticking.abort()
        while self._tasks:
            await asyncio.wait(self._tasks)

    def methods(self, gateway: Gateway) -> Methods:
        """The handlers of the service."""
        return {
            WORK.path: gateway.bidirectional(WORK, partial(self._serve, gateway)),
            CREATE.path: gateway.unary(CREATE, work_pb2.CreateJobsRequest, self._create),
        }

    async def _serve(self, gateway: Gateway, jobs: Jobs, context: Context) -> None:
        """Serve one stream to its end."""
        principal = jobs.principal
        self._require_room(gateway, principal)
        requests, undelivered = gateway.receiving.requests, gateway.undelivered
        stream = WorkStream(self._service, jobs, self, context.write, requests=requests, undelivered=undelivered)
        self._streams.add(stream)
        self._of_key[principal.id] += 1
        self._of_party[principal.party] += 1
        if self._is_closing:
            stream.stop_feeding(closing=True)
        try:
            await stream.run(_messages(gateway, jobs, context))
        finally:
            self._streams.discard(stream)
            decrement(self._of_key, principal.id)
            decrement(self._of_party, principal.party)
            self._leave(stream)

    def _require_room(self, gateway: Gateway, principal: Principal) -> None:
        """Refuse a stream if a limit has been reached; once the server is full, each key keeps an equal share."""
        settings, own, of_party = self._settings, self._of_key[principal.id], self._of_party[principal.party]
        problem = ""
        if own >= settings.streams_per_key:
            problem = f"{own:,} worker streams of this API key are open (setting streams_per_key)"
        elif of_party >= settings.streams_per_key * settings.tenant_factor:
            names = "settings streams_per_key and tenant_factor"
            problem = f"{of_party:,} worker streams of this tenant's API keys are open ({names})"
        elif has_its_share(own, len(self._streams), settings.max_streams, len(self._of_key)):
            reached = "the server has reached its limit of worker streams"
            problem = f"{reached}, {own:,} of them from this API key (setting max_streams)"
        if problem:
            gateway.notices.warning("worker stream refused: too many are open", problem=problem, key=principal.id)
            raise TooManyRequests(f"{problem}; retry later", RETRY_MS)

    def pace(self, jobs: Jobs) -> float:
        """Count one message; a worker above the rate limit of its key is read more slowly."""
        return self._keys.pace(jobs.principal)

    async def _create(self, jobs: Jobs, request: work_pb2.CreateJobsRequest) -> work_pb2.CreateJobsResponse:
        """Accept jobs, all or none; they are parsed in slices while other keys are active."""
        require_one_batch(request.jobs)
        stamp, slices = stamp_of(request), self._service.budgets.slices(jobs.principal)
        checked: list[NewJob] = []
        for start in range(0, len(request.jobs), slices.size):
            if start:
                await slices.give_way()
            slice_ = request.jobs[start : start + slices.size]
            checked += new_jobs_of(slice_, jobs.principal.tenant_for_create, first=start)
        created = await jobs.create(checked, stamp)
        response = work_pb2.CreateJobsResponse()
        for start in range(0, len(created), slices.size):
            if start:
                await slices.give_way()
            response.jobs.extend([created_message(one) for one in created[start : start + slices.size]])
        return response

    # After the end of a stream ------------------------------------------------------------------

    def adopt(self, leases: Iterable[Lease], by: Jobs | None = None) -> None:
        """Move attempts of earlier streams to another one; an earlier stream may not have noticed its end yet.

        With `by`, only those that were leased with the same key: the owner of others is not known yet.
        """
        adopted = set(leases)
        for stream in {*self._streams, *(self._orphans[lease] for lease in adopted.intersection(self._orphans))}:
            if by is None or stream.jobs.principal.id == by.principal.id:
                for lease in stream.held.keys() & adopted:
                    del stream.held[lease]
                    self._orphans.pop(lease, None)

    def finish(self, jobs: Jobs, outcomes: Sequence[work_pb2.Outcome], done: Callable[[], None]) -> None:
        """Settle outcomes that arrived before their stream ended, and then call `done`."""
        if outcomes:
            settle = partial(settle_messages, self._service, jobs, outcomes)
            self._start(retry_while_unavailable(settle, None)).add_done_callback(lambda _: done())
        else:
            done()

    def _leave(self, stream: WorkStream) -> None:
        """Give the worker of a broken stream a moment to reconnect before its attempts fail.

        Workers of a stopping server reconnect elsewhere, with their leases. Workers in offline mode continue without a
        server: their leases expire, and are restored when they report.
        """
        if stream.held and not self._is_closing and not stream.is_offline:
            self._orphans |= dict.fromkeys(stream.held, stream)
            self._start(self._fail_orphans(stream, list(stream.held)))

    async def _fail_orphans(self, stream: WorkStream, leases: list[Lease]) -> None:
        """Fail the attempts whose worker has not reconnected in time."""
        await asyncio.sleep(RECONNECT_SECONDS)
        orphans = [lease for lease in leases if self._orphans.get(lease) is stream]
        try:
            for start in range(0, len(orphans), READ_MAX):
                batch = orphans[start : start + READ_MAX]
                await retry_while_unavailable(lambda batch=batch: self._fail(stream, batch), None)  # type: ignore[misc]
        finally:
            for lease in orphans:
                if self._orphans.get(lease) is stream:
                    del self._orphans[lease]

    async def _fail(self, stream: WorkStream, leases: list[Lease]) -> None:
        """Fail attempts unless their leases have been extended since: their worker may have moved to another server."""
        now_ms, now = await self._clocks()
        outcomes: list[Outcome] = []
        for lease, job in zip(leases, await self._service.get_many([one.key for one in leases]), strict=True):
            held_at = stream.held.get(lease)  # None: lost, as a check found that began before the stream ended.
            if job is None or held_at is None or self._orphans.get(lease) is not stream:
                continue
            ends_ms = now_ms - (now - held_at) * 1000 + stream.lease_ms + TOLERANCE_MS
            if (job.lease_until_ms or 0) <= ends_ms:
                outcomes.append(Failed(lease.key, lease.attempt, _gone_text(stream.worker)))
        if outcomes:
            await self._service.settle(outcomes)

    async def _clocks(self) -> tuple[int, float]:
        """The engine's time, and the event loop's at the same moment.

        On a busy machine the answer may be late; leases would then seem to have been extended elsewhere.
        """
        loop = asyncio.get_running_loop()
        reads = 0
        while True:
            asked_at = loop.time()
            now_ms = await self._service.now()
            now, reads = loop.time(), reads + 1
            if (now - asked_at) * 1000 <= TOLERANCE_MS or reads == CLOCK_READS_MAX:
                return now_ms, now

    def _start(self, work: Awaitable[object]) -> asyncio.Task[None]:
        """Start a task that only `wait_closed` waits for."""
        task = asyncio.ensure_future(_unless_unavailable(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # Background loop ----------------------------------------------------------------------------

    async def _tick(self) -> bool:
        now = asyncio.get_running_loop().time()
        for stream in list(self._streams):
            if (error := self._end_reason(stream, now)) is not None:
                stream.end(error)
        holders = {lease: stream for stream in self._streams for lease in stream.held}
        leases = list(holders)
        for start in range(0, len(leases), SETTLE_BATCH_MAX):
            batch = leases[start : start + SETTLE_BATCH_MAX]
            statuses = dict(zip(batch, await self._service.check(batch), strict=True))
            if self._service.is_late:
                statuses |= await self._taken_back([x for x in batch if statuses[x] is LeaseStatus.LOST], holders)
            for lease, status in statuses.items():
                if status is not LeaseStatus.HELD:
                    holders[lease].lose(lease, status)
        return False

    async def _taken_back(
        self, leases: Sequence[Lease], holders: Mapping[Lease, WorkStream]
    ) -> dict[Lease, LeaseStatus]:
        """Restore leases that expired in an outage, before the heartbeats of their workers could be forwarded."""
        found: dict[Lease, LeaseStatus] = {}
        for lease_ms in {holders[lease].lease_ms for lease in leases}:
            own = [lease for lease in leases if holders[lease].lease_ms == lease_ms]
            found |= zip(own, await self._service.extend_all(own, lease_ms), strict=True)
        return found

    def _end_reason(self, stream: WorkStream, now: float) -> EverworkError | None:
        if not self._keys.is_live(stream.jobs.principal):
            return Unauthenticated("the API key of this stream is no longer valid")
        if now - stream.heard_at > stream.silence_seconds_max + TICK_SECONDS:
            return CallTimeout(f"worker '{stream.worker}' sent nothing for {now - stream.heard_at:.0f} s")
        return None


async def _messages(gateway: Gateway, jobs: Jobs, context: Context) -> AsyncIterator[bytes]:
    """The messages of a worker; the first one is received under the same limits as any other request."""
    if (first := await gateway.receiving.message(jobs.principal.id, context)) is not EOF:
        yield first
    while (raw := await context.read()) is not EOF:
        yield raw


async def _unless_unavailable(work: Awaitable[object]) -> None:
    """Give up if the engine stays unavailable; the leases then expire."""
    with suppress(EngineError):
        await work


def _gone_text(worker: str) -> str:
    return f"worker '{worker}' disconnected: its stream ended and it did not reconnect in time"
